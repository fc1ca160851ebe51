"""A value simplified under conditions that hold wherever it is used, as in one case of a selection."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from shardproof.passes import logic
from shardproof.passes.access import Element, Expr, constant, scale
from shardproof.passes.classes import Store, Term
from shardproof.passes.pieces import read

DEEPEST: Final = 4
"""How many operators deep a value is looked into."""
ENTERED: Final = frozenset({"select", "and", "not", "indicator", "multiply", "add"})


def conditions(store: Store, p: Term) -> frozenset[Term]:
    """What holds where `p` holds."""
    if store.classes[p.cls].op == "and":
        return frozenset((p, *(read(store, x) for x in store.expand(p)[0])))
    return frozenset((p,))


def given(store: Store, t: Term, facts: Collection[Term], depth: int = DEEPEST) -> Term:
    """A term that equals `t` wherever all `facts` hold."""
    c = store.classes[t.cls]
    if c.kind == "bool":
        if t in facts:
            return store.truth(True)
        if t.cls not in (store.TRUE, store.FALSE) and logic.negate(store, t) in facts:
            return store.truth(False)
    if t.cls in (store.STEP, store.MATCH, store.REAL, store.POSITION):
        return _whole(store, t, facts)
    if c.op in ENTERED and depth and not c.bound:
        operands = [read(store, x) for x in store.expand(t)[0]]
        simpler = [given(store, x, facts, depth - 1) for x in operands]
        if simpler == operands:
            return t
        from shardproof.passes.arithmetic import scaled
        from shardproof.passes.remake import remade

        made = remade(store, c.op, c.attrs, c.kind, simpler, ())
        assert made is not None
        return scaled(made, t.coef) if c.kind == "real" else made
    if not any(u < 0 for e in t.access for u, _ in e[1]):
        return t
    access = tuple(
        _in_range(store, _expression(store, e, facts), extent)
        for e, extent in zip(t.access, c.extents, strict=True)
    )
    return t if access == t.access else read(store, Term(t.coef, t.cls, access))


def _in_range(store: Store, e: Expr, extent: int | None) -> Expr:
    """The position limited to the class, which changes nothing where the facts hold (N3)."""
    if extent is None or store.within(e, 0, extent):
        return e
    return logic.smallest(store, logic.largest(store, e, constant(0)), constant(extent - 1))


def _whole(store: Store, t: Term, facts: Collection[Term]) -> Term:
    e = _expression(store, t.access[0], facts)
    if e == t.access[0]:
        return t
    if t.cls == store.STEP:
        return given(store, logic.step(store, e), facts)
    if t.cls == store.MATCH:
        return given(store, logic.match(store, e), facts)
    if t.cls == store.REAL:
        whole = logic.real_of(store, e)
        return Term(whole.coef * t.coef, whole.cls, whole.access)
    return store.integer(e)


def _expression(store: Store, e: Expr, facts: Collection[Term]) -> Expr:
    """The expression with choices and limits decided where the facts decide them."""
    total = constant(e[0])
    for t, s in e[1]:
        total = store.add(total, scale(_decided(store, t, facts), s))
    return total


def _decided(store: Store, term: int, facts: Collection[Term]) -> Expr:
    same: Expr = (0, ((term, 1),))
    atom = store.atom(term) if term < 0 else None
    if not isinstance(atom, Element):
        return same
    op = store.classes[atom.cls].op
    if op not in ("select", "maximum", "minimum"):
        return same
    operands = store.expand(Term(1, atom.cls, atom.access))[0]
    if op == "select":
        p = given(store, operands[0], facts)
        if p.cls == store.TRUE or p.cls == store.FALSE:
            return _expression(store, store.expression(operands[1 if p.cls == store.TRUE else 2]), facts)
        return same
    a, b = (_expression(store, store.expression(x), facts) for x in operands)
    difference = store.add(a, scale(b, -1))
    for first, second, d in ((a, b, difference), (b, a, scale(difference, -1))):
        if given(store, logic.step(store, d), facts).cls == store.TRUE:
            return first if op == "maximum" else second
    return same
