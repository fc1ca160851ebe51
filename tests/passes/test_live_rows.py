"""That every row of a mask leaves something: never claimed where it is false, found at any extent."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from shardproof.passes import facts
from shardproof.passes.access import Expr
from shardproof.passes.classes import Class, Store, Term
from shardproof.passes.normalise import new_store


def claimed(store: Store, bound: list[int], expressions: list[Expr], match: bool = False) -> bool:
    """Whether conditions `e >= 0`, or `e == 0`, are taken to hold together somewhere in each row."""
    free = sorted({i for e in expressions for i in store.indices(e)}.difference(bound))
    reduction = Class("max", (), "real", tuple(store.sizes[i] for i in free), tuple(free), tuple(bound))
    cls = store.MATCH if match else store.STEP
    return facts._rows_live(store, reduction, [comparison(cls, e) for e in expressions])


def comparison(cls: int, e: Expr) -> Term:
    from shardproof.passes.classes import Term

    return Term(1, cls, (e,))


def test_claims_without_enumeration_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MASK_LIMIT", 0)
    found = 0
    for seed in range(4000):
        draw = Random(seed)
        store = new_store()
        rows = [store.fresh(draw.randint(2, 5)) for _ in range(draw.randint(1, 2))]
        columns = [store.fresh(draw.randint(2, 5)) for _ in range(draw.randint(1, 2))]
        match = draw.random() < 0.3
        expressions: list[Expr] = []
        for _ in range(1 if match else draw.randint(1, 3)):
            strides = {i: draw.choice((-2, -1, 0, 1, 2)) for i in (*rows, *columns)}
            terms = tuple(sorted((i, s) for i, s in strides.items() if s))
            expressions.append((draw.randint(-4, 4), terms))
        if not claimed(store, columns, expressions, match):
            continue
        found += 1
        for row in product(*(range(store.sizes[i]) for i in rows)):
            values = [
                [e[0] + sum(s * at[i] for i, s in e[1]) for e in expressions]
                for column in product(*(range(store.sizes[i]) for i in columns))
                for at in [dict(zip((*rows, *columns), (*row, *column), strict=True))]
            ]
            assert any(all(v == 0 if match else v >= 0 for v in vs) for vs in values), (seed, row)
    assert found > 300


@pytest.mark.parametrize(
    ("edges", "live"),
    [
        ([(0, 1, -1)], True),  # causal
        ([(-1, 1, -1)], False),  # causal without the diagonal: the first row is masked
        ([(0, 1, -1), (511, -1, 1)], True),  # causal, within a window
        ([(-8, 1, -1), (511, -1, 1)], False),  # a window that starts behind the position
        ([(0, -1, 1)], True),  # what comes after
    ],
)
def test_masks_of_long_sequences(edges: list[tuple[int, int, int]], live: bool) -> None:
    store = new_store()
    query, key = store.fresh(1 << 17), store.fresh(1 << 17)
    assert claimed(store, [key], [(c, ((query, a), (key, b))) for c, a, b in edges]) == live
