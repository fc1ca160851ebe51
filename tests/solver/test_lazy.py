from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.ir.interpret import run
from shardproof.ir.module import Module
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, TensorType
from shardproof.solver.replay.draws import counter_inputs
from shardproof.solver.replay.lazy import element
from shardproof.solver.replay.replay import draw


def everything_agrees(module: Module, seed: int = 3) -> None:
    """Each element of each output on each rank is the full interpreter's."""
    whole = run(module, draw(module.inputs, seed))
    boxes = counter_inputs(module.inputs, seed)
    for output in module.outputs:
        for rank, array in enumerate(whole[output.name]):
            for index in np.ndindex(array.shape):
                found = element(module, boxes, output.name, rank, index)
                assert not isinstance(found, str), found
                np.testing.assert_allclose(found, array[index], rtol=1e-9, atol=1e-12)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 32), ranks=st.sampled_from([1, 2, 3]))
def test_elements_of_random_programs_are_the_interpreters(random_program: Any, seed: int, ranks: int) -> None:
    everything_agrees(random_program(seed, ranks, (4, 6)))


def test_every_collective_is_exercised_by_the_random_programs(random_program: Any) -> None:
    found = {op.opcode for seed in range(60) for op in random_program(seed, 2, (4, 6)).ops}
    assert {name for name, row in TABLE.items() if "collective" in row.traits} <= found


def test_reads_only_what_the_element_depends_on(program: Any) -> None:
    p = program()
    x = p.input("x", 1 << 14, 1 << 14)
    w = p.input("w", 1 << 14, 1 << 14)
    attrs = {"lhs_contracting": (1,), "rhs_contracting": (0,), "lhs_batch": (), "rhs_batch": ()}
    p.output(
        "y", p.op("dot_general", p.op("tanh", x), w, type=TensorType(DType.F32, (1 << 14, 1 << 14)), **attrs)
    )
    module = p.module()
    boxes = counter_inputs(module.inputs, 1)
    tracemalloc.start()
    found = element(module, boxes, "y", 0, (17, 12345))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    row, column = boxes("x", ((17, 18), (0, 1 << 14))), boxes("w", ((0, 1 << 14), (12345, 12346)))
    assert found == pytest.approx(float((np.tanh(row) @ column).item()), rel=1e-9)
    assert peak < 8 << 20


def test_over_budget_gives_a_reason(program: Any) -> None:
    p = program()
    x = p.input("x", 1 << 13, 1 << 13)
    p.output("y", p.op("reduce", x, p.constant(0.0), dims=(0, 1), kind="sum"))
    module = p.module()
    reason = element(module, counter_inputs(module.inputs, 1), "y", 0, (), budget=1 << 20)
    assert isinstance(reason, str) and "budget is 1 MiB" in reason


def test_an_operator_without_meaning_gives_a_reason(program: Any) -> None:
    p = program()
    p.output(
        "y",
        p.op(
            "rng", p.constant(0.0), p.constant(1.0), type=TensorType(DType.F32, (3,)), distribution="uniform"
        ),
    )
    module = p.module()
    assert "rng" in str(element(module, counter_inputs((), 1), "y", 0, (0,)))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_boxes_are_parts_of_the_whole_draw(program: Any, data: Any) -> None:
    p = program()
    shape = data.draw(st.lists(st.integers(1, 7), max_size=4).map(tuple))
    for dtype in (DType.F16, DType.S32, DType.BOOL, DType.C64):
        p.input(dtype.value, *shape, dtype=dtype)
    boxes = counter_inputs(p.inputs, 5, {"s32": (-3, 9)})
    for name, array in draw(p.inputs, 5, {"s32": (-3, 9)}).items():
        box = []
        for n in shape:
            lo = data.draw(st.integers(0, n - 1))
            box.append((lo, data.draw(st.integers(lo + 1, n))))
        cut = tuple(slice(lo, hi) for lo, hi in box)
        np.testing.assert_array_equal(boxes(name, tuple(box)), array[cut])


@pytest.mark.parametrize(("window", "offset"), [(1, (1,)), (1, (0,)), (2, (0, 2)), (3, (1, 2))])
def test_gathered_windows(program: Any, gather: Any, window: int, offset: tuple[int, ...]) -> None:
    """Positions are clamped as the whole operand needs it, not as the box does."""
    p = program()
    x = p.input("x", 7, 4)
    ids = p.input("ids", 5, 1, dtype=DType.S32)
    far = p.op("multiply", ids, p.constant([[-1], [2], [3], [1], [4]], DType.S32))
    collapsed = (0,) if len(offset) == 1 else ()
    attrs = {**gather, "offset_dims": offset, "collapsed_slice_dims": collapsed}
    p.output("y", p.op("gather", x, far, slice_sizes=(window, 3), **attrs))
    everything_agrees(p.module())
