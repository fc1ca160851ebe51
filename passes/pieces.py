"""Concatenations: reading a piece, cutting along aligned cut points, moving outward (soundness N5).

A concatenation class has one operand per piece, each with one bound position of the piece's extent,
and its last slot is the concatenated position; `attrs` are the pieces' extents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from shardproof.passes.access import Element, Expr, constant, index, shift
from shardproof.passes.classes import Store, Term


class Rebuild(NamedTuple):
    """How to make the same application again, and how to join reductions over parts of a bound index."""

    make: Callable[[list[Term], set[int]], Term]
    join: Callable[[list[Term]], Term] | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """An index, and the values at which it crosses from one piece to the next."""

    index: int
    at: tuple[int, ...]


def read(store: Store, t: Term) -> Term:
    """The term with concatenations entered where the access stays within one piece."""
    while True:
        c = store.classes[t.cls]
        if c.op != "concat":
            return t
        position = t.access[-1]
        low, high = store.range(position)
        if low is None or high is None:
            return t
        start = 0
        for n, extent in enumerate(c.attrs):
            if start <= low and high < start + extent:
                inner = piece(store, t, n, shift(position, -start))
                t = Term(inner.coef * t.coef, inner.cls, inner.access)
                break
            start += extent
        else:
            return t


def piece(store: Store, t: Term, n: int, local: Expr) -> Term:
    """Piece `n` of a concatenation's class, read at `local` of the piece; `t`'s coefficient is left out."""
    c = store.classes[t.cls]
    by = dict(zip(c.free, t.access, strict=True))
    first = sum(c.groups[:n])
    stride = 1
    for b in reversed(c.bound[first : first + c.groups[n]]):
        by[b] = store.digit(local, stride, store.sizes[b])
        stride *= store.sizes[b]
    return store.substitute_term(c.operands[n], by)


def find_cut(
    store: Store, operands: Sequence[Term], admits: Callable[[Cut], bool] = lambda cut: True
) -> Cut | None:
    """An index along which some operand, or a position where one is read, is a concatenation with aligned cut
    points."""
    for t in operands:
        for cls, access in _joined(store, t):
            cut = _aligned(store, access[-1], list(accumulate(store.classes[cls].attrs[:-1])))
            if cut is not None and admits(cut):
                return cut
    return None


def _joined(store: Store, t: Term) -> Iterator[tuple[int, tuple[Expr, ...]]]:
    """The concatenations that a term reads, itself or as a position, and where."""
    if store.classes[t.cls].op == "concat":
        yield t.cls, t.access
    for e in t.access:
        for u, _ in e[1]:
            atom = store.atom(u) if u < 0 else None
            if isinstance(atom, Element) and store.classes[atom.cls].op == "concat":
                yield atom.cls, atom.access


def _aligned(store: Store, position: Expr, borders: Sequence[int]) -> Cut | None:
    leads = [(s, t) for t, s in position[1] if t > 0 and s > 0]
    for stride, i in sorted(leads, reverse=True):
        low, high = store.range((position[0], tuple(x for x in position[1] if x[0] != i)))
        if low is None or high is None:
            return None
        at = []
        for border in borders:
            k = -((low - border) // stride)
            if stride * (k - 1) + high >= border:
                break
            if 0 < k < store.sizes[i]:
                at.append(k)
        else:
            if at and not any(t < 0 and i in set(store.indices((0, ((t, 1),)))) for t, _ in position[1]):
                return Cut(i, tuple(sorted(set(at))))
    return None


def segments(store: Store, cut: Cut) -> Iterator[tuple[int, int | None, Expr]]:
    """(extent, fresh index or None for extent 1, what the cut index is) of each segment."""
    edges = [0, *cut.at, store.sizes[cut.index]]
    for a, b in pairwise(edges):
        if b - a == 1:
            yield 1, None, constant(a)
        else:
            i = store.fresh(b - a)
            yield b - a, i, shift(index(i), a)


def distribute(store: Store, operands: Sequence[Term], bound: set[int], cut: Cut, rebuild: Rebuild) -> Term:
    """The application as a concatenation (or combination of reductions) over the segments of `cut`."""
    results: list[tuple[int, int | None, Term]] = []
    reduced = cut.index in bound
    for extent, i, at in segments(store, cut):
        cut_operands = [read(store, store.substitute_term(t, {cut.index: at})) for t in operands]
        inner = bound - {cut.index}
        if reduced and i is not None:
            inner.add(i)
        results.append((extent, i, rebuild.make(cut_operands, inner)))
    if rebuild.join is not None and reduced:
        return rebuild.join([t for _, _, t in results])
    return store.builders["concat"](store, cut.index, results)
