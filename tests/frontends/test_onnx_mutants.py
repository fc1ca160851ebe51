"""Models of which one thing was changed: verified if they compute the same, refuted if they do not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardproof
from shardproof.ir.module import ModuleError

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

BLOCK = """
<ir_version: 9, opset_import: ["" : 20]>
block (float[2, 6, 8] x, int64[2, 6] ids, float[8, 8] wq, float[8, 8] wk, float[8, 8] wv, float[12, 8] table,
       float[8] gain, float[8] bias) => (float[2, 6, 8] y, float[2, 1, 8] last)
<int64[4] split = {2, 6, 2, 4}, int64[3] merged = {2, 6, 8}, float scale = {0.5}, int64[1] first = {5},
 int64[1] end = {6}, int64[1] dim = {1}>
{
  looked = Gather <axis = 0> (table, ids)
  h = Add (x, looked)
  n = LayerNormalization <axis = -1, epsilon = 0.01> (h, gain, bias)
  q0 = MatMul (n, wq)
  k0 = MatMul (n, wk)
  v0 = MatMul (n, wv)
  q1 = Reshape (q0, split)
  k1 = Reshape (k0, split)
  v1 = Reshape (v0, split)
  q = Transpose <perm = [0, 2, 1, 3]> (q1)
  k = Transpose <perm = [0, 2, 3, 1]> (k1)
  v = Transpose <perm = [0, 2, 1, 3]> (v1)
  raw = MatMul (q, k)
  scores = Mul (raw, scale)
  weights = Softmax <axis = -1> (scores)
  mixed = MatMul (weights, v)
  back = Transpose <perm = [0, 2, 1, 3]> (mixed)
  out = Reshape (back, merged)
  e = Gelu (out)
  y = Sub (e, h)
  last = Slice (y, first, end, dim)
}
"""
SIBLINGS = {
    "Add": "Sub",
    "Gelu": "Relu",
    "Mul": "Div",
    "Softmax": "LogSoftmax",
    "Sub": "Add",
}


def mutants() -> Iterator[tuple[str, Any]]:
    """One change each: an attribute, the order of operands, an operator, a number that is stored."""

    def fresh() -> Any:
        return onnx.parser.parse_model(BLOCK)

    for at, node in enumerate(fresh().graph.node):
        for which, attribute in enumerate(node.attribute):
            for change in changes(attribute):
                model = fresh()
                changed = model.graph.node[at].attribute[which]
                changed.CopyFrom(change)
                yield f"{node.output[0]}.{attribute.name}={onnx.helper.get_attribute_value(change)}", model
        if len(node.input) >= 2:
            model = fresh()
            names = list(node.input)
            model.graph.node[at].input[0], model.graph.node[at].input[1] = names[1], names[0]
            yield f"{node.output[0]}: operands swapped", model
        if SIBLINGS.get(node.op_type, node.op_type) != node.op_type:
            model = fresh()
            model.graph.node[at].op_type = SIBLINGS[node.op_type]
            yield f"{node.output[0]}: {SIBLINGS[node.op_type]}", model
    for which, tensor in enumerate(fresh().graph.initializer):
        array = onnx.numpy_helper.to_array(tensor)
        for k, step in itertools.product(range(array.size), (-1, 1)):
            new = array.astype(array.dtype).reshape(-1).copy()
            new[k] += step if array.dtype.kind == "i" else 0.25 * step
            model = fresh()
            made = onnx.numpy_helper.from_array(new.reshape(array.shape), tensor.name)
            model.graph.initializer[which].CopyFrom(made)
            yield f"{tensor.name}={new.tolist()}", model


def changes(attribute: Any) -> Iterator[Any]:
    """Other values of an attribute."""
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.name == "perm":
        others: Any = [p for p in itertools.permutations(value) if list(p) != list(value)][::5]
    elif isinstance(value, float):
        others = [value * 4, 0.0]
    else:
        others = [value + 1, value - 1]
    for other in others:
        yield onnx.helper.make_attribute(attribute.name, other)


def outputs(model: Any, seed: int) -> list[Any] | None:
    """What the reference evaluator computes; None for a model that is not valid, or of other shapes."""
    from onnx.reference import ReferenceEvaluator

    draw = np.random.default_rng(seed)
    inputs = {}
    for item in model.graph.input:
        shape = [d.dim_value for d in item.type.tensor_type.shape.dim]
        integers = item.type.tensor_type.elem_type == onnx.TensorProto.INT64
        inputs[item.name] = (
            draw.integers(0, 12, shape) if integers else draw.normal(size=shape).astype(np.float32)
        )
    try:
        onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, strict_mode=True), full_check=True)
        found: list[Any] = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # the evaluator raises anything for a model that makes no sense
        return None
    return found


def cases() -> list[Any]:
    return [pytest.param(model, id=name) for name, model in mutants()]


@pytest.fixture(scope="module")
def original() -> Any:
    return onnx.parser.parse_model(BLOCK)


def test_the_block_is_what_it_is(original: Any, tmp_path: Path) -> None:
    onnx.save(original, tmp_path / "a.onnx")
    result = shardproof.verify(tmp_path / "a.onnx", tmp_path / "a.onnx")
    assert result.verdict is shardproof.Verdict.VERIFIED


@pytest.mark.parametrize("model", cases())
def test_mutant(model: Any, original: Any, tmp_path: Path) -> None:
    wanted, found = ([outputs(m, seed) for seed in (1, 2)] for m in (original, model))
    if any(f is None or [o.shape for o in f] != [o.shape for o in wanted[0] or ()] for f in found):
        pytest.skip("the change makes the model invalid, or gives its outputs other shapes")
    same = all(
        np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
        for one, other in zip(wanted, found, strict=True)
        for a, b in zip(one or (), other or (), strict=True)
    )
    onnx.save(original, tmp_path / "a.onnx")
    onnx.save(model, tmp_path / "b.onnx")
    try:
        result = shardproof.verify(tmp_path / "a.onnx", tmp_path / "b.onnx")
    except ModuleError as error:
        assert "does not broadcast" in str(error) and not same, "the evaluator broadcasts what ONNX does not"
        return
    if same:
        assert result.verdict is not shardproof.Verdict.REFUTED, result.text()
    else:
        assert result.verdict is shardproof.Verdict.REFUTED, result.text()
