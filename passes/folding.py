"""Integer tables read at closed positions, folded by exact evaluation (soundness N6)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardproof.passes.access import Digit, Element, Expr, index, scale, shift

if TYPE_CHECKING:
    from shardproof.passes.classes import Store

LIMIT: Final = 1 << 14
"""Most values that are evaluated to fold one read."""

LARGEST: Final = 1 << 31
"""Largest value of a table that is read as a rotation."""

Grid = dict[int, Any]


def fold(store: Store, cls: int, access: tuple[Expr, ...]) -> Expr | None:
    """The read of a table as an affine expression or as a table of its own indices, if it is closed."""
    table = store.classes[cls]
    if table.op != "table" or not isinstance(table.attrs[0], tuple):
        return None
    plain = [
        e[1][0][0] for e in access if e[0] == 0 and len(e[1]) == 1 and e[1][0][1] == 1 and e[1][0][0] > 0
    ]
    if len(set(plain)) == len(access):
        return None
    support = sorted({i for e in access for i in store.indices(e)})
    shape = [store.sizes[i] for i in support]
    if prod(shape) > LIMIT:
        return None
    values = _read(store, cls, access, grid_of(support, shape))
    if values is None:
        return None
    return tabulated(store, np.broadcast_to(values, shape), support)


def fold_digit(store: Store, e: Expr) -> Expr:
    """A digit of what tables hold at closed positions, as an affine expression or a table of its own."""
    if e[0] or len(e[1]) != 1 or e[1][0][0] > 0:
        return e
    atom = store.atom(e[1][0][0])
    inside = atom.expr[1] if isinstance(atom, Digit) else ()
    if not any(t < 0 and isinstance(store.atom(t), Element) for t, _ in inside):
        return e
    support = sorted(set(store.indices(e)))
    shape = [store.sizes[i] for i in support]
    if not support or prod(shape) > LIMIT:
        return e
    values = evaluate(store, e, grid_of(support, shape))
    return e if values is None else tabulated(store, np.broadcast_to(values, shape), support)


def fold_sum(store: Store, e: Expr) -> Expr:
    """A sum of what a table holds at closed positions and of more that varies along the same indices, as one
    table or an affine expression."""
    tables = [t for t, _ in e[1] if t < 0 and isinstance(store.atom(t), Element)]
    told = {i for t in tables for i in store.indices((0, ((t, 1),)))}
    rest = [i for t, _ in e[1] if t not in tables for i in store.indices((0, ((t, 1),)))]
    if len(tables) + len(told.intersection(rest)) < 2 or not told:
        return e
    support = sorted(set(store.indices(e)))
    shape = [store.sizes[i] for i in support]
    ranges = [(s, *store.term_range(t)) for t, s in e[1]]
    small = all(x is not None and abs(s * x) < LARGEST for s, *bounds in ranges for x in bounds)
    if prod(shape) > LIMIT or not small:
        return e
    values = evaluate(store, e, grid_of(support, shape))
    return e if values is None else tabulated(store, np.broadcast_to(values, shape), support)


def grid_of(support: Sequence[int], shape: Sequence[int]) -> Grid:
    """Every value of each index, along an axis of its own."""
    return {
        i: np.arange(n).reshape([n if a == d else 1 for a in range(len(shape))])
        for d, (i, n) in enumerate(zip(support, shape, strict=True))
    }


def tabulated(store: Store, values: Any, at: list[int]) -> Expr:
    """An integer array over indices as an affine expression, else as a read of a table."""
    values = np.asarray(values)
    e = affine(values, [index(i) for i in at])
    if e is None and values.ndim == 1:
        e = _rotation(store, values, at[0]) or _digit(store, values, at[0])
    if e is not None:
        return e
    large = values.dtype == np.uint64 and int(values.max()) >= 1 << 63
    table = np.ascontiguousarray(values, np.uint64 if large else np.int64)
    cls = store.leaf(
        "table",
        (table.shape, table.dtype.str, table.tobytes()),
        "int",
        table.shape,
        closed=True,
        low=int(table.min()),
        high=int(table.max()),
    )
    return store.element(cls, tuple(index(i) for i in at))


def _rotation(store: Store, values: Any, at: int) -> Expr | None:
    """`(i + c) % n` or `(c - i) % n`, where the table of index i is that."""
    if int(values.min()) < 0 or int(values.max()) > LARGEST:
        return None
    values, n = values.astype(np.int64), int(values.max()) + 1
    for step in (1, -1):
        if n > 1 and bool(((values - step * np.arange(len(values)) - values[0]) % n == 0).all()):
            return store.digit((int(values[0]), ((at, step),)), 1, n)
    return None


def _digit(store: Store, values: Any, at: int) -> Expr | None:
    """`c + s * ((i // d) % m)`, where the table of index i is that."""
    values = values.astype(object if int(values.max()) > LARGEST else np.int64)
    first = int(values[0])
    changes = np.flatnonzero(values != first)
    if not len(changes):
        return None
    d = int(changes[0])
    step = int(values[d]) - first
    back = np.flatnonzero(values[d:] == first)
    m = (d + int(back[0])) // d if len(back) else -(-len(values) // d)
    if bool((first + step * (np.arange(len(values)).astype(values.dtype) // d % m) == values).all()):
        return shift(scale(store.digit(index(at), d, m), step), first)
    return None


def affine(table: Any, at: list[Expr]) -> Expr | None:
    """The affine expression over `at` that gives the integer table, if there is one."""
    large = table.dtype.itemsize == 8 and (int(table.max()) >= 1 << 31 or int(table.min()) < -(1 << 31))
    ints = table.astype(object if large else np.int64)
    origin = int(ints[(0,) * ints.ndim])
    predicted = np.full(ints.shape, origin, dtype=ints.dtype)
    e: Expr = (origin, ())
    for d, x in enumerate(at):
        unit = [0] * ints.ndim
        unit[d] = 1
        slope = int(ints[tuple(unit)]) - origin
        shape = [1] * ints.ndim
        shape[d] = ints.shape[d]
        predicted = predicted + slope * np.arange(ints.shape[d]).astype(ints.dtype).reshape(shape)
        part = scale(x, slope)
        e = (e[0] + part[0], tuple(sorted([*e[1], *part[1]])))
    return e if bool((predicted == ints).all()) else None


def evaluate(store: Store, e: Expr, grid: Grid) -> Any:
    """The values of an expression over a grid of its indices; None where it reads what is no table."""
    total: Any = e[0]
    for t, s in e[1]:
        if t > 0:
            value = grid[t]
        else:
            atom = store.atom(t)
            if isinstance(atom, Digit):
                inner = evaluate(store, atom.expr, grid)
                value = None if inner is None else inner // atom.div % atom.mod
            else:
                value = _read(store, atom.cls, atom.access, grid)
            if value is None:
                return None
        total = total + s * value
    return total


def _read(store: Store, cls: int, access: tuple[Expr, ...], grid: Grid) -> Any:
    c = store.classes[cls]
    if c.op != "table":
        return None
    at = [evaluate(store, e, grid) for e in access]
    if any(a is None for a in at):
        return None
    shape, dtype, data = c.attrs
    if any(np.min(a) < 0 or np.max(a) >= n for a, n in zip(at, shape, strict=True)):
        return None
    table = np.frombuffer(data, dtype).reshape(shape)
    return table[tuple(np.broadcast_arrays(*at))]
