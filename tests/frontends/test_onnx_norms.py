"""Normalisation, functions of angles and quantised operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import model, node

from shardproof.ir.interpret import run
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(37)


def reals(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


X, SCALE, SHIFT, MEAN, VARIANCE = reals(2, 4, 3, 5), reals(4), reals(4), reals(4), reals(4) ** 2
BATCH = {"x": X, "s": SCALE, "b": SHIFT, "m": MEAN, "v": VARIANCE}


def test_batch_statistics() -> None:
    for training in (0, 1):
        outputs = "y p q" if training else "y"
        nodes = [node("BatchNormalization", "x s b m v", outputs, training_mode=training, momentum=0.7)]
        assert disagreement(program(nodes, BATCH, outputs), BATCH) is None


def test_instance_and_vector_norms() -> None:
    inputs = {"x": X, "s": SCALE, "b": SHIFT}
    nodes = [node("InstanceNormalization", "x s b", "y", epsilon=0.1)]
    assert disagreement(program(nodes, inputs, "y"), inputs) is None
    positive = {"x": np.abs(X)}
    for p in (1, 2):
        nodes = [node("LpNormalization", "x", "y", p=p, axis=1)]
        assert disagreement(program(nodes, positive, "y"), positive) is None


def test_norm_of_signed_numbers_and_of_zeros() -> None:
    """onnx's evaluator forgets the signs for p = 1."""
    x = np.array([[1.0, -3.0], [0.0, 0.0]])
    proto = model([node("LpNormalization", "x", "y", p=1)], {"x": (2, 2)}, {"y": (2, 2)}, opset=22)
    np.testing.assert_allclose(run(imported(proto), {"x": x})["y"][0], [[0.25, -0.75], [0, 0]])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_across_channels(size: int) -> None:
    x = RNG.normal(size=(1, 4, 1, 1))
    proto = model(
        [node("LRN", "x", "y", size=size, alpha=0.5, beta=0.75, bias=2.0)],
        {"x": x.shape},
        {"y": x.shape},
        opset=22,
    )
    v = x.reshape(-1)
    low, high = (size - 1) // 2, -(-(size - 1) // 2)
    total = np.array([(v[max(c - low, 0) : c + high + 1] ** 2).sum() for c in range(4)])
    found = run(imported(proto), {"x": x})["y"][0].reshape(-1)
    np.testing.assert_allclose(found, v / (2 + 0.5 / size * total) ** 0.75)


def batch(**attributes: Any) -> Any:
    return program([node("BatchNormalization", "x s b m v", "y", **attributes)], BATCH, "y")


def folded(*, scaled_mean: bool = True) -> Any:
    """One factor and one addend for each channel, as an optimiser writes it."""
    nodes = [
        node("Add", "v e", "ve"),
        node("Sqrt", "ve", "d"),
        node("Div", "s d", "g"),
        node("Mul", "m g", "mg") if scaled_mean else node("Identity", "m", "mg"),
        node("Sub", "b mg", "o"),
        node("Reshape", "g r", "g4"),
        node("Reshape", "o r", "o4"),
        node("Mul", "x g4", "t"),
        node("Add", "t o4", "y"),
    ]
    return program(nodes, BATCH, "y", {"e": np.float32(0.1), "r": np.array([1, 4, 1, 1])})


def written_out(*dims: int) -> Any:
    nodes = [
        node("ReduceMean", "x a", "mean"),
        node("Sub", "x mean", "c"),
        node("Mul", "c c", "q"),
        node("ReduceMean", "q a", "var"),
        node("Add", "var e", "ve"),
        node("Sqrt", "ve", "d"),
        node("Div", "c d", "n"),
        node("Reshape", "s r", "s4"),
        node("Reshape", "b r", "b4"),
        node("Mul", "n s4", "t"),
        node("Add", "t b4", "y"),
    ]
    stored = {"a": np.array(dims), "e": np.float32(0.1), "r": np.array([1, 4, 1, 1])}
    return program(nodes, {"x": X, "s": SCALE, "b": SHIFT}, "y", stored)


def instance() -> Any:
    inputs = {"x": X, "s": SCALE, "b": SHIFT}
    return program([node("InstanceNormalization", "x s b", "y", epsilon=0.1)], inputs, "y")


def responses(size: int) -> Any:
    return program([node("LRN", "x", "y", size=size)], {"x": X[:, :, :, :3][:2]}, "y")


def angles(op_type: str) -> Any:
    return program([node(op_type, "x", "y")], {"x": np.tanh(X)}, "y")


QUANTISED = {"x": RNG.integers(-9, 9, (2, 3)).astype(np.int8), "s": reals(3)}
POINT = {"z": np.array([1, -2, 3], np.int8)}


def dequantised(**attributes: Any) -> Any:
    return program([node("DequantizeLinear", "x s z", "y", **attributes)], QUANTISED, "y", POINT)


def by_hand(first: str, second: str) -> Any:
    nodes = [
        node("Cast", "x", "f", to=1),
        node("Cast", "z", "g", to=1),
        node("Sub", f"{first} {second}", "h"),
        node("Mul", "h s", "y"),
    ]
    return program(nodes, QUANTISED, "y", POINT)


