"""Attention operators of onnxruntime mean what its kernels compute."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import MICROSOFT, Shape, model, node, save

from shardproof.frontends.onnx.lower import lower
from shardproof.frontends.onnx.read import read_model
from shardproof.ir.interpret import run as interpret
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(4)


def fused(op_type: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return node(op_type, inputs, outputs, MICROSOFT, **attributes)


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def program(fused_node: Any, arrays: Mapping[str, Any], outputs: Mapping[str, Shape]) -> Any:
    """A model of one node with the arrays as inputs, those of 32-bit integers as stored tensors."""
    stored = {n: a for n, a in arrays.items() if a.dtype == np.int32}
    inputs = {n: a.shape for n, a in arrays.items() if n not in stored}
    integers = [n for n, a in arrays.items() if a.dtype == np.int64]
    return model([fused_node], inputs, outputs, stored, integers=integers)


def agrees(fused_node: Any, arrays: Mapping[str, Any], outputs: Mapping[str, Shape]) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    proto = program(fused_node, arrays, outputs)
    given = {i.name: arrays[i.name] for i in proto.graph.input}
    module = lower(read_model(proto.SerializeToString(), Path()))
    found = interpret(module, given)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = runtime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    for name, wanted in zip(outputs, session.run(list(outputs), given), strict=True):
        np.testing.assert_allclose(found[name][0], wanted, rtol=2e-4, atol=2e-5)


TABLES = {"c": floats(9, 2), "s": floats(9, 2)}
AT = np.array([[3, 4, 5], [0, 7, 2]])


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("x", "at", "attributes"),
    [
        (floats(2, 3, 12), AT, {}),
        (floats(2, 3, 12), np.array([2]), {}),
        (floats(2, 3, 3, 4).transpose(0, 2, 1, 3).copy(), AT, {}),
        (floats(2, 3, 12), AT, {"num_heads": 2, "rotary_embedding_dim": 4}),
    ],
)
def test_rotary_embedding(x: Any, at: Any, attributes: Mapping[str, int], interleaved: int) -> None:
    turned = fused("RotaryEmbedding", "x at c s", "y", interleaved=interleaved, **attributes)
    agrees(turned, {"x": x, "at": at, **TABLES}, {"y": x.shape})


ROWS = {"q": floats(2, 3, 8), "k": floats(2, 3, 8), "v": floats(2, 3, 8)}
PAST = {"pk": floats(2, 2, 4, 4), "pv": floats(2, 2, 4, 4)}
MASK = np.array([[1, 1, 0], [1, 0, 0]], np.int32)


@pytest.mark.parametrize(
    ("operands", "arrays", "attributes"),
    [
        ("q k v", ROWS, {}),
        ("q k v", ROWS, {"scale": 0.25}),
        ("q k v", ROWS, {"unidirectional": 1}),
        ("q k v b", {**ROWS, "b": floats(24)}, {}),
        ("q k v - m", {**ROWS, "m": MASK}, {}),
        ("q k v - m", {**ROWS, "m": MASK}, {"mask_filter_value": -3.0}),
        ("q k v - - a", {**ROWS, "a": floats(1, 2, 3, 3)}, {}),
        ("q k v", {"q": floats(2, 3, 8), "k": floats(2, 5, 8), "v": floats(2, 5, 6)}, {}),
    ],
)
def test_multi_head(operands: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    last = arrays["v"].shape[2]
    attention = fused("MultiHeadAttention", operands, "y", num_heads=2, **attributes)
    agrees(attention, arrays, {"y": (2, 3, last)})


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_with_a_cache(causal: int) -> None:
    attention = fused(
        "MultiHeadAttention", "q k v - - - pk pv", "y nk nv", num_heads=2, unidirectional=causal
    )
    agrees(attention, {**ROWS, **PAST}, {"y": (2, 3, 8), "nk": (2, 2, 7, 4), "nv": (2, 2, 7, 4)})


WEIGHTS = {"x": floats(2, 3, 6), "w": floats(6, 24), "b": floats(24)}


@pytest.mark.parametrize(
    ("operands", "arrays", "attributes"),
    [
        ("x w b", WEIGHTS, {}),
        ("x w b", WEIGHTS, {"unidirectional": 1}),
        ("x w b", WEIGHTS, {"qkv_hidden_sizes": [8, 8, 8], "scale": 0.25}),
        ("x w b m", {**WEIGHTS, "m": MASK}, {}),
        ("x w b m", {**WEIGHTS, "m": np.tile(MASK[:, None], (1, 3, 1))}, {}),
        ("x w b - - a", {**WEIGHTS, "a": floats(2, 1, 3, 3)}, {}),
        ("x w b", {**WEIGHTS, "w": floats(6, 20), "b": floats(20)}, {"qkv_hidden_sizes": [8, 8, 4]}),
    ],
)
def test_attention(operands: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    last = arrays["w"].shape[1] - 16
    agrees(fused("Attention", operands, "y", num_heads=2, **attributes), arrays, {"y": (2, 3, last)})


def test_attention_with_a_cache() -> None:
    arrays = {**WEIGHTS, "p": floats(2, 2, 2, 4, 4)}
    attention = fused("Attention", "x w b - p", "y n", num_heads=2, unidirectional=1)
    agrees(attention, arrays, {"y": (2, 3, 8), "n": (2, 2, 2, 7, 4)})


SHARED = {"q": floats(2, 3, 64), "k": floats(2, 3, 32), "v": floats(2, 3, 32)}
WIDE = {"c": floats(9, 8), "s": floats(9, 8)}
FIRST = {"l": np.array([2, 2], np.int32), "t": np.array([3], np.int32)}
LATER = {"l": np.array([6, 6], np.int32), "t": np.array([7], np.int32)}


@pytest.mark.parametrize(
    ("operands", "arrays", "attributes"),
    [
        ("q k v - - l t", {**SHARED, **FIRST}, {}),
        ("q - - - - l t", {"q": floats(2, 3, 128), **FIRST}, {}),
        ("q k v - - l t c s", {**SHARED, **FIRST, **WIDE}, {"do_rotary": 1}),
        ("q k v - - l t c s", {**SHARED, **FIRST, **WIDE}, {"do_rotary": 1, "rotary_interleaved": 1}),
        ("q k v - - l t", {**SHARED, **FIRST}, {"softcap": 2.0, "scale": 0.75}),
    ],
)
def test_grouped_prompt(operands: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    attention = fused("GroupQueryAttention", operands, "y nk nv", num_heads=4, kv_num_heads=2, **attributes)
    agrees(attention, arrays, {"y": (2, 3, 64), "nk": (2, 2, 3, 16), "nv": (2, 2, 3, 16)})


@pytest.mark.parametrize("rotary", [0, 1])
def test_grouped_step(rotary: int) -> None:
    """One new row after a full cache."""
    step = {"q": floats(1, 1, 64), "k": floats(1, 1, 32), "v": floats(1, 1, 32)}
    cache = {"pk": floats(1, 2, 6, 16), "pv": floats(1, 2, 6, 16)}
    lengths = {"l": np.array([6], np.int32), "t": np.array([7], np.int32)}
    operands = "q k v pk pv l t c s" if rotary else "q k v pk pv l t"
    arrays = {**step, **cache, **lengths, **(WIDE if rotary else {})}
    attention = fused(
        "GroupQueryAttention", operands, "y nk nv", num_heads=4, kv_num_heads=2, do_rotary=rotary
    )
    agrees(attention, arrays, {"y": (1, 1, 64), "nk": (1, 2, 7, 16), "nv": (1, 2, 7, 16)})


def grouped(**attributes: Any) -> Any:
    return fused("GroupQueryAttention", "q k v - - l t", "y", num_heads=4, kv_num_heads=2, **attributes)


@pytest.mark.parametrize(
    ("wrong", "arrays", "text"),
    [
        (fused("MultiHeadAttention", "q k v", "y", num_heads=3), ROWS, "do not fit"),
        (fused("MultiHeadAttention", "q", "y", num_heads=2), ROWS, "packed"),
        (fused("MultiHeadAttention", "q k v", "y", num_heads=2, window=3), ROWS, "attribute window"),
        (fused("MultiHeadAttention", "q k v - m", "y", num_heads=2), {**ROWS, "m": MASK[0]}, "has a mask"),
        (fused("Attention", "x w b", "y", num_heads=2, do_rotary=1), WEIGHTS, "not supported"),
        (grouped(local_window_size=2), {**SHARED, **FIRST}, "local_window_size 2"),
        (grouped(smooth_softmax=1), {**SHARED, **FIRST}, "smooth_softmax 1"),
        (grouped(), {**SHARED, **LATER}, "0 cached and 3 new"),
        (
            grouped(),
            {**SHARED, "l": np.array([2, 1], np.int32), "t": np.array([3], np.int32)},
            "0 cached and 3 new",
        ),
        (
            fused("RotaryEmbedding", "x at c s", "y", is_packed_batching=1),
            {"x": floats(2, 3, 12), "at": AT, **TABLES},
            "packed",
        ),
    ],
)
def test_what_is_not_known_is_refused(wrong: Any, arrays: Mapping[str, Any], text: str) -> None:
    proto = program(wrong, arrays, {"y": (None, None, None)})
    with pytest.raises(ModuleError, match=text):
        lower(read_model(proto.SerializeToString(), Path()))


def written_out(names: Sequence[str] = ("q", "k")) -> Any:
    """Causal attention of two heads by standard operators, of the first two operands in this order."""
    first, second = names
    nodes = [
        *(node("Reshape", f"{n} split", f"{n}.s") for n in "qkv"),
        *(node("Transpose", f"{n}.s", f"{n}.h", perm=[0, 2, 1, 3]) for n in "qkv"),
        node("Transpose", f"{second}.h", "t", perm=[0, 1, 3, 2]),
        node("MatMul", f"{first}.h t", "raw"),
        node("Mul", "raw half", "scaled"),
        node("Add", "scaled mask", "scores"),
        node("Softmax", "scores", "p", axis=-1),
        node("MatMul", "p v.h", "o"),
        node("Transpose", "o", "u", perm=[0, 2, 1, 3]),
        node("Reshape", "u joined", "y"),
    ]
    stored = {
        "split": np.array([2, 3, 2, 4]),
        "joined": np.array([2, 3, 8]),
        "half": np.float32(0.5),
        "mask": np.triu(np.full((3, 3), -np.inf, np.float32), 1),
    }
    rows: Shape = (2, 3, 8)
    return model(nodes, {"q": rows, "k": rows, "v": rows}, {"y": rows}, stored)


@pytest.mark.parametrize(
    ("operands", "causal", "expected"),
    [
        ("q k v", 1, Verdict.VERIFIED),
        ("k q v", 1, Verdict.REFUTED),
        ("q k k", 1, Verdict.REFUTED),
        ("q k v", 0, Verdict.REFUTED),
    ],
)
def test_fused_attention_is_the_one_written_out(
    operands: str, causal: int, expected: Verdict, tmp_path: Path
) -> None:
    attention = fused("MultiHeadAttention", operands, "y", num_heads=2, unidirectional=causal)
    rows: Shape = (2, 3, 8)
    other = model([attention], {"q": rows, "k": rows, "v": rows}, {"y": rows})
    found = verify(save(written_out(), tmp_path / "plain.onnx"), save(other, tmp_path / "fused.onnx"))
    assert found.verdict is expected, found.message
