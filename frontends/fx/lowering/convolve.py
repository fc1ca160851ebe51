"""Convolutions."""

from __future__ import annotations

from typing import Any, Final

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.state import Arguments, Lowering
from shardproof.ir.module import Value
from shardproof.ir.types import TensorType


def _numbers(s: Lowering, value: Any, count: int, name: str) -> tuple[int, ...]:
    """One integer per dim of the window; one integer stands for all."""
    found = value if isinstance(value, tuple) else (value,)
    found = found * count if len(found) == 1 else found
    if len(found) != count or not all(type(n) is int for n in found):
        s.fail(f"has {name} = {value!r}, {count} integers are needed")
    return found


def _convolution(s: Lowering, a: Arguments) -> Value:
    """(batch, channels, *space) by (outputs, channels of a group, *window); a batch may be missing."""
    x, kernel, bias = a["input"], a["weight"], a["bias"]
    count = len(kernel.type.shape) - 2
    if a.get("transposed", False):
        s.fail("is a transposed convolution, which is not supported")
    if len(x.type.shape) not in (count + 1, count + 2):
        s.fail(f"convolves {x.type} with {kernel.type}")
    alone = len(x.type.shape) == count + 1
    image = s.reshape(x, (1, *x.type.shape)) if alone else x
    pads = _numbers(s, a["padding"], count, "padding")
    every = tuple(range(count + 2))
    found = s.emit(
        "convolution",
        image,
        kernel,
        type=TensorType(x.type.dtype, ()),
        strides=_numbers(s, a["stride"], count, "stride"),
        pad_low=pads,
        pad_high=pads,
        lhs_dilation=(1,) * count,
        rhs_dilation=_numbers(s, a["dilation"], count, "dilation"),
        reversal=(False,) * count,
        lhs_dims=every,
        rhs_dims=(1, 0, *every[2:]),
        out_dims=every,
        feature_groups=s.size(a["groups"]),
        batch_groups=1,
    )
    if bias is not None:
        found = s.emit("add", found, s.place(bias, (1,), found.type.shape))
    return s.reshape(found, found.type.shape[1:]) if alone else found


_PLAIN: Final = "input weight bias=None stride=({0}) padding=({1}) dilation=({0}) groups=1"

TABLE: Final[Table] = {
    **entries(
        "input weight bias stride padding dilation transposed output_padding groups",
        _convolution,
        "aten.convolution",
    ),
    **entries(_PLAIN.format("1,", "0,"), _convolution, "aten.conv1d"),
    **entries(_PLAIN.format("1,1", "0,0"), _convolution, "aten.conv2d"),
    **entries(_PLAIN.format("1,1,1", "0,0,0"), _convolution, "aten.conv3d"),
}
