"""Operators that only move elements, and what is made of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from typing import Final

import numpy as np

from shardproof.frontends.onnx.elements import DTYPES, array_of
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType


def _constant(s: Lowering, n: Node) -> Value:
    for name, dtype in (("value_int", DType.S64), ("value_ints", DType.S64), ("value_float", DType.F32),
                        ("value_floats", DType.F32)):
        if name in n.attrs:
            return s.literal(np.asarray(n.attrs[name], dtype=dtype.storage), dtype)
    if "value" not in n.attrs:
        s.fail("holds no tensor of numbers")
    return s.stored(n.attrs["value"])


def _shape(s: Lowering, n: Node) -> Value:
    shape = n.operand(0).type.shape
    start, end = n.attrs.get("start", 0), n.attrs.get("end")
    return s.integer_constant(shape[start:end] if end is not None else shape[start:])


def _size(s: Lowering, n: Node) -> Value:
    return s.literal(n.operand(0).type.size, DType.S64)


def _reshape(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    told = s.integers(n.operand(1), "the shape")
    zero_is_zero = n.attrs.get("allowzero", 0)
    shape = [x.type.shape[d] if m == 0 and not zero_is_zero else m for d, m in enumerate(told)]
    if -1 in shape:
        rest = prod(m for m in shape if m != -1)
        if rest == 0 or x.type.size % rest:
            s.fail(f"reshapes {x.type} to {list(told)}")
        shape[shape.index(-1)] = x.type.size // rest
    return s.reshape(x, shape)


def _transpose(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    return s.transpose(x, n.attrs.get("perm", tuple(reversed(range(len(x.type.shape))))))


def _flatten(s: Lowering, n: Node) -> Value:
    x, axis = n.operand(0), n.attrs["axis"]
    shape = x.type.shape
    at = axis + len(shape) if axis < 0 else axis
    return s.reshape(x, (prod(shape[:at]), prod(shape[at:])))


def _squeeze(s: Lowering, n: Node) -> Value:
    x, axes = n.operand(0), n.given(1)
    shape = x.type.shape
    if axes is None:
        gone = {d for d, m in enumerate(shape) if m == 1}
    else:
        gone = {s.dim(d, len(shape)) for d in s.integers(axes, "the axes")}
    if any(shape[d] != 1 for d in gone):
        s.fail(f"drops dims {sorted(gone)} of {x.type}, which are not of extent 1")
    return s.reshape(x, [m for d, m in enumerate(shape) if d not in gone])


def _unsqueeze(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    axes = s.integers(n.operand(1), "the axes")
    rank = len(x.type.shape) + len(axes)
    new = {s.dim(d, rank) for d in axes}
    old = iter(x.type.shape)
    return s.reshape(x, [1 if d in new else next(old) for d in range(rank)])


def _expand(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    told = s.integers(n.operand(1), "the shape")
    mine = (1,) * (len(told) - len(x.type.shape)) + x.type.shape
    told = (1,) * (len(mine) - len(told)) + told
    return s.spread(x, [b if a == 1 else a for a, b in zip(mine, told, strict=True)])


def _concat(s: Lowering, n: Node) -> Value:
    parts = [v for v in n.inputs if v is not None]
    dim = s.dim(n.attrs["axis"], len(parts[0].type.shape))
    return parts[0] if len(parts) == 1 else s.emit("concatenate", *parts, dim=dim)


def _slice(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    rank = len(x.type.shape)
    starts, ends = s.integers(n.operand(1), "the starts"), s.integers(n.operand(2), "the ends")
    axes, steps = n.given(3), n.given(4)
    dims = range(len(starts)) if axes is None else [s.dim(d, rank) for d in s.integers(axes, "the axes")]
    strides = (1,) * len(starts) if steps is None else s.integers(steps, "the steps")
    for dim, start, end, stride in zip(dims, starts, ends, strides, strict=True):
        x = _cut(s, x, dim, slice(start, end, stride))
    return x


def _cut(s: Lowering, x: Value, dim: int, cut: slice) -> Value:
    """The elements along `dim` that NumPy's slice names."""
    if cut.step == 0:
        s.fail("slices with a step of 0")
    end = None if cut.step < 0 and cut.stop < -x.type.shape[dim] else cut.stop
    at = range(x.type.shape[dim])[slice(cut.start, end, cut.step)]
    if not at:
        return s.slice(x, dim, 0, 0)
    low, high = min(at[0], at[-1]), max(at[0], at[-1])
    found = x if len(at) == x.type.shape[dim] else s.slice(x, dim, low, high + 1, abs(cut.step))
    return s.emit("reverse", found, dims=(dim,)) if cut.step < 0 and len(at) > 1 else found


