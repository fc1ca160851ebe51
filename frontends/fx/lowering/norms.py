"""Softmax, normalisation, losses, and their gradients."""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.reduce import variance
from shardproof.frontends.fx.lowering.state import Arguments, Lowering, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType


def _softmax_operand(s: Lowering, a: Arguments) -> Value:
    """The operand in the element type of the result."""
    x = a["self"]
    if a.get("half_to_float"):
        return s.convert(x, DType.F32)
    return x if a.get("dtype") is None else s.convert(x, a["dtype"])


def _softmax(s: Lowering, a: Arguments) -> Value:
    x = _softmax_operand(s, a)
    dims = s.dims(a["dim"], len(x.type.shape))
    powers = s.emit("exponential", x)
    return s.pair("divide", powers, s.reduce(powers, dims, "sum", keepdim=True))


def _log_softmax(s: Lowering, a: Arguments) -> Value:
    x = _softmax_operand(s, a)
    dims = s.dims(a["dim"], len(x.type.shape))
    total = s.reduce(s.emit("exponential", x), dims, "sum", keepdim=True)
    return s.pair("subtract", x, s.emit("log", total))


def _softmax_backward(s: Lowering, a: Arguments) -> Value:
    grad, y = a["grad_output"], a["output"]
    dims = s.dims(a["dim"], len(y.type.shape))
    inner = s.reduce(s.pair("multiply", grad, y), dims, "sum", keepdim=True)
    return s.convert(s.pair("multiply", y, s.pair("subtract", grad, inner)), a["input_dtype"])


def _log_softmax_backward(s: Lowering, a: Arguments) -> Value:
    grad, y = a["grad_output"], a["output"]
    dims = s.dims(a["dim"], len(y.type.shape))
    total = s.reduce(grad, dims, "sum", keepdim=True)
    found = s.pair("subtract", grad, s.pair("multiply", s.emit("exponential", y), total))
    return s.convert(found, a["input_dtype"])


def _trailing(s: Lowering, x: Value, normalized: Any) -> tuple[int, ...]:
    """The dims that a normalisation runs over."""
    shape = s.shape(normalized)
    rank = len(x.type.shape)
    if not shape or x.type.shape[rank - len(shape) :] != shape:
        s.fail(f"normalises {x.type} over {list(shape)}")
    return tuple(range(rank - len(shape), rank))


def _statistic(s: Lowering, x: Value, place: int) -> Value:
    """A saved statistic in its recorded type, which may be wider than the input's."""
    told = s.declared.get(place)
    wider = told is not None and told.dtype.kind == "real"
    return s.convert(x, told.dtype) if told is not None and wider else x


