"""Evaluation on folded tensors gives what the interpreter gives on the whole ones."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_operators import random_graph

from shardproof.ir.interpret import InterpretError, run
from shardproof.ir.module import Module
from shardproof.ir.numpy_meaning import settle
from shardproof.ir.types import Array, DType, TensorType
from shardproof.solver.replay.folded import Folded
from shardproof.solver.replay.folded_run import Run
from shardproof.solver.replay.lazy import TooLarge
from shardproof.solver.replay.partitions import classes_of, cut, discrete, joined, refined, regrouped, single

BUDGET = 1 << 26


def folded(array: Array, draw: Random) -> Folded:
    """A tensor with some of the array's slices, each at several positions."""
    parts = [classes_of(np.array([draw.randrange(3) for _ in range(n)], np.int64)) for n in array.shape]
    return Folded(array[np.ix_(*(p.first for p in parts))], tuple(parts))


def close(found: Any, wanted: Any) -> bool:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if found.dtype.kind in "fc":
        return bool(np.allclose(found, wanted, rtol=1e-9, atol=1e-9, equal_nan=True))
    return bool(np.array_equal(found, wanted))


def agrees(module: Module, inputs: dict[str, Folded]) -> int:
    """Every value on every rank is the interpreter's; the number of those that were folded."""
    try:
        wanted = run(module, {name: x.dense() for name, x in inputs.items()}, values=True)
    except InterpretError:
        with pytest.raises(InterpretError):
            Run(module, inputs, budget=BUDGET)
        return 0
    found = Run(module, inputs, budget=BUDGET, keep=True).values
    small = 0
    for name, tensors in found.items():
        for rank, x in enumerate(tensors):
            assert x.core.shape == tuple(p.count for p in x.parts), name
            assert close(x.dense(), wanted[name][rank]), f"{name} on rank {rank}\n{module}"
            small += x.core.size < wanted[name][rank].size
    return small


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_random_graphs(seed: int) -> None:
    draw = Random(seed)
    g = random_graph(draw, size=16)
    agrees(g.module(), {i.name: folded(g.values[i.name][0], draw) for i in g.inputs})


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), ranks=st.sampled_from([1, 2, 3]))
def test_random_programs(random_program: Any, seed: int, ranks: int) -> None:
    module = random_program(seed, ranks, (4, 6))
    draw = Random(seed)
    numbers = np.random.default_rng(seed)
    inputs = {}
    for i in module.inputs:
        shape, dtype = i.value.type.shape, i.value.type.dtype
        whole = numbers.normal(size=shape) if dtype.kind == "real" else numbers.integers(0, 4, size=shape)
        inputs[i.name] = folded(settle(whole, dtype), draw)
    agrees(module, inputs)


def test_random_graphs_are_evaluated_on_fewer_elements() -> None:
    small = 0
    for seed in range(40):
        draw = Random(seed)
        g = random_graph(draw, size=16)
        small += agrees(g.module(), {i.name: folded(g.values[i.name][0], draw) for i in g.inputs})
    assert small > 500