PAIRS: Mapping[str, tuple[Any, Any, Any]] = {
    "batch": (batch(epsilon=0.1), folded(), folded(scaled_mean=False)),
    "epsilon": (batch(), batch(), batch(epsilon=0.1)),
    "instance": (instance(), written_out(2, 3), written_out(1, 2, 3)),
    "responses": (responses(3), responses(3), responses(4)),
    "angles": (angles("Asin"), angles("Asin"), angles("Asinh")),
    "dequantised": (dequantised(axis=1), by_hand("f", "g"), by_hand("g", "f")),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_programs_are_verified_and_others_refuted(name: str) -> None:
    reference, equal, other = map(imported, PAIRS[name])
    assert verify(reference, equal).verdict is Verdict.VERIFIED
    assert verify(reference, other).verdict is Verdict.REFUTED


ANGLES = ("Acos", "Asin", "Atan", "Atanh", "Asinh", "Sinh", "Cosh")


@pytest.mark.parametrize("op_type", ANGLES)
def test_functions_of_angles(op_type: str) -> None:
    assert disagreement(angles(op_type), {"x": np.tanh(X)}) is None


def test_shrinking() -> None:
    nodes = [node("Shrink", "x", "y", bias=0.5, lambd=0.75)]
    assert disagreement(program(nodes, {"x": X}, "y"), {"x": X}) is None


def test_area_cosine() -> None:
    inputs = {"x": 1 + X * X}
    assert disagreement(program([node("Acosh", "x", "y")], inputs, "y"), inputs) is None


@pytest.mark.parametrize(
    ("attributes", "scale"),
    [({}, ()), ({"axis": 0}, (4,)), ({"axis": 1}, (6,)), ({"axis": 1, "block_size": 4}, (4, 2))],
    ids=str,
)
def test_dequantisation(attributes: Mapping[str, Any], scale: tuple[int, ...]) -> None:
    x, zero = (RNG.integers(0, 200, s).astype(np.uint8) for s in ((4, 6), scale))
    inputs = {"x": x, "s": np.abs(RNG.normal(size=scale)).astype(np.float32), "z": zero}
    proto = model(
        [node("DequantizeLinear", "x s z", "y", **attributes)], {"s": scale}, {"y": (4, 6)}, opset=23
    )
    for name, array in (("x", x), ("z", zero)):
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, 2, array.shape))
    wide = [np.repeat(a, 4, 1)[:, :6] if "block_size" in attributes else a for a in (zero, inputs["s"])]
    if attributes == {"axis": 0}:
        wide = [a[:, None] for a in wide]
    inputs["s"] = inputs["s"].astype(np.float64)
    found = run(imported(proto), inputs)["y"][0]
    np.testing.assert_allclose(found, (x.astype(np.float64) - wide[0]) * wide[1])


def bytes_of(*shape: int) -> Any:
    return RNG.integers(0, 9, shape).astype(np.uint8)


def test_products_of_integers() -> None:
    inputs = {"x": bytes_of(2, 3), "w": bytes_of(3, 4)}
    proto = program([node("MatMulInteger", "x w z", "y")], inputs, "y", {"z": np.array(3, np.uint8)})
    assert disagreement(proto, inputs) is None
    rows = {"z": np.array([1, 5], np.uint8)}
    found = run(imported(rowwise(inputs, rows)), inputs)["y"][0]
    left = inputs["x"].astype(int) - rows["z"].astype(int)[:, None]
    np.testing.assert_array_equal(found, left @ inputs["w"].astype(int))
    inputs = {"x": bytes_of(1, 2, 4, 4), "w": bytes_of(2, 2, 2, 2)}
    nodes = [node("ConvInteger", "x w z", "y", pads=[1, 0, 0, 1])]
    proto = program(nodes, inputs, "y", {"z": np.array(3, np.uint8)})
    assert disagreement(proto, inputs) is None


def rowwise(inputs: Mapping[str, Any], stored: Mapping[str, Any]) -> Any:
    """A zero point for each row, which onnx's evaluator broadcasts along the columns."""
    proto = program([node("MatMulInteger", "x w", "y")], inputs, "y")
    proto.graph.node[0].input.append("z")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in stored.items())
    return proto


def quantised(scale: str, **attributes: Any) -> Any:
    stored = {"s": np.float32(0.1), "t": np.float32(0.2), "z": np.array(3, np.int8)}
    nodes = [node("QuantizeLinear", f"x {scale} z", "q"), node("DequantizeLinear", f"q {scale} z", "y")]
    return program(nodes, {"x": X}, "y", {n: stored[n] for n in (scale, "z")})


def test_rounding_to_a_quantised_type_is_an_unknown_function_of_each_number() -> None:
    reference, other = imported(quantised("s")), imported(quantised("t"))
    assert any("rounds and saturates" in text for text in reference.warnings)
    assert verify(reference, imported(quantised("s"))).verdict is Verdict.VERIFIED
    assert verify(reference, other).verdict is not Verdict.VERIFIED
    halves = [
        node("Split", "x", "a b", axis=1, num_outputs=2),
        node("QuantizeLinear", "b s z", "r"),
        node("QuantizeLinear", "a s z", "p"),
        node("Concat", "p r", "q", axis=1),
        node("DequantizeLinear", "q s z", "y"),
    ]
    stored = {"s": np.float32(0.1), "z": np.array(3, np.int8)}
    assert verify(reference, imported(program(halves, {"x": X}, "y", stored))).verdict is Verdict.VERIFIED
    halves[3] = node("Concat", "r p", "q", axis=1)
    turned = imported(program(halves, {"x": X}, "y", stored))
    assert verify(reference, turned).verdict is not Verdict.VERIFIED
