"""The ranks of a program side by side compute what each computes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from arrays import Graph
from random_operators import random_graph

from shardproof.ir.interpret import run
from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.ir.verify import verify as verify_module
from shardproof.passes.unfold_ranks import NotUnfolded, named, unfold_ranks

RANDOM = frozenset({"rng", "rng_bit_generator"})


def check(module: Module, inputs: dict[str, list[Any]]) -> None:
    """Every output of every rank, with the rank's own inputs."""
    alone = unfold_ranks(module)
    verify_module(alone)
    assert alone.mesh.size == 1
    ranks = range(module.mesh.size)
    given = {named(name, r): own[r] for name, own in inputs.items() for r in ranks}
    found, wanted = run(alone, given), run(module, inputs)
    for o in module.outputs:
        for r in ranks:
            own = found[named(o.name, r)][0]
            np.testing.assert_allclose(own, wanted[o.name][r], rtol=1e-9, err_msg=o.name)


def test_random_programs() -> None:
    collectives = set()
    for seed in range(250):
        g = random_graph(Random(seed), size=14)
        module = g.module()
        if module.mesh.size == 1 or RANDOM & {op.opcode for op in module.ops}:
            continue
        collectives |= {op.opcode for op in module.ops if "groups" in op.attrs or "pairs" in op.attrs}
        check(module, {i.name: g.values[i.name] for i in module.inputs})
    assert {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"} <= collectives


def test_ranks_have_their_own_inputs_and_numbers() -> None:
    g = Graph(3)
    x = g.input("x", 2, 6)
    turned = g.op("all_to_all", x, split_dim=1, concat_dim=0, groups=g.everyone)
    g.output("y", turned + x.all_reduce().reshape(6, 2))
    inputs = {"x": [np.arange(12.0).reshape(2, 6) * (r + 1) for r in range(3)]}
    check(g.module(), inputs)
    alone = unfold_ranks(g.module())
    assert [i.name for i in alone.inputs] == ["x@0", "x@1", "x@2"]
    assert [i.number for i in alone.inputs] == [0, 1, 2]
    assert [o.name for o in alone.outputs] == ["y@0", "y@1", "y@2"]


def test_what_is_equal_on_all_ranks_is_computed_once() -> None:
    g = Graph(4)
    g.output("y", g.input("x", 8).all_reduce() * 2.0)
    counts = [op.opcode for op in unfold_ranks(g.module()).ops]
    assert counts.count("add") == 3
    assert counts.count("multiply") == 1


@pytest.mark.parametrize(
    ("opcode", "attrs"),
    [
        ("rng", {"distribution": "uniform"}),
        ("all_reduce", {"kind": "sum", "groups": ((0,),)}),
        ("agree", {"groups": ((0, 1),)}),
    ],
)
def test_draws_and_ranks_without_a_group_are_not_unfolded(opcode: str, attrs: dict[str, Any]) -> None:
    type_ = TensorType(DType.F32, ())
    x, y = Value("x", type_), Value("y", type_)
    operands = (x, x) if opcode == "rng" else (x,)
    module = Module(
        "m", Mesh((("tp", 2),)), (Input(x, 0),), (Op(opcode, operands, (y,), attrs),), (Output("y", y),)
    )
    with pytest.raises(NotUnfolded):
        unfold_ranks(module)
