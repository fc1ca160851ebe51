"""Replay on inputs with few distinct slices, at shapes that do not fit as a whole."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from shardproof.ir.module import Module, Value
from shardproof.ir.types import DType, TensorType
from shardproof.solver.prove import Clock
from shardproof.solver.relations.relation import Composed
from shardproof.solver.replay.computable import computable
from shardproof.solver.replay.draws import POSITIVE
from shardproof.solver.replay.outcome import Difference
from shardproof.solver.replay.refute import replay
from shardproof.solver.replay.replay import Replay, confirm, too_large
from shardproof.solver.replay.structure import Structure, limits, literals
from shardproof.solver.replay.structured import (
    FOLDED,
    FoldedDraws,
    FoldedValues,
    compare_folded,
    folded_boxes,
    folded_values,
)

LARGE = (1 << 15, 1536, 98304)
SMALL = (256, 48, 4096)
"""Tokens, hidden elements, words."""
PRODUCT = {"lhs_contracting": (1,), "rhs_contracting": (0,), "lhs_batch": (), "rhs_batch": ()}


def loss(
    program: Any,
    ranks: int = 1,
    *,
    sizes: tuple[int, int, int] = LARGE,
    summed: bool = True,
    shift: int = 0,
    short: int = 0,
) -> Module:
    """The log of the summed exponentials of all words' scores, minus the score of the target word."""
    p = program(ranks)
    tokens, hidden, words = sizes
    x, table = p.input("x", tokens, hidden), p.input("table", hidden, words)
    target = p.input("target", tokens, dtype=DType.S32)
    own = words // ranks
    groups = (tuple(range(ranks)),)
    zero = p.constant(0.0)

    def whole(v: Value) -> Value:
        return p.op("all_reduce", v, kind="sum", groups=groups) if ranks > 1 and summed else v

    def wide(v: Value) -> Value:
        return p.shape("broadcast_in_dim", v, tokens, dims=())

    if ranks > 1:
        table = p.shard(table, 1, ranks)
    scores = p.op("dot_general", x, table, type=TensorType(DType.F32, (tokens, own)), **PRODUCT)
    total = whole(p.op("reduce", p.op("exponential", scores), zero, dims=(1,), kind="sum"))
    rank = p.op("convert", p.rank(), type=TensorType(DType.S32, ()))
    start = p.op("multiply", rank, p.constant(own, DType.S32))
    low = wide(p.op("add", start, p.constant(shift, DType.S32)))
    at = p.op("subtract", target, low)
    inside = p.op("compare", at, wide(p.constant(0, DType.S32)), direction="GE", total=False)
    below = p.op("compare", at, wide(p.constant(own - short, DType.S32)), direction="LT", total=False)
    inside = p.op("and", inside, below)
    at = p.op("select", inside, at, wide(p.constant(0, DType.S32)))
    rows = p.op("iota", type=TensorType(DType.S32, (tokens, 1)), dim=0)
    where = p.op("concatenate", rows, p.shape("reshape", at, tokens, 1), dim=1)
    picked = p.op(
        "gather",
        scores,
        where,
        offset_dims=(),
        collapsed_slice_dims=(0, 1),
        start_index_map=(0, 1),
        index_vector_dim=1,
        slice_sizes=(1, 1),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
    )
    picked = whole(p.op("select", inside, picked, wide(zero)))
    p.output("y", p.op("subtract", p.op("log", total), picked))
    module: Module = p.module()
    return module


def checked(
    program: Any, sizes: tuple[int, int, int] = LARGE, **how: Any
) -> tuple[Module, Module, Module]:
    p = program(2)
    p.output("y", p.input("y", sizes[0]))
    return loss(program, sizes=sizes), loss(program, 2, sizes=sizes, **how), p.module()


