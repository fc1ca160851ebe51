"""What contractions, reductions, indexing and sorting compute on one rank, in NumPy.

The conventions are those of `shardproof.ir.numpy_meaning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Op
from shardproof.ir.numpy_meaning import Arrays, Unsupported, pad_array, settle
from shardproof.ir.types import Array, DType


def _accumulated(op: Op, arrays: Arrays) -> list[Any]:
    """Operands of a contraction in the element type of its result."""
    return [settle(x, op.result.type.dtype) for x in arrays]


def dot_general(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    lhs, rhs = _accumulated(op, arrays)
    attrs = op.attrs
    lb, rb, lc, rc = (attrs[n] for n in ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting"))
    lf = [d for d in range(lhs.ndim) if d not in (*lb, *lc)]
    rf = [d for d in range(rhs.ndim) if d not in (*rb, *rc)]
    batch = [lhs.shape[d] for d in lb]
    rows, columns = [lhs.shape[d] for d in lf], [rhs.shape[d] for d in rf]
    inner = int(np.prod([lhs.shape[d] for d in lc], dtype=np.int64))
    left = lhs.transpose([*lb, *lf, *lc]).reshape([*batch, int(np.prod(rows, dtype=np.int64)), inner])
    right = rhs.transpose([*rb, *rc, *rf]).reshape([*batch, inner, int(np.prod(columns, dtype=np.int64))])
    product = np.matmul(left, right).reshape([*batch, *rows, *columns])
    return (settle(product, op.result.type.dtype),)


def convolution(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    attrs = op.attrs
    x, kernel = _accumulated(op, arrays)
    x = x.transpose(attrs["lhs_dims"])
    inner, outer, *space = attrs["rhs_dims"]
    kernel = kernel.transpose([outer, inner, *space])
    flipped = tuple(2 + d for d, reverse in enumerate(attrs["reversal"]) if reverse)
    kernel = np.flip(kernel, flipped)
    zero = np.zeros((), dtype=x.dtype)
    bases = [0, 0, *(d - 1 for d in attrs["lhs_dilation"])]
    x = pad_array(x, zero, (0, 0, *attrs["pad_low"]), (0, 0, *attrs["pad_high"]), bases)
    holes = [0, 0, *(d - 1 for d in attrs["rhs_dilation"])]
    kernel = pad_array(kernel, zero, [0] * kernel.ndim, [0] * kernel.ndim, holes)
    shape = [op.result.type.shape[d] for d in attrs["out_dims"]]
    groups = attrs["feature_groups"] * attrs["batch_groups"]
    split = 1 if attrs["feature_groups"] > 1 else 0
    pieces = [
        _correlate(part, weights, attrs["strides"], shape[2:])
        for part, weights in zip(np.split(x, groups, split), np.split(kernel, groups, 0), strict=True)
    ]
    result = np.concatenate(pieces, axis=1)
    return (settle(result.transpose(np.argsort(attrs["out_dims"])), op.result.type.dtype),)


def _correlate(x: Any, kernel: Any, strides: Sequence[int], space: Sequence[int]) -> Any:
    """(batch, feature, *space) with (output, feature, *kernel) -> (batch, output, *space)."""
    rank = len(strides)
    if 0 in space or 0 in kernel.shape or 0 in x.shape:
        return np.zeros((x.shape[0], kernel.shape[0], *space), dtype=x.dtype)
    windows = _windows(x, (1, 1, *kernel.shape[2:]), (1, 1, *strides), (1,) * x.ndim)
    body = [1, *range(4 + rank, 4 + 2 * rank)]
    result = np.tensordot(windows, kernel, (body, range(1, 2 + rank)))
    return np.moveaxis(result.reshape(x.shape[0], *space, kernel.shape[0]), -1, 1)


def _windows(x: Any, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """(*positions, *window) of every window of `x`."""
    spans = [(n - 1) * d + 1 for n, d in zip(sizes, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans)
    return view[tuple(slice(None, None, s) for s in (*strides, *dilations))]


_MONOID: Final[dict[str, tuple[np.ufunc, np.ufunc]]] = {
    "sum": (np.add, np.logical_or),
    "prod": (np.multiply, np.logical_and),
    "max": (np.maximum, np.logical_or),
    "min": (np.minimum, np.logical_and),
    "and": (np.bitwise_and, np.logical_and),
    "or": (np.bitwise_or, np.logical_or),
}


def monoid(kind: str, dtype: DType) -> np.ufunc:
    """The binary function of a reduction; on bool, sum is or and product is and."""
    return _MONOID[kind][dtype.kind == "bool"]


def identity(kind: str, dtype: DType) -> Any:
    """The neutral element of a reduction on `dtype`."""
    if kind in ("sum", "prod") or dtype.kind == "bool":
        return int(kind in ("prod", "and", "min"))
    if kind in ("and", "or"):
        return 0 if kind == "or" else (-1 if dtype.kind == "int" else 2**dtype.bits - 1)
    if dtype.kind == "real":
        return -np.inf if kind == "max" else np.inf
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
    high = 2 ** (dtype.bits - 1) - 1 if dtype.kind == "int" else 2**dtype.bits - 1
    return low if kind == "max" else high


def fold(kind: str, dtype: DType, x: Any, init: Any, axes: tuple[int, ...]) -> Array:
    """`x` reduced over `axes` and combined with `init`."""
    function = monoid(kind, dtype)
    start = np.array(identity(kind, dtype), dtype=x.dtype)[()]
    reduced = function.reduce(x, axis=axes, dtype=x.dtype, initial=start) if axes else x
    return settle(function(init, reduced), dtype)


def reduce(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    x, init = arrays
    return (fold(op.attrs["kind"], op.result.type.dtype, x, init, op.attrs["dims"]),)


def reduce_window(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    """Padding holds the identity; XLA and StableHLO differ on another init in a padded sum or product."""
    x, init = arrays
    attrs, dtype, rank = op.attrs, op.result.type.dtype, arrays[0].ndim
    neutral = identity(attrs["kind"], dtype)
    padded = any((*attrs["pad_low"], *attrs["pad_high"])) or any(d > 1 for d in attrs["base_dilations"])
    if padded and attrs["kind"] in ("sum", "prod") and np.any(init != neutral):
        raise Unsupported(
            "reduce_window", "padding with an initial value other than the identity is ambiguous"
        )
    filled = pad_array(
        x,
        np.array(neutral, dtype=x.dtype),
        attrs["pad_low"],
        attrs["pad_high"],
        [d - 1 for d in attrs["base_dilations"]],
    )
    if 0 in op.result.type.shape or 0 in attrs["sizes"]:
        return (settle(np.broadcast_to(init, op.result.type.shape), dtype),)
    windows = _windows(filled, attrs["sizes"], attrs["strides"], attrs["window_dilations"])
    return (fold(attrs["kind"], dtype, windows, init, tuple(range(rank, 2 * rank))),)


def argreduce(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    x, dim = arrays[0], op.attrs["dim"]
    position = (np.argmax if op.attrs["kind"] == "max" else np.argmin)(x, axis=dim)
    value = np.take_along_axis(x, np.expand_dims(position, dim), dim).squeeze(dim)
    return (value, settle(position, op.results[1].type.dtype))


def _positions(indices: Any, vector_dim: int, entries: int) -> Any:
    """Start indices as int64 with the index vector last; entries beyond int64 saturate."""
    expanded = indices[..., None] if vector_dim == indices.ndim else np.moveaxis(indices, vector_dim, -1)
    if expanded.dtype == np.uint64:
        expanded = np.minimum(expanded, np.uint64(np.iinfo(np.int64).max))
    return expanded.astype(np.int64)


def _batch_position(dim: int, vector_dim: int, batch: Sequence[int]) -> Any:
    """Position along one dim of the start indices, over their batch shape."""
    place = dim - (dim > vector_dim)
    line = np.arange(batch[place])
    return line.reshape([-1 if d == place else 1 for d in range(len(batch))])


def gather(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    x, raw = arrays
    attrs, sizes = op.attrs, op.attrs["slice_sizes"]
    mapped, vector = attrs["start_index_map"], attrs["index_vector_dim"]
    starts = _positions(raw, vector, len(mapped))
    batch = starts.shape[:-1]
    removed = {*attrs["collapsed_slice_dims"], *attrs["operand_batching_dims"]}
    computed: dict[int, Any] = {
        d: np.clip(starts[..., i], 0, x.shape[d] - sizes[d]) for i, d in enumerate(mapped)
    }
    pairs = zip(attrs["operand_batching_dims"], attrs["start_indices_batching_dims"], strict=True)
    computed |= {d: _batch_position(place, vector, batch) for d, place in pairs}
    whole = [d for d in range(x.ndim) if d not in computed]
    order = sorted(computed)
    cut = tuple(slice(0, sizes[d]) if d in whole else slice(None) for d in range(x.ndim))
    table = x[(*cut, ...)].transpose([*order, *whole])
    at = []
    for i, d in enumerate(order):
        window = np.arange(sizes[d]).reshape([-1 if j == i else 1 for j in range(len(order))])
        place = computed[d]
        at.append(place.reshape([*place.shape, *[1] * len(order)]) + window)
    read = table[tuple(at)] if at else np.broadcast_to(table, (*batch, *table.shape))
    inner = [len(batch) + i for i, d in enumerate([*order, *whole])]
    read = np.broadcast_to(read, (*batch, *(sizes[d] for d in [*order, *whole])))
    by_dim = dict(zip([*order, *whole], inner, strict=True))
    kept = [by_dim[d] for d in range(x.ndim) if d not in removed]
    dropped = [by_dim[d] for d in sorted(removed)]
    read = read.transpose([*range(len(batch)), *kept, *dropped]).reshape(
        [*batch, *(sizes[d] for d in range(x.ndim) if d not in removed)]
    )
    return (np.moveaxis(read, range(len(batch), read.ndim), attrs["offset_dims"]),)


def scatter(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    """Windows wholly out of range are dropped; one partly out of range has no agreed meaning."""
    x, raw, updates = arrays
    attrs = op.attrs
    mapped, vector = attrs["scatter_dims_to_operand_dims"], attrs["index_vector_dim"]
    starts = _positions(raw, vector, len(mapped))
    batch = starts.shape[:-1]
    removed = {*attrs["inserted_window_dims"], *attrs["input_batching_dims"]}
    window_dims = attrs["update_window_dims"]
    window = [updates.shape[d] for d in window_dims]
    changes = np.moveaxis(updates, window_dims, range(len(batch), updates.ndim))
    pairs = dict(zip(attrs["input_batching_dims"], attrs["scatter_indices_batching_dims"], strict=True))
    inside, at, k = np.ones(batch, dtype=bool), [], 0
    outside = np.zeros(batch, dtype=bool)
    for d in range(x.ndim):
        size = 1 if d in removed else window[k]
        offset: Any = np.zeros(batch, dtype=np.int64)
        if d in mapped:
            offset = starts[..., mapped.index(d)]
        elif d in pairs:
            offset = offset + _batch_position(pairs[d], vector, batch)
        inside &= (offset >= 0) & (offset <= x.shape[d] - size)
        outside |= (offset <= -size) | (offset >= x.shape[d])
        line = np.arange(size).reshape([-1 if j == k and d not in removed else 1 for j in range(len(window))])
        at.append((offset.reshape([*batch, *[1] * len(window)]), line))
        k += d not in removed
    if updates.size == 0:
        return (x,)
    if not np.all(inside | outside):
        raise Unsupported("scatter", "a window partly out of range has no agreed meaning")
    places = [np.broadcast_to(o + line, changes.shape)[inside] for o, line in at]
    return (_combine(op, x, places, changes[inside]),)


def _combine(op: Op, x: Any, places: list[Any], changes: Any) -> Array:
    kind = op.attrs["kind"]
    if not places:
        places, x, shape = [np.zeros(changes.shape, dtype=np.int64)], x.reshape(1), ()
    else:
        shape = x.shape
    flat = np.ravel_multi_index(tuple(p.ravel() for p in places), x.shape)
    result, values = x.flatten(), changes.ravel()
    if (kind == "set" or op.attrs["unique"]) and np.unique(flat).size != flat.size:
        raise Unsupported("scatter", "positions that must be distinct repeat")
    if kind == "set":
        result[flat] = values
    else:
        monoid(kind, op.result.type.dtype).at(result, flat, values)
    return settle(result.reshape(shape), op.result.type.dtype)


def _window(x: Any, starts: Arrays, sizes: Sequence[int]) -> tuple[slice, ...]:
    clamped = (max(0, min(int(s), n - k)) for s, n, k in zip(starts, x.shape, sizes, strict=True))
    return tuple(slice(start, start + size) for start, size in zip(clamped, sizes, strict=True))


def dynamic_slice(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    x = arrays[0]
    return (x[(*_window(x, arrays[1:], op.attrs["sizes"]), ...)],)


def dynamic_update_slice(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    x, update = arrays[:2]
    result = np.array(x)
    result[_window(x, arrays[2:], update.shape)] = update
    return (result,)


def _order(x: Any, dim: int, *, descending: bool) -> Any:
    """Positions that sort `x` stably along `dim`."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    backwards = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - backwards, dim)


