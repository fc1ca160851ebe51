"""Literal arrays as terms: constants, positions, triangular masks, else tables keyed by content."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Any, Final

import numpy as np

from shardproof.ir.types import Array, DType
from shardproof.passes.access import Element, Expr, constant, index
from shardproof.passes.classes import Store, Term
from shardproof.passes.evaluate import Evaluation
from shardproof.passes.folding import tabulated
from shardproof.passes.logic import match, step
from shardproof.passes.reading import read_literal
from shardproof.passes.selection import select
from shardproof.passes.tables import LIMIT, meet

EXACT: Final = frozenset(
    {"and", "not", "xor", "all", "select", "maximum", "minimum", "divide", "remainder", "modular", "truth"}
    | {"table", "step", "match", "position", "true", "false", "concat"}
)
"""Class operators that evaluation computes exactly."""
SAFE: Final = 1 << 62


def literal(store: Store, value: Array, dtype: DType, indices: Sequence[int | None]) -> Term:
    """`value` read at one index per dim (None for a dim of extent 1); values are exact (soundness K1, A6)."""
    kept = [i for i in indices if i is not None]
    table = np.ascontiguousarray(value).reshape([store.sizes[i] for i in kept])
    if table.size and bool((table == table.reshape(-1)[0]).all()):
        return scalar(store, table.reshape(-1)[0], dtype)
    kind = dtype.kind
    if kind in ("int", "uint"):
        return store.integer(tabulated(store, table, kept))
    if kind == "bool":
        return _mask(store, table, kept)
    if kind == "real":
        values = np.unique(table)
        if len(values) == 2 and not np.isnan(values).any():
            low, high = (scalar(store, v, dtype) for v in values)
            return select(store, _mask(store, table == values[1], kept), high, low)
        wide = table.astype(np.float64)
        infinite = int(np.isposinf(wide).any()) | int(np.isneginf(wide).any()) << 1
        special = infinite | int(np.isnan(wide).any()) << 2
        return meet(store, _table(store, wide, "real", kept, {"special": special}), dtype)
    return _table(store, table, kind, kept, {})


def scalar(store: Store, value: Any, dtype: DType) -> Term:
    """One literal element."""
    if dtype.kind == "real":
        number = float(value)
        if store.reading and isfinite(number) and number:
            return read_literal(store, number, dtype)
        return store.literal(number)
    if dtype.kind in ("int", "uint"):
        return Term(1, store.POSITION, (constant(int(value)),))
    if dtype.kind == "bool":
        return store.truth(bool(value))
    return Term(1, store.leaf("literal", (repr(complex(value)),), "complex", (), closed=True), ())


def by_value(store: Store, t: Term) -> Term:
    """A closed boolean or whole-number term as the literal of its values, in a store that folds.

    Exact: only operators of booleans and of integers that stay far below 2**63 (soundness N6).
    """
    c = store.classes[t.cls]
    extents = [n for n in c.extents if n is not None]
    if not (store.folding and c.closed and c.operands and c.kind in ("bool", "int")):
        return t
    if len(extents) != len(c.extents) or prod(extents) > LIMIT or not _exact(store, t.cls):
        return t
    values = np.asarray(Evaluation(store, {}).table(t.cls))
    indices = [store.fresh(n) for n in extents]
    dtype = DType.BOOL if c.kind == "bool" else DType.S64
    made = literal(store, values, dtype, indices)
    return store.substitute_term(made, dict(zip(indices, t.access, strict=True)))


def _exact(store: Store, cls: int) -> bool:
    c = store.classes[cls]
    if c.op not in EXACT:
        return False
    return all(
        _exact(store, t.cls)
        and (t.cls != store.POSITION or store.within(t.access[0], -SAFE, SAFE))
        and all(_exact_access(store, e) for e in t.access)
        for t in c.operands
    )


def _exact_access(store: Store, e: Expr) -> bool:
    for t, _ in e[1]:
        if t < 0:
            atom = store.atom(t)
            if isinstance(atom, Element) and not _exact(store, atom.cls):
                return False
            if not all(_exact_access(store, x) for x in store.inner(t)):
                return False
    return True


def _mask(store: Store, table: Array, kept: Sequence[int]) -> Term:
    """A boolean table; triangles and diagonals become comparisons of positions."""
    varying = [
        d for d in range(table.ndim) if not bool((table == np.take(table, [0], axis=d)).all())
    ]
    table = table[tuple(slice(None) if d in varying else 0 for d in range(table.ndim))]
    kept = [kept[d] for d in varying]
    if table.ndim in (1, 2):
        flat, square = ((1,), (-1,)), ((1, -1), (-1, 1), (1, 1), (-1, -1))
        lines: tuple[tuple[int, ...], ...] = flat if table.ndim == 1 else square
        for line in lines:
            position = np.zeros(table.shape, np.int64)
            for d, (c, n) in enumerate(zip(line, table.shape, strict=True)):
                position += c * np.arange(n).reshape([-1 if a == d else 1 for a in range(table.ndim)])
            edge = int(np.min(position[table]))
            terms = tuple(sorted(zip(kept, line, strict=True)))
            if bool(((position >= edge) == table).all()):
                return step(store, (-edge, terms))
            if bool(((position == edge) == table).all()):
                return match(store, (-edge, terms))
            other = int(position[np.logical_not(table)].reshape(-1)[0])
            if bool(((position != other) == table).all()):
                from shardproof.passes.logic import negate

                return negate(store, match(store, (-other, terms)))
    return _table(store, table.astype(np.bool_), "bool", kept, {})


def _table(store: Store, table: Array, kind: Any, kept: Sequence[int], facts: dict[str, int]) -> Term:
    cls = store.leaf(
        "table", (table.shape, table.dtype.str, table.tobytes()), kind, table.shape, closed=True, **facts
    )
    return Term(1, cls, tuple(index(i) for i in kept))
