"""Casts, bits and integer arithmetic of ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import node

from shardproof.ir.interpret import run
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

LARGE = np.asarray([0.5, -3.0, 1e6, -1e6, np.inf, -np.inf], np.float32)
LIMITS = {17: 448.0, 18: 240.0, 19: 57344.0, 20: 57344.0, 23: 6.0}
"""The largest numbers of narrow types, by `TensorProto.DataType`."""


def cast(x: Any, to: int, **attributes: Any) -> Any:
    """A cast there and back."""
    nodes = [node("Cast", "x", "n", to=to, **attributes), node("Cast", "n", "y", to=1)]
    info = onnx.helper.make_tensor_value_info
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = onnx.helper.make_graph(nodes, "graph", [info("x", kind, x.shape)], [info("y", 1, x.shape)])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=12)


@pytest.mark.parametrize("to", LIMITS)
def test_narrow_reals_saturate(to: int) -> None:
    found = run(imported(cast(LARGE, to)), {"x": LARGE})["y"][0]
    np.testing.assert_array_equal(found, np.clip(LARGE, -LIMITS[to], LIMITS[to]))


def test_saturation_matters() -> None:
    one, other = (imported(cast(LARGE, 17, saturate=n)) for n in (1, 0))
    assert verify(one, one).verdict is Verdict.VERIFIED
    assert verify(one, other).verdict is not Verdict.VERIFIED
    assert verify(one, imported(cast(LARGE, 18))).verdict is not Verdict.VERIFIED


@pytest.mark.parametrize(("to", "low", "count"), [(21, 0, 16), (22, -8, 16), (25, 0, 4), (26, -2, 4)])
def test_narrow_integers_drop_bits(to: int, low: int, count: int) -> None:
    x = np.arange(-20, 20).astype(np.float32)
    found = run(imported(cast(x, to)), {"x": x})["y"][0]
    np.testing.assert_array_equal(found, (x - low) % count + low)


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two(mode: str) -> None:
    x = np.asarray([1.0, 1.25, 1.75, 3.0, 0.3], np.float32)
    found = run(imported(cast(x, 24, round_mode=mode)), {"x": x})["y"][0]
    exponents = np.log2(x.astype(np.float64))
    if mode == "nearest":
        down = 2 ** np.floor(exponents)
        right = np.where(x - down < 2 * down - x, down, 2 * down)
    else:
        right = 2 ** (np.ceil if mode == "up" else np.floor)(exponents)
    np.testing.assert_array_equal(found, right)
    with pytest.raises(ModuleError, match="which is not known"):
        imported(cast(x, 24, round_mode="stochastic"))


INTEGERS = np.asarray([7, -7, 6, -6, 1, -1])
DIVISORS = np.asarray([2, 2, -4, -4, 3, 3])


@pytest.mark.parametrize("nodes", [
    [node("Div", "x z", "y")],
    [node("Mod", "x z", "y")],
    [node("Mod", "x z", "y", fmod=1)],
])  # fmt: skip
def test_division_of_integers(nodes: Any) -> None:
    given = {"x": INTEGERS, "z": DIVISORS}
    assert disagreement(program(nodes, given, "y"), given) is None


def test_remainders_differ() -> None:
    given = {"x": INTEGERS, "z": DIVISORS}
    one, other = (imported(program([node("Mod", "x z", "y", fmod=n)], given, "y")) for n in (0, 1))
    assert verify(one, other).verdict is not Verdict.VERIFIED


def test_halves_are_truncated() -> None:
    """`x / 2 * 2` is no identity of integers."""
    given = {"x": INTEGERS}
    halves = [node("Div", "x two", "h"), node("Mul", "h two", "y")]
    modules = [
        imported(program(nodes, given, "y", {"two": np.asarray(2)}))
        for nodes in (halves, [node("Identity", "x", "y")])
    ]
    assert verify(*modules).verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.int8, np.int32])
def test_shifts(direction: str, kind: Any) -> None:
    x, by = np.asarray([100, 3, 77, 255 if kind is np.uint8 else 5]).astype(kind), np.asarray([1, 2, 6, 0])
    x = -x if np.issubdtype(kind, np.signedinteger) else x
    made = [node("BitShift", "x n", "y", direction=direction)]
    given = {"x": x, "n": by.astype(kind)}
    model = program([node("BitwiseXor", "x n", "y")], given, "y", opset=26)
    del model.graph.node[:]
    model.graph.node.extend(made)
    shift = np.left_shift if direction == "LEFT" else np.right_shift
    np.testing.assert_array_equal(run(imported(model), given)["y"][0], shift(x, by.astype(kind)))


def test_bits_read_again() -> None:
    x = np.asarray([1.0, -2.5, 0.0], np.float32)
    model = cast(x, 6)
    model.opset_import[0].version = 26
    model.graph.node[0].op_type = "BitCast"
    del model.graph.node[1]
    model.graph.node[0].output[0] = "y"
    model.graph.output[0].type.tensor_type.elem_type = 6
    np.testing.assert_array_equal(run(imported(model), {"x": x})["y"][0], x.view(np.int32))
    model.graph.node[0].attribute[0].i = 7
    model.graph.output[0].type.tensor_type.elem_type = 7
    with pytest.raises(ModuleError):
        imported(model)