def gathered(p: Any, draw: Random) -> tuple[Module, dict[str, Folded]]:
    """A gather or a scatter, with or without paired dims and whole windows, its vectors first or last."""
    paired, window, vector_first = draw.random() < 0.5, draw.random() < 0.5, draw.random() < 0.5
    batch, rows, columns, n = 3, 5, 4, 6
    shape = (batch, rows, columns) if paired else (rows, columns)
    at = (batch, n) if paired else (n,)
    width = 1 if window else 2
    vector = 0 if vector_first else len(at)
    index_shape = (*at[:vector], width, *at[vector:])
    mapped = tuple(range(len(shape) - 2, len(shape) - 2 + width))
    numbers = np.random.default_rng(draw.randrange(1 << 30))
    x = p.input("x", *shape)
    ids = p.input("ids", *index_shape, dtype=DType.S32)
    inputs = {
        "x": folded(numbers.normal(size=shape), draw),
        "ids": folded(numbers.integers(-1, 5, index_shape).astype(np.int32), draw),
    }
    own = (int(vector_first),) if paired else ()
    if draw.random() < 0.5:
        gone = (*mapped,) if not window else mapped[:1]
        attrs = {
            "offset_dims": (len(at),) if window else (),
            "collapsed_slice_dims": gone,
            "start_index_map": mapped,
            "index_vector_dim": vector,
            "slice_sizes": tuple(columns if window and d == len(shape) - 1 else 1 for d in range(len(shape))),
            "operand_batching_dims": (0,) if paired else (),
            "start_indices_batching_dims": own,
        }
        p.output("y", p.op("gather", x, ids, **attrs))
        return p.module(), inputs
    update_shape = (*at, columns) if window else at
    inputs["u"] = folded(numbers.normal(size=update_shape), draw)
    attrs = {
        "update_window_dims": (len(at),) if window else (),
        "inserted_window_dims": mapped[:1] if window else mapped,
        "scatter_dims_to_operand_dims": mapped,
        "index_vector_dim": vector,
        "input_batching_dims": (0,) if paired else (),
        "scatter_indices_batching_dims": own,
        "kind": draw.choice(["sum", "max", "set"]),
        "unique": False,
    }
    p.output("y", p.op("scatter", x, ids, p.input("u", *update_shape), **attrs))
    return p.module(), inputs


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_reads_and_writes_at_positions(program: Any, seed: int) -> None:
    agrees(*gathered(program(), Random(seed)))


def test_a_write_of_one_value_to_many_rows_stays_small(program: Any) -> None:
    """One hot rows: position (i, t[i]) of each row, with `t` of two classes."""
    n, v = 6000, 5000
    p = program()
    rows = p.op("iota", type=TensorType(DType.S32, (n, 1)), dim=0)
    where = p.op("concatenate", rows, p.shape("reshape", p.input("t", n, dtype=DType.S32), n, 1), dim=1)
    zeros = p.shape("broadcast_in_dim", p.constant(0.0), n, v, dims=())
    attrs = {
        "update_window_dims": (),
        "inserted_window_dims": (0, 1),
        "scatter_dims_to_operand_dims": (0, 1),
        "index_vector_dim": 1,
        "input_batching_dims": (),
        "scatter_indices_batching_dims": (),
        "kind": "sum",
        "unique": True,
    }
    p.output("y", p.op("scatter", zeros, where, p.input("u", n), **attrs))
    two = classes_of(np.arange(n) % 2)
    inputs = {
        "t": Folded(np.array([7, 4999], np.int32), (two,)),
        "u": Folded(np.array([0.5]), (classes_of(np.zeros(n, np.int64)),)),
    }
    (y,) = Run(p.module(), inputs, budget=1 << 24).outputs["y"]
    assert y.core.size <= 6
    assert (y.at((0, 7)), y.at((1, 7)), y.at((1, 4999)), y.at((5999, 4999))) == (0.5, 0.0, 0.5, 0.5)