def test_a_correct_pair_is_tested_equal_in_little_memory(program: Any) -> None:
    modules = checked(program)
    assert too_large(modules, 24 << 30) is not None
    tracemalloc.start()
    outcome = compare_folded(*modules, seed=1, trials=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcome == Replay((), 2, 0, 0)
    assert peak < 64 << 20


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_a_missing_sum_is_found(program: Any, sizes: tuple[int, int, int]) -> None:
    modules = checked(program, sizes, summed=False)
    outcome = compare_folded(*modules, seed=1)
    assert isinstance(outcome, Replay)
    (found,) = outcome.differences
    assert found.seed % POSITIVE == 1 and found.seed >= FOLDED
    if sizes is LARGE:
        return
    drawn = folded_boxes(FoldedDraws(*modules[:2]).inputs(found.seed))
    place = {"output": "y", "rank": found.rank, "index": found.index, "seed": found.seed}
    again = confirm(*modules, **place, drawn=drawn)
    assert isinstance(again, Difference), again
    assert again.reference == pytest.approx(found.reference, rel=1e-9)
    assert again.implementation == pytest.approx(found.implementation, rel=1e-9)


def test_a_range_off_by_one_is_found(program: Any) -> None:
    modules = checked(program, shift=1)
    assert limits(modules[0]) == {"target": (0, LARGE[2])}
    assert {LARGE[2] // 2 - 1, LARGE[2] // 2} <= set(literals(modules[:2]))
    outcome = compare_folded(*modules, seed=1, trials=4)
    assert isinstance(outcome, Replay) and len(outcome.differences) == 1


def test_one_word_that_no_rank_has_is_found(program: Any) -> None:
    outcome = compare_folded(*checked(program, short=1), seed=1, trials=12)
    assert isinstance(outcome, Replay) and len(outcome.differences) == 1


def test_replay_of_large_programs_takes_this_way(program: Any) -> None:
    wrong = replay(Composed(*checked(program, summed=False), {}, {}), Clock(None))
    assert wrong.difference is not None and wrong.difference.seed >= FOLDED
    right = replay(Composed(*checked(program), {}, {}), Clock(None))
    assert right.difference is None and right.tested


def test_all_values_are_told(program: Any) -> None:
    modules = checked(program)
    found = folded_values(*modules, seed=FOLDED + 1)
    assert isinstance(found, FoldedValues)
    scores = next(op.result.name for op in modules[1].ops if op.opcode == "dot_general")
    assert [x.shape for x in found.implementation[scores]] == [(LARGE[0], LARGE[2] // 2)] * 2
    assert all(x.core.size < 100 for x in found.implementation[scores])


def test_classes_follow_the_heads(program: Any) -> None:
    """Weights of fused heads: some heads differ, and so do the positions in a head."""
    p = program()
    x, w = p.input("x", 64, 96), p.input("w", 96, 240)
    y = p.op("dot_general", x, w, type=TensorType(DType.F32, (64, 240)), **PRODUCT)
    heads = p.shape("reshape", y, 64, 12, 20)
    p.output("y", p.op("slice", heads, starts=(0, 0, 5), limits=(64, 12, 20), strides=(1, 1, 1)))
    parts = Structure([p.module()]).parts(3)
    labels = parts["w"][1].labels.reshape(12, 20)
    rows = {tuple(row) for row in labels.tolist()}
    columns = {tuple(column) for column in labels.T.tolist()}
    assert 1 < len(rows) <= 3 and 1 < len(columns) <= 6
    assert parts["x"][1] is parts["w"][0] and parts["x"][1].count == 3


def test_a_reference_that_reads_out_of_range_refutes_nothing(program: Any) -> None:
    """Beyond the table the two clamp differently; within it they agree."""

    def read(by: int, last: int) -> Module:
        p = program()
        at = p.op("add", p.input("at", dtype=DType.S32), p.constant(by, DType.S32))
        at = p.op("minimum", at, p.constant(last, DType.S32))
        p.output("y", p.op("dynamic_slice", p.input("x", 1 << 10), at, sizes=(1,)))
        module: Module = p.module()
        return module

    q = program()
    q.output("y", q.input("y", 1))
    free, goal = read(0, 1 << 20), q.module()
    assert limits(free) == {"at": (0, 1 << 10)}
    far = {"at": (1 << 12, 1 << 13)}
    reason = compare_folded(free, read(0, 5), goal, seed=1, ranges=far, trials=3)
    assert "out of range" in str(reason)
    assert compare_folded(free, read(0, 1023), goal, seed=1, trials=3) == Replay((), 3, 0, 0)
    outcome = compare_folded(free, read(1, 1023), goal, seed=1, trials=3)
    assert isinstance(outcome, Replay) and outcome.differences


def memory(program: Any, used: float) -> Module:
    """The softmax of scores to which `used` times memory that was never written is added."""
    p = program()
    x = p.input("x", 300, 200)
    bounds = [p.constant(np.iinfo(np.int32).min, DType.S32), p.constant(np.iinfo(np.int32).max, DType.S32)]
    bits = p.op("rng", *bounds, type=TensorType(DType.S32, (300, 200)), distribution="uniform")
    real = p.op("bitcast_convert", bits, type=TensorType(DType.F32, (300, 200)))
    y = p.op("exponential", p.op("add", x, real) if used else x)
    total = p.op("reduce", y, p.constant(0.0), dims=(1,), kind="sum")
    p.output("y", p.op("divide", y, p.shape("broadcast_in_dim", total, 300, 200, dims=(0,))))
    module: Module = p.module()
    return module


def test_memory_that_was_never_written_differs_from_what_the_reference_adds(program: Any) -> None:
    q = program()
    q.output("y", q.input("y", 300, 200))
    clean, dirty = memory(program, 0.0), memory(program, 1.0)
    assert compare_folded(clean, clean, q.module(), seed=1) == Replay((), 1, 0, 0)
    outcome = compare_folded(clean, dirty, q.module(), seed=1)
    assert isinstance(outcome, Replay) and len(outcome.differences) == 1
    assert "rng" in str(compare_folded(dirty, clean, q.module(), seed=1))


def test_outputs_that_cannot_be_computed_are_left_out(program: Any) -> None:
    def both(scale: float) -> Module:
        p = program()
        x = p.input("x", 1 << 12, 1 << 12)
        attrs = {"name": "unheard of", "free": ()}
        p.output("z", p.op("opaque", x, type=x.type, **attrs))
        factor = p.shape("broadcast_in_dim", p.constant(scale), 1 << 12, 1 << 12, dims=())
        p.output("y", p.op("multiply", x, factor))
        module: Module = p.module()
        return module

    q = program()
    for name in "zy":
        q.output(name, q.input(name, 1 << 12, 1 << 12))
    modules = both(1.0), both(1.5), q.module()
    assert [[o.name for o in m.outputs] for m in computable(*modules)] == [["y"]] * 3
    found = replay(Composed(*modules, {}, {}), Clock(None)).difference
    assert found is not None and found.output == "y"
    assert replay(Composed(modules[0], modules[0], modules[2], {}, {}), Clock(None)).difference is None


@pytest.mark.parametrize("rounded", [False, True])
def test_which_of_two_equals_comes_first_is_no_difference(program: Any, rounded: bool) -> None:
    """The first of the largest, and counted from the end the last."""

    def largest(*, backwards: bool) -> Module:
        p = program()
        x, w = p.input("x", 64, 96), p.input("w", 96, 512)
        x = p.op("dot_general", x, w, type=TensorType(DType.F32, (64, 512)), **PRODUCT)
        x = p.op("floor", p.op("multiply", x, x)) if rounded else x
        x = p.op("reverse", x, dims=(1,)) if backwards else x
        types = TensorType(DType.F32, (64,)), TensorType(DType.S32, (64,))
        place = p.many("argreduce", x, types=types, dim=1, kind="max")[1]
        if backwards:
            last = p.shape("broadcast_in_dim", p.constant(511, DType.S32), 64, dims=())
            place = p.op("subtract", last, place)
        p.output("y", place)
        module: Module = p.module()
        return module

    q = program()
    q.output("y", q.input("y", 64, dtype=DType.S32))
    outcome = compare_folded(largest(backwards=False), largest(backwards=True), q.module(), seed=1, trials=4)
    assert isinstance(outcome, Replay) and outcome.differences == ()
    assert outcome.tested == (0 if rounded else 4) and outcome.unstable == (4 if rounded else 0)
