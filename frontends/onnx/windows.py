"""Where windows lie that operators slide over the spatial dims of (batch, channels, *space)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardproof.frontends.onnx.state import Lowering, Node
from shardproof.ir.module import Value

Ints = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over spatial dims: `low` and `high` pad the input to hold them all; `extra` of `high` lies
    beyond the padding that the node asks for."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    low: Ints
    high: Ints
    extra: Ints

    def counts(self, space: Sequence[int]) -> Ints:
        """How many windows there are along each dim."""
        each = zip(space, self.low, self.high, self.spans, self.strides, strict=True)
        return tuple((n + low + high - span) // stride + 1 for n, low, high, span, stride in each)

    @property
    def spans(self) -> Ints:
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def positions(self, dim: int, count: int) -> Any:
        """(window, element) -> position along the unpadded spatial dim, which may be out of range."""
        starts = np.arange(count) * self.strides[dim] - self.low[dim]
        return starts[:, None] + np.arange(self.kernel[dim]) * self.dilations[dim]


def numbers(s: Lowering, n: Node, name: str, count: int, default: int) -> Ints:
    """An attribute with an integer for each spatial dim."""
    found = n.attrs.get(name) or (default,) * count
    if len(found) != count:
        s.fail(f"has {name} {list(found)} for {count} spatial dims")
    return tuple(found)


def spatial(s: Lowering, x: Value) -> Ints:
    if len(x.type.shape) < 3:
        s.fail(f"slides windows over {x.type}, which has no spatial dims")
    return x.type.shape[2:]


def automatic(s: Lowering, n: Node, pads: Ints) -> str:
    """The attribute `auto_pad`, beside which the node may ask for no padding of its own."""
    auto: str = n.attrs.get("auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        s.fail(f"has auto_pad {auto!r}, which is not known")
    if auto != "NOTSET" and any(pads):
        s.fail(f"has auto_pad {auto!r} and pads {list(pads)}, one of them is possible")
    return auto


def windows(s: Lowering, n: Node, space: Ints, kernel: Ints) -> Windows:
    """The windows of a convolution or pool. Raises ModuleError where there is none."""
    count = len(space)
    told = n.attrs.get("kernel_shape")
    if told and tuple(told) != kernel:
        s.fail(f"has kernel_shape {list(told)}, its kernel has {list(kernel)}")
    strides, dilations = (numbers(s, n, name, count, 1) for name in ("strides", "dilations"))
    pads = numbers(s, n, "pads", 2 * count, 0)
    if min((*kernel, *strides, *dilations)) < 1 or min(pads) < 0:
        s.fail(f"has windows {kernel}, strides {strides}, dilations {dilations} and pads {pads}")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto, extra, ceil = automatic(s, n, pads), [0] * count, n.attrs.get("ceil_mode", 0)
    if auto == "NOTSET":
        low, high = list(pads[:count]), list(pads[count:])
        if ceil:
            extra = [_beyond(*each) for each in zip(space, low, high, spans, strides, strict=True)]
    elif auto == "VALID":
        low, high = [0] * count, [0] * count
    else:
        each = zip(space, strides, spans, strict=True)
        totals = [(-(-size // stride) - 1) * stride + span - size for size, stride, span in each]
        if min(totals) < -1:
            s.fail(f"leaves out {-min(totals)} elements by {auto}, on which side is ambiguous: give pads")
        totals = [max(total, 0) for total in totals]
        halves = [total // 2 for total in totals]
        others = [total - half for total, half in zip(totals, halves, strict=True)]
        low, high = (halves, others) if auto == "SAME_UPPER" else (others, halves)
    high = [h + e for h, e in zip(high, extra, strict=True)]
    found = Windows(kernel, strides, dilations, tuple(low), tuple(high), tuple(extra))
    if any(n < 1 or c < 1 for n, c in zip(space, found.counts(space), strict=True)):
        s.fail(f"has no window of {list(spans)} in an image of {list(space)}")
    return found


def _beyond(size: int, low: int, high: int, span: int, stride: int) -> int:
    """Padding for one more, partial window; none that would start in the padding behind the image."""
    rest = size + low + high - span
    count = -(-rest // stride) + 1
    if (count - 1) * stride >= size + low:
        count -= 1
    return max((count - 1) * stride - rest, 0)
