"""Reductions over windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.frontends.onnx.windows import Windows, numbers, spatial, windows
from shardproof.ir.module import Value
from shardproof.ir.numpy_compute import identity
from shardproof.ir.types import DType, TensorType


def pooled(s: Lowering, x: Value, w: Windows, kind: str) -> Value:
    """Windows reduced; padding takes no part."""
    start = s.literal(identity(kind, x.type.dtype), x.type.dtype)
    ones = (1,) * len(x.type.shape)
    return s.emit(
        "reduce_window",
        x,
        start,
        kind=kind,
        sizes=(1, 1, *w.kernel),
        strides=(1, 1, *w.strides),
        base_dilations=ones,
        window_dilations=(1, 1, *w.dilations),
        pad_low=(0, 0, *w.low),
        pad_high=(0, 0, *w.high),
    )


def _pool_windows(s: Lowering, n: Node) -> tuple[Value, Windows]:
    x = n.operand(0)
    w = windows(s, n, spatial(s, x), tuple(n.attrs["kernel_shape"]))
    if n.attrs["auto_pad"].startswith("SAME") and max(w.dilations) > 1:
        s.fail("pads a pool with dilations by itself, of which implementations differ: give pads")
    return x, w


def _max_pool(s: Lowering, n: Node) -> Sequence[Value | None]:
    x, w = _pool_windows(s, n)
    space = spatial(s, x)
    tables = [w.positions(d, c) for d, c in enumerate(w.counts(space))]
    outside = [(t < 0) | (t >= size) for t, size in zip(tables, space, strict=True)]
    if any(table.all(axis=1).any() for table in outside):
        s.fail("has a window of padding only, whose maximum is not specified")
    found, order = pooled(s, x, w, "max"), n.attrs["storage_order"]
    if order not in (0, 1):
        s.fail(f"has storage_order {order}, 0 or 1 is needed")
    if not n.wants(1):
        return found, None
    inner = [_within(table, out) for table, out in zip(tables, outside, strict=True)]
    return found, _places_of_max(s, x, inner, row_major=order == 0)


def _within(table: Any, outside: Any) -> Any:
    """(window, element) positions, the nearest element of the same window in place of one outside."""
    first, last = (~outside).argmax(axis=1), table.shape[1] - 1 - (~outside)[:, ::-1].argmax(axis=1)
    nearest = np.clip(np.arange(table.shape[1]), first[:, None], last[:, None])
    return np.take_along_axis(table, nearest, axis=1)


def _places_of_max(s: Lowering, x: Value, tables: Sequence[Any], *, row_major: bool) -> Value:
    """Where in the flat input, each image of it row- or column-major, the first maximum of a window is.

    `tables` give the position of each element of a window in each dim; padding is another element of the
    window, which repeats it and so changes neither the maximum nor the first of equal ones.
    """
    batch, channels, *space = x.type.shape
    size, rank = prod(space), len(space)
    at = _strided(tables, [prod(space[d + 1 :]) for d in range(rank)])
    told = at if row_major else _strided(tables, [prod(space[:d]) for d in range(rank)])
    flat = s.reshape(x, (batch, channels, size))
    picked = _picked(s, flat, s.literal(at, DType.S64))
    dim, shape = len(picked.type.shape) - 1, picked.type.shape
    types = [TensorType(t, shape[:dim]) for t in (x.type.dtype, DType.S64)]
    best = s.emit_many("argreduce", (picked,), types, dim=dim, kind="max")[1]
    table = s.place(s.literal(told, DType.S64), range(2, dim + 1), shape)
    chosen = s.compare("EQ", s.iota(DType.S64, shape, dim), s.place(best, range(dim), shape))
    inside = s.reduce(s.select(chosen, table, s.like(table, 0)), (dim,), "sum")
    for d, weight in ((0, channels * size), (1, size)):
        inside = s.pair("add", inside, s.pair("multiply", s.iota(DType.S64, inside.type.shape, d), weight))
    return inside


def _strided(tables: Sequence[Any], strides: Sequence[int]) -> Any:
    """(*windows, element) -> position in flat space of these strides."""
    rank = len(tables)
    found: Any = np.zeros((1,) * (2 * rank), np.int64)
    for d, table in enumerate(tables):
        shape = [1] * (2 * rank)
        shape[d], shape[rank + d] = table.shape
        found = found + table.reshape(shape) * strides[d]
    return found.reshape(*found.shape[:rank], -1)


def _picked(s: Lowering, flat: Value, at: Value) -> Value:
    """Elements of (batch, channels, size) at flat positions."""
    batch, channels, _ = flat.type.shape
    return s.emit(
        "gather",
        flat,
        at,
        offset_dims=(0, 1),
        collapsed_slice_dims=(2,),
        start_index_map=(2,),
        index_vector_dim=len(at.type.shape),
        slice_sizes=(batch, channels, 1),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
    )


def _average_pool(s: Lowering, n: Node) -> Value:
    """Divided by how many elements each window has, with `count_include_pad` those of the padding, too."""
    x, w = _pool_windows(s, n)
    space, counted = spatial(s, x), n.attrs["count_include_pad"]
    sizes = []
    for d, c in enumerate(w.counts(space)):
        at = w.positions(d, c)
        lowest, highest = (-w.low[d], space[d] + w.high[d] - w.extra[d]) if counted else (0, space[d])
        sizes.append(((at >= lowest) & (at < highest)).sum(axis=1))
    if any(not size.all() for size in sizes):
        s.fail("has a window without elements, whose average is not specified")
    total = pooled(s, x, w, "sum")
    if all((size == k).all() for size, k in zip(sizes, w.kernel, strict=True)):
        return s.pair("divide", total, prod(w.kernel))
    ones = s.full(1, x.type.dtype, (1, 1, *space))
    inner = w
    if counted:
        kept = tuple(high - extra for high, extra in zip(w.high, w.extra, strict=True))
        padded = tuple(m + a + b for m, a, b in zip(space, w.low, kept, strict=True))
        ones = s.full(1, x.type.dtype, (1, 1, *padded))
        inner = Windows(w.kernel, w.strides, w.dilations, (0,) * len(space), w.extra, w.extra)
    return s.pair("divide", total, pooled(s, ones, inner, "sum"))


def _lp_pool(s: Lowering, n: Node) -> Value:
    x, w = _pool_windows(s, n)
    p = n.attrs["p"]
    return norm(s, pooled(s, power_of_size(s, x, p), w, "sum"), p)


def power_of_size(s: Lowering, x: Value, p: int) -> Value:
    """`abs(x) ** p`."""
    if p < 1:
        s.fail(f"takes the norm of order {p}, at least 1 is needed")
    if p == 2:
        return s.pair("multiply", x, x)
    size = s.emit("abs", x)
    return size if p == 1 else s.pair("power", size, p)


def norm(s: Lowering, x: Value, p: int) -> Value:
    """The norm of order `p` from the sum of the powers."""
    if p == 1:
        return x
    return s.emit("sqrt", x) if p == 2 else s.pair("power", x, 1 / p)


def _global(kind: str) -> Rule:
    def rule(s: Lowering, n: Node) -> Value:
        x = n.operand(0)
        dims = tuple(range(2, 2 + len(spatial(s, x))))
        if kind == "mean":
            return s.mean(x, dims, keepdim=True)
        if kind == "max":
            return s.reduce(x, dims, "max", keepdim=True)
        p = n.attrs["p"]
        return norm(s, s.reduce(power_of_size(s, x, p), dims, "sum", keepdim=True), p)

    return rule


def _max_unpool(s: Lowering, n: Node) -> Value:
    """Zeros with the elements at positions of the flat result that the pool would have had as input."""
    x, at, told = n.operand(0), n.operand(1), n.given(2)
    space, kernel = spatial(s, x), tuple(n.attrs["kernel_shape"])
    count = len(space)
    strides, pads = numbers(s, n, "strides", count, 1), numbers(s, n, "pads", 2 * count, 0)
    each = zip(space, strides, kernel, pads[:count], pads[count:], strict=True)
    shape = (*x.type.shape[:2], *((m - 1) * t + k - low - high for m, t, k, low, high in each))
    size = prod(shape)
    if at.type.shape != x.type.shape or min(shape) < 1:
        s.fail(f"writes {x.type} at {at.type} into {list(shape)}")
    known: Any = s.known(at)
    if known is None or known.min() < 0 or known.max() >= size:
        s.guess("ids_in_range", f"the positions that `{s.name}` writes to are 0 to {size - 1}, as ONNX asks")
    found = s.emit(
        "scatter",
        s.full(0, x.type.dtype, (size,)),
        s.reshape(at, (at.type.size,)),
        s.reshape(x, (x.type.size,)),
        update_window_dims=(),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
        input_batching_dims=(),
        scatter_indices_batching_dims=(),
        kind="set",
        unique=False,
    )
    found = s.reshape(found, shape)
    whole = shape if told is None else s.integers(told, "the output shape")
    more = tuple(a - b for a, b in zip(whole, shape, strict=True))
    if not any(more):
        return found
    none = (0,) * len(shape)
    return s.emit("pad", found, s.scalar(0, x.type.dtype), low=none, high=more, interior=none)


RULES: Final[Mapping[str, Rule]] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global("mean"),
    "GlobalLpPool": _global("norm"),
    "GlobalMaxPool": _global("max"),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
