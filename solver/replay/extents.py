"""Extents with structure, and their unification.

An extent is an atom, a product of extents (row-major, as `reshape` makes them) or a sum of extents
(side by side, as `concatenate` and `slice` make them). Two dims that a program pairs have one extent,
so their structures are refined until they agree. Every choice of sizes for the free atoms then
gives sizes for all dims with which the program still type checks. What can't be refined is fixed
at its original size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

Form = Literal["atom", "product", "sum"]


@dataclass(slots=True, eq=False)
class Extent:
    """A node; `parts` is empty for an atom. An atom that turns out to have structure gets a `link`."""

    size: int
    form: Form = "atom"
    parts: tuple[Extent, ...] = ()
    fixed: bool = False
    chosen: int | None = None
    link: Extent | None = field(default=None, repr=False)


def atom(size: int) -> Extent:
    """A free atom; extents 0 and 1 are never changed."""
    return Extent(size, fixed=size <= 1)


def resolve(extent: Extent) -> Extent:
    """The node that `extent` stands for now."""
    while extent.link is not None:
        extent = extent.link
    return extent


def product(parts: Iterable[Extent]) -> Extent:
    """The extent of dims `parts` merged into one, the last one fastest."""
    flat = _flat(parts, "product")
    flat = tuple(p for p in flat if p.size != 1)
    if not flat:
        return atom(1)
    if len(flat) == 1:
        return flat[0]
    return Extent(prod(p.size for p in flat), "product", flat)


def total(parts: Iterable[Extent]) -> Extent:
    """The extent of `parts` side by side."""
    flat = tuple(p for p in _flat(parts, "sum") if p.size)
    if not flat:
        return atom(0)
    if len(flat) == 1:
        return flat[0]
    return Extent(sum(p.size for p in flat), "sum", flat)


def _flat(parts: Iterable[Extent], form: Form) -> tuple[Extent, ...]:
    out: list[Extent] = []
    for part in map(resolve, parts):
        out.extend(_flat(part.parts, form) if part.form == form else (part,))
    return tuple(out)


def _parts(extent: Extent) -> tuple[Extent, ...]:
    return _flat((extent,), resolve(extent).form) if resolve(extent).form != "atom" else (resolve(extent),)


def atoms(extent: Extent) -> list[Extent]:
    """The distinct atoms of an extent in order of first occurrence."""
    seen: dict[int, Extent] = {}
    todo = [extent]
    while todo:
        node = resolve(todo.pop())
        if node.form == "atom":
            seen.setdefault(id(node), node)
        else:
            todo.extend(reversed(node.parts))
    return list(seen.values())


def fix(extent: Extent) -> None:
    """Keep this extent, and so all its atoms, at the original size."""
    for node in atoms(extent):
        node.fixed = True


def is_fixed(extent: Extent) -> bool:
    """Whether no atom of it is free."""
    return all(node.fixed for node in atoms(extent))


def unify(a: Extent, b: Extent) -> None:
    """Make two extents of one size the same extent; where their structures don't fit, fix both."""
    a, b = resolve(a), resolve(b)
    if a is b or a.size != b.size:
        if a is not b:
            fix(a)
            fix(b)
        return
    if is_fixed(a) or is_fixed(b):
        fix(a)
        fix(b)
        return
    if a.form != "atom" and b.form == "atom":
        a, b = b, a
    if a.form == "atom":
        a.link = b
        return
    if a.form == "sum" and b.form == "product":
        a, b = b, a
    if a.form == "product":
        _unify_product(a, b)
    else:
        _unify_sums(a, b)
    if a.form == b.form:
        a.link = b


def _unify_product(a: Extent, b: Extent) -> None:
    """Strip the fastest factor of `a` off both, then the rest."""
    parts = _parts(a)
    last = parts[-1]
    other = _parts(b)[-1] if resolve(b).form == "product" else None
    if other is not None and other.size < last.size:
        a, b, parts, last = b, a, _parts(b), other
    split = split_fastest(b, last.size)
    if split is None:
        fix(a)
        fix(b)
        return
    unify(last, split[1])
    unify(product(parts[:-1]), split[0])


def _unify_sums(a: Extent, b: Extent) -> None:
    left, right = list(_parts(a)), list(_parts(b))
    while left and right:
        x, y = left.pop(0), right.pop(0)
        if x.size > y.size:
            (x, y), (left, right) = (y, x), (right, left)
        if x.size < y.size:
            y, rest = cut(y, x.size)
            right.insert(0, rest)
        unify(x, y)