def sort(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    """Comparators are "lt:k" and "gt:k": by operand k, ascending or descending."""
    direction, _, key = op.attrs["comparator"].partition(":")
    if direction not in ("lt", "gt") or not key.isdecimal() or int(key) >= len(arrays):
        raise Unsupported("sort", f"comparator {op.attrs['comparator']!r} is not known")
    keys, dim = arrays[int(key)], op.attrs["dim"]
    if np.issubdtype(keys.dtype, np.inexact) and np.any(np.isnan(keys)):
        raise Unsupported("sort", "a key is nan, which has no order")
    order = _order(keys, dim, descending=direction == "gt")
    return tuple(np.take_along_axis(x, order, dim) for x in arrays)


def top_k(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    x = arrays[0]
    order = _order(x, x.ndim - 1, descending=True)[..., : op.attrs["k"]]
    return (np.take_along_axis(x, order, -1), settle(order, DType.S32))


def custom_call(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    """`AwsNeuronRmsNorm`: x * rsqrt(mean(x * x) + eps) * weight along the dim that `config` names."""
    if op.attrs["target"] != "AwsNeuronRmsNorm":
        raise Unsupported("custom_call", f"target {op.attrs['target']!r} is not known")
    x, weight, eps = arrays
    dim = int(op.attrs["config"])
    along = [-1 if d == dim else 1 for d in range(x.ndim)]
    scale = 1 / np.sqrt(np.mean(x * x, axis=dim, keepdims=True) + eps.reshape(()))
    return (x * scale * weight.reshape(along),)