def test_sums_count_every_position_and_integers_wrap(program: Any) -> None:
    p = program()
    x, n = p.input("x", 1000), p.input("n", 1000, dtype=DType.S8)
    p.output("sum", p.op("reduce", x, p.constant(1.0), dims=(0,), kind="sum"))
    p.output("product", p.op("reduce", x, p.constant(1.0), dims=(0,), kind="prod"))
    p.output("wrapped", p.op("reduce", n, p.constant(0, DType.S8), dims=(0,), kind="sum"))
    parts = (classes_of(np.arange(1000) // 999),)
    inputs = {"x": Folded(np.array([0.5, -3.0]), parts), "n": Folded(np.array([3, 1], np.int8), parts)}
    outputs = Run(p.module(), inputs, budget=BUDGET).outputs
    assert outputs["sum"][0].core == 999 * 0.5 - 3 + 1
    assert outputs["product"][0].core == 0.5**999 * -3.0
    assert outputs["wrapped"][0].core == np.int64(3 * 999 + 1).astype(np.int8)


def test_the_first_extreme_has_the_first_position(program: Any) -> None:
    p = program()
    types = TensorType(DType.F32, ()), TensorType(DType.S32, ())
    value, place = p.many("argreduce", p.input("x", 9), types=types, dim=0, kind="max")
    p.output("value", value)
    p.output("place", place)
    parts = (classes_of(np.array([0, 1, 0, 2, 1, 2, 2, 0, 1])),)
    outputs = Run(p.module(), {"x": Folded(np.array([1.0, 5.0, 5.0]), parts)}, budget=BUDGET).outputs
    assert (outputs["value"][0].core, outputs["place"][0].core) == (5.0, 1)


def test_extended_precision_is_kept(program: Any) -> None:
    p = program()
    x = p.input("x", 300, 200)
    attrs = {"lhs_contracting": (1,), "rhs_contracting": (1,), "lhs_batch": (), "rhs_batch": ()}
    square = p.op("dot_general", x, x, type=TensorType(DType.F32, (300, 300)), **attrs)
    p.output("y", p.shape("reshape", p.op("tanh", square), 100, 900))
    draw = Random(1)
    given_x = folded(np.random.default_rng(1).normal(size=(300, 200)), draw)
    wide = Folded(given_x.core.astype(np.longdouble), given_x.parts)
    (y,) = Run(p.module(), {"x": wide}, budget=BUDGET).outputs["y"]
    assert y.core.dtype == np.longdouble and y.core.size < 9 * 300


def test_what_does_not_fit_gives_a_reason(program: Any) -> None:
    p = program()
    x = p.input("x", 5000)
    p.output("y", p.op("sort", x, dim=0, comparator="lt:0", stable=True))
    parts = (classes_of(np.arange(5000) % 3),)
    with pytest.raises(TooLarge, match=r"sort .* the budget is 0 MiB"):
        Run(p.module(), {"x": Folded(np.arange(3.0), parts)}, budget=1 << 14)


def test_what_takes_too_long_gives_a_reason(program: Any) -> None:
    p = program()
    n = 1 << 11
    x = p.input("x", n, n)
    attrs = {"lhs_contracting": (1,), "rhs_contracting": (0,), "lhs_batch": (), "rhs_batch": ()}
    p.output("y", p.op("dot_general", x, x, type=TensorType(DType.F32, (n, n)), **attrs))
    whole = Folded(np.ones((n, n)), (discrete(n),) * 2)
    with pytest.raises(TooLarge, match="8192 Mi products"):
        Run(p.module(), {"x": whole}, budget=1 << 30)


@pytest.mark.parametrize("opcode", ["gather", "dynamic_slice"])
def test_a_position_out_of_range_is_told(program: Any, gather: Any, opcode: str) -> None:
    p = program()
    x, at = p.input("x", 8), p.input("at", dtype=DType.S32)
    if opcode == "gather":
        attrs = {**gather, "offset_dims": (), "slice_sizes": (1,)}
        p.output("y", p.op("gather", x, p.shape("reshape", at, 1, 1), **attrs))
    else:
        p.output("y", p.op("dynamic_slice", x, at, sizes=(2,)))
    for position, out in ((0, False), (6, False), (8, True), (-1, True)):
        inputs = {"x": Folded(np.arange(8.0), (discrete(8),)), "at": Folded(np.array(position, np.int32), ())}
        assert Run(p.module(), inputs, budget=BUDGET).strayed is out


def test_partitions() -> None:
    p = classes_of(np.array([7, 3, 7, 9, 3]))
    assert p.labels.tolist() == [0, 1, 0, 2, 1]
    assert (p.first.tolist(), p.sizes.tolist()) == ([0, 1, 3], [2, 2, 1])
    assert classes_of(np.array([1, 0, 1, 5, 0])) is p
    assert refined(p, single(5)) is p and refined(single(5), p) is p
    assert refined(p, discrete(5)) is discrete(5)
    part, picks = cut(p, 1, 5, 2)
    assert part is discrete(2) and picks.tolist() == [1, 2]
    assert joined(p, p).labels.tolist() == [0, 1, 0, 2, 1, 3, 4, 3, 5, 4]
    (rows, columns), places = regrouped((classes_of(np.array([0, 1, 0, 1, 2, 2])),), (3, 2))
    assert rows.labels.tolist() == [0, 0, 1] and columns is discrete(2)
    assert places is not None and places.tolist() == [0, 1, 2, 2]
