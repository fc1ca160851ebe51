"""Random sampling of classes tells equal terms from different ones, at any extent and under any cut."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.passes.access import index, shift
from shardproof.passes.arithmetic import add, exponential, maximum, multiply, scaled
from shardproof.passes.classes import Store, Term
from shardproof.passes.evaluate import Evaluation, EvaluationError
from shardproof.passes.normalise import new_store
from shardproof.passes.reduction import reduce
from shardproof.passes.sampling import TooLarge, difference


def free(store: Store, name: str, *indices: int) -> Term:
    cls = store.leaf("input", (name,), "real", tuple(store.sizes[i] for i in indices))
    return store.whole(cls, indices)


@pytest.mark.parametrize("size", [2, 7, 4096])
def test_equal_terms_agree_and_others_do_not(size: int) -> None:
    store = new_store()
    i, k = store.fresh(size), store.fresh(size)
    x, y = free(store, "x", i, k), free(store, "y", k)
    inner = reduce(store, "sum", {k}, multiply(store, [x, y]))
    parts = [inner.cls, y.cls]
    a = exponential(store, add(store, [inner, scaled(inner, 2)]))
    b = exponential(store, scaled(inner, 3))
    assert difference(store, a, b, parts) is None
    assert difference(store, a, exponential(store, inner), parts) is not None
    assert difference(store, a, scaled(a, 1 + 1e-4), parts) is not None


def test_a_cut_that_hides_why_terms_agree_is_moved_down() -> None:
    store = new_store()
    i, k = store.fresh(5), store.fresh(6)
    x, y = free(store, "x", i, k), free(store, "y", i, k)
    both = reduce(store, "sum", {k}, add(store, [x, y]))
    one, two = reduce(store, "sum", {k}, x), reduce(store, "sum", {k}, y)
    apart = add(store, [one, two])
    assert difference(store, both, apart, [both.cls, one.cls, two.cls]) is None
    assert difference(store, both, add(store, [one, one]), [both.cls, one.cls]) is not None


def test_what_is_too_large_is_not_judged() -> None:
    store = new_store()
    i = store.fresh(4)
    k = [store.fresh(1000) for _ in range(3)]
    x = free(store, "x", i, *k)
    total = reduce(store, "sum", set(k), multiply(store, [x, x]))
    with pytest.raises(TooLarge):
        difference(store, total, scaled(total, 2), [x.cls])
    assert difference(store, total, total, [total.cls]) is None


def test_values_keep_what_is_known_of_them() -> None:
    store = new_store()
    i = store.fresh(9)
    cls = store.leaf("input", ("ids",), "int", (9,), low=3, high=5)
    table = store.leaf("input", ("t",), "real", (6,), sign=2)
    read = Term(1, table, (store.element(cls, (index(i),)),))
    assert difference(store, read, maximum(store, [read, store.real(0)]), [table, cls]) is None
    outside = Term(1, table, (shift(store.element(cls, (index(i),)), 1),))
    with pytest.raises(EvaluationError, match="out of range"):
        for seed in range(20):
            difference(store, outside, read, [table, cls], seed)


def test_it_agrees_with_whole_tables() -> None:
    store = new_store()
    i, k = store.fresh(3), store.fresh(4)
    x = free(store, "x", i, k)
    t = reduce(store, "max", {k}, x)
    u = add(store, [t, exponential(store, scaled(t, -1))])
    draw = np.random.default_rng(0)
    values = Evaluation(store, {"x": draw.normal(size=(3, 4))})
    whole = values.term(u, {i: np.arange(3)})
    assert whole.shape == (3,)
    assert difference(store, u, u, [x.cls]) is None
    assert difference(store, u, t, [x.cls]) is not None
