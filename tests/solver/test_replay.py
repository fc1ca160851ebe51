from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, Value
from shardproof.ir.types import DType, TensorType
from shardproof.solver.replay.draws import POSITIVE, counter_inputs
from shardproof.solver.replay.outcome import Difference
from shardproof.solver.replay.replay import Replay, compare, confirm, draw, peak_bytes
from shardproof.solver.replay.steadiness import rounding_decides
from shardproof.solver.replay.structured import FOLDED, FoldedValues, compare_folded, folded_values

both_ways = pytest.mark.parametrize("compare", [compare, compare_folded], ids=["whole", "folded"])


def goal_of(program: Any, module: Module, ranks: int = 1) -> Module:
    """What every rank must hold: the reference's outputs themselves."""
    p = program(ranks)
    for output in module.outputs:
        kind = output.value.type
        p.output(output.name, p.input(output.name, *kind.shape, dtype=kind.dtype))
    result: Module = p.module()
    return result


def single(program: Any, make: Any, dtype: DType = DType.F32) -> Module:
    p = program()
    p.output("y", make(p, p.input("x", 3, 4, dtype=dtype)))
    result: Module = p.module()
    return result


def summed(program: Any, ranks: int, scale: float) -> Module:
    """The sum over ranks of the own rows, times `scale`."""
    p = program(ranks)
    part = p.op("reduce", p.shard(p.input("x", 6, 4), 0, ranks), p.constant(0.0), dims=(0,), kind="sum")
    part = p.op("multiply", part, p.shape("broadcast_in_dim", p.constant(scale), 4, dims=()))
    p.output("y", p.op("all_reduce", part, kind="sum", groups=(tuple(range(ranks)),)))
    result: Module = p.module()
    return result


@both_ways
def test_equal_programs_are_tested_equal(program: Any, compare: Any) -> None:
    one = summed(program, 1, 1.0)
    assert compare(one, summed(program, 3, 1.0), goal_of(program, one, 3), seed=1, trials=5) == Replay(
        (), 5, 0, 0
    )


def test_a_difference_is_found_and_confirmed_and_replays(program: Any) -> None:
    one, three = summed(program, 1, 1.0), summed(program, 3, 1.00001)
    goal = goal_of(program, one, 3)
    outcome = compare(one, three, goal, seed=7)
    assert isinstance(outcome, Replay) and outcome.tested == 0
    (found,) = outcome.differences
    inputs = draw(one.inputs, found.seed)
    assert run(one, inputs)["y"][0][found.index] == found.reference
    assert run(three, inputs)["y"][found.rank][found.index] == found.implementation
    seen = confirm(one, three, goal, output="y", rank=found.rank, index=found.index, seed=7)
    assert isinstance(seen, Difference)
    assert (seen.reference, seen.implementation) == (
        pytest.approx(found.reference, rel=1e-12),
        pytest.approx(found.implementation, rel=1e-12),
    )


def test_confirm_of_an_equal_element_is_none(program: Any) -> None:
    one = summed(program, 1, 1.0)
    goal = goal_of(program, one, 3)
    assert confirm(one, summed(program, 3, 1.0), goal, output="y", rank=2, index=(1,), seed=1) is None


@both_ways
def test_the_rank_that_differs_is_named(program: Any, compare: Any) -> None:
    one = single(program, lambda p, x: x)

    def uneven(p: Any, x: Value) -> Value:
        number = p.op("broadcast_in_dim", p.rank(), type=TensorType(DType.U32, (3, 4)), dims=())
        two = p.op("constant", type=TensorType(DType.U32, (3, 4)), value=np.full((3, 4), 2, np.uint32))
        return p.op("select", p.op("compare", number, two, direction="EQ", total=False), p.op("negate", x), x)

    p = program(4)
    p.output("y", uneven(p, p.input("x", 3, 4)))
    outcome = compare(one, p.module(), goal_of(program, one, 4), seed=1)
    assert isinstance(outcome, Replay)
    assert [d.rank for d in outcome.differences] == [2]


