"""Fused operators of onnxruntime mean what its kernels compute."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import MICROSOFT, Shape, model, node, save

from shardproof.frontends.load import load
from shardproof.frontends.onnx.lower import lower
from shardproof.frontends.onnx.read import read_model
from shardproof.ir.interpret import run as interpret
from shardproof.ir.module import Module, ModuleError
from shardproof.solver.meaning import CUSTOM, meant
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(3)


def of_microsoft(op_type: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return node(op_type, inputs, outputs, MICROSOFT, **attributes)


def read(proto: Any) -> Module:
    """The program with the shipped definitions written out, all stored tensors as constants."""
    module = lower(read_model(proto.SerializeToString(), Path()), initializers="constants")
    (found,) = meant((module,))
    return found.module


def by_onnxruntime(proto: Any, inputs: Mapping[str, Any]) -> list[Any]:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = runtime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    found: list[Any] = session.run(None, dict(inputs))
    return found


def agrees(proto: Any, inputs: Mapping[str, Any] | None = None) -> Module:
    """The program, once it has given what onnxruntime does on some inputs."""
    if inputs is None:
        inputs = {
            i.name: RNG.normal(size=[d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32)
            for i in proto.graph.input
        }
    module = read(proto)
    assert not [op for op in module.ops if op.opcode in CUSTOM], module.warnings
    found = interpret(module, dict(inputs))
    for output, wanted in zip(proto.graph.output, by_onnxruntime(proto, inputs), strict=True):
        np.testing.assert_allclose(found[output.name][0], wanted, rtol=2e-4, atol=2e-5)
    return module


ROWS: Shape = (2, 3, 8)
VECTOR: Shape = (8,)
SKIP, SIMPLE = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"


@pytest.mark.parametrize(
    ("fused", "shapes"),
    [
        (of_microsoft("Gelu", "x", "y"), ()),
        (of_microsoft("BiasGelu", "x b", "y"), (VECTOR,)),
        (of_microsoft("FastGelu", "x", "y"), ()),
        (of_microsoft("FastGelu", "x b", "y"), (VECTOR,)),
        (of_microsoft("QuickGelu", "x", "y"), ()),
        (of_microsoft("QuickGelu", "x", "y", alpha=0.5), ()),
        (of_microsoft(SKIP, "x s g b c", "y"), (ROWS, VECTOR, VECTOR, VECTOR)),
        (of_microsoft(SKIP, "x s g", "y", epsilon=0.25), (ROWS, VECTOR)),
        (of_microsoft(SKIP, "x s g - c", "y"), (ROWS, VECTOR, VECTOR)),
        (of_microsoft(SKIP, "x s g b", "y"), ((3, 8), VECTOR, VECTOR)),
        (of_microsoft(SIMPLE, "x s g", "y"), (ROWS, VECTOR)),
        (of_microsoft(SIMPLE, "x s g b", "y", epsilon=0.25), (ROWS, VECTOR, VECTOR)),
        (node("SimplifiedLayerNormalization", "x g", "y", epsilon=0.25), (VECTOR,)),
        (node("SimplifiedLayerNormalization", "x g", "y", axis=1), ((3, 8),)),
    ],
)
def test_kernel(fused: Any, shapes: Sequence[Shape]) -> None:
    """`x`, then operands of the shapes."""
    others = [name for name in fused.input[1:] if name]
    agrees(model([fused], {"x": ROWS, **dict(zip(others, shapes, strict=True))}, {"y": ROWS}))


@pytest.mark.parametrize("op_type", [SKIP, SIMPLE])
def test_sum_of_a_skip_is_a_result(op_type: str) -> None:
    inputs: Mapping[str, Shape] = {"x": ROWS, "s": ROWS, "g": VECTOR}
    agrees(model([of_microsoft(op_type, "x s g", "y - - z")], inputs, {"y": ROWS, "z": ROWS}))


def test_inverse_deviation_is_a_result() -> None:
    fused = node("SimplifiedLayerNormalization", "x g", "y z")
    agrees(model([fused], {"x": ROWS, "g": VECTOR}, {"y": ROWS, "z": (2, 3, 1)}))


@pytest.mark.parametrize(
    ("x", "y", "z", "attributes"),
    [
        ((4, 3), (3, 5), (4, 5), {}),
        ((4, 3), (3, 5), (4, 5), {"alpha": 0.5}),
        ((3, 4), (3, 5), (4, 5), {"transA": 1}),
        ((4, 3), (5, 3), (4, 5), {"transB": 1}),
        ((2, 3, 4), (2, 5, 3), (2, 4, 5), {"transA": 1, "transB": 1, "alpha": 2.0}),
        ((4, 2, 6, 3), (2, 6, 3, 5), (2, 6, 4, 5), {"transBatchA": 1}),
        ((2, 4, 3), (3, 2, 5), (2, 4, 5), {"transBatchB": 1}),
        ((3, 2, 4), (5, 2, 3), (2, 4, 5), {"transA": 1, "transBatchA": 1, "transB": 1, "transBatchB": 1}),
        ((2, 4, 3), (3, 5), (2, 4, 5), {"transA": 0}),
    ],
)
def test_product(x: Shape, y: Shape, z: Shape, attributes: Mapping[str, Any]) -> None:
    agrees(model([of_microsoft("FusedMatMul", "x y", "z", **attributes)], {"x": x, "y": y}, {"z": z}))


@pytest.mark.parametrize(
    "attributes",
    [
        {"activation": "Relu"},
        {"activation": "Tanh", "alpha": 0.5, "beta": 2.0},
        {"activation": "Sigmoid", "transB": 1},
        {"activation": "LeakyRelu", "activation_alpha": 0.25},
    ],
)
def test_product_with_an_activation(attributes: Mapping[str, Any]) -> None:
    y = (5, 3) if attributes.get("transB") else (3, 5)
    fused = of_microsoft("FusedGemm", "x y c", "z", **attributes)
    agrees(model([fused], {"x": (4, 3), "y": y, "c": (5,)}, {"z": (4, 5)}))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (of_microsoft("FusedGemm", "x w", "y", activation="Softsign"), "'Softsign'"),
        (of_microsoft("FusedGemm", "x w", "y", activation="LeakyRelu"), "'LeakyRelu'"),
        (of_microsoft("FusedMatMul", "x w", "y", beta=1.0), "attribute beta"),
        (of_microsoft("Gelu", "x", "y", approximate="tanh"), "attribute approximate"),
        (of_microsoft(SKIP, "x x g", "y m"), "mean and deviation"),
        (of_microsoft("BiasSoftmax", "x g", "y", axis=1, is_inner_broadcast=0), "as many dims"),
    ],
)
def test_what_is_not_known_is_refused(wrong: Any, text: str) -> None:
    proto = model([wrong], {"x": (4, 8), "w": (8, 8), "g": (8,)}, {"y": (4, 8)})
    with pytest.raises(ModuleError, match=text):
        read(proto)


def written_out(op_type: str) -> Any:
    """What the fused operators of the next test stand for, of standard operators."""
    total = [node("Add", "x s", "t")]
    if op_type == SKIP:
        nodes = [*total, node("LayerNormalization", "t g b", "y", axis=-1, epsilon=0.25)]
    else:
        nodes = [
            *total,
            node("Mul", "t t", "q"),
            node("ReduceMean", "q axes", "m", keepdims=1),
            node("Add", "m eps", "e"),
            node("Sqrt", "e", "r"),
            node("Div", "t r", "n"),
            node("Mul", "n g", "y"),
        ]
    stored = {"axes": np.array([-1]), "eps": np.float32(0.25)}
    return model(nodes, {"x": ROWS, "s": ROWS, "g": VECTOR, "b": VECTOR}, {"y": ROWS}, stored)


@pytest.mark.parametrize(
    ("op_type", "operands"),
    [(SKIP, "x s g b"), (SIMPLE, "x s g")],
)
@pytest.mark.parametrize(("epsilon", "expected"), [(0.25, Verdict.VERIFIED), (0.5, Verdict.REFUTED)])
def test_fusion_is_verified_and_a_wrong_one_refuted(
    op_type: str, operands: str, epsilon: float, expected: Verdict, tmp_path: Path
) -> None:
    inputs: Mapping[str, Shape] = {"x": ROWS, "s": ROWS, "g": VECTOR, "b": VECTOR}
    fused = model([of_microsoft(op_type, operands, "y", epsilon=epsilon)], inputs, {"y": ROWS})
    own = save(written_out(op_type), tmp_path / "plain.onnx")
    found = verify(own, save(fused, tmp_path / "fused.onnx"))
    assert found.verdict is expected, found.message


def test_function_of_the_model_comes_first() -> None:
    """It is called like an operator of onnxruntime and is another one."""
    onnx = pytest.importorskip("onnx")
    found = model([node("Gelu", "x", "y", MICROSOFT)], {"x": ROWS}, {"y": ROWS})
    opsets = [onnx.helper.make_opsetid("", 18)]
    body = [node("Neg", "a", "b")]
    found.functions.append(onnx.helper.make_function(MICROSOFT, "Gelu", ["a"], ["b"], body, opsets))
    x = RNG.normal(size=(2, 3, 8)).astype(np.float32)
    assert np.array_equal(interpret(read(found), {"x": x})["y"][0], -x)


def unknown(**attributes: Any) -> Any:
    nodes = [node("Frob", "x", "h", "acme", **attributes), node("Relu", "h", "y")]
    found = model(nodes, {"x": ROWS}, {"y": ROWS}, shapes={"h": ROWS})
    found.opset_import.add(domain="acme", version=1)
    return found


def test_unknown_operator_is_kept_by_name(tmp_path: Path) -> None:
    """Its result type comes from the model; with other attributes it is another function."""
    own, other = save(unknown(a=1), tmp_path / "own.onnx"), save(unknown(a=2), tmp_path / "other.onnx")
    assert any("acme.Frob" in w and "opaque" in w for w in load(own).warnings)
    assert verify(own, own).verdict is Verdict.VERIFIED
    assert verify(own, other).verdict is Verdict.UNKNOWN


def test_operand_that_is_left_out_is_told_apart(tmp_path: Path) -> None:
    def one(operands: str) -> Any:
        found = model([node("Frob", operands, "y", "acme")], {"x": ROWS, "z": ROWS}, {"y": ROWS})
        found.opset_import.add(domain="acme", version=1)
        return found

    own, other = save(one("x z"), tmp_path / "own.onnx"), save(one("x - z"), tmp_path / "other.onnx")
    assert verify(own, other).verdict is Verdict.UNKNOWN


def test_definition_by_the_user(tmp_path: Path) -> None:
    lemma = tmp_path / "acme.lemma"
    lemma.write_text('define acme::Frob(x[...]; a) -> y[...]\n  "Adds." y = x + a\n', encoding="utf-8")
    plain = model(
        [node("Add", "x a", "h"), node("Relu", "h", "y")], {"x": ROWS}, {"y": ROWS}, {"a": np.float32(3)}
    )
    own = save(plain, tmp_path / "plain.onnx")
    right, wrong = save(unknown(a=3), tmp_path / "right.onnx"), save(unknown(a=4), tmp_path / "wrong.onnx")
    assert verify(own, right, lemmas=[lemma]).verdict is Verdict.VERIFIED
    assert verify(own, wrong, lemmas=[lemma]).verdict is Verdict.REFUTED
