"""Programs with their layers as loops compute what they did before."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from shardproof.ir.interpret import run
from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.ir.verify import verify
from shardproof.passes.roll import rolled
from shardproof.passes.unroll import has_loops, unrolled

VECTOR = TensorType(DType.F64, (3,))
MATRIX = TensorType(DType.F64, (3, 3))
SUM = {"kind": "sum", "groups": ((0, 1),)}
DOT = {"lhs_contracting": (0,), "rhs_contracting": (0,), "lhs_batch": (), "rhs_batch": ()}


class Layers:
    """A program under construction: layers repeat a random recipe on what the last one left."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.ops: list[Op] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []

    def input(self, type: TensorType) -> Value:
        self.inputs.append(Value(f"p{len(self.inputs)}", type))
        return self.inputs[-1]

    def op(self, opcode: str, *operands: Value, **attrs: Any) -> Value:
        value = Value(f"v{len(self.ops)}", VECTOR)
        self.ops.append(Op(opcode, operands, (value,), attrs))
        return value

    def recipe(self, length: int) -> list[tuple[str, float, float]]:
        names = ["add", "multiply", "dot", "tanh", "sum", "subtract", "maximum"]
        return [(self.draw.choice(names), self.draw.random(), self.draw.random()) for _ in range(length)]

    def layer(
        self, recipe: list[tuple[str, float, float]], given: list[Value], weights: list[Value]
    ) -> list[Value]:
        """All values of a layer: those it is given, then one for each step."""
        values = list(given)
        for number, (name, a, b) in enumerate(recipe):
            x, y = values[int(a * len(values))], values[int(b * len(values))]
            if name == "dot":
                values.append(self.op("dot_general", weights[number % len(weights)], x, **DOT))
            elif name == "tanh":
                values.append(self.op("tanh", x))
            elif name == "sum":
                values.append(self.op("all_reduce", x, **SUM))
            else:
                values.append(self.op(name, x, y))
        return values

    def module(self) -> Module:
        found = Module(
            "layers",
            Mesh((("tp", 2),)),
            tuple(Input(v, k) for k, v in enumerate(self.inputs)),
            tuple(self.ops),
            tuple(Output(f"out{k}", v) for k, v in enumerate(dict.fromkeys(self.outputs))),
        )
        verify(found)
        return found


def program(seed: int) -> Module:
    """Layers of one recipe, then perhaps layers that go back over what the first ones kept."""
    made = Layers(seed)
    draw = made.draw
    count, steps = draw.randint(4, 7), draw.randint(8, 12)
    x, fixed = made.input(VECTOR), made.input(VECTOR)
    recipe = made.recipe(steps)
    weights = [[made.input(MATRIX) for _ in range(2)] for _ in range(count)]
    odd = draw.randrange(count) if draw.random() < 0.3 else None
    kept = []
    for k in range(count):
        own = made.recipe(steps) if k == odd else recipe
        values = made.layer(own, [x, fixed], weights[k])
        kept.append((x, values))
        if draw.random() < 0.1:
            made.outputs.append(values[draw.randrange(len(values))])
        x = values[-1]
    made.outputs.append(x)
    if draw.random() < 0.7:
        back = made.recipe(steps)
        which = draw.randrange(2, steps + 2)
        order = list(reversed(range(count))) if draw.random() < 0.7 else list(range(count))
        for k in order:
            entered, values = kept[k]
            residual = entered if draw.random() < 0.05 or which == 2 else values[which]
            made.outputs.append(made.layer(back, [x, residual, fixed], weights[k])[-2])
            x = made.ops[-1].result
        made.outputs.append(x)
    return made.module()


def results(module: Module, seed: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    given = {i.name: [rng.standard_normal(i.value.type.shape) for _ in range(2)] for i in module.inputs}
    return run(module, given)


@pytest.mark.parametrize("block", range(8))
def test_rolled_programs_compute_the_same(block: int) -> None:
    found = 0
    for seed in range(40 * block, 40 * block + 40):
        module = program(seed)
        loops = rolled(module)
        verify(loops)
        found += has_loops(loops)
        flat = unrolled(loops, 10_000)
        verify(flat)
        want, got = results(module, seed), results(flat, seed)
        assert want.keys() == got.keys()
        for name, arrays in want.items():
            for a, b in zip(arrays, got[name], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{seed} {name}")
    assert found > 20


def stack(count: int) -> Layers:
    made = Layers(0)
    x = made.input(VECTOR)
    for _ in range(count):
        w = made.input(MATRIX)
        y = x
        for _ in range(4):
            y = made.op("dot_general", w, made.op("tanh", y), **DOT)
        x = made.op("add", x, y)
    made.outputs.append(x)
    return made


def test_equal_layers_become_one_loop() -> None:
    (loop,) = [op for op in rolled(stack(6).module()).ops if op.opcode == "scan"]
    assert (loop.attrs["length"], loop.attrs["carries"], loop.attrs["consts"]) == (6, 1, 0)
    assert len(loop.attrs["body"].ops) == 9


def test_few_layers_stay_as_they_are() -> None:
    module = stack(3).module()
    assert rolled(module) is module


def test_a_layer_that_reads_another_than_the_last_one_is_no_repetition() -> None:
    made = stack(6)
    first = made.ops[8].result
    last = made.ops[-1]
    made.ops[-1] = replace(last, operands=(first, last.operands[1]))
    module = made.module()
    flat = unrolled(rolled(module), 1_000)
    for name, arrays in results(module, 1).items():
        np.testing.assert_allclose(arrays, results(flat, 1)[name])


def test_random_draws_are_no_equal_layers() -> None:
    made = Layers(0)
    x = made.input(VECTOR)
    zero = Value("zero", TensorType(DType.F64, ()))
    made.ops.append(Op("constant", (), (zero,), {"value": np.zeros(())}))
    for _ in range(6):
        for _ in range(8):
            x = made.op("add", x, made.op("rng", zero, zero, distribution="uniform"))
    made.outputs.append(x)
    module = made.module()
    assert rolled(module) is module
