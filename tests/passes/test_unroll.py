"""Loops run, and written out: what the rounds read and give, in both directions, and within a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_programs import Build, Results, f32, program

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, ModuleError, Value
from shardproof.ir.verify import verify
from shardproof.passes.unroll import every_op, has_loops, unrolled, unrolled_size


def nested(reverse: bool = False) -> Module:
    """`c = 2*c + row` over rows; each round also sums its row by a loop of its own."""

    def build(b: Build, x: Value, xs: Value) -> Results:
        def round(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            total, *_ = b.scan(
                lambda b, k, c, r: ([b("add", c[0], r[0])], [c[0]]), [b.full(0, f32())], [r[0]], length=2
            )
            new = b("add", b("add", c[0], c[0]), r[0])
            return [new], [total, new]

        return b.scan(round, [x], [xs], length=3, reverse=reverse)

    return program({"x": f32(2), "xs": f32(3, 2)}, build)


@pytest.mark.parametrize("reverse", [False, True])
def test_rounds_are_written_out_in_order(reverse: bool) -> None:
    module = nested(reverse)
    long = unrolled(module, 100)
    verify(long)
    assert has_loops(module) and not has_loops(long)
    x, xs = np.array([1.0, -1.0]), np.arange(6.0).reshape(3, 2)
    for found in (run(long, {"x": x, "xs": xs}), run(module, {"x": x, "xs": xs})):
        check_rounds(found, x, xs, reverse=reverse)


def check_rounds(found: Any, x: Any, xs: Any, *, reverse: bool) -> None:
    rows: list[Any] = [None] * 3
    c = x
    for k in range(3)[:: -1 if reverse else 1]:
        c = 2 * c + xs[k]
        rows[k] = c
    np.testing.assert_array_equal(found["y0"][0], c)
    np.testing.assert_array_equal(found["y1"][0], xs.sum(1))
    np.testing.assert_array_equal(found["y2"][0], np.stack(rows))


def test_too_many_operators_are_refused() -> None:
    module = nested()
    size = unrolled_size(module.ops)
    assert size < len(unrolled(module, size).ops)
    with pytest.raises(ModuleError, match=f"written out have {size} operators, at most {size - 1} are"):
        unrolled(module, size - 1)


def test_a_program_without_loops_stays_as_it_is() -> None:
    module = program({"x": f32(2)}, lambda b, x: b("tanh", x))
    assert unrolled(module, 0) is module


def test_every_operator_of_every_round_is_seen_once() -> None:
    opcodes = [op.opcode for op in every_op(nested().ops)]
    assert opcodes.count("scan") == 2
    assert opcodes.count("add") == 3


def test_names_stay_unique() -> None:
    """Values of rounds whose names are taken outside get others."""

    def build(b: Build, x: Value) -> Results:
        (y,) = b.scan(lambda b, k, c, r: ([b("tanh", c[0])], []), [x], length=2)
        taken = Value("0_0.0@0", f32(2))
        return [b("add", y, y), taken]

    module = program({"x": f32(2), "0_0.0@0": f32(2)}, lambda b, x, z: build(b, x)[:1])
    long = unrolled(module, 100)
    verify(long)
    names = [i.name for i in long.inputs] + [v.name for op in long.ops for v in op.results]
    assert len(set(names)) == len(names)
