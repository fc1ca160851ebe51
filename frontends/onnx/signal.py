"""Fourier transforms, as products with matrices of sines and cosines; complex numbers are pairs in the last
dim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shardproof.frontends.onnx.elements import DTYPES
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import TensorType

_LARGEST: Final = 1 << 22
"""Elements of the largest matrix of constants."""


def _dft(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    rank, inverse = len(x.type.shape), bool(n.attrs["inverse"])
    axis = n.given(2)
    named = n.attrs["axis"] if n.version < 20 else -2 if axis is None else s.integer(axis, "the axis")
    dim = s.dim(named, rank)
    if dim == rank - 1 or x.type.shape[-1] not in (1, 2):
        s.fail(f"transforms dim {dim} of {x.type}, whose last dim holds the parts of complex numbers")
    onesided, told = bool(n.attrs["onesided"]), n.given(1)
    if told is not None:
        length = s.integer(told, "the length")
    else:
        length = 2 * (x.type.shape[dim] - 1) if inverse and onesided else x.type.shape[dim]
    read = length // 2 + 1 if inverse and onesided else length
    if length < 1:
        s.fail(f"transforms {length} numbers")
    x = _fitted(s, x, dim, read)
    matrix = _inverse(length, onesided) if inverse else _forward(length, onesided)
    found = _transformed(s, x, dim, _real_only(s, matrix, x.type.shape[-1]))
    return s.pair("divide", found, length) if inverse else found


def _fitted(s: Lowering, x: Value, dim: int, extent: int) -> Value:
    """`x` cut, or followed by zeros, along `dim`."""
    more, rank = extent - x.type.shape[dim], len(x.type.shape)
    if more == 0:
        return x
    high = tuple(more if d == dim else 0 for d in range(rank))
    none = (0,) * rank
    return s.emit("pad", x, s.scalar(0, x.type.dtype), low=none, high=high, interior=none)


def _turns(rows: int, columns: int, length: int) -> tuple[Any, Any]:
    """Cosine and sine of `2 pi k n / length`; those of quarter turns are exact."""
    at = (np.arange(rows)[:, None] * np.arange(columns)) % length
    angle = 2 * np.pi * at / length
    cosine, sine = np.cos(angle), np.sin(angle)
    quarters, rest = np.divmod(4 * at, length)
    exact = rest == 0
    cosine = np.where(exact, np.array([1.0, 0.0, -1.0, 0.0])[quarters], cosine)
    return cosine, np.where(exact, np.array([0.0, 1.0, 0.0, -1.0])[quarters], sine)


def _forward(length: int, onesided: bool) -> Any:
    """(frequency, part, time, part)."""
    cosine, sine = _turns(length // 2 + 1 if onesided else length, length, length)
    return np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)], 1)


def _inverse(length: int, onesided: bool) -> Any:
    """(time, part, frequency, part), times the length.

    Onesided, the other frequencies are the conjugates of those given, and the result has a real part only.
    """
    read = length // 2 + 1 if onesided else length
    cosine, sine = _turns(length, read, length)
    if not onesided:
        return np.stack([np.stack([cosine, -sine], -1), np.stack([sine, cosine], -1)], 1)
    twice = np.where((np.arange(read) == 0) | (2 * np.arange(read) == length), 1, 2)
    return np.stack([cosine * twice, -sine * twice], -1)[:, None]


def _real_only(s: Lowering, matrix: Any, parts: int) -> Any:
    if matrix.size > _LARGEST:
        s.fail(f"needs a matrix of {matrix.size} constants, at most {_LARGEST} are supported")
    return matrix[..., :parts]


def _transformed(s: Lowering, x: Value, dim: int, matrix: Any) -> Value:
    """(new, part, old, part) times the dim `dim` and the last of `x`."""
    rank = len(x.type.shape)
    found = s.emit(
        "dot_general",
        x,
        s.literal(matrix, x.type.dtype),
        type=TensorType(x.type.dtype, ()),
        lhs_contracting=(dim, rank - 1),
        rhs_contracting=(2, 3),
        lhs_batch=(),
        rhs_batch=(),
    )
    return s.transpose(found, [*range(dim), rank - 2, *range(dim, rank - 2), rank - 1])


def _stft(s: Lowering, n: Node) -> Value:
    """Transforms of windows of (batch, time, part): a convolution with the waves."""
    x, step = n.operand(0), s.integer(n.operand(1), "the frame step")
    window, told = n.given(2), n.given(3)
    if len(x.type.shape) == 2:
        x = s.reshape(x, (*x.type.shape, 1))
    _, time, parts = x.type.shape
    length = time if window is None else window.type.size
    length = length if told is None else s.integer(told, "the frame length")
    onesided = bool(n.attrs["onesided"])
    if step < 1 or not 1 <= length <= time or (window is not None and window.type.shape != (length,)):
        s.fail(f"cuts {x.type} into frames of {length} every {step}")
    if parts not in (1, 2) or (onesided and parts == 2):
        s.fail(f"gives half of the frequencies of {x.type}, reals are needed")
    matrix = _real_only(s, _forward(length, onesided), parts)
    count = matrix.shape[0]
    kernel = s.literal(matrix.transpose(0, 1, 3, 2).reshape(count * 2, parts, length), x.type.dtype)
    if window is not None:
        kernel = s.pair("multiply", kernel, window)
    found = s.emit(
        "convolution",
        x,
        kernel,
        type=TensorType(x.type.dtype, ()),
        strides=(step,),
        pad_low=(0,),
        pad_high=(0,),
        lhs_dilation=(1,),
        rhs_dilation=(1,),
        reversal=(False,),
        lhs_dims=(0, 2, 1),
        rhs_dims=(1, 0, 2),
        out_dims=(0, 2, 1),
        feature_groups=1,
        batch_groups=1,
    )
    return s.reshape(found, (*found.type.shape[:2], count, 2))


def _mel(s: Lowering, n: Node) -> Value:
    """(frequency, band) of triangles whose corners are evenly spaced on the mel scale."""
    bands, length, rate = (s.integer(n.operand(k), "a size") for k in range(3))
    edges = np.array([s.number(n.operand(k), "an edge") for k in (3, 4)])
    low, high = 2595 * np.log10(1 + edges / 700)
    mels = low + np.arange(bands + 2) * (high - low) / (bands + 2)
    bins = (length + 1) * 700 * (10 ** (mels / 2595) - 1) / rate
    if np.any((np.abs(bins - np.rint(bins)) < 1e-6) & (np.abs(bins) > 1e-6)):
        s.fail("has a corner at a frequency up to rounding, which one is not specified")
    corners = np.floor(bins + 1e-6).astype(np.int64)
    count = length // 2 + 1
    if bands < 1 or corners.min() < 0 or corners.max() >= count:
        s.fail(f"has bands from {corners.min()} to {corners.max()} of {count} frequencies")
    found, at = np.zeros((count, bands)), np.arange(count)
    for band, (left, top, right) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
        up, down = (at >= left) & (at <= top), (at >= top) & (at < right)
        found[:, band] = np.where(up, (at - left) / max(top - left, 1), 0)
        found[top, band] = 1
        found[:, band] = np.where(down, (right - at) / max(right - top, 1), found[:, band])
    return s.literal(found, DTYPES[n.attrs["output_datatype"]])


RULES: Final[Mapping[str, Rule]] = {
    "DFT": _dft,
    "MelWeightMatrix": _mel,
    "STFT": _stft,
}
