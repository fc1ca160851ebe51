"""The search for what exponents subtract looks at every class once, however often terms share it."""

from __future__ import annotations

from shardproof.passes.access import index
from shardproof.passes.arithmetic import add, maximum, multiply, scaled
from shardproof.passes.classes import Store, Term
from shardproof.passes.normalise import new_store
from shardproof.solver.stabiliser import _Search

DEPTH = 64


def shared(store: Store, innermost: Term, n: int) -> Term:
    """A term in which the innermost one occurs 2**DEPTH times."""
    found = innermost
    for k in range(DEPTH):
        a, b = (
            Term(1, store.leaf("input", (f"{name}{k}",), "real", (5,)), (index(n),)) for name in "ab"
        )
        found = multiply(store, [add(store, [found, a]), add(store, [found, b])])
    return found


def test_shared_terms_are_looked_at_once() -> None:
    store = new_store()
    n = store.fresh(5)
    x, y = (Term(1, store.leaf("input", (name,), "real", (5,)), (index(n),)) for name in "xy")
    greatest = scaled(maximum(store, [x, y]), -1)
    search = _Search(store, set())
    assert not search.subtracts(shared(store, x, n), 1)
    assert not search.made_of_maxima(shared(store, x, n))
    assert search.subtracts(add(store, [x, greatest]), 1)
    assert not search.subtracts(add(store, [x, greatest]), -1)
