"""Modules that are not well formed: one precise line each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardproof.ir.module import Guess, Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.types import DType, Location, Mesh, TensorType
from shardproof.ir.verify import verify

F = TensorType(DType.F32, (2, 4))
HERE = Location("model.py", 12)
X = Value("x", F)
Y = Value("y", F, HERE)
NEGATE = Op("negate", (X,), (Y,))


def module(*ops: Op, **changes: Any) -> Module:
    built = Module("m", Mesh((("tp", 2),)), (Input(X, 0),), ops, (Output("o", ops[-1].result),))
    return replace(built, **changes)


def test_a_good_module_passes() -> None:
    verify(module(NEGATE, outputs=(Output("o", Y, "x"), Output("p", X))))


def collective(opcode: str, **attrs: Any) -> Module:
    return module(Op(opcode, (X,), (Y,), attrs))


A, B = Value("a", F), Value("b", F, HERE)
CASES: dict[str, tuple[Module, str]] = {
    "unknown operator": (
        module(Op("frobnicate", (X,), (Y,))),
        "frobnicate %y at model.py:12: .* not in the table",
    ),
    "missing attribute": (module(Op("iota", (), (Y,))), "iota %y at model.py:12: .* lacks dim"),
    "extra attribute": (module(Op("negate", (X,), (Y,), {"alpha": 2})), "has unknown alpha"),
    "undefined operand": (
        module(Op("add", (X, A), (Y,))),
        "add %y at model.py:12: operand %a is not defined",
    ),
    "used before": (
        module(Op("negate", (A,), (Y,)), Op("negate", (X,), (A,))),
        "%a is used before it is defined",
    ),
    "cycle of two": (
        module(Op("negate", (A,), (B,)), Op("negate", (B,), (A,))),
        "negate %b at model.py:12: operand %a depends on itself",
    ),
    "cycle of one": (module(Op("add", (X, Y), (Y,))), "operand %y at model.py:12 depends on itself"),
    "duplicate name": (module(NEGATE, Op("abs", (Y,), (Value("x", F),))), "value %x has the name of %x"),
    "two inputs": (module(NEGATE, inputs=(Input(X, 0), Input(Value("x", F), 1))), "names must be distinct"),
    "other value of that name": (module(Op("negate", (Value("x", F),), (Y,))), "is not the value %x"),
    "a guess of no kind": (
        module(NEGATE, guesses=(Guess("lucky", "it is even", "x"),)),
        "guess `lucky` of %x is none of group_guess, ",
    ),
    "no result": (module(NEGATE, ops=(Op("negate", (X,), ()),)), "operator negate of module m has no result"),
    "wrong shape": (
        module(Op("negate", (X,), (Value("y", TensorType(DType.F32, (4, 2))),))),
        r"result is declared f32\[4,2\], the operator gives f32\[2,4\]",
    ),
    "wrong element type": (
        module(Op("negate", (X,), (Value("y", TensorType(DType.F16, (2, 4))),))),
        r"result is declared f16\[2,4\], the operator gives f32\[2,4\]",
    ),
    "two results": (module(Op("negate", (X,), (Y, A))), "2 results declared, 1 needed"),
    "mixed operands": (
        module(
            NEGATE, Op("add", (X, Y), (A,)), Op("reshape", (X,), (Value("z", TensorType(DType.F32, (3,))),))
        ),
        r"reshape %z: operand f32\[2,4\] has 8 elements, f32\[3\] has 3",
    ),
    "negative size": (
        module(Op("iota", (), (Value("y", TensorType(DType.F32, (-1,))),), {"dim": 0})),
        "sizes are",
    ),
    "rank twice": (collective("all_reduce", kind="sum", groups=((0, 1), (1,))), "groups names rank 1 twice"),
    "rank outside": (
        collective("all_reduce", kind="sum", groups=((0, 2),)),
        "names rank 2, the mesh has 2 ranks",
    ),
    "rank is bool": (collective("all_reduce", kind="sum", groups=((False, 1),)), "names rank False"),
    "no group": (collective("all_reduce", kind="sum", groups=()), r"groups is \(\)"),
    "empty group": (collective("all_reduce", kind="sum", groups=((0,), ())), "a tuple of tuples"),
    "unknown kind": (collective("all_reduce", kind="mean", groups=((0, 1),)), "kind is 'mean'"),
    "or of reals": (collective("all_reduce", kind="or", groups=((0, 1),)), "kind or is not defined"),
    "two targets": (collective("collective_permute", pairs=((0, 1), (1, 1))), "pairs names rank 1 twice"),
    "target outside": (collective("collective_permute", pairs=((0, 5),)), "names rank 5"),
    "pair of three": (collective("collective_permute", pairs=((0, 1, 2),)), "source, target"),
    "undefined output": (module(NEGATE, outputs=(Output("o", A),)), "output 'o' is %a, which is not defined"),
    "output twice": (
        module(NEGATE, outputs=(Output("o", X), Output("o", Y))),
        "output 'o' is declared twice",
    ),
    "updates nothing": (module(NEGATE, outputs=(Output("o", Y, "q"),)), "updates %q, which is no input"),
    "updates twice": (
        module(NEGATE, outputs=(Output("o", Y, "x"), Output("p", Y, "x"))),
        "as another output does",
    ),
    "empty axis": (module(NEGATE, mesh=Mesh((("tp", 0),))), "mesh axis tp has size 0"),
    "axis twice": (module(NEGATE, mesh=Mesh((("tp", 2), ("tp", 2)))), "names an axis twice"),
    "rank of module": (module(NEGATE, rank=2), "is of rank 2, the ranks of its mesh are 0 to 1"),
    "number twice": (module(NEGATE, inputs=(Input(X, 0), Input(A, 0))), "%x and %a both have number 0"),
    "negative number": (module(NEGATE, inputs=(Input(X, -1),)), "input %x has number -1"),
    "sharding": (module(NEGATE, inputs=(Input(X, 0, (2,)),)), "2 positive numbers of parts"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_module_is_named(name: str) -> None:
    bad, message = CASES[name]
    with pytest.raises(ModuleError, match=message) as error:
        verify(bad)
    assert "\n" not in str(error.value)


def constant(value: Any, type_: TensorType = F) -> Module:
    return module(Op("constant", (), (Value("c", type_),), {"value": value}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((4, 2), np.float32), r"shape \[4, 2\]"),
        (np.zeros((2, 4), np.float64), "holds float64"),
        ([0.0], "is a list"),
    ],
)
def test_constant_values_have_the_declared_type(value: Any, message: str) -> None:
    verify(constant(np.zeros((2, 4), np.float32)))
    with pytest.raises(ModuleError, match=message):
        verify(constant(value))
    with pytest.raises(ModuleError, match="-8 to 7"):
        verify(constant(np.array([8], np.int8), TensorType(DType.S4, (1,))))


def test_groups_of_one_size_where_the_size_counts() -> None:
    mesh = Mesh((("x", 3),))
    reduced = Op("all_reduce", (X,), (Y,), {"kind": "sum", "groups": ((0, 1), (2,))})
    verify(module(reduced, mesh=mesh))
    with pytest.raises(ModuleError, match="sizes"):
        verify(module(Op("all_gather", (X,), (Y,), {"dim": 0, "groups": ((0, 1), (2,))}), mesh=mesh))
