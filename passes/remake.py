"""A class made again from other operands, in canonical form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from shardproof.ir.types import Kind
from shardproof.passes import arithmetic as real
from shardproof.passes import logic, selection
from shardproof.passes.access import index
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
        return selection.select(store, *x)
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
    "indicator": lambda s, x: selection.indicator(s, x[0]),
    "absolute": lambda s, x: real.absolute(s, x[0]),
}


def renewed(store: Store, t: Term, known: dict[int, Term | None] | None = None) -> Term:
    """The term made again from the leaves up, so that what classes are rewritten to now is seen.

    `known` keeps what was made of each class; start afresh when the store has learnt more.
    """
    made = known if known is not None else {}
    stack = [t.cls]
    while stack:
        cls = stack[-1]
        c = store.classes[cls]
        missing = [x.cls for x in c.operands if x.cls not in made]
        if cls in made or not missing:
            stack.pop()
            if cls not in made:
                made[cls] = _renewed(store, cls, made)
        else:
            stack += missing
    return _at(store, t, made)


def _renewed(store: Store, cls: int, made: dict[int, Term | None]) -> Term | None:
    """A class over its own slots made again; None when nothing in it changed."""
    c = store.classes[cls]
    whole = Term(1, cls, tuple(index(i) for i in c.free))
    if not c.operands or c.op in KEPT:
        settled = store.settled(whole) if c.operands else whole
        return None if settled == whole else settled
    if all(made[x.cls] is None for x in c.operands):
        settled = store.settled(whole)
        return None if settled == whole else settled
    operands, bound = store.expand(whole)
    again = remade(store, c.op, c.attrs, c.kind, [_at(store, x, made) for x in operands], bound)
    return None if again is None or again == whole else again


def _at(store: Store, t: Term, made: dict[int, Term | None]) -> Term:
    new = made[t.cls]
    if new is None:
        return t
    by = dict(zip(store.classes[t.cls].free, t.access, strict=True))
    placed = store.substitute_term(new, by)
    return Term(placed.coef * t.coef, placed.cls, placed.access)
