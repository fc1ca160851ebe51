"""A class made again from other operands, in canonical form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from shardproof.ir.types import Kind
from shardproof.passes import arithmetic as real
from shardproof.passes import logic
from shardproof.passes.classes import Store, Term
from shardproof.passes.reduction import reduce

REDUCED: Final = {"sum": "sum", "max": "max", "prod": "prod", "all": "and"}
KEPT: Final = frozenset({"concat", "opaque", "draw", "input", "literal", "table"})


def remade(
    store: Store, op: str, attrs: tuple[Any, ...], kind: Kind, operands: Sequence[Term], bound: Sequence[int]
) -> Term | None:
    """`op` of these operands in canonical form; None for operators that bind in order."""
    x = list(operands)
    if bound:
        plain = op in REDUCED and not attrs and kind in ("real", "bool")
        return reduce(store, REDUCED[op], set(bound), x[0]) if plain else None
    if kind == "real":
        if op == "power":
            return real.power(store, x[0], attrs[0])
        if op in REAL:
            return REAL[op](store, x)
    if op == "select":
        return real.select(store, *x)
    if kind == "bool":
        if op == "not":
            return logic.negate(store, x[0])
        if op == "and":
            return logic.conjunction(store, x)
        if op == "xor":
            return logic.exclusive(store, *x)
    if op in KEPT:
        return None
    commutative = op == "compare" and attrs == ("EQ",)
    return real.pointwise(store, op, attrs, kind, x, commutative=commutative)


REAL: Final[Mapping[str, Callable[[Store, list[Term]], Term]]] = {
    "add": real.add,
    "multiply": real.multiply,
    "maximum": real.maximum,
    "exponential": lambda s, x: real.exponential(s, x[0]),
    "indicator": lambda s, x: real.indicator(s, x[0]),
    "absolute": lambda s, x: real.absolute(s, x[0]),
}
