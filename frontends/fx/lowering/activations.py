"""Activation functions and their gradients."""

from __future__ import annotations

from typing import Final

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.pointwise import composed
from shardproof.frontends.fx.lowering.state import Arguments, Lowering
from shardproof.frontends.gelu import gelu, normal_distribution, quarter_pi, tanh_argument
from shardproof.ir.module import Value


def _relu(s: Lowering, a: Arguments) -> Value:
    return s.pair("maximum", a["self"], 0)


def _leaky_relu(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    return s.select(s.compare("GT", x, 0), x, s.pair("multiply", x, a["negative_slope"]))


def _elu(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    below = s.emit("expm1", s.pair("multiply", x, a["input_scale"]))
    below = s.pair("multiply", below, a["alpha"] * a["scale"])
    return s.select(s.compare("GT", x, 0), s.pair("multiply", x, a["scale"]), below)


def _softplus(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    steep = s.pair("multiply", x, a["beta"])
    soft = s.pair("divide", s.emit("log1p", s.emit("exponential", steep)), a["beta"])
    return s.select(s.compare("GT", steep, a["threshold"]), x, soft)


def silu(s: Lowering, x: Value) -> Value:
    return s.pair("multiply", x, s.emit("logistic", x))


def _hard_sigmoid(s: Lowering, x: Value) -> Value:
    inside = s.pair("minimum", s.pair("maximum", s.pair("add", x, 3), 0), 6)
    return s.pair("divide", inside, 6)


def _mish(s: Lowering, x: Value) -> Value:
    return s.pair("multiply", x, s.emit("tanh", s.emit("log1p", s.emit("exponential", x))))


def _glu(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    dim = s.dim(a["dim"], len(x.type.shape))
    half = x.type.shape[dim] // 2
    if x.type.shape[dim] != 2 * half:
        s.fail(f"halves dim {dim} of {x.type}")
    return s.pair("multiply", s.slice(x, dim, 0, half), s.emit("logistic", s.slice(x, dim, half, 2 * half)))


def _gelu(s: Lowering, a: Arguments) -> Value:
    return gelu(s, a["self"], a["approximate"])


def _gelu_backward(s: Lowering, a: Arguments) -> Value:
    grad, x, form = a["grad_output"], a["self"], a["approximate"]
    dtype = x.type.dtype
    if form == "none":
        square = s.pair("multiply", s.pair("multiply", x, x), -0.5)
        height = s.emit("rsqrt", s.pair("multiply", quarter_pi(s, dtype), 8))
        density = s.pair("multiply", s.emit("exponential", square), height)
        slope = s.pair("add", normal_distribution(s, x), s.pair("multiply", x, density))
        return s.pair("multiply", grad, slope)
    if form != "tanh":
        s.fail(f"approximates by {form!r}, which is not known")
    tanh = s.emit("tanh", tanh_argument(s, x))
    scale = s.emit("sqrt", s.pair("divide", s.scalar(0.5, dtype), quarter_pi(s, dtype)))
    inner = s.pair(
        "multiply", s.pair("add", s.pair("multiply", s.pair("multiply", x, x), 3 * 0.044715), 1), scale
    )
    fall = s.pair("subtract", s.scalar(1, dtype), s.pair("multiply", tanh, tanh))
    slope = s.pair("add", s.pair("add", tanh, 1), s.pair("multiply", s.pair("multiply", x, fall), inner))
    return s.pair("multiply", grad, s.pair("multiply", slope, 0.5))


def _silu_backward(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    sigmoid = s.emit("logistic", x)
    rest = s.pair("subtract", s.scalar(1, x.type.dtype), sigmoid)
    slope = s.pair("add", s.pair("multiply", x, rest), 1)
    return s.pair("multiply", a["grad_output"], s.pair("multiply", sigmoid, slope))


def _sigmoid_backward(s: Lowering, a: Arguments) -> Value:
    y = a["output"]
    slope = s.pair("multiply", y, s.pair("subtract", s.scalar(1, y.type.dtype), y))
    return s.pair("multiply", a["grad_output"], slope)


def _tanh_backward(s: Lowering, a: Arguments) -> Value:
    y = a["output"]
    slope = s.pair("subtract", s.scalar(1, y.type.dtype), s.pair("multiply", y, y))
    return s.pair("multiply", a["grad_output"], slope)


def _threshold_backward(s: Lowering, a: Arguments) -> Value:
    grad, x = a["grad_output"], a["self"]
    return s.select(s.compare("LE", x, a["threshold"]), s.like(grad, 0), grad)


TABLE: Final[Table] = {
    **entries("self", _relu, "aten.relu"),
    **entries("self negative_slope=0.01", _leaky_relu, "aten.leaky_relu"),
    **entries("self alpha=1 scale=1 input_scale=1", _elu, "aten.elu"),
    **entries("self beta=1 threshold=20", _softplus, "aten.softplus"),
    **entries("self", composed(silu), "aten.silu"),
    **entries("self approximate=none", _gelu, "aten.gelu"),
    **entries("self", composed(_hard_sigmoid), "aten.hardsigmoid"),
    **entries("self", composed(lambda s, x: s.pair("multiply", x, _hard_sigmoid(s, x))), "aten.hardswish"),
    **entries("self", composed(_mish), "aten.mish"),
    **entries("self dim=-1", _glu, "aten.glu"),
    **entries("grad_output self approximate=none", _gelu_backward, "aten.gelu_backward"),
    **entries("grad_output self", _silu_backward, "aten.silu_backward"),
    **entries("grad_output output", _sigmoid_backward, "aten.sigmoid_backward"),
    **entries("grad_output output", _tanh_backward, "aten.tanh_backward"),
    **entries("grad_output self threshold", _threshold_backward, "aten.threshold_backward"),
}
