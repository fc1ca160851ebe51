"""Normalisation over batches, channels and vectors, and softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.frontends.onnx.convolutions import along
from shardproof.frontends.onnx.elements import dtype_of
from shardproof.frontends.onnx.pools import norm, power_of_size
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value


def statistics(s: Lowering, x: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """Mean and population variance over `dims`, which are kept at extent 1."""
    mean = s.mean(x, dims, keepdim=True)
    centred = s.pair("subtract", x, mean)
    return mean, s.mean(s.pair("multiply", centred, centred), dims, keepdim=True)


def normalised(s: Lowering, n: Node, x: Value, mean: Value, variance: Value) -> Value:
    """`(x - mean) / sqrt(variance + epsilon)` times the scale plus the shift of each channel."""
    deviation = s.emit("sqrt", s.pair("add", variance, n.attrs["epsilon"]))
    found = s.pair("divide", s.pair("subtract", x, mean), deviation)
    scale, shift = (along(s, s.convert(n.operand(k), x.type.dtype), 1, x) for k in (1, 2))
    return s.emit("add", s.emit("multiply", found, scale), shift)


def _batch(s: Lowering, n: Node) -> Sequence[Value | None]:
    """In training the statistics are those of the batch, and running means of them are results."""
    x = n.operand(0)
    if len(x.type.shape) < 2:
        s.fail(f"normalises {x.type}, which has no channels")
    given, keep = [n.operand(3), n.operand(4)], n.attrs["momentum"]
    if not n.attrs.get("training_mode", 0):
        mean, variance = (along(s, s.convert(v, x.type.dtype), 1, x) for v in given)
        return [normalised(s, n, x, mean, variance)]
    found = statistics(s, x, [d for d in range(len(x.type.shape)) if d != 1])
    running = []
    for old, new in zip(given, found, strict=True):
        now = s.convert(s.reshape(new, old.type.shape), old.type.dtype)
        running.append(s.pair("add", s.pair("multiply", old, keep), s.pair("multiply", now, 1 - keep)))
    return [normalised(s, n, x, *found), *running]


def _layer(s: Lowering, n: Node) -> list[Value]:
    """By the text of the standard; the function body there takes the mean of squares less the squared mean.

    The mean and the inverse deviation are of the type `stash_type`.
    """
    x, shift = n.operand(0), n.given(2)
    rank = len(x.type.shape)
    wide = s.convert(x, dtype_of(n.attrs["stash_type"]))
    mean, variance = statistics(s, wide, range(s.dim(n.attrs["axis"], rank), rank))
    inverse = s.emit("rsqrt", s.pair("add", variance, n.attrs["epsilon"]))
    normal = s.convert(s.pair("multiply", s.pair("subtract", wide, mean), inverse), x.type.dtype)
    found = s.emit("multiply", normal, s.spread(n.operand(1), x.type.shape))
    found = found if shift is None else s.emit("add", found, s.spread(shift, x.type.shape))
    return [found, mean, inverse]


def _instance(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    if len(x.type.shape) < 3:
        s.fail(f"normalises {x.type}, which has no spatial dims")
    return normalised(s, n, x, *statistics(s, x, range(2, len(x.type.shape))))


def _across_channels(s: Lowering, n: Node) -> Value:
    """Divided by a power of the sum of squares over the channels around each one."""
    x, size = n.operand(0), n.attrs["size"]
    rank = len(x.type.shape)
    if rank < 2 or size < 1:
        s.fail(f"normalises {x.type} over {size} channels")
    ones, none = (1,) * rank, (0,) * rank
    total = s.emit(
        "reduce_window",
        s.pair("multiply", x, x),
        s.scalar(0, x.type.dtype),
        kind="sum",
        sizes=(1, size, *ones[2:]),
        strides=ones,
        base_dilations=ones,
        window_dilations=ones,
        pad_low=(0, (size - 1) // 2, *none[2:]),
        pad_high=(0, size // 2, *none[2:]),
    )
    scale = s.pair("add", s.pair("multiply", total, n.attrs["alpha"] / size), n.attrs["bias"])
    return s.pair("divide", x, s.pair("power", scale, n.attrs["beta"]))


def _vector(s: Lowering, n: Node) -> Value:
    """Divided by the norm along a dim, 0 where that is 0."""
    x = n.operand(0)
    dim = s.dim(n.attrs["axis"], len(x.type.shape))
    p = n.attrs["p"]
    size = norm(s, s.reduce(power_of_size(s, x, p), (dim,), "sum", keepdim=True), p)
    return s.select(s.compare("EQ", size, 0), s.like(x, 0), s.pair("divide", x, size))


def _softmax(s: Lowering, n: Node) -> Value:
    """By the text of the standard; the function body there subtracts the largest first."""
    x = n.operand(0)
    powers = s.emit("exponential", x)
    return s.pair("divide", powers, s.reduce(powers, _one_dim(s, n, x), "sum", keepdim=True))


def _log_softmax(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    total = s.reduce(s.emit("exponential", x), _one_dim(s, n, x), "sum", keepdim=True)
    return s.pair("subtract", x, s.emit("log", total))


def _one_dim(s: Lowering, n: Node, x: Value) -> tuple[int, ...]:
    rank = len(x.type.shape)
    return (s.dim(n.attrs["axis"], rank),) if rank else ()


RULES: Final[Mapping[str, Rule]] = {
    "BatchNormalization": _batch,
    "InstanceNormalization": _instance,
    "LRN": _across_channels,
    "LayerNormalization": _layer,
    "LogSoftmax": _log_softmax,
    "LpNormalization": _vector,
    "Softmax": _softmax,
}
