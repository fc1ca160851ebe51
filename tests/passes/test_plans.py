"""Remembered canonical forms give the classes that working each of them out anew gives."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from random_operators import random_graph

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.passes.classes import Store
from shardproof.passes.normalise import input_view, new_store, normalise


class Forgetful(dict[Any, Any]):
    """Keeps nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        return


class Counting(dict[Any, Any]):
    """Counts what was found in it."""

    found = 0

    def get(self, key: Any, default: Any = None) -> Any:
        self.found += key in self
        return super().get(key, default)


def store_of(seeds: range, plans: dict[Any, Any], *, algebra: bool) -> Store:
    """The store of several programs one after the other."""
    store = new_store(folding=algebra, algebra=algebra)
    store.plans = plans
    for seed in seeds:
        g = random_graph(Random(seed), size=16 + seed % 16)
        normalise(store, g.module(), {x.name: input_view(store, x.value) for x in g.inputs})
    return store


def described(store: Store) -> list[Any]:
    """The classes, placeholder indices by role instead of number."""
    role = {i: name for name, i in store._places.items()}

    def expression(e: Any) -> Any:
        return e[0], sorted((str(role[t]) if t > 0 else atom(t), s) for t, s in e[1])

    def atom(t: int) -> str:
        found = store.atom(t)
        inner = [expression(e) for e in store.inner(t)]
        return str((type(found).__name__, found[0] if isinstance(found[0], int) else found[1:], inner))

    return [
        (
            *(c.op, c.attrs, c.kind, c.extents, c.out, c.groups, c.special, c.sign, c.low, c.high, c.closed),
            [role[i] for i in c.free],
            [role[i] for i in c.bound],
            [(t.coef, t.cls, [expression(e) for e in t.access]) for t in c.operands],
            sorted(c.symmetries),
        )
        for c in store.classes
    ]


@pytest.mark.parametrize("algebra", [False, True])
def test_plans_change_no_class(algebra: bool) -> None:
    plans = Counting()
    for seed in range(0, 480, 24):
        seeds = range(seed, seed + 24)
        plans.clear()
        kept = store_of(seeds, plans, algebra=algebra)
        assert described(kept) == described(store_of(seeds, Forgetful(), algebra=algebra)), seed
    assert plans.found > 400


def same_class(first: list[Value], second: list[Value], permuted: bool) -> bool:
    """Whether `a + b` of two pairs of inputs are the same class up to which inputs are read."""
    from shardproof.passes.algebra import Views
    from shardproof.passes.collectives import Ranks

    store = new_store()
    views = Views(store, Ranks(store, Mesh(())))
    found = []
    for a, b in (first, second):
        x, y = input_view(store, a), input_view(store, b)
        if permuted:
            y = views.transpose(y, (1, 0))
        total = views.elementwise("add", (x, y), a.type, {})
        found.append([(t.access, t.coef) for t in store.classes[total.term.cls].operands])
    assert store.plans
    return found[0] == found[1]


def test_a_plan_is_for_one_way_to_read() -> None:
    square = TensorType(DType.F32, (4, 4))
    first, second = [[Value(f"{name}{k}", square) for k in range(2)] for name in "ab"]
    assert same_class(first, second, permuted=False)
    assert same_class(first, second, permuted=True)


def test_undone_plans_are_forgotten() -> None:
    store = new_store()
    square = TensorType(DType.F32, (3, 3))
    a, b = (input_view(store, Value(name, square)) for name in "ab")
    from shardproof.passes.algebra import Views
    from shardproof.passes.collectives import Ranks

    views = Views(store, Ranks(store, Mesh(())))
    mark = store.mark()
    views.elementwise("add", (a, b), square, {})
    assert store.plans
    store.undo(mark)
    assert not store.plans
