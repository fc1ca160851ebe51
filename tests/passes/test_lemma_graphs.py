"""Random programs in which lemmas and algebra apply: no rewriting changes a value."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from random_lemmas import Slow, check_lemma_graph, random_lemma_graph, reduced
from random_sides import LemmaGraph

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.passes.arithmetic import multiply, pointwise, power
from shardproof.passes.folding import affine, evaluate, tabulated
from shardproof.passes.normalise import new_store
from shardproof.passes.selection import select
from shardproof.solver.prove import Level
from shardproof.solver.search.theory import theory

LEVELS: tuple[Level | None, ...] = ("early", "late", "late", "both", None)


def check_seeds(seeds: range) -> Counter[str]:
    """How often each lemma was used in the programs of these seeds."""
    known = theory()
    lemmas = [x for x in known.statements.lemmas.values() if not x.assumed]
    used: Counter[str] = Counter()
    for seed in seeds:
        level = LEVELS[seed % len(LEVELS)]
        g = random_lemma_graph(Random(seed), lemmas, size=12 + seed % 24)
        try:
            used += check_lemma_graph(g, None if level is None else known.rules(level), lenient=seed % 7 == 3)
        except Slow:
            continue
    return used


def test_no_value_changes() -> None:
    used = check_seeds(range(200))
    assert len(used) >= 15 and used.total() >= 60


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 9_000, 1000))
def test_no_value_changes_in_many_programs(start: int) -> None:
    check_seeds(range(start, start + 1000))


class Masked:
    """A program with a value masked to minus infinity."""

    def __init__(self, seed: int) -> None:
        self.g = g = LemmaGraph(Random(seed), Mesh(), special=True)
        self.x, self.p = g.input(DType.F64, (4,)), g.input(DType.BOOL, (4,))
        self.masked = made(g.add("select", (self.p, self.x, made(g.number(-np.inf, (4,))))))

    def check(self) -> None:
        for rules in (None, theory().rules("late")):
            check_lemma_graph(self.g, rules)


def made(v: Value | None) -> Value:
    assert v is not None
    return v


@pytest.mark.parametrize("seed", range(8))
def test_a_one_hot_product_with_an_infinity_is_no_look_up(seed: int) -> None:
    m = Masked(seed)
    g, wide = m.g, (3, 4)
    ids = made(g.spread(g.input(DType.S32, (3,)), wide, (0,)))
    j = made(g.add("iota", (), TensorType(DType.S32, wide), dim=1))
    hot = made(g.add("compare", (ids, j), direction="EQ", total=False))
    ones = made(g.add("convert", (hot,), TensorType(DType.F64, wide)))
    product = made(g.add("multiply", (ones, made(g.spread(m.masked, wide, (1,))))))
    made(reduced(g, product, (1,), "sum"))
    m.check()


@pytest.mark.parametrize("edge", range(-1, 6))
@pytest.mark.parametrize("direction", ["LT", "GE"])
def test_sums_of_blocks_beyond_the_edge_of_a_mask(edge: int, direction: str) -> None:
    g = LemmaGraph(Random(5), Mesh())
    x = g.input(DType.F64, (6,))
    i = made(g.add("iota", (), TensorType(DType.S32, (6,)), dim=0))
    p = made(g.add("compare", (i, made(g.number(edge, (6,), DType.S32))), direction=direction, total=False))
    masked = made(g.add("multiply", (made(g.add("convert", (p,), x.type)), x)))
    parts = [
        made(reduced(g, made(g.add("slice", (masked,), starts=(a,), limits=(b,), strides=(1,))), (0,), "sum"))
        for a, b in ((0, 2), (2, 3), (3, 4), (4, 6))
    ]
    for first in range(4):
        total = parts[first]
        for n in range(1, 4):
            total = made(g.add("add", (total, parts[(first + n) % 4])))
    check_lemma_graph(g, None)


@pytest.mark.parametrize("power", [62, 63])
def test_large_tables_are_no_rotations(power: int) -> None:
    values = np.array([2**power, 2**power + 1, 3], np.uint64)
    store = new_store(folding=True)
    i = store.fresh(3)
    e = tabulated(store, values, [i])
    assert affine(values, [(0, ((i, 1),))]) is None
    found = evaluate(store, e, {i: np.arange(3)})
    assert [int(v) for v in found] == [int(v) for v in values]


def test_an_exponential_of_a_scaled_sum_is_a_product() -> None:
    g = LemmaGraph(Random(1), Mesh())
    x, y, z = (g.input(DType.F64, (3,)) for _ in range(3))
    small = made(g.add("logistic", (z,)))
    whole = made(g.add("exponential", (made(g.add("multiply", (made(g.add("add", (x, y))), small))),)))
    assert whole
    check_lemma_graph(g, None)


@pytest.mark.parametrize("function", ["exponential", "logistic"])
def test_a_function_of_minus_infinity_is_no_divisor(function: str) -> None:
    store = new_store(algebra=True)
    i = store.fresh(3)
    p = store.whole(store.leaf("input", ("p",), "bool", (3,)), [i])
    x = store.whole(store.leaf("input", ("x",), "real", (3,)), [i])
    masked = select(store, p, x, store.literal(-np.inf))
    y = pointwise(store, function, (), "real", [masked])
    assert not store.special(y) and not store.nonzero(y)
    assert multiply(store, [y, power(store, y, Fraction(-1))]).cls != store.ONE
    assert store.nonzero(pointwise(store, function, (), "real", [x]))
