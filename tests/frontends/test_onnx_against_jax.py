"""Operators of convolutional networks: what ONNX and JAX write is equal, and one number changed is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx_checks import imported, program
from onnx_models import node

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
pytest.importorskip("onnx", reason="onnx is not installed")
jax = pytest.importorskip("jax", reason="jax is not installed")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from shardproof.frontends.jaxpr.lower import lower  # noqa: E402
from shardproof.frontends.jaxpr.tracing import trace  # noqa: E402
from shardproof.ir.module import Module, Output  # noqa: E402
from shardproof.solver.verdict import Verdict  # noqa: E402
from shardproof.solver.verify import verify  # noqa: E402

RNG = np.random.default_rng(41)


def reals(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def traced(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Module:
    shapes = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in inputs.items()}
    found = trace(lambda **given: function(**given), shapes)
    module = lower(found.closed, inputs=found.inputs, outputs=found.outputs).module
    return replace(module, outputs=tuple(Output("y", o.value) for o in module.outputs))


X = reals(2, 4, 6, 6)
WINDOW = (1, 1, 3, 3)
EDGES = [(0, 0), (0, 0), (1, 1), (1, 1)]


def convolution(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (2, 1), [(1, 0), (0, 2)], rhs_dilation=(1, 2))


def channels_last(x: Any, w: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    image, kernel = jnp.transpose(x, (0, 2, 3, 1)), jnp.transpose(w, (2, 3, 1, 0))
    found = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers)
    return jnp.transpose(found, (0, 3, 1, 2))


def in_groups(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "VALID", feature_group_count=2)


def transposed(x: Any, w: Any) -> Any:
    kernel = jnp.flip(jnp.swapaxes(w, 0, 1), (2, 3))
    return lax.conv_general_dilated(x, kernel, (1, 1), [(2, 2), (2, 2)], lhs_dilation=(2, 2))


def largest(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, WINDOW, (1, 1, 2, 2), EDGES)


def total(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, WINDOW, (1, 1, 1, 1), EDGES)


def average(x: Any) -> Any:
    return total(x) / total(jnp.ones_like(x))


def average_with_padding(x: Any) -> Any:
    return total(x) / 9


def normalised(x: Any, s: Any, b: Any, m: Any, v: Any) -> Any:
    s, b, m, v = (a.reshape(1, -1, 1, 1) for a in (s, b, m, v))
    return (x - m) * lax.rsqrt(v + 1e-5) * s + b


def padded(mode: str) -> Callable[..., Any]:
    return lambda x: jnp.pad(x, [(0, 0), (0, 0), (1, 2), (2, 1)], mode=mode)


KERNEL = {"x": X, "w": reals(6, 4, 3, 3)}
STATISTICS = {n: reals(4) for n in "sbm"} | {"v": reals(4) ** 2}
SCORES = {"q": reals(2, 3, 4, 5), "k": reals(2, 3, 6, 5)}
PADS = {"p": np.array([0, 0, 1, 2, 0, 0, 2, 1])}
SAME = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
ASYMMETRIC = {"pads": [1, 0, 0, 2], "strides": [2, 1], "dilations": [1, 2]}

Case = tuple[Callable[..., Any], Mapping[str, Any], str, Mapping[str, Any], Mapping[str, Any]]
CASES: Mapping[str, Case] = {
    "convolution": (convolution, KERNEL, "Conv", ASYMMETRIC, {"pads": [0, 2, 1, 0]}),
    "channels_last": (
        channels_last,
        KERNEL,
        "Conv",
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "NOTSET", "pads": [2, 0, 0, 2]},
    ),
    "groups": (in_groups, {"x": X, "w": reals(6, 2, 3, 3)}, "Conv", {"group": 2}, {}),
    "transposed": (
        transposed,
        {"x": X, "w": reals(4, 5, 3, 3)},
        "ConvTranspose",
        {"strides": [2, 2]},
        {"pads": [1, 0, 0, 1], "output_padding": [1, 1]},
    ),
    "largest": (largest, {"x": X}, "MaxPool", {**SAME, "strides": [2, 2]}, {"pads": [2, 1, 0, 1]}),
    "average": (average, {"x": X}, "AveragePool", SAME, {"count_include_pad": 1}),
    "padded_average": (
        average_with_padding,
        {"x": X},
        "AveragePool",
        {**SAME, "count_include_pad": 1},
        {"count_include_pad": 0},
    ),
    "normalised": (normalised, {"x": X, **STATISTICS}, "BatchNormalization", {}, {"epsilon": 1e-3}),
    "einsum": (
        lambda q, k: jnp.einsum("bhqd,bhkd->bhqk", q, k),
        SCORES,
        "Einsum",
        {"equation": "bhqd,bhkd->bhqk"},
        {},
    ),
    "diagonal": (
        lambda x: jnp.einsum("bii->bi", x),
        {"x": reals(2, 3, 3)},
        "Einsum",
        {"equation": "bii->bi"},
        {"equation": "bij->bi"},
    ),
    "edge": (padded("edge"), {"x": X}, "Pad", {"mode": "edge"}, {"mode": "wrap"}),
    "wrap": (padded("wrap"), {"x": X}, "Pad", {"mode": "wrap"}, {"mode": "reflect"}),
    "asin": (jnp.arcsin, {"x": np.tanh(X)}, "Asin", {}, {}),
    "atan": (jnp.arctan, {"x": X}, "Atan", {}, {}),
    "sinh": (jnp.sinh, {"x": X}, "Sinh", {}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_jax_and_onnx(name: str) -> None:
    function, inputs, op_type, attributes, change = CASES[name]
    reference = traced(lambda **given: function(*(given[n] for n in inputs)), inputs)
    stored = PADS if op_type == "Pad" else {}
    names = " ".join((*inputs, *stored))

    def other(told: Mapping[str, Any]) -> Module:
        return imported(program([node(op_type, names, "y", **told)], inputs, "y", stored))

    assert verify(reference, other(attributes)).verdict is Verdict.VERIFIED
    if change:
        assert verify(reference, other({**attributes, **change})).verdict is Verdict.REFUTED