@both_ways
def test_cancellation_is_not_a_difference(program: Any, compare: Any) -> None:
    """(x + 1e14) - 1e14 loses digits; over the reals it is x."""

    def far(p: Any, x: Value) -> Value:
        big = p.shape("broadcast_in_dim", p.constant(1e14, DType.F64), 3, 4, dims=())
        return p.op("subtract", p.op("add", x, big), big)

    one = single(program, lambda p, x: x, DType.F64)
    outcome = compare(one, single(program, far, DType.F64), goal_of(program, one), seed=1)
    assert outcome == Replay((), 0, 0, 1)


@both_ways
def test_overflow_is_not_a_difference(program: Any, compare: Any) -> None:
    """log(exp(1000 x)) is 1000 x over the reals."""

    def scaled(p: Any, x: Value) -> Value:
        return p.op("multiply", x, p.shape("broadcast_in_dim", p.constant(1000.0), 3, 4, dims=()))

    one = single(program, scaled)
    two = single(program, lambda p, x: p.op("log", p.op("exponential", scaled(p, x))))
    outcome = compare(one, two, goal_of(program, one), seed=1)
    assert isinstance(outcome, Replay) and outcome.differences == ()
    assert outcome.tested == 0


@both_ways
def test_nan_in_the_reference_is_skipped_and_positive_inputs_are_tried(program: Any, compare: Any) -> None:
    def root(p: Any, x: Value) -> Value:
        low = p.op("reduce", x, p.constant(np.inf), dims=(0, 1), kind="min")
        return p.op("sqrt", p.op("add", low, low))

    one = single(program, root)
    goal = goal_of(program, one)
    twice = single(program, lambda p, x: p.op("add", root(p, x), root(p, x)))
    assert compare(one, one, goal, seed=1) == Replay((), 1, 0, 0)
    outcome = compare(one, twice, goal, seed=1)
    assert isinstance(outcome, Replay)
    (found,) = outcome.differences
    assert found.seed % FOLDED == 1 + POSITIVE and found.implementation == pytest.approx(2 * found.reference)


@both_ways
def test_nan_in_the_implementation_alone_is_a_difference(program: Any, compare: Any) -> None:
    one = single(program, lambda p, x: x)
    two = single(program, lambda p, x: p.op("sqrt", p.op("negate", p.op("multiply", x, x))))
    outcome = compare(one, two, goal_of(program, one), seed=1)
    assert isinstance(outcome, Replay) and len(outcome.differences) == 1


def test_integers_are_compared_exactly_and_ranges_hold(program: Any) -> None:
    one = single(program, lambda p, x: x, DType.S32)
    two = single(
        program, lambda p, x: p.op("minimum", x, p.constant(np.full((3, 4), 9), DType.S32)), DType.S32
    )
    goal = goal_of(program, one)
    assert compare(one, two, goal, seed=1, ranges={"x": (-5, 10)}, trials=4) == Replay((), 4, 0, 0)
    outcome = compare(one, two, goal, seed=1, ranges={"x": (1 << 20, 1 << 30)})
    assert isinstance(outcome, Replay) and outcome.differences[0].implementation == 9


def test_an_unsupported_operator_and_a_large_program_give_reasons(program: Any) -> None:
    def noisy(p: Any, x: Value) -> Value:
        noise = p.op("rng", p.constant(0.0), p.constant(1.0), type=x.type, distribution="uniform")
        return p.op("add", x, noise)

    one = single(program, noisy)
    assert "rng" in str(compare(one, one, goal_of(program, one), seed=1))
    plain = single(program, lambda p, x: x)
    assert "budget" in str(compare(plain, plain, goal_of(program, plain), seed=1, budget=8))


@both_ways
def test_an_output_that_the_implementation_lacks_gives_the_reason(program: Any, compare: Any) -> None:
    one = single(program, lambda p, x: x)
    p = program()
    p.output("z", p.input("x", 3, 4))
    assert "no output y" in str(compare(one, p.module(), goal_of(program, one), seed=1))


