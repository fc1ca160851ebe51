"""A value simplified under conditions that hold wherever it is used, as in one case of a selection."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from shardproof.passes import logic
from shardproof.passes.access import Element, Expr, constant, scale
from shardproof.passes.classes import Store, Term
from shardproof.passes.pieces import read

DEEPEST: Final = 4
"""How many operators deep a value is looked into."""
ENTERED: Final = frozenset({"select", "and", "not", "indicator", "multiply", "add"})


def under_masks(store: Store, factors: Sequence[Term]) -> list[Term] | None:
    """The factors of a product with each simplified where the other indicators are 1; None where that changes
    nothing. Only comparisons of integers tell something of what is no indicator.

    Where one of them is 0 the product is 0 times the other factors whatever the changed one is, as long as
    it stays finite.
    """
    masks = {n: read(store, store.expand(t)[0][0]) for n, t in enumerate(factors) if _indicates(store, t)}
    for n, t in enumerate(factors):
        others = (p for m, p in masks.items() if m != n)
        facts = frozenset(p for p in others if n in masks or p.cls in (store.STEP, store.MATCH))
        if not facts or store.special(t):
            continue
        simpler = given(store, t, facts)
        if simpler != t and not store.special(simpler):
            return [*factors[:n], simpler, *factors[n + 1 :]]
    return None


def _indicates(store: Store, t: Term) -> bool:
    return store.classes[t.cls].op == "indicator"


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
    if t.cls in (store.STEP, store.MATCH):
        known = _decision(store, t, facts)
        if known is not None:
            return store.truth(known)
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


def _decision(store: Store, t: Term, facts: Collection[Term]) -> bool | None:
    """Whether facts decide a comparison, as those on expressions that differ by a constant do."""
    e = t.access[0]
    for fact in facts:
        if fact.cls not in (store.STEP, store.MATCH):
            continue
        f = fact.access[0]
        low = high = None
        above, below = store.add(e, scale(f, -1)), store.add(e, f)
        if not above[1]:
            low = above[0]
            high = above[0] if fact.cls == store.MATCH else None
        elif not below[1]:
            high = below[0]
            low = below[0] if fact.cls == store.MATCH else None
        if t.cls == store.STEP and low is not None and low >= 0:
            return True
        if (high is not None and high < 0) or (t.cls == store.MATCH and low is not None and low > 0):
            return False
        if t.cls == store.MATCH and low == high == 0:
            return True
    return None


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
    """The expression with choices and limits decided where the facts decide them, and with integers whose
    value the facts give replaced by it."""
    if all(t > 0 for t, _ in e[1]):
        return e
    total = constant(e[0])
    for t, s in e[1]:
        total = store.add(total, scale(_decided(store, t, facts), s))
    for fact in facts:
        known = _value(store, fact)
        if known is not None:
            total = _replaced(store, total, *known)
    return total


def _value(store: Store, fact: Term) -> tuple[int, Expr] | None:
    """The one integer read from a class in `e == 0`, and the expression over indices that it equals."""
    if fact.cls != store.MATCH:
        return None
    e = fact.access[0]
    read_ones = [(t, s) for t, s in e[1] if t < 0 and isinstance(store.atom(t), Element)]
    if len(read_ones) != 1 or abs(read_ones[0][1]) != 1:
        return None
    ((term, s),) = read_ones
    rest: Expr = (e[0], tuple(x for x in e[1] if x[0] != term))
    if any(_reads(store, t) for t, _ in rest[1]):
        return None
    return term, scale(rest, -s)


def _reads(store: Store, term: int) -> bool:
    """Whether a part of an expression reads a class."""
    if term > 0:
        return False
    atom = store.atom(term)
    return isinstance(atom, Element) or any(_reads(store, t) for t, _ in atom.expr[1])


def _replaced(store: Store, e: Expr, term: int, by: Expr) -> Expr:
    """The expression with an integer that is read replaced, also inside of positions."""
    total = constant(e[0])
    for t, s in e[1]:
        part: Expr = (0, ((t, 1),))
        if t == term:
            part = by
        elif t < 0 and any(u < 0 for x in store.inner(t) for u, _ in x[1]):
            atom = store.atom(t)
            if isinstance(atom, Element):
                extents = store.classes[atom.cls].extents
                inner = tuple(_replaced(store, x, term, by) for x in atom.access)
                if inner != atom.access:
                    limited = map(lambda x, n: _in_range(store, x, n), inner, extents)
                    part = store.element(atom.cls, tuple(limited))
            else:
                part = store.digit(_replaced(store, atom.expr, term, by), atom.div, atom.mod)
        total = store.add(total, scale(part, s))
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
