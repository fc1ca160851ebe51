"""Interpolation at computed places between elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.frontends.onnx.convolutions import biased
from shardproof.frontends.onnx.indexing import taken
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.frontends.onnx.windows import numbers, spatial
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType

_CUBIC: Final = -0.75
"""The coefficient of the cubic kernel of GridSample."""

Taps = Sequence[tuple[Value, Value | None]]
"""Places of elements along one dim, as whole reals, and their weights (None for 1)."""


def linear(s: Lowering, at: Value) -> Taps:
    """The elements on both sides of each place."""
    low = s.emit("floor", at)
    part = s.pair("subtract", at, low)
    return [(low, _less(s, 1, part)), (s.pair("add", low, 1), part)]


def _less(s: Lowering, number: float, x: Value) -> Value:
    return s.pair("subtract", s.scalar(number, x.type.dtype), x)


def _cubic(s: Lowering, at: Value) -> Taps:
    low = s.emit("floor", at)
    part = s.pair("subtract", at, low)
    other, a = _less(s, 1, part), _CUBIC
    outer, inner = (a, -5 * a, 8 * a, -4 * a), (a + 2, -(a + 3), 0, 1)
    weights = [
        _polynomial(s, s.pair("add", part, 1), outer),
        _polynomial(s, part, inner),
        _polynomial(s, other, inner),
        _polynomial(s, s.pair("add", other, 1), outer),
    ]
    return [(s.pair("add", low, k - 1), weight) for k, weight in enumerate(weights)]


def _polynomial(s: Lowering, x: Value, coefficients: Sequence[float]) -> Value:
    """By Horner's scheme, the highest power first."""
    first, *rest = coefficients
    found = s.like(x, first)
    for c in rest:
        found = s.pair("multiply", found, x)
        found = s.pair("add", found, c) if c else found
    return found


def tapped(s: Lowering, x: Value, taps: Sequence[Taps], *, zeros: bool) -> Value:
    """Weighted elements (batch, *places, *taps, channels) of `x`, (batch, channels, *space).

    Each place is (batch, *places); one out of range has the element 0, or else that of the nearest place.
    """
    space, shape = x.type.shape[2:], taps[0][0][0].type.shape
    rank, count = len(shape), len(taps)
    full = (*shape, *(len(t) for t in taps))
    places, weights, inside = [], [], []
    for d, each in enumerate(taps):
        dims = (*range(rank), rank + d)
        where = _stacked(s, [place for place, _ in each])
        at = s.place(s.convert(_clamped(s, where, space[d]), DType.S64), dims, full)
        places.append(s.reshape(at, (*full, 1)))
        if zeros:
            ok = s.emit("and", s.compare("GE", where, 0), s.compare("LE", where, space[d] - 1))
            inside.append(s.place(ok, dims, full))
        factors = [weight for _, weight in each if weight is not None]
        if factors:
            weights.append(s.place(s.convert(_stacked(s, factors), x.type.dtype), dims, full))
    index = places[0] if count == 1 else s.emit("concatenate", *places, dim=len(full))
    found = s.emit(
        "gather",
        x,
        index,
        offset_dims=(len(full),),
        collapsed_slice_dims=tuple(range(2, 2 + count)),
        start_index_map=tuple(range(2, 2 + count)),
        index_vector_dim=len(full),
        slice_sizes=(1, x.type.shape[1], *(1,) * count),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
    )
    every = tuple(range(len(full)))
    if inside:
        hit = reduce(lambda a, b: s.emit("and", a, b), inside)
        found = s.select(s.place(hit, every, found.type.shape), found, s.like(found, 0))
    if weights:
        factor = reduce(lambda a, b: s.emit("multiply", a, b), weights)
        found = s.emit("multiply", found, s.place(factor, every, found.type.shape))
    return found


def _clamped(s: Lowering, at: Value, size: int) -> Value:
    """The nearest places that are no further out than the outermost elements."""
    return s.emit("clamp", s.scalar(0, at.type.dtype), at, s.scalar(size - 1, at.type.dtype))


def _stacked(s: Lowering, parts: Sequence[Value]) -> Value:
    """Values side by side in a new last dim."""
    shape = parts[0].type.shape
    apart = [s.reshape(v, (*shape, 1)) for v in parts]
    return apart[0] if len(apart) == 1 else s.emit("concatenate", *apart, dim=len(shape))


