"""Views: tensors as terms over indices, and what layout operators do to them.

A view has one row-major list of indices per dim of the tensor; ranks are indices that belong to no
dim. Extents 1 have an empty list. A tensor with an extent 0 has no elements: every view of it is
equal to every other, so it is the constant 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from shardproof.ir.types import DType
from shardproof.passes.access import Expr, constant, index, scale, shift
from shardproof.passes.classes import Store, Term
from shardproof.passes.concatenate import concatenate, settle

Dims = tuple[tuple[int, ...], ...]


class Unsupported(Exception):
    """This operator, or this use of it, has no meaning as views; the message says what."""


@dataclass(frozen=True, slots=True)
class View:
    """A tensor: the value of its element, the indices of each dim, the shape and element type."""

    term: Term
    dims: Dims
    shape: tuple[int, ...]
    dtype: DType


def fresh(store: Store, extent: int) -> tuple[int, ...]:
    """A new index for a dim."""
    return (store.fresh(extent),) if extent > 1 else ()


def position(store: Store, v: View, dim: int) -> Expr:
    """The position along `dim` as an expression over its indices."""
    return store.flatten(v.dims[dim])


def place(store: Store, v: View, at: Sequence[Expr]) -> Term:
    """The element of `v` at one position per dim; each must be in range."""
    by: dict[int, Expr] = {}
    for d, e in enumerate(at):
        split_into(store, v.dims[d], e, by)
    return settle(store, store.substitute_term(v.term, by))


def split_into(store: Store, digits: Sequence[int], e: Expr, by: dict[int, Expr]) -> None:
    """Set each index of a dim to its digit of position `e`."""
    if len(digits) == 1:
        by[digits[0]] = e
        return
    stride = 1
    for i in reversed(digits):
        by[i] = store.digit(e, stride, store.sizes[i])
        stride *= store.sizes[i]


def align(store: Store, views: Sequence[View], dims: Sequence[Sequence[int]]) -> tuple[Dims, list[Term]]:
    """Identify dims of several views: `dims[k]` lists, per identified dim, the dim of view k.

    Gives the common indices of each identified dim and the terms over them; other dims keep theirs.
    Views must not share indices of dims that are not identified (rename first).
    """
    maps: list[dict[int, Expr]] = [{} for _ in views]
    common: list[tuple[int, ...]] = []
    for n in range(len(dims[0])):
        lists = [v.dims[ds[n]] for v, ds in zip(views, dims, strict=True)]
        common.append(_refine(store, lists, maps))
    terms = [
        store.substitute_term(v.term, m) if m else v.term for v, m in zip(views, maps, strict=True)
    ]
    return tuple(common), terms


def _refine(
    store: Store, lists: Sequence[tuple[int, ...]], maps: list[dict[int, Expr]]
) -> tuple[int, ...]:
    sizes = store.sizes
    first = lists[0]
    shape = [sizes[i] for i in first]
    if all(x == first for x in lists):
        return first
    if all([sizes[i] for i in x] == shape for x in lists):
        for x, m in zip(lists, maps, strict=True):
            if x != first:
                for old, new in zip(x, first, strict=True):
                    m[old] = index(new)
        return first
    edges = {1}
    for x in lists:
        stride = 1
        for i in reversed(x):
            stride *= sizes[i]
            edges.add(stride)
    chain = sorted(edges)
    if all(b % a == 0 for a, b in pairwise(chain)):
        digits = [store.fresh(b // a) for a, b in pairwise(chain)]
        at = dict(zip(chain, digits, strict=False))
        for x, m in zip(lists, maps, strict=True):
            low = 1
            for i in reversed(x):
                high = low * sizes[i]
                m[i] = (0, tuple(sorted((at[c], c // low) for c in chain if low <= c < high)))
                low = high
        return tuple(reversed(digits))
    flat = store.fresh(chain[-1])
    for x, m in zip(lists, maps, strict=True):
        split_into(store, x, index(flat), m)
    return (flat,)


def rename(store: Store, v: View, keep: frozenset[int] | set[int] = frozenset()) -> View:
    """The view with fresh indices in every dim but `keep`."""
    by: dict[int, Expr] = {}
    dims = []
    for d, digits in enumerate(v.dims):
        if d in keep:
            dims.append(digits)
            continue
        new = tuple(store.fresh(store.sizes[i]) for i in digits)
        by.update((i, index(j)) for i, j in zip(digits, new, strict=True))
        dims.append(new)
    return View(store.substitute_term(v.term, by), tuple(dims), v.shape, v.dtype)


def pointwise(
    store: Store, views: Sequence[View], dtype: DType, f: Callable[[list[Term]], Term]
) -> View:
    """`f` applied element by element to views of one shape."""
    shape = views[0].shape
    if 0 in shape:
        return empty(store, shape, dtype)
    every = range(len(shape))
    dims, terms = align(store, views, [every] * len(views))
    return View(f(terms), dims, shape, dtype)


def empty(store: Store, shape: tuple[int, ...], dtype: DType) -> View:
    """The tensor without elements."""
    zero = {"real": store.real(0), "bool": store.truth(False)}
    term = zero.get(dtype.kind, Term(1, store.POSITION, (constant(0),)))
    return View(term, tuple(fresh(store, n) for n in shape), shape, dtype)


def reshape(store: Store, v: View, shape: tuple[int, ...]) -> View:
    """The same elements in row-major order under another shape."""
    if 0 in shape:
        return empty(store, shape, v.dtype)
    digits = [i for d in v.dims for i in d]
    grouped = _regroup(store, digits, shape)
    if grouped is None:
        digits, term = _joined(store, digits, v.term)
        grouped = _regroup(store, digits, shape)
        v = View(term, (), v.shape, v.dtype)
    if grouped is not None:
        dims, by = grouped
        return View(settle(store, store.substitute_term(v.term, by)) if by else v.term, dims, shape, v.dtype)
    dims = tuple(fresh(store, n) for n in shape)
    by = {}
    split_into(store, digits, store.flatten([i for d in dims for i in d]), by)
    return View(store.substitute_term(v.term, by), dims, shape, v.dtype)


def _regroup(
    store: Store, digits: Sequence[int], shape: Sequence[int]
) -> tuple[Dims, dict[int, Expr]] | None:
    """Distribute row-major indices over dims, splitting them where that divides."""
    rest = list(reversed(digits))
    by: dict[int, Expr] = {}
    owner: dict[int, tuple[int, int]] = {}
    dims = []
    for n in shape:
        mine: list[int] = []
        while n > 1:
            i = rest.pop()
            size = store.sizes[i]
            if n % size == 0:
                mine.append(i)
                n //= size
            elif size % n == 0:
                hi, lo = store.fresh(n), store.fresh(size // n)
                root, stride = owner.pop(i, (i, 1))
                owner[hi] = (root, stride * (size // n))
                owner[lo] = (root, stride)
                mine.append(hi)
                rest.append(lo)
                n = 1
            else:
                return None
        dims.append(tuple(mine))
    parts: dict[int, list[tuple[int, int]]] = {}
    for i, (root, stride) in owner.items():
        parts.setdefault(root, []).append((i, stride))
    for root, terms in parts.items():
        by[root] = (0, tuple(sorted(terms)))
    return tuple(dims), by


def _joined(store: Store, digits: Sequence[int], term: Term) -> tuple[list[int], Term]:
    """Adjacent indices that every access reads as `hi*|lo| + lo` become one."""
    from shardproof.passes.application import Application

    others = sorted(store.term_indices(term).difference(digits))
    work = Application(store, [term], (), (tuple(digits), *((i,) for i in others)), ())
    work.merge()
    return work.groups[0], work.operands[0]


def slice_(
    store: Store, v: View, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]
) -> View:
    """The sub-tensor `start:limit:stride` of every dim."""
    shape = tuple(-(-(b - a) // s) for a, b, s in zip(starts, limits, strides, strict=True))
    if 0 in shape:
        return empty(store, shape, v.dtype)
    by: dict[int, Expr] = {}
    dims = []
    for d, (start, step, n) in enumerate(zip(starts, strides, shape, strict=True)):
        digits = v.dims[d]
        if n == v.shape[d]:
            dims.append(digits)
            continue
        dims.append(_narrow(store, digits, start, step, n, by))
    term = settle(store, store.substitute_term(v.term, by))
    return View(term, tuple(dims), shape, v.dtype)


def _narrow(
    store: Store, digits: Sequence[int], start: int, step: int, n: int, by: dict[int, Expr]
) -> tuple[int, ...]:
    if n == 1:
        split_into(store, digits, constant(start), by)
        return ()
    if len(digits) > 1:
        low = prod(store.sizes[i] for i in digits[1:])
        if start // low == (start + step * (n - 1)) // low:
            by[digits[0]] = constant(start // low)
            rest = digits[1:]
            return _narrow(store, rest, start % low, step, n, by) if n < low or step > 1 else tuple(rest)
        if step == 1 and start % low == 0 and n % low == 0:
            lead = store.fresh(n // low)
            by[digits[0]] = shift(index(lead), start // low)
            return (lead, *digits[1:])
    i = store.fresh(n)
    split_into(store, digits, shift(scale(index(i), step), start), by)
    return (i,)


def join(store: Store, views: Sequence[View], dim: int) -> View:
    """Concatenation along `dim`."""
    views = [v for v in views if v.shape[dim]] or list(views[:1])
    first = views[0]
    extent = sum(v.shape[dim] for v in views)
    shape = (*first.shape[:dim], extent, *first.shape[dim + 1 :])
    if 0 in shape:
        return empty(store, shape, first.dtype)
    if len(views) == 1:
        return first
    others = [d for d in range(len(shape)) if d != dim]
    views = [first, *(rename(store, v) for v in views[1:])]
    dims, terms = align(store, views, [others] * len(views))
    pieces = []
    for v, t in zip(views, terms, strict=True):
        local = fresh(store, v.shape[dim])
        by: dict[int, Expr] = {}
        split_into(store, v.dims[dim], store.flatten(local), by)
        pieces.append((v.shape[dim], local[0] if local else None, store.substitute_term(t, by)))
    along = store.fresh(extent)
    term = concatenate(store, along, pieces)
    return View(term, (*dims[:dim], (along,), *dims[dim:]), shape, first.dtype)
