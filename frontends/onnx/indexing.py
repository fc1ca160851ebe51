"""Reads and writes at computed positions.

ONNX positions lie in `-n` to `n - 1`, negative ones count from the end, and others are an error. The
operators here give a position out of range some element (reads clamp) or drop it (writes), so what is proved
holds of every run without that error; a node whose positions are not known here lists it as `ids_in_range`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.frontends.spans import distinct, span
from shardproof.ir.module import Value
from shardproof.ir.types import Array, DType

COMBINE: Final[Mapping[str, str]] = {"none": "set", "add": "sum", "mul": "prod", "max": "max", "min": "min"}
"""What a scatter does with an element and its update, by the attribute `reduction`."""


def positions(s: Lowering, at: Value, size: int) -> Value:
    """Positions in a dim of `size`, counted from its start: `clamp(i, 0, size-1) + (i < 0 ? i + size : 0)`.

    The clamp states the range of positions that are not negative, the usual case.
    """
    known = span(s, at)
    if known is not None and known[0] >= 0 and known[1] < size:
        return at
    found: Any = s.known(at)
    if found is not None:
        if not np.all((found >= -size) & (found < size)):
            s.fail(f"reads at {int(found.min())} to {int(found.max())} of a dim of size {size}")
        return s.literal(np.where(found < 0, found + size, found), at.type.dtype)
    if known is None or known[0] < -size or known[1] >= size:
        what = f"at least {-size} and less than {size}"
        s.guess("ids_in_range", f"the positions that `{s.name}` takes are {what}, as ONNX asks")
    bounds = [s.scalar(n, at.type.dtype) for n in (0, max(size - 1, 0))]
    inside = s.emit("clamp", bounds[0], at, bounds[1])
    below = s.select(s.compare("LT", at, 0), s.pair("add", at, size), s.like(at, 0))
    return s.pair("add", inside, below)


def taken(s: Lowering, x: Value, at: Value, dim: int) -> Value:
    """`x` at the positions `at` of `dim`, whose dims take the place of `dim`."""
    shape, extent = x.type.shape, x.type.shape[dim]
    at = positions(s, at, extent)
    known = s.known(at)
    if known is not None and known.size:
        cut = _line(s, x, dim, [int(n) for n in known.reshape(-1)])
        if cut is not None:
            return s.reshape(cut, (*shape[:dim], *at.type.shape, *shape[dim + 1 :]))
    extra = len(at.type.shape)
    return s.emit(
        "gather",
        x,
        at,
        offset_dims=tuple(d if d < dim else d - 1 + extra for d in range(len(shape)) if d != dim),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        index_vector_dim=extra,
        slice_sizes=tuple(1 if d == dim else n for d, n in enumerate(shape)),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
    )


def _line(s: Lowering, x: Value, dim: int, at: Sequence[int]) -> Value | None:
    """`x` at positions that step evenly along `dim`; None for others."""
    step = at[1] - at[0] if len(at) > 1 else 1
    if step == 0 or any(b - a != step for a, b in pairwise(at)):
        return None
    low, high = min(at[0], at[-1]), max(at[0], at[-1])
    whole = low == 0 and high == x.type.shape[dim] - 1 and abs(step) == 1
    cut = x if whole else s.slice(x, dim, low, high + 1, abs(step))
    return cut if step > 0 else s.emit("reverse", cut, dims=(dim,))


def _gather(s: Lowering, n: Node) -> Value:
    x, at = n.operand(0), n.operand(1)
    return taken(s, x, at, s.dim(n.attrs["axis"], len(x.type.shape)))


def _corner(s: Lowering, x: Value, shape: Sequence[int], besides: int) -> Value:
    """The leading part of `x` of a shape, whole along the dim `besides`."""
    for d, n in enumerate(shape):
        if d != besides and n > x.type.shape[d]:
            s.fail(f"has positions of shape {list(shape)} for {x.type}")
        if d != besides and n < x.type.shape[d]:
            x = s.slice(x, d, 0, n)
    return x


def along(s: Lowering, x: Value, at: Value, dim: int) -> Value:
    """Element by element along one dim, the positions giving the shape."""
    shape = at.type.shape
    if len(shape) != len(x.type.shape):
        s.fail(f"takes positions {at.type} of {x.type}, as many dims are needed")
    others = tuple(d for d in range(len(shape)) if d != dim)
    return s.emit(
        "gather",
        _corner(s, x, shape, dim),
        positions(s, at, x.type.shape[dim]),
        offset_dims=(),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        index_vector_dim=len(shape),
        slice_sizes=(1,) * len(shape),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )


def _gather_elements(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    return along(s, x, n.operand(1), s.dim(n.attrs["axis"], len(x.type.shape)))


def vectors(s: Lowering, at: Value, sizes: Sequence[int]) -> Value:
    """Positions in dims of `sizes`, one entry of the last dim of `at` for each."""
    last = len(at.type.shape) - 1
    parts = [positions(s, s.slice(at, last, k, k + 1), size) for k, size in enumerate(sizes)]
    return parts[0] if len(parts) == 1 else s.emit("concatenate", *parts, dim=last)


def _gather_nd(s: Lowering, n: Node) -> Value:
    x, at, batch = n.operand(0), n.operand(1), n.attrs["batch_dims"]
    count, rank, rows = at.type.shape[-1], len(x.type.shape), len(at.type.shape) - 1
    if batch < 0 or count < 1 or batch + count > rank or batch > rows:
        s.fail(f"takes positions {at.type} of {x.type} behind {batch} dims")
    mapped, batching = tuple(range(batch, batch + count)), tuple(range(batch))
    return s.emit(
        "gather",
        x,
        vectors(s, at, [x.type.shape[d] for d in mapped]),
        offset_dims=tuple(range(rows, rows + rank - batch - count)),
        collapsed_slice_dims=mapped,
        start_index_map=mapped,
        index_vector_dim=rows,
        slice_sizes=tuple(1 if d < batch + count else m for d, m in enumerate(x.type.shape)),
        operand_batching_dims=batching,
        start_indices_batching_dims=batching,
    )


def _reduction(s: Lowering, n: Node) -> str:
    told = n.attrs.get("reduction", "none")
    if told not in COMBINE:
        s.fail(f"has the reduction {told!r}, one of {', '.join(COMBINE)} is needed")
    return COMBINE[told]


def _scatter_elements(s: Lowering, n: Node) -> Value:
    x, at, update = n.operand(0), n.operand(1), n.operand(2)
    shape, kind = at.type.shape, _reduction(s, n)
    if update.type.shape != shape or len(shape) != len(x.type.shape):
        s.fail(f"writes {update.type} into {x.type} at positions {at.type}")
    dim = s.dim(n.attrs["axis"], len(shape))
    if not at.type.size:
        return x
    others = tuple(d for d in range(len(shape)) if d != dim)
    part, at = _corner(s, x, shape, dim), positions(s, at, x.type.shape[dim])
    found: Any = s.known(at)
    if kind == "set" and found is not None and np.all(found == np.indices(shape)[dim] + found.flat[0]):
        return _written(s, x, update, [int(found.flat[0]) if d == dim else 0 for d in range(len(shape))])
    twice = found is not None and not distinct(s, at, dim)
    changed = s.emit(
        "scatter",
        part,
        at,
        update,
        update_window_dims=(),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
        index_vector_dim=len(shape),
        input_batching_dims=others,
        scatter_indices_batching_dims=others,
        kind=kind,
        unique=kind == "set" and not twice,
    )
    return changed if part is x else _written(s, x, changed, [0] * len(shape))


def _written(s: Lowering, x: Value, block: Value, starts: Sequence[int]) -> Value:
    """`x` with a block written over it."""
    return s.emit("dynamic_update_slice", x, block, *(s.scalar(k, DType.S64) for k in starts))


def _scatter_nd(s: Lowering, n: Node) -> Value:
    x, at, update = n.operand(0), n.operand(1), n.operand(2)
    kind, rank, rows, count = _reduction(s, n), len(x.type.shape), len(at.type.shape) - 1, at.type.shape[-1]
    if not 1 <= count <= rank or update.type.shape != (*at.type.shape[:-1], *x.type.shape[count:]):
        s.fail(f"writes {update.type} into {x.type} at positions {at.type}")
    if not update.type.size:
        return x
    at = vectors(s, at, x.type.shape[:count])
    found = s.known(at)
    box = _box(found.reshape(-1, count)) if found is not None and kind == "set" else None
    if box is not None:
        low, extents = box
        block = s.reshape(update, (*extents, *x.type.shape[count:]))
        return _written(s, x, block, [*low, *[0] * (rank - count)])
    return s.emit(
        "scatter",
        x,
        at,
        update,
        update_window_dims=tuple(range(rows, len(update.type.shape))),
        inserted_window_dims=tuple(range(count)),
        scatter_dims_to_operand_dims=tuple(range(count)),
        index_vector_dim=rows,
        input_batching_dims=(),
        scatter_indices_batching_dims=(),
        kind=kind,
        unique=kind == "set" and not (found is not None and _repeats(found.reshape(-1, count))),
    )


def _box(points: Array) -> tuple[list[int], list[int]] | None:
    """The start and the extents of a box that the points, one a row, run through in order."""
    low, high = points.min(axis=0), points.max(axis=0)
    extents = [int(m) for m in high - low + 1]
    if prod(extents) != len(points):
        return None
    grid = np.stack(np.unravel_index(np.arange(len(points)), extents), axis=-1)
    return ([int(m) for m in low], extents) if np.array_equal(grid + low, points) else None


def _repeats(points: Array) -> bool:
    """Whether a row occurs twice."""
    return len(np.unique(points, axis=0)) < len(points)


def by_batch(s: Lowering, x: Value, at: Value, batch: int, dim: int) -> Value:
    """`x` along `dim` at the positions (batch, place) of each batch."""
    swapped = batch > dim
    return s.emit(
        "gather",
        x,
        s.transpose(at, (1, 0)) if swapped else at,
        offset_dims=tuple(d for d in range(len(x.type.shape)) if d not in (batch, dim)),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        index_vector_dim=2,
        slice_sizes=tuple(1 if d in (batch, dim) else m for d, m in enumerate(x.type.shape)),
        operand_batching_dims=(batch,),
        start_indices_batching_dims=(int(swapped),),
    )


def _reverse_sequence(s: Lowering, n: Node) -> Value:
    """The first elements of each batch in reverse, as many as its length."""
    x, lengths = n.operand(0), n.operand(1)
    batch, dim = n.attrs["batch_axis"], n.attrs["time_axis"]
    if {batch, dim} != {0, 1} or len(x.type.shape) < 2:
        s.fail(f"reverses dim {dim} of {x.type} by batches along dim {batch}, 0 and 1 are needed")
    size = x.type.shape[dim]
    known = span(s, lengths)
    if known is None or known[0] < 0 or known[1] > size:
        s.guess("ids_in_range", f"the lengths that `{s.name}` reverses are 0 to {size}, as ONNX asks")
    shape = (x.type.shape[batch], size)
    place, own = s.iota(lengths.type.dtype, shape, 1), s.place(lengths, (0,), shape)
    back = s.emit("subtract", s.pair("subtract", own, 1), place)
    return by_batch(s, x, s.select(s.compare("LT", place, own), back, place), batch, dim)


def _tensor_scatter(s: Lowering, n: Node) -> Value:
    """A block written into a cache from a position of each batch on, or around its end."""
    cache, update, at, mode = n.operand(0), n.operand(1), n.given(2), n.attrs["mode"]
    shape, rank = cache.type.shape, len(cache.type.shape)
    dim = s.dim(n.attrs["axis"], rank)
    size, count = shape[dim], update.type.shape[dim]
    if mode not in ("linear", "circular") or dim == 0:
        s.fail(f"writes along dim {dim} in the mode {mode!r}, which is not known")
    if update.type.shape != (*shape[:dim], count, *shape[dim + 1 :]) or count > size:
        s.fail(f"writes {update.type} into {cache.type}")
    if at is None:
        return _written(s, cache, update, [0] * rank)
    top = size - count if mode == "linear" else size - 1
    known = span(s, at)
    if known is None or known[0] < 0 or known[1] > top:
        s.guess("ids_in_range", f"the positions that `{s.name}` writes from are 0 to {top}, as ONNX asks")
    return _around(s, cache, update, at, dim) if mode == "circular" else _blocks(s, cache, update, at, dim)


def _blocks(s: Lowering, cache: Value, update: Value, at: Value, dim: int) -> Value:
    """The block of each batch written from its position on."""
    rank = len(cache.type.shape)
    if cache.type.shape[0] == 1:
        zero = s.scalar(0, at.type.dtype)
        starts = [s.reshape(at, ()) if d == dim else zero for d in range(rank)]
        return s.emit("dynamic_update_slice", cache, update, *starts)
    return s.emit(
        "scatter",
        cache,
        s.reshape(at, (cache.type.shape[0], 1)),
        update,
        update_window_dims=tuple(range(1, rank)),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(dim,),
        index_vector_dim=1,
        input_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
        kind="set",
        unique=False,
    )


def _around(s: Lowering, cache: Value, update: Value, at: Value, dim: int) -> Value:
    """The block of each batch written from its position on, and behind the last place from the first."""
    shape, count = cache.type.shape, update.type.shape[dim]
    lines = (shape[0], shape[dim])
    offset = s.emit("subtract", s.iota(at.type.dtype, lines, 1), s.place(at, (0,), lines))
    offset = s.select(s.compare("LT", offset, 0), s.pair("add", offset, shape[dim]), offset)
    inside = s.compare("LT", offset, count)
    last = s.emit("minimum", offset, s.like(offset, count - 1))
    return s.select(s.place(inside, (0, dim), shape), by_batch(s, update, last, 0, dim), cache)


RULES: Final[Mapping[str, Rule]] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
}
