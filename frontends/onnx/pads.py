"""Elements read at constant positions along a dim, and padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType

_PIECES: Final = 8
"""Runs of positions that are joined as slices; more are read by a table."""
_MODES: Final = ("edge", "reflect", "wrap")
"""Spelled as in NumPy."""


def taken(s: Lowering, x: Value, dim: int, positions: Sequence[int]) -> Value:
    """The elements at `positions`, each in range, along `dim`: as slices where these are few."""
    at, extent = [int(p) for p in positions], x.type.shape[dim]
    if any(not 0 <= p < extent for p in at):
        s.fail(f"reads positions {min(at)} to {max(at)} of dim {dim} of {x.type}")
    if at == list(range(extent)):
        return x
    times = len(at) // extent if extent else 0
    if times > 1 and at == [p for p in range(extent) for _ in range(times)]:
        return _repeated(s, x, dim, times)
    runs = _runs(at)
    if len(runs) > _PIECES:
        return _looked_up(s, x, dim, at)
    parts = [_run(s, x, dim, *run) for run in runs] or [s.slice(x, dim, 0, 0)]
    return parts[0] if len(parts) == 1 else s.emit("concatenate", *parts, dim=dim)


def _runs(at: Sequence[int]) -> list[tuple[int, int, int]]:
    """Positions as (first, step, count), each run as long as it can be."""
    runs: list[tuple[int, int, int]] = []
    for p in at:
        first, step, count = runs[-1] if runs else (0, 0, 0)
        if count == 1:
            runs[-1] = (first, p - first, 2)
        elif count and p == first + step * count:
            runs[-1] = (first, step, count + 1)
        else:
            runs.append((p, 0, 1))
    return runs


def _run(s: Lowering, x: Value, dim: int, first: int, step: int, count: int) -> Value:
    last = first + step * (count - 1)
    if step == 0:
        shape = [count if d == dim else n for d, n in enumerate(x.type.shape)]
        return s.spread(s.slice(x, dim, first, first + 1), shape)
    found = s.slice(x, dim, min(first, last), max(first, last) + 1, abs(step))
    return s.emit("reverse", found, dims=(dim,)) if step < 0 else found


def _repeated(s: Lowering, x: Value, dim: int, times: int) -> Value:
    """Each element along `dim`, `times` in a row."""
    shape = list(x.type.shape)
    places = [d + (d > dim) for d in range(len(shape))]
    spread = s.place(x, places, [*shape[: dim + 1], times, *shape[dim + 1 :]])
    shape[dim] *= times
    return s.reshape(spread, shape)


def _looked_up(s: Lowering, x: Value, dim: int, at: Sequence[int]) -> Value:
    return s.emit(
        "gather",
        x,
        s.literal(np.asarray(at), DType.S64),
        offset_dims=tuple(d for d in range(len(x.type.shape)) if d != dim),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        index_vector_dim=1,
        slice_sizes=tuple(1 if d == dim else n for d, n in enumerate(x.type.shape)),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
    )


def _pad(s: Lowering, n: Node) -> Value:
    x, axes = n.operand(0), n.given(3)
    rank = len(x.type.shape)
    told = s.integers(n.operand(1), "the padding")
    named = tuple(range(rank)) if axes is None else s.integers(axes, "the axes")
    dims = [s.dim(d, rank) for d in named]
    if len(told) != 2 * len(dims) or len(set(dims)) != len(dims):
        s.fail(f"pads the axes {list(named)} of {x.type} by {list(told)}")
    low, high = [0] * rank, [0] * rank
    for at, d in enumerate(dims):
        low[d], high[d] = told[at], told[at + len(dims)]
    mode, value = n.attrs["mode"], n.given(2)
    if mode == "constant":
        filler = s.scalar(0, x.type.dtype) if value is None else s.reshape(value, ())
        if not any((*low, *high)):
            return x
        return s.emit("pad", x, filler, low=tuple(low), high=tuple(high), interior=(0,) * rank)
    if mode not in _MODES:
        s.fail(f"pads in the mode {mode!r}, known are constant, {', '.join(_MODES)}")
    for d in range(rank):
        if low[d] or high[d]:
            x = _continued(s, x, d, low[d], high[d], mode)
    return x


def _continued(s: Lowering, x: Value, dim: int, low: int, high: int, mode: str) -> Value:
    """`x` between elements of its own."""
    extent = x.type.shape[dim]
    at = _positions(s, extent, low, high, mode)
    ends = [max(low, 0), len(at) - max(high, 0)]
    parts = [at[: ends[0]], at[ends[0] : ends[1]], at[ends[1] :]]
    found = [taken(s, x, dim, part) for part in parts if part]
    return found[0] if len(found) == 1 else s.emit("concatenate", *found, dim=dim)


def _positions(s: Lowering, extent: int, low: int, high: int, mode: str) -> Sequence[int]:
    """Where the elements of the padded dim come from.

    Negative padding cuts. Whether it does so before or after the other end is padded is not specified, so
    both must give the same.
    """
    grown, cut = (max(low, 0), max(high, 0)), (max(-low, 0), max(-high, 0))
    if sum(cut) >= extent or (mode == "reflect" and max(grown) >= extent - sum(cut)):
        s.fail(f"pads a dim of extent {extent} by ({low}, {high}) in the mode {mode!r}")
    line = np.arange(extent)
    after = np.pad(line, grown, mode=mode)  # type: ignore[call-overload]
    after = after[cut[0] : len(after) - cut[1]]
    before = np.pad(line[cut[0] : extent - cut[1]], grown, mode=mode)  # type: ignore[call-overload]
    if not np.array_equal(before, after):
        s.fail(f"pads a dim of extent {extent} by ({low}, {high}) in the mode {mode!r}, which is ambiguous")
    return [int(p) for p in after]


RULES: Final[Mapping[str, Rule]] = {"Pad": _pad}