def interpolated(s: Lowering, x: Value, taps: Sequence[Taps], *, zeros: bool) -> Value:
    """(batch, channels, *places)."""
    found = tapped(s, x, taps, zeros=zeros)
    rank = len(found.type.shape) - 1 - len(taps)
    total = s.reduce(found, tuple(range(rank, rank + len(taps))), "sum")
    return s.transpose(total, (0, rank, *range(1, rank)))


# a grid of places


def _grid_sample(s: Lowering, n: Node) -> Value:
    x, grid = n.operand(0), n.operand(1)
    space, last = spatial(s, x), len(grid.type.shape) - 1
    mode, padding = n.attrs["mode"].removeprefix("bi"), n.attrs["padding_mode"]
    if mode not in ("linear", "nearest", "cubic") or padding not in ("zeros", "border", "reflection"):
        s.fail(f"samples in the mode {n.attrs['mode']!r} with padding {padding!r}, which is not known")
    if mode == "cubic" and padding == "border":
        s.fail("samples in the mode 'cubic' with padding 'border', of which implementations differ")
    if grid.type.shape[last] != len(space) or last != len(space) + 1:
        s.fail(f"samples {x.type} at places {grid.type}")
    taps: list[Taps] = []
    for d, size in enumerate(space):
        k = len(space) - 1 - d
        at = s.reshape(s.slice(grid, last, k, k + 1), grid.type.shape[:last])
        low, high = (0.0, size - 1.0) if n.attrs["align_corners"] else (-0.5, size - 0.5)
        at = s.pair("multiply", s.pair("add", at, 1), high - low)
        at = s.pair("divide", at, 2)
        at = s.pair("add", at, low) if low else at
        if mode == "nearest":
            at = s.emit("round_even", at)
        if padding == "border":
            at = _clamped(s, at, size)
        elif padding == "reflection":
            at = _reflected(s, at, low, high)
        found: Taps = [(at, None)] if mode == "nearest" else (linear if mode == "linear" else _cubic)(s, at)
        if padding == "reflection":
            found = [(_reflected(s, place, low, high), weight) for place, weight in found]
        taps.append(found)
    return interpolated(s, x, taps, zeros=padding == "zeros")


def _reflected(s: Lowering, at: Value, low: float, high: float) -> Value:
    """Places thrown back at both ends as often as needed."""
    span = high - low
    if span == 0:
        return s.like(at, low)
    there = s.pair("remainder", s.emit("abs", s.pair("subtract", at, low)), 2 * span)
    back = _less(s, 2 * span, there)
    return s.pair("add", s.emit("minimum", there, back), low)


# regions


def _roi_align(s: Lowering, n: Node) -> Value:
    x, rois, batch = n.operand(0), n.operand(1), n.operand(2)
    sizes = (n.attrs["output_height"], n.attrs["output_width"])
    mode, places = n.attrs["mode"], n.attrs.get("coordinate_transformation_mode", "output_half_pixel")
    if mode not in ("avg", "max") or places not in ("half_pixel", "output_half_pixel"):
        s.fail(f"pools by {mode!r} with coordinates {places!r}, which is not known")
    if len(x.type.shape) != 4 or rois.type != TensorType(x.type.dtype, (*batch.type.shape, 4)):
        s.fail(f"pools {x.type} in the regions {rois.type}")
    half = places == "half_pixel"
    ends = s.pair("multiply", rois, n.attrs["spatial_scale"])
    ends = s.pair("subtract", ends, 0.5) if half else ends
    counts = _samples(s, n, rois, sizes, half=half)
    count = batch.type.shape[0]
    shape = (count, *sizes, *counts)
    taps, inside = [], []
    for d in range(2):
        start, end = (s.reshape(s.slice(ends, 1, k, k + 1), (count,)) for k in (1 - d, 3 - d))
        extent = s.pair("subtract", end, start)
        extent = extent if half else s.pair("maximum", extent, 1)
        bins = s.place(s.pair("divide", extent, sizes[d]), (0,), shape)
        steps = np.arange(sizes[d])[:, None] + (np.arange(counts[d]) + 0.5) / counts[d]
        offset = s.place(s.literal(steps, x.type.dtype), (1 + d, 3 + d), shape)
        at = s.pair("add", s.place(start, (0,), shape), s.pair("multiply", bins, offset))
        size = x.type.shape[2 + d]
        inside.append(s.emit("and", s.compare("GE", at, -1), s.compare("LE", at, size)))
        taps.append(linear(s, _clamped(s, at, size)))
    found = tapped(s, taken(s, x, batch, 0), taps, zeros=False)
    hit = s.place(s.emit("and", *inside), range(5), found.type.shape)
    found = s.select(hit, found, s.like(found, 0))
    if mode == "max":
        return s.transpose(s.reduce(found, (3, 4, 5, 6), "max"), (0, 3, 1, 2))
    total = s.reduce(found, (3, 4, 5, 6), "sum")
    return s.pair("divide", s.transpose(total, (0, 3, 1, 2)), prod(counts))


