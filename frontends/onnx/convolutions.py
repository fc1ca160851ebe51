"""Convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import Final

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.frontends.onnx.windows import Ints, Windows, automatic, numbers, spatial, windows
from shardproof.ir.module import Value
from shardproof.ir.types import TensorType


def _conv(s: Lowering, n: Node) -> Value:
    x, kernel = n.operand(0), n.operand(1)
    return biased(s, convolution(s, n, x, kernel), n.given(2))


def convolution(s: Lowering, n: Node, x: Value, kernel: Value) -> Value:
    """(batch, channels, *space) by (output channels, channels of a group, *window)."""
    w = windows(s, n, spatial(s, x), kernel.type.shape[2:])
    return convolved(s, x, kernel, w, n.attrs["group"])


def convolved(
    s: Lowering, x: Value, kernel: Value, w: Windows, groups: int, *, base: Ints | None = None
) -> Value:
    """`base` spreads the image; then the kernel is that of a transposed convolution and runs backwards."""
    rank = len(x.type.shape)
    every = tuple(range(rank))
    return s.emit(
        "convolution",
        x,
        kernel,
        type=TensorType(x.type.dtype, ()),
        strides=w.strides,
        pad_low=w.low,
        pad_high=w.high,
        lhs_dilation=base or (1,) * (rank - 2),
        rhs_dilation=w.dilations,
        reversal=(base is not None,) * (rank - 2),
        lhs_dims=every,
        rhs_dims=(1, 0, *every[2:]),
        out_dims=every,
        feature_groups=groups,
        batch_groups=1,
    )


def biased(s: Lowering, x: Value, bias: Value | None) -> Value:
    """`bias` per channel added to (batch, channels, *space)."""
    return x if bias is None else s.emit("add", x, along(s, bias, 1, x))


def along(s: Lowering, x: Value, dim: int, like: Value) -> Value:
    """A vector spread to the shape of `like`, whose dim `dim` it runs along."""
    if x.type.shape != (like.type.shape[dim],):
        s.fail(f"an operand is {x.type}, a vector of {like.type.shape[dim]} channels is needed")
    return s.place(x, (dim,), like.type.shape)


def _conv_transpose(s: Lowering, n: Node) -> Value:
    """Each input element spreads the kernel over the output; padding cuts the output."""
    x, kernel, groups = n.operand(0), n.operand(1), n.attrs["group"]
    space, window = spatial(s, x), kernel.type.shape[2:]
    count = len(space)
    told = n.attrs.get("kernel_shape")
    if told and tuple(told) != window:
        s.fail(f"has kernel_shape {list(told)}, its kernel has {list(window)}")
    strides, dilations = (numbers(s, n, name, count, 1) for name in ("strides", "dilations"))
    more = numbers(s, n, "output_padding", count, 0)
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    whole = [(m - 1) * t + o + span for m, t, o, span in zip(space, strides, more, spans, strict=True)]
    low, high = _cuts(s, n, space, strides, whole)
    w = Windows(
        window,
        (1,) * count,
        dilations,
        tuple(span - 1 - cut for span, cut in zip(spans, low, strict=True)),
        tuple(span - 1 + o - cut for span, o, cut in zip(spans, more, high, strict=True)),
        (0,) * count,
    )
    return biased(s, convolved(s, x, _regrouped(s, kernel, groups), w, groups, base=strides), n.given(2))


def _cuts(
    s: Lowering, n: Node, space: Ints, strides: Ints, whole: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """How much is cut off before and after each dim of the output of extents `whole`; a larger output that is
    asked for has zeros at the end."""
    count, wanted = len(space), n.attrs.get("output_shape")
    pads = numbers(s, n, "pads", 2 * count, 0)
    auto = automatic(s, n, () if wanted else pads)
    if not auto.startswith("SAME") and not wanted:
        return pads[:count], pads[count:]
    shape = wanted[-count:] if wanted else [m * t for m, t in zip(space, strides, strict=True)]
    totals = [a - b for a, b in zip(whole, shape, strict=True)]
    halves = [max(total, 0) // 2 for total in totals]
    others = [max(total, 0) - half for total, half in zip(totals, halves, strict=True)]
    low, high = (halves, others) if auto == "SAME_UPPER" else (others, halves)
    return low, [min(cut, total) for cut, total in zip(high, totals, strict=True)]


def _regrouped(s: Lowering, kernel: Value, groups: int) -> Value:
    """(channels, outputs of a group, ...) -> (outputs, channels of a group, ...)."""
    channels, outputs, *window = kernel.type.shape
    if groups < 1 or channels % groups:
        s.fail(f"has {groups} groups for {channels} channels")
    apart = s.reshape(kernel, (groups, channels // groups, outputs, *window))
    turned = s.transpose(apart, (0, 2, 1, *range(3, 3 + len(window))))
    return s.reshape(turned, (groups * outputs, channels // groups, *window))


def _col2im(s: Lowering, n: Node) -> Value:
    """Blocks added up where they overlap, dim by dim: (batch, channels * block, places) -> an image."""
    x = n.operand(0)
    image, block = s.integers(n.operand(1), "the image"), s.integers(n.operand(2), "the block")
    count = len(image)
    strides, dilations = (numbers(s, n, name, count, 1) for name in ("strides", "dilations"))
    pads = numbers(s, n, "pads", 2 * count, 0)
    each = zip(image, block, strides, dilations, pads[:count], pads[count:], strict=True)
    places = [(m + a + b - (k - 1) * d - 1) // t + 1 for m, k, t, d, a, b in each]
    if len(x.type.shape) != 3 or x.type.shape[1] % prod(block) or x.type.shape[2] != prod(places):
        s.fail(f"puts {x.type} as blocks {list(block)} at {places} places into {list(image)}")
    found = s.reshape(x, (x.type.shape[0], x.type.shape[1] // prod(block), *block, *places))
    for d in reversed(range(count)):
        parts = []
        for k in range(block[d]):
            part = s.slice(found, 2 + d, k, k + 1)
            shape = [m for at, m in enumerate(part.type.shape) if at != 2 + d]
            low = k * dilations[d] - pads[d]
            high = image[d] - low - (places[d] - 1) * strides[d] - 1
            parts.append(_put(s, s.reshape(part, shape), 2 * d + 2, low, high, strides[d] - 1))
        found = reduce(lambda a, b: s.emit("add", a, b), parts)
    return found


def _put(s: Lowering, x: Value, dim: int, low: int, high: int, between: int) -> Value:
    """`x` with zeros around and between its elements along `dim`."""

    def only(n: int) -> Ints:
        return tuple(n if d == dim else 0 for d in range(len(x.type.shape)))

    zero = s.scalar(0, x.type.dtype)
    return s.emit("pad", x, zero, low=only(low), high=only(high), interior=only(between))


RULES: Final[Mapping[str, Rule]] = {
    "Col2Im": _col2im,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
}
