"""Whether a value is an infinity: decided by the masks that put infinities there, and by nothing else."""

from __future__ import annotations

from math import inf, nan

import pytest

from shardproof.passes.arithmetic import add, scaled
from shardproof.passes.classes import Store, Term
from shardproof.passes.elementwise import _compare_reals
from shardproof.passes.logic import negate
from shardproof.passes.normalise import new_store
from shardproof.passes.selection import select


@pytest.fixture
def store() -> Store:
    return new_store()


def leaf(store: Store, name: str, kind: str = "real") -> Term:
    i = store.fresh(5)
    return store.whole(store.leaf("input", (name,), kind, (5,)), (i,))  # type: ignore[arg-type]


def equal(store: Store, x: Term, y: Term) -> Term:
    found = _compare_reals(store, {"direction": "EQ"}, [x, y])
    assert found == _compare_reals(store, {"direction": "EQ"}, [y, x])
    assert negate(store, found) == _compare_reals(store, {"direction": "NE"}, [x, y])
    return found


def test_a_masked_value(store: Store) -> None:
    p, x, low, high = leaf(store, "p", "bool"), leaf(store, "x"), store.literal(-inf), store.literal(inf)
    masked = select(store, p, x, low)
    assert equal(store, masked, low) == negate(store, p)
    assert equal(store, scaled(masked, -2), high) == negate(store, p)
    assert equal(store, masked, high) == store.truth(False)
    assert equal(store, select(store, p, high, low), high) == p
    assert equal(store, x, low) == store.truth(False)


def test_a_finite_addend_changes_nothing(store: Store) -> None:
    p, x, y, low = leaf(store, "p", "bool"), leaf(store, "x"), leaf(store, "y"), store.literal(-inf)
    mask = select(store, p, y, low)
    assert equal(store, add(store, [x, mask]), low) == negate(store, p)
    assert equal(store, add(store, [x, scaled(mask, -1)]), store.literal(inf)) == negate(store, p)


def test_what_may_be_not_a_number_is_not_decided(store: Store) -> None:
    p, q, x = leaf(store, "p", "bool"), leaf(store, "q", "bool"), leaf(store, "x")
    low, high = store.literal(-inf), store.literal(inf)
    opposite = add(store, [select(store, p, x, low), select(store, q, x, high)])
    for value in (opposite, select(store, p, x, store.literal(nan))):
        assert equal(store, value, low) not in (p, q, negate(store, p), negate(store, q), store.truth(True))
    twice = add(store, [select(store, p, x, low), select(store, q, x, low)])
    assert equal(store, twice, low) not in (p, q, negate(store, p), negate(store, q))
