"""Positions that are known, as tables, digits and joined parts: each rewriting is an identity."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from evaluated import check_graph, equal
from random_graphs import Graph

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.passes.access import Expr, constant, index, scale, shift
from shardproof.passes.arithmetic import add
from shardproof.passes.classes import Store, Term
from shardproof.passes.evaluate import Evaluation
from shardproof.passes.folding import evaluate, fold_sum, grid_of, tabulated
from shardproof.passes.logic import match, step
from shardproof.passes.normalise import new_store
from shardproof.passes.reduction import reduce
from shardproof.passes.selection import select


def values_of(store: Store, e: Expr, indices: list[int]) -> Any:
    shape = [store.sizes[i] for i in indices]
    return np.broadcast_to(evaluate(store, e, grid_of(indices, shape)), shape)


def test_a_table_stays_what_it_is() -> None:
    for seed in range(600):
        draw = Random(seed)
        store = new_store()
        n = draw.randint(2, 12)
        if draw.random() < 0.5:
            d, m, c, s = draw.randint(1, 4), draw.randint(2, 4), draw.randint(-3, 3), draw.choice([-2, 1, 3])
            table = c + s * (np.arange(n) // d % m)
        else:
            table = np.asarray([draw.randint(0, 2) for _ in range(n)])
        i = store.fresh(n)
        assert np.array_equal(values_of(store, tabulated(store, table, [i]), [i]), table), (seed, table)


@pytest.mark.parametrize(("d", "m"), [(3, 2), (2, 3), (4, 2)])
def test_a_table_that_counts_blocks_is_a_digit(d: int, m: int) -> None:
    store = new_store()
    i = store.fresh(2 * d * m)
    blocks = np.arange(2 * d * m) // d % m
    assert tabulated(store, 1 + 5 * blocks, [i]) == shift(scale(store.digit(index(i), d, m), 5), 1)
    blocks[-1] = 0
    assert tabulated(store, 1 + 5 * blocks, [i]) != shift(scale(store.digit(index(i), d, m), 5), 1)


def test_a_sum_of_known_positions_stays_what_it_is() -> None:
    folded = 0
    for seed in range(300):
        draw = Random(seed)
        store = new_store()
        i, j = store.fresh(draw.randint(2, 4)), store.fresh(draw.randint(2, 6))
        sizes = store.sizes[i], store.sizes[j]
        table = np.asarray([[draw.randint(0, 5) for _ in range(sizes[1])] for _ in range(sizes[0])])
        e = scale(tabulated(store, table, [i, j]), draw.choice([1, 2, -3]))
        e = store.add(e, scale(store.digit(index(j), 1, 2), draw.randint(0, 3)))
        e = store.add(e, shift(scale(index(i), draw.randint(0, 2)), draw.randint(-2, 2)))
        once = fold_sum(store, e)
        folded += once != e
        assert np.array_equal(values_of(store, once, [i, j]), values_of(store, e, [i, j])), seed
    assert folded > 100


def test_sums_over_digits_of_a_position() -> None:
    """`sum[k,j](x[k,j] where s*k + j + c == n else 0)`, whatever s is: only contiguous digits are one
    position."""
    solved = 0
    for seed in range(300):
        draw = Random(seed)
        store = new_store(algebra=draw.random() < 0.5)
        a, b = draw.randint(2, 4), draw.randint(2, 4)
        s, c, sign = draw.choice([b, b, 2 * b, b - 1, b + 1]), draw.randint(0, 2), draw.choice([1, -1])
        x = store.leaf("input", ("x",), "real", (a, b))
        k, j, n = store.fresh(a), store.fresh(b), store.fresh(a * b + draw.randint(0, 3))
        e = store.add(store.add(scale(index(k), s), shift(index(j), c)), scale(index(n), -1))
        value = Term(1, x, (index(k), index(j)))
        picked = reduce(
            store, "sum", {k, j}, select(store, match(store, scale(e, sign)), value, store.real(0))
        )
        solved += store.classes[picked.cls].op != "sum"
        given = np.arange(1.0, a * b + 1).reshape(a, b)
        evaluation = Evaluation(store, {"x": given})
        for at in range(store.sizes[n]):
            want = sum(given[p, q] for p, q in product(range(a), range(b)) if s * p + q + c == at)
            assert evaluation.term(picked, {n: np.int64(at)}) == want, (seed, at)
    assert solved > 30


def test_a_sum_of_one_value_up_to_a_position_and_of_another_after() -> None:
    for edge, size in product(range(-1, 5), (2, 3, 4)):
        store = new_store()
        x, y = (store.leaf("input", (name,), "real", (size,)) for name in "xy")
        i = store.fresh(size)
        first, second = (Term(1, cls, (index(i),)) for cls in (x, y))
        mask = step(store, (edge, ((i, -1),)))
        found = reduce(store, "sum", {i}, select(store, mask, first, second))
        given = {"x": np.arange(1.0, size + 1), "y": 10 * np.arange(1.0, size + 1)}
        want = sum(given["x" if k <= edge else "y"][k] for k in range(size))
        assert Evaluation(store, given).term(found, {}) == want, (edge, size)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_sum_that_goes_on_in_two_slots(single: bool, wrong: bool) -> None:
    store = new_store(algebra=True)
    x = store.leaf("input", ("x",), "real", (8, 9))
    i, j, k = store.fresh(3), store.fresh(4), store.fresh(4 if single else 7)
    first = reduce(store, "sum", {i}, Term(1, x, (index(i), shift(index(i), 1))))
    gap = 5 if wrong else 4
    if single:
        rest = Term(1, x, (constant(3), constant(gap)))
    else:
        rest = reduce(store, "sum", {j}, Term(1, x, (shift(index(j), 3), shift(index(j), gap))))
    whole = reduce(store, "sum", {k}, Term(1, x, (index(k), shift(index(k), 1))))
    assert (add(store, (first, rest)) == whole) is not wrong


class Program(Graph):
    """A program written out in a test."""

    def __init__(self) -> None:
        super().__init__(Random(3), Mesh())

    def __call__(
        self, opcode: str, *operands: Value, to: tuple[DType, tuple[int, ...]] | None = None, **attrs: Any
    ) -> Value:
        made = self.add(opcode, operands, *(() if to is None else (TensorType(*to),)), **attrs)
        assert made is not None, f"{opcode} does not type, run or stay small"
        return made

    def cut(self, x: Value, start: int, limit: int) -> Value:
        return self("slice", x, starts=(start,), limits=(limit,), strides=(1,))

    def take(self, x: Value, ids: Value) -> Value:
        return self(
            "gather",
            x,
            ids,
            offset_dims=(),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            slice_sizes=(1,),
            index_vector_dim=1,
            operand_batching_dims=(),
            start_indices_batching_dims=(),
        )


@pytest.mark.parametrize("turned", [False, True])
def test_a_look_up_at_joined_positions(turned: bool) -> None:
    p = Program()
    x, ids = p.input(DType.F32, (5,)), p.input(DType.S32, (6,))
    first, second = p.cut(ids, 2, 6), p.cut(ids, 0, 2)
    whole = p("tanh", p.take(x, p("concatenate", first, second, dim=0)))
    parts = [p("tanh", p.take(x, y)) for y in ((second, first) if turned else (first, second))]
    joined = p("concatenate", *parts, dim=0)
    check_graph(p)
    assert equal(p, whole, joined) is not turned