def split_fastest(extent: Extent, size: int) -> tuple[Extent, Extent] | None:
    """(slow, fast) with `fast.size == size` whose product is `extent`, or None when it doesn't divide."""
    node = resolve(extent)
    if size <= 0 or node.size % size:
        return None
    if size == node.size:
        return atom(1), node
    if size == 1:
        return node, atom(1)
    if node.form == "atom":
        slow, fast = atom(node.size // size), atom(size)
        slow.fixed = slow.fixed or node.fixed
        fast.fixed = node.fixed
        node.link = product((slow, fast))
        return slow, fast
    parts = _parts(node)
    if node.form == "product":
        *first, last = parts
        if last.size == size:
            return product(first), last
        if last.size < size:
            if size % last.size:
                return None
            inner = split_fastest(product(first), size // last.size)
            return None if inner is None else (inner[0], product((inner[1], last)))
        inner = split_fastest(last, size)
        return None if inner is None else (product((*first, inner[0])), inner[1])
    return _split_sum(node, size)


def _split_sum(extent: Extent, size: int) -> tuple[Extent, Extent] | None:
    slows: list[Extent] = []
    fast: Extent | None = None
    rest = extent
    while rest.size:
        first = _parts(rest)[0] if resolve(rest).form == "sum" else resolve(rest)
        if first.size % size:
            piece, rest = cut(rest, size)
            inner: tuple[Extent, Extent] | None = (atom(1), piece)
        else:
            piece, rest = cut(rest, first.size)
            inner = split_fastest(piece, size)
        if inner is None:
            return None
        slows.append(inner[0])
        if fast is None:
            fast = inner[1]
        else:
            unify(fast, inner[1])
    return None if fast is None else (total(slows), fast)


def cut(extent: Extent, at: int) -> tuple[Extent, Extent]:
    """The first `at` positions and the rest; a row of a product that the cut goes through becomes a part."""
    node = resolve(extent)
    if at <= 0:
        return atom(0), node
    if at >= node.size:
        return node, atom(0)
    if node.form == "atom":
        left, right = atom(at), atom(node.size - at)
        left.fixed = left.fixed or node.fixed
        right.fixed = right.fixed or node.fixed
        node.link = total((left, right))
        return left, right
    parts = _parts(node)
    if node.form == "sum":
        for i, part in enumerate(parts):
            if at < part.size:
                left, right = cut(part, at)
                return total((*parts[:i], left)), total((right, *parts[i + 1 :]))
            at -= part.size
            if at == 0:
                return total(parts[: i + 1]), total(parts[i + 1 :])
    inner = product(parts[1:])
    row, column = divmod(at, inner.size)
    upper, rest = cut(parts[0], row)
    if column == 0:
        return product((upper, inner)), product((rest, inner))
    _, lower = cut(rest, 1)
    left, right = cut(inner, column)
    return total((product((upper, inner)), left)), total((right, product((lower, inner))))


def window(extent: Extent, start: int, stop: int) -> Extent:
    """The part `start` .. `stop` of an extent."""
    return cut(cut(extent, stop)[0], start)[1]


def chosen(extent: Extent) -> int:
    """The new size, once the atoms' sizes are chosen."""
    node = resolve(extent)
    if node.form == "atom":
        return node.size if node.fixed or node.chosen is None else node.chosen
    sizes = [chosen(p) for p in node.parts]
    return prod(sizes) if node.form == "product" else sum(sizes)


def kept(extent: Extent) -> npt.NDArray[np.int64]:
    """The original positions that the new ones stand for, increasing: the first ones of each atom."""
    node = resolve(extent)
    if node.form == "atom":
        return np.arange(chosen(node), dtype=np.int64)
    if node.form == "sum":
        pieces, offset = [], 0
        for part in node.parts:
            pieces.append(kept(part) + offset)
            offset += part.size
        return np.concatenate(pieces)
    positions = np.zeros(1, np.int64)
    for part in node.parts:
        positions = (positions[:, None] * part.size + kept(part)[None, :]).reshape(-1)
    return positions


def choose(extents: Sequence[Extent], sizes: Sequence[int]) -> None:
    """Give the free atoms of `extents`, in order of first occurrence, small sizes from `sizes` in turn."""
    at = 0
    for extent in extents:
        for node in atoms(extent):
            if node.fixed or node.chosen is not None:
                continue
            node.chosen = min(sizes[at % len(sizes)], max(node.size - 1, 2))
            at += 1
