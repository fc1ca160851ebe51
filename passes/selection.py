"""Choices between terms, and the indicator of a condition (soundness N4, A1)."""

from __future__ import annotations

from shardproof.passes.access import scale, shift
from shardproof.passes.arithmetic import add, addends_of, multiply, scaled
from shardproof.passes.canonical import node
from shardproof.passes.classes import Coefficient, Store, Term
from shardproof.passes.pieces import Rebuild, read


def select(store: Store, p: Term, a: Term, b: Term) -> Term:
    """`a where p else b` for terms of one kind."""
    if p.cls == store.TRUE:
        return a
    if p.cls == store.FALSE or a == b:
        return b
    if store.classes[p.cls].op == "not":
        (p,), _ = store.expand(p)
        a, b = b, a
    if store.algebra:
        from shardproof.passes.given import conditions, given
        from shardproof.passes.logic import negate

        a = given(store, a, conditions(store, p))
        b = given(store, b, conditions(store, negate(store, p)))
        if a == b:
            return a
    kind = store.kind(a)
    if kind == "bool" and {a.cls, b.cls} & {store.TRUE, store.FALSE}:
        return _select_truth(store, p, a, b)
    nested = _nested(store, p, a, b)
    if nested is not None:
        return nested
    if kind == "real":
        if b.coef == 0 and a.cls == store.ONE:
            return scaled(indicator(store, p), a.coef)
        if a.coef == 0 and b.cls == store.ONE:
            from shardproof.passes.logic import negate

            return scaled(indicator(store, negate(store, p)), b.coef)
        if store.algebra:
            product = _masked(store, p, a, b)
            if product is not None:
                return product
            shared = _shared_addends(store, a, b)
            if shared:
                less = [scaled(x, -1) for x in shared]
                rest = select(store, p, add(store, [a, *less]), add(store, [b, *less]))
                return add(store, [*shared, rest])
    unit: Coefficient = 1
    if kind == "real" and not store.special(a) and not store.special(b):
        first = next((t for t in sorted((a, b), key=lambda t: t.cls or 1 << 60) if t.coef), None)
        unit = first.coef if first is not None else 1
        a, b = scaled(a, unit, inverse=True), scaled(b, unit, inverse=True)
    others = []
    if p.cls == store.STEP:
        others.append((Term(1, store.STEP, (shift(scale(p.access[0], -1), -1),)), b, a))
    elif p.cls == store.MATCH:
        others.append((Term(1, store.MATCH, (scale(p.access[0], -1),)), a, b))
    made = node(
        store,
        "select",
        (),
        kind,
        [p, a, b],
        alternatives=others,
        rebuild=Rebuild(lambda ts, _: select(store, *ts)),
    )
    return scaled(made, unit)


def _nested(store: Store, p: Term, a: Term, b: Term) -> Term | None:
    """A choice whose second case is also the second case of a choice in the first, as one choice."""
    from shardproof.passes.logic import conjunction

    op = store.classes[a.cls].op
    if op == "indicator" and b.coef == 0 and b.cls == store.ONE:
        (q,), _ = store.expand(a)
        return scaled(indicator(store, conjunction(store, (p, read(store, q)))), a.coef)
    if op != "select":
        return None
    q, x, y = (read(store, t) for t in store.expand(a)[0])
    x, y = scaled(x, a.coef), scaled(y, a.coef)
    return select(store, conjunction(store, (p, q)), x, y) if y == b else None


def _masked(store: Store, p: Term, a: Term, b: Term) -> Term | None:
    """A choice between a finite value and 0 as a product with an indicator."""
    if b.coef == 0 and not store.special(a):
        return multiply(store, [indicator(store, p), a])
    if a.coef == 0 and not store.special(b):
        from shardproof.passes.logic import negate

        return multiply(store, [indicator(store, negate(store, p)), b])
    return None


def _shared_addends(store: Store, a: Term, b: Term) -> list[Term]:
    """The addends that two finite terms have in common."""
    if store.special(a) or store.special(b):
        return []
    other = addends_of(store, b)
    return [x for x in addends_of(store, a) if x in other]


def _select_truth(store: Store, p: Term, a: Term, b: Term) -> Term:
    """A choice between booleans of which one is constant, as a conjunction or disjunction."""
    from shardproof.passes.logic import conjunction, disjunction, negate

    if a.cls == store.TRUE:
        return disjunction(store, (p, b))
    if a.cls == store.FALSE:
        return conjunction(store, (negate(store, p), b))
    if b.cls == store.TRUE:
        return disjunction(store, (negate(store, p), a))
    return conjunction(store, (p, a))


def indicator(store: Store, p: Term) -> Term:
    """1 where `p` holds, else 0, as a real."""
    if p.cls in (store.TRUE, store.FALSE):
        return store.real(1 if p.cls == store.TRUE else 0)
    if store.algebra and store.classes[p.cls].op == "and":
        return multiply(store, [indicator(store, read(store, q)) for q in store.expand(p)[0]])
    return node(store, "indicator", (), "real", [p], rebuild=Rebuild(lambda ts, _: indicator(store, ts[0])))