def _split(s: Lowering, n: Node) -> list[Value]:
    x = n.operand(0)
    dim = s.dim(n.attrs["axis"], len(x.type.shape))
    sizes, extent = n.given(1), x.type.shape[dim]
    if sizes is not None:
        parts: tuple[int, ...] = s.integers(sizes, "the sizes")
    else:
        count = n.attrs.get("num_outputs", len(n.outputs))
        size = -(-extent // count)
        parts = tuple(min(size, max(extent - k * size, 0)) for k in range(count))
    if sum(parts) != extent:
        s.fail(f"splits {x.type} along dim {dim} into {list(parts)}")
    ends = list(accumulate(parts))
    return [s.slice(x, dim, end - size, end) for end, size in zip(ends, parts, strict=True)]


def _tile(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    repeats = s.integers(n.operand(1), "the repeats")
    shape = x.type.shape
    paired = [m for r, e in zip(repeats, shape, strict=True) for m in (r, e)]
    spread = s.place(x, tuple(2 * d + 1 for d in range(len(shape))), paired)
    return s.reshape(spread, [r * e for r, e in zip(repeats, shape, strict=True)])


def _constant_of_shape(s: Lowering, n: Node) -> Value:
    shape = s.integers(n.operand(0), "the shape")
    if "value" not in n.attrs:
        return s.full(0, DType.F32, shape)
    array, dtype = array_of(n.attrs["value"], s.folder)
    return s.spread(s.literal(array.reshape(()), dtype), shape)


def _range(s: Lowering, n: Node) -> Value:
    start, limit, delta = (n.operand(k) for k in range(3))
    low, high, step = (s.number(v, "a bound of the range") for v in (start, limit, delta))
    dtype = start.type.dtype
    count = max(int(np.ceil((high - low) / step)), 0)
    at = s.iota(dtype, (count,), 0)
    if step != 1:
        at = s.pair("multiply", at, s.reshape(delta, ()))
    return at if low == 0 else s.pair("add", at, s.reshape(start, ()))


def _eye_like(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    dtype = DTYPES[n.attrs["dtype"]] if "dtype" in n.attrs else x.type.dtype
    rows, columns = (s.iota(DType.S64, x.type.shape, d) for d in (0, 1))
    return s.convert(s.compare("EQ", s.pair("add", rows, n.attrs["k"]), columns), dtype)


def _trilu(s: Lowering, n: Node) -> Value:
    x, k = n.operand(0), n.given(1)
    rank = len(x.type.shape)
    shift = s.integer(k, "the diagonal") if k is not None else 0
    rows, columns = (s.iota(DType.S64, x.type.shape, d) for d in (rank - 2, rank - 1))
    direction = "LE" if n.attrs["upper"] else "GE"
    return s.select(s.compare(direction, s.pair("add", rows, shift), columns), x, s.like(x, 0))


def _depth_to_space(s: Lowering, n: Node) -> Value:
    """Channels to blocks of pixels: the place in the block is the slower part of the channel, or with CRD the
    faster one."""
    x, block = n.operand(0), n.attrs["blocksize"]
    batch, depth, rows, columns = _image(s, x)
    mode = n.attrs["mode"]
    if mode not in ("DCR", "CRD") or block < 1 or depth % (block * block):
        s.fail(f"makes blocks of {block} out of {x.type} in the mode {mode!r}")
    inner = depth // (block * block)
    split = (block, block, inner) if mode == "DCR" else (inner, block, block)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    apart = s.reshape(x, (batch, *split, rows, columns))
    return s.reshape(s.transpose(apart, order), (batch, inner, rows * block, columns * block))


def _space_to_depth(s: Lowering, n: Node) -> Value:
    """Blocks of pixels to channels, the inverse."""
    x, block = n.operand(0), n.attrs["blocksize"]
    batch, depth, rows, columns = _image(s, x)
    mode = n.attrs.get("mode", "DCR")
    if mode not in ("DCR", "CRD") or block < 1 or rows % block or columns % block:
        s.fail(f"takes blocks of {block} out of {x.type} in the mode {mode!r}")
    apart = s.reshape(x, (batch, depth, rows // block, block, columns // block, block))
    turned = s.transpose(apart, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return s.reshape(turned, (batch, depth * block * block, rows // block, columns // block))


def _image(s: Lowering, x: Value) -> tuple[int, ...]:
    if len(x.type.shape) != 4:
        s.fail(f"reads {x.type} as an image, which has 4 dims")
    return x.type.shape


RULES: Final[Mapping[str, Rule]] = {
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Flatten": _flatten,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