@both_ways
def test_several_reference_ranks_are_stacked(program: Any, compare: Any) -> None:
    p = program(2)
    p.output("y", p.shard(p.input("x", 4, 3), 0, 2))
    two: Module = p.module()
    whole = single_identity(program)
    right = program()
    right.output("y", right.shape("reshape", right.input("y", 2, 2, 3), 4, 3))
    assert compare(two, whole, right.module(), seed=1) == Replay((), 1, 0, 0)
    wrong = program()
    turned = wrong.op("reverse", wrong.input("y", 2, 2, 3), dims=(0,))
    wrong.output("y", wrong.shape("reshape", turned, 4, 3))
    assert isinstance(compare(two, whole, wrong.module(), seed=1), Replay)
    seen = confirm(two, whole, wrong.module(), output="y", rank=0, index=(0, 0), seed=1)
    assert isinstance(seen, Difference)
    told = folded_values(two, whole, right.module(), seed=1)
    assert isinstance(told, FoldedValues) and {len(v) for v in told.reference.values()} == {2}


def single_identity(program: Any) -> Module:
    p = program()
    p.output("y", p.input("x", 4, 3))
    result: Module = p.module()
    return result


def test_peak_counts_what_is_alive(program: Any) -> None:
    p = program()
    x = p.input("x", 1000)
    for _ in range(20):
        x = p.op("tanh", x)
    p.output("y", x)
    assert 16_000 <= peak_bytes(p.module()) <= 40_000


def test_draws_depend_on_seed_and_name_only(program: Any) -> None:
    p = program()
    p.input("a", 50, 40)
    p.input("b", 50, 40)
    first = draw(p.inputs, 1)
    reordered = draw(p.inputs[::-1], 1)
    assert all(np.array_equal(first[n], reordered[n]) for n in first)
    assert not np.array_equal(first["a"], first["b"])
    assert not np.array_equal(first["a"], draw(p.inputs, 2)["a"])
    assert np.abs(first["a"]).min() > 0.01
    assert (draw(p.inputs, 1 + POSITIVE)["a"] > 0).all()
    with pytest.raises(ValueError, match=r"range 3 .* 3 of input a"):
        counter_inputs(p.inputs, 1, {"a": (3, 3)})


@both_ways
def test_a_branch_that_rounding_decides_is_not_a_difference(program: Any, compare: Any) -> None:
    """floor(x / 3 * 3 - x) is 0 over the reals; float64 gives -1 for some x."""

    def thirds(p: Any, x: Value) -> Value:
        three = p.shape("broadcast_in_dim", p.constant(3.0), 3, 4, dims=())
        return p.op("floor", p.op("subtract", p.op("multiply", p.op("divide", x, three), three), x))

    one = single(program, lambda p, x: p.op("subtract", x, x))
    two = single(program, thirds)
    goal = goal_of(program, one)
    outcome = compare(one, two, goal, seed=1, ranges={"x": (0, 1)}, trials=8)
    assert isinstance(outcome, Replay) and outcome.differences == () and outcome.unstable > 0
    for index in np.ndindex(3, 4):
        assert confirm(one, two, goal, output="y", rank=0, index=index, seed=1, ranges={"x": (0, 1)}) is None


@pytest.mark.parametrize(
    ("opcode", "sure", "unsure"),
    [
        ("floor", [0.25, 3.0], [0.25, 3 - 1e-15]),
        ("round_even", [0.25, 2.5], [0.25, 2.5 + 1e-15]),
        ("sign", [0.5, 0.0], [0.5, 1e-17]),
        ("top_k", [0.5, 0.5, 1.0], [0.5, 0.5 + 1e-15, 1.0]),
    ],
)
def test_steadiness_of_jumps(program: Any, opcode: str, sure: list[float], unsure: list[float]) -> None:
    p = program()
    x = p.input("x", len(sure))
    p.many(opcode, x, **({"k": 1} if opcode == "top_k" else {}))
    assert not rounding_decides(p.ops[0], [np.array(sure)])
    assert rounding_decides(p.ops[0], [np.array(unsure)])