def _affine(s: Lowering, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = s.pair("multiply", x, s.convert(weight, x.type.dtype))
    return x if bias is None else s.pair("add", x, s.convert(bias, x.type.dtype))


def layer_norm(s: Lowering, a: Arguments) -> tuple[Value, Value, Value]:
    """The result, the mean and the inverse deviation."""
    x = a["input"]
    dims = _trailing(s, x, a["normalized_shape"])
    spread, mean = variance(s, x, dims, 0)
    inverse = s.emit("rsqrt", s.pair("add", spread, a["eps"]))
    normal = s.pair("multiply", s.pair("subtract", x, mean), inverse)
    return _affine(s, normal, a["weight"], a["bias"]), mean, inverse


def _native_layer_norm(s: Lowering, a: Arguments) -> tuple[Value, Value, Value]:
    found, mean, inverse = layer_norm(s, a)
    return found, _statistic(s, mean, 1), _statistic(s, inverse, 2)


def _rms_norm(s: Lowering, a: Arguments) -> tuple[Value, Value]:
    x = a["input"]
    dims = _trailing(s, x, a["normalized_shape"])
    eps = a["eps"]
    if eps is None:
        if x.type.dtype not in (DType.F32, DType.F64):
            s.fail(f"normalises {x.type} without an epsilon, give it in the program")
        eps = float(np.finfo(x.type.dtype.storage).eps)
    inverse = s.emit("rsqrt", s.pair("add", s.mean(s.pair("multiply", x, x), dims, keepdim=True), eps))
    return _affine(s, s.pair("multiply", x, inverse), a["weight"], None), inverse


def _fused_rms_norm(s: Lowering, a: Arguments) -> tuple[Value, Value]:
    found, inverse = _rms_norm(s, a)
    return found, _statistic(s, inverse, 1)


def _norm_backward(*, centred: bool) -> Rule:
    """The gradients of a normalisation in its input, weight and (if `centred`) bias; None where not asked."""

    def rule(s: Lowering, a: Arguments) -> tuple[Value | None, ...]:
        grad, x, weight = a["grad_out"], a["input"], a["weight"]
        dims = _trailing(s, x, a["normalized_shape"])
        outer = tuple(d for d in range(len(x.type.shape)) if d not in dims)
        inverse = s.convert(a["rstd"], x.type.dtype)
        shifted = s.pair("subtract", x, s.convert(a["mean"], x.type.dtype)) if centred else x
        normal = s.pair("multiply", shifted, inverse)
        weighted = _affine(s, grad, weight, None)
        change = s.pair("multiply", normal, s.mean(s.pair("multiply", weighted, normal), dims, keepdim=True))
        if centred:
            change = s.pair("add", s.mean(weighted, dims, keepdim=True), change)
        grad_input = s.pair("multiply", inverse, s.pair("subtract", weighted, change))
        found: list[Value | None] = [grad_input if a["output_mask"][0] else None]
        of_weight = weight is not None and a["output_mask"][1]
        found.append(s.reduce(s.pair("multiply", grad, normal), outer, "sum") if of_weight else None)
        if centred:
            of_bias = a["bias"] is not None and a["output_mask"][2]
            found.append(s.reduce(grad, outer, "sum") if of_bias else None)
        return tuple(found)

    return rule


def _class_dim(s: Lowering, x: Value) -> int:
    if len(x.type.shape) not in (1, 2):
        s.fail(f"reads classes of {x.type}, one or two dims are supported")
    return len(x.type.shape) - 1


def _hits(s: Lowering, a: Arguments) -> tuple[Value, Value]:
    """Where an element is the one of its target's class, and which targets count."""
    x, target = a["self"], a["target"]
    dim = _class_dim(s, x)
    counts = s.compare("NE", target, s.size(a["ignore_index"]))
    column = s.iota(target.type.dtype, x.type.shape, dim)
    hit = s.compare("EQ", column, s.reshape(target, (*target.type.shape[:dim], 1)) if dim else target)
    s.guess(
        "ids_in_range",
        f"the targets that `{s.node.name}` does not ignore are classes, as torch raises otherwise",
    )
    return s.pair("and", hit, s.reshape(counts, (*target.type.shape[:dim], 1)) if dim else counts), counts


def _class_weights(s: Lowering, a: Arguments, hit: Value, counts: Value) -> Value:
    """The weight of each target, 0 where it is ignored."""
    x, weight = a["self"], a["weight"]
    if weight is None:
        return s.convert(counts, x.type.dtype)
    spread = s.spread(weight, x.type.shape)
    return s.reduce(s.select(hit, spread, s.like(spread, 0)), (_class_dim(s, x),), "sum")


def _nll_loss(s: Lowering, a: Arguments) -> tuple[Value, Value]:
    x, reduction = a["self"], a["reduction"]
    hit, counts = _hits(s, a)
    picked = s.reduce(s.select(hit, x, s.like(x, 0)), (_class_dim(s, x),), "sum")
    weight = _class_weights(s, a, hit, counts)
    loss = s.emit("negate", s.pair("multiply", picked, weight))
    if reduction == 0:
        return loss, s.scalar(0, x.type.dtype)
    every = tuple(range(len(loss.type.shape)))
    total, loss = s.reduce(weight, every, "sum"), s.reduce(loss, every, "sum")
    return (s.pair("divide", loss, total) if reduction == 1 else loss), total


def _nll_loss_backward(s: Lowering, a: Arguments) -> Value:
    x, grad = a["self"], a["grad_output"]
    hit, counts = _hits(s, a)
    weight = s.pair("multiply", _class_weights(s, a, hit, counts), grad)
    if a["reduction"] == 1:
        weight = s.pair("divide", weight, a["total_weight"])
    if _class_dim(s, x):
        weight = s.reshape(weight, (*weight.type.shape, 1))
    return s.select(hit, s.emit("negate", s.spread(weight, x.type.shape)), s.like(x, 0))


def _reduced(s: Lowering, x: Value, reduction: Any) -> Value:
    """A loss per element (0), its mean (1) or its sum (2)."""
    every = tuple(range(len(x.type.shape)))
    if reduction not in (0, 1, 2):
        s.fail(f"reduces by {reduction!r}, which is not known")
    if reduction == 0:
        return x
    return s.mean(x, every) if reduction == 1 else s.reduce(x, every, "sum")


def _mse_loss(s: Lowering, a: Arguments) -> Value:
    difference = s.pair("subtract", a["self"], a["target"])
    return _reduced(s, s.pair("multiply", difference, difference), a["reduction"])


def _mse_loss_backward(s: Lowering, a: Arguments) -> Value:
    difference = s.pair("subtract", a["self"], a["target"])
    scale = 2.0 / prod(difference.type.shape) if a["reduction"] == 1 else 2.0
    return s.pair("multiply", s.pair("multiply", difference, scale), a["grad_output"])


_NORM: Final = "input normalized_shape weight=None bias=None"

TABLE: Final[Table] = {
    **entries("self dim half_to_float=False", _softmax, "aten._softmax"),
    **entries("self dim half_to_float=False", _log_softmax, "aten._log_softmax"),
    **entries("self dim dtype=None", _softmax, "aten.softmax.int"),
    **entries("self dim dtype=None", _log_softmax, "aten.log_softmax.int"),
    **entries("grad_output output dim input_dtype", _softmax_backward, "aten._softmax_backward_data"),
    **entries("grad_output output dim input_dtype", _log_softmax_backward, "aten._log_softmax_backward_data"),
    **entries("input normalized_shape weight bias eps", _native_layer_norm, "aten.native_layer_norm"),
    **entries(f"{_NORM} eps=1e-5 cudnn_enable=True", lambda s, a: layer_norm(s, a)[0], "aten.layer_norm"),
    **entries(
        "input normalized_shape weight=None eps=None", lambda s, a: _rms_norm(s, a)[0], "aten.rms_norm"
    ),
    **entries("input normalized_shape weight eps", _fused_rms_norm, "aten._fused_rms_norm"),
    **entries(
        "grad_out input normalized_shape mean rstd weight bias output_mask",
        _norm_backward(centred=True),
        "aten.native_layer_norm_backward",
    ),
    **entries(
        "grad_out input normalized_shape rstd weight output_mask",
        _norm_backward(centred=False),
        "aten._fused_rms_norm_backward",
    ),
    **entries("self target weight reduction ignore_index", _nll_loss, "aten.nll_loss_forward"),
    **entries(
        "grad_output self target weight reduction ignore_index total_weight",
        _nll_loss_backward,
        "aten.nll_loss_backward",
    ),
    **entries("self target reduction=1", _mse_loss, "aten.mse_loss"),
    **entries("grad_output self target reduction", _mse_loss_backward, "aten.mse_loss_backward"),
}
