"""Resampling along dims: elements at constant positions, or a product with a matrix of constant weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from typing import Any, Final

import numpy as np

from shardproof.frontends.onnx.pads import taken
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import Array, DType, TensorType

_NEAREST: Final = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_PLACES: Final = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_ALIGNED: Final = ("align_corners", "tf_crop_and_resize")
"""Coordinates that depend on the new extent; the reference evaluator takes the one not yet rounded."""
_ROUNDING: Final = 1e-6
"""Relative error of an extent that follows from a scale of single precision."""
_SINGLE: Final = ("pytorch_half_pixel",)
"""Coordinates that depend on whether there is one new element only."""


@dataclass(frozen=True, slots=True)
class Line:
    """One dim: `size` elements become `count`, which is `width` rounded, and `scale` are made from each;
    `start` and `end` are the part that is read, as fractions."""

    size: int
    count: int
    width: float
    scale: float
    start: float
    end: float

    @property
    def is_same(self) -> bool:
        return self.size == self.count and self.scale == 1 and (self.start, self.end) == (0, 1)


@dataclass(frozen=True, slots=True)
class Kernel:
    """How neighbours are weighted: with the coefficient of cubic kernels, stretched to blur what would be
    left out, and only those inside."""

    mode: str
    cubic: float
    antialias: bool
    inside: bool


def _resize(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    mode, places = n.attrs["mode"], n.attrs["coordinate_transformation_mode"]
    if mode not in ("nearest", "linear", "cubic") or places not in _PLACES:
        s.fail(f"resizes in the mode {mode!r} with coordinates {places!r}, which is not known")
    rounding = n.attrs["nearest_mode"]
    if mode == "nearest" and rounding not in _NEAREST:
        s.fail(f"rounds positions by {rounding!r}, known are {', '.join(_NEAREST)}")
    if mode != "nearest" and x.type.dtype.kind != "real":
        s.fail(f"interpolates {x.type}, whose rounding is not specified")
    kernel = Kernel(
        mode, n.attrs["cubic_coeff_a"], bool(n.attrs.get("antialias", 0)), bool(n.attrs["exclude_outside"])
    )
    if mode == "nearest" and (kernel.antialias or kernel.inside):
        s.fail("takes the nearest elements, of which none can be left out or blurred")
    beyond_value = n.attrs["extrapolation_value"]
    outside: list[tuple[int, Any]] = []
    for dim, line in enumerate(_lines(s, n, x)):
        if line.is_same or x.type.size == 0:
            continue
        if line.width != line.count and (places in _ALIGNED or (places in _SINGLE and line.count == 1)):
            s.fail(f"resizes dim {dim} to {line.width} elements by {places!r}, ambiguous without sizes")
        at = _coordinates(line, places, np.float64)
        near = _coordinates(_rounded(n, line), places, np.float32)
        if mode == "nearest":
            x = taken(s, x, dim, _nearest(s, line, at, near, rounding))
        elif _rounded(n, line) != line:
            s.fail(f"resizes dim {dim} in proportion to {line.width} elements, whose scale is not specified")
        else:
            x = weighted(s, x, dim, _weights(kernel, line, at))
        if places == "tf_crop_and_resize":
            beyond = (at < 0) | (at > line.size - 1)
            if (beyond != (near < 0) | (near > line.size - 1)).any():
                s.fail(f"reads dim {dim} at its edge up to rounding, whether outside is not specified")
            outside.append((dim, beyond))
    for dim, beyond in outside:
        if beyond.any():
            mask = s.place(s.literal(beyond, DType.BOOL), (dim,), x.type.shape)
            x = s.select(mask, s.like(x, beyond_value), x)
    return x


def _policy(n: Node) -> str:
    """How the ratio of extents is kept, which concerns sizes only."""
    policy: str = n.attrs.get("keep_aspect_ratio_policy", "stretch")
    scales = n.given(2)
    return policy if scales is None or not scales.type.size else "stretch"


def _rounded(n: Node, line: Line) -> Line:
    """With the ratio kept, the scale may also be read as that of the rounded extent."""
    if _policy(n) == "stretch":
        return line
    return replace(line, width=line.count, scale=line.count / line.size)


def _lines(s: Lowering, n: Node, x: Value) -> list[Line]:
    """How each dim is resized, by `scales` or `sizes` and, for crops, `roi`."""
    rank = len(x.type.shape)
    named = n.attrs.get("axes") or tuple(range(rank))
    dims = [s.dim(d, rank) for d in named]
    roi = [(0.0, 1.0)] * rank
    region = n.given(1)
    if n.attrs["coordinate_transformation_mode"] == "tf_crop_and_resize":
        if region is None:
            s.fail("crops to a region that is left out")
        told = s.array(region, "the region").reshape(-1).astype(np.float64)
        if len(told) != 2 * len(dims):
            s.fail(f"has a region of {len(told)} numbers for {len(dims)} dims")
        for at, d in enumerate(dims):
            roi[d] = (float(told[at]), float(told[at + len(dims)]))
    lines = [Line(size, size, size, 1, *roi[d]) for d, size in enumerate(x.type.shape)]
    found = _scales(s, n, [x.type.shape[d] for d in dims], [roi[d] for d in dims])
    for d, (count, width, scale) in zip(dims, found, strict=True):
        lines[d] = Line(x.type.shape[d], count, width, scale, *roi[d])
    return lines


def _scales(
    s: Lowering, n: Node, extents: Sequence[int], roi: Sequence[tuple[float, float]]
) -> list[tuple[int, float, float]]:
    """New extent, the same before it is rounded, and scale of each of the dims."""
    scales, sizes, policy = n.given(2), n.given(3), _policy(n)
    if scales is not None and scales.type.size:
        if sizes is not None and sizes.type.size:
            s.fail("has both scales and sizes, one of them is needed")
        told: Any = s.array(scales, "the scales").reshape(-1)
        if len(told) != len(extents) or not (told > 0).all():
            s.fail(f"has the scales {told.tolist()} for {len(extents)} dims")
        single = np.float32
        counts = [
            floor(single(m) * (single(end) - single(start)) * single(f))
            for m, f, (start, end) in zip(extents, told, roi, strict=True)
        ]
        widths = [m * float(f) for m, f in zip(extents, told, strict=True)]
        widths = [c if abs(w - c) < _ROUNDING * w else w for c, w in zip(counts, widths, strict=True)]
        return list(zip(counts, widths, (float(f) for f in told), strict=True))
    if sizes is None:
        s.fail("has neither scales nor sizes")
    wanted = s.integers(sizes, "the sizes")
    if len(wanted) != len(extents) or min(extents, default=1) < 1:
        s.fail(f"resizes dims of {list(extents)} elements to {list(wanted)}")
    ratios = [Fraction(count, m) for count, m in zip(wanted, extents, strict=True)]
    if policy in ("not_larger", "not_smaller"):
        ratios = [min(ratios) if policy == "not_larger" else max(ratios)] * len(ratios)
    elif policy != "stretch":
        s.fail(f"keeps the aspect ratio by {policy!r}, which is not known")
    exact = [ratio * m for ratio, m in zip(ratios, extents, strict=True)]
    return [(floor(w + Fraction(1, 2)), float(w), float(r)) for w, r in zip(exact, ratios, strict=True)]


def _coordinates(line: Line, places: str, precision: Any) -> Any:
    """Where each new element lies among the old ones, computed in floats of that precision."""
    at = np.arange(line.count, dtype=precision)
    size, scale = precision(line.size), precision(line.scale)
    start, end = precision(line.start), precision(line.end)
    width, one, half = precision(line.width), precision(1), precision(0.5)
    if places == "align_corners":
        return at * (size - one) / (width - one) if width != one else at * 0
    if places == "asymmetric":
        return at / scale
    if places == "tf_crop_and_resize":
        if line.count > 1:
            return start * (size - one) + at * (end - start) * (size - one) / (width - one)
        return np.full_like(at, half * (start + end) * (size - one))
    if places == "pytorch_half_pixel" and line.count <= 1:
        return at * 0
    moved = (at + half) / scale - half
    if places == "half_pixel_symmetric":
        return moved + size / 2 * (one - line.count / width)
    return moved


def _nearest(s: Lowering, line: Line, at: Any, near: Any, how: str) -> list[int]:
    """The element nearest to each coordinate, on which both readings must agree."""

    def rounded(x: Any) -> Any:
        if how == "floor":
            found = np.floor(x)
        elif how == "ceil":
            found = np.ceil(x)
        else:
            found = np.ceil(x - 0.5) if how == "round_prefer_floor" else np.floor(x + 0.5)
        return np.clip(found.astype(np.int64), 0, line.size - 1)

    found, other = rounded(at), rounded(near)
    if not np.array_equal(found, other):
        s.fail("reads positions that depend on the rounding of their coordinates, which is not specified")
    return [int(p) for p in found]


def _weights(how: Kernel, line: Line, at: Any) -> Array:
    """(new, old) weights of an interpolation; beyond the ends the outermost elements repeat."""
    stretch = max(1.0, 1 / line.scale) if how.antialias else 1.0
    reach = 2 if how.mode == "cubic" else 1
    around = floor(reach * stretch) + 1
    first = np.floor(at).astype(np.int64)
    places = first[:, None] + np.arange(-around, around + 1)
    distance = np.abs(places - at[:, None]) / stretch
    kernel = _cubic(distance, how.cubic) if how.mode == "cubic" else np.clip(1 - distance, 0, None)
    if how.inside:
        kernel = np.where((places < 0) | (places >= line.size), 0, kernel)
    if stretch > 1 or how.inside:
        total = kernel.sum(axis=1, keepdims=True)
        kernel = kernel / np.where(total == 0, 1, total)
    found: Any = np.zeros((line.count, line.size))
    rows = np.broadcast_to(np.arange(line.count)[:, None], places.shape)
    np.add.at(found, (rows, np.clip(places, 0, line.size - 1)), kernel)
    return found  # type: ignore[no-any-return]


def _cubic(distance: Any, a: float) -> Any:
    """The cubic convolution kernel of Keys with coefficient `a`."""
    d = distance
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    outer = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, inner, np.where(d < 2, outer, 0))


def weighted(s: Lowering, x: Value, dim: int, weights: Array) -> Value:
    """Sums of the elements along `dim` with the constant weights (new, old)."""
    rank = len(x.type.shape)
    found = s.emit(
        "dot_general",
        x,
        s.literal(weights, x.type.dtype),
        type=TensorType(x.type.dtype, ()),
        lhs_contracting=(dim,),
        rhs_contracting=(1,),
        lhs_batch=(),
        rhs_batch=(),
    )
    return s.transpose(found, [*range(dim), rank - 1, *range(dim, rank - 1)])


RULES: Final[Mapping[str, Rule]] = {"Resize": _resize}