def _samples(s: Lowering, n: Node, rois: Value, sizes: Sequence[int], *, half: bool) -> tuple[int, int]:
    """Samples of a bin along each dim; without a ratio as many as the regions ask for, all alike."""
    ratio = n.attrs["sampling_ratio"]
    if ratio > 0:
        return ratio, ratio
    known: Any = s.array(rois, "the number of samples")
    ends = known * n.attrs["spatial_scale"]
    found = []
    for d, size in enumerate(sizes):
        extents = ends[:, 3 - d] - ends[:, 1 - d]
        asked = np.ceil((extents if half else np.maximum(extents, 1)) / size)
        if asked.size == 0 or asked.min() < 1 or asked.min() != asked.max():
            s.fail(f"takes {asked.tolist()} samples of the bins of its regions, one number for all is needed")
        found.append(int(asked[0]))
    return found[0], found[1]


# a convolution whose window elements are moved


def _deform_conv(s: Lowering, n: Node) -> Value:
    x, kernel, offset, mask = n.operand(0), n.operand(1), n.operand(2), n.given(4)
    space, window = spatial(s, x), kernel.type.shape[2:]
    rank, groups, shared = len(space), n.attrs["group"], n.attrs["offset_group"]
    told = n.attrs.get("kernel_shape")
    strides, dilations = (numbers(s, n, name, rank, 1) for name in ("strides", "dilations"))
    pads = numbers(s, n, "pads", 2 * rank, 0)
    batch, channels = x.type.shape[:2]
    each = zip(space, window, strides, dilations, pads[:rank], pads[rank:], strict=True)
    out = tuple((m + a + b - (k - 1) * d - 1) // t + 1 for m, k, t, d, a, b in each)
    count = prod(window)
    if (
        (told and tuple(told) != window)
        or min((*out, groups, shared)) < 1
        or channels % shared
        or channels != kernel.type.shape[1] * groups
        or kernel.type.shape[0] % groups
        or offset.type.shape != (batch, shared * count * rank, *out)
        or (mask is not None and mask.type.shape != (batch, shared * count, *out))
    ):
        s.fail(f"convolves {x.type} with {kernel.type} moved by {offset.type}")
    moves = s.reshape(offset, (batch * shared, count, rank, *out))
    shape = (batch * shared, count, *out)
    inner = np.stack(np.unravel_index(np.arange(count), window), axis=-1)
    taps = []
    for d in range(rank):
        steps = np.arange(out[d]) * strides[d] - pads[d] + inner[:, d, None] * dilations[d]
        base = s.place(s.literal(steps, offset.type.dtype), (1, 2 + d), shape)
        taps.append(linear(s, s.emit("add", base, s.reshape(s.slice(moves, 2, d, d + 1), shape))))
    image = s.reshape(x, (batch * shared, channels // shared, *space))
    found = interpolated(s, image, taps, zeros=True)
    if mask is not None:
        weights = s.place(s.reshape(mask, shape), (0, *range(2, 3 + rank)), found.type.shape)
        found = s.emit("multiply", found, weights)
    found = s.reshape(found, (batch, groups, channels // groups, count, *out))
    return biased(s, _grouped(s, found, kernel, groups, out), n.given(3))


def _grouped(s: Lowering, x: Value, kernel: Value, groups: int, out: Sequence[int]) -> Value:
    """(batch, groups, channels of a group, window, *out) by the kernel, summed over channels and window."""
    outputs, channels = kernel.type.shape[:2]
    rank = len(out)
    weights = s.reshape(kernel, (groups, outputs // groups, channels, prod(kernel.type.shape[2:])))
    found = s.emit(
        "dot_general",
        x,
        weights,
        type=x.type,
        lhs_contracting=(2, 3),
        rhs_contracting=(2, 3),
        lhs_batch=(1,),
        rhs_batch=(0,),
    )
    turned = s.transpose(found, (1, 0, 2 + rank, *range(2, 2 + rank)))
    return s.reshape(turned, (x.type.shape[0], outputs, *out))


RULES: Final[Mapping[str, Rule]] = {
    "DeformConv": _deform_conv,
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
}
