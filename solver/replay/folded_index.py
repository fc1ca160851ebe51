"""Reads and writes at computed positions, on folded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Op
from shardproof.ir.numpy_compute import monoid
from shardproof.ir.numpy_meaning import Unsupported, settle
from shardproof.solver.replay.folded import Folded, compressed, filled
from shardproof.solver.replay.folded_rules import Results, Room, opened, sliced, whole
from shardproof.solver.replay.lazy import TooLarge
from shardproof.solver.replay.lazy_rules import apply
from shardproof.solver.replay.partitions import Numbers, Partition, classes_of, discrete, refined, single

_POINTS: Final = 1 << 20
"""Positions that may be written, or read at."""


def _vectors(op: Op, x: Folded, paired: Sequence[int], room: Room) -> Folded:
    """Positions with their vectors last, and after those the positions along the dims that are paired."""
    vector = op.attrs["index_vector_dim"]
    if vector == len(x.parts):
        x = Folded(x.core[..., None], (*x.parts, single(1)))
    x = opened(op, x, (vector, *paired), room)
    if x.core.size > _POINTS:
        name = f"{op.opcode} %{op.result.name}"
        raise TooLarge(f"{name} has {x.core.size} positions, at most {_POINTS} are taken")
    core = x.core
    if core.dtype == np.uint64:
        core = np.minimum(core, np.uint64(np.iinfo(np.int64).max))
    columns = [np.moveaxis(core, vector, -1).astype(np.int64)]
    shape = columns[0].shape[:-1]
    for d in paired:
        place = d - (d > vector)
        line = np.arange(shape[place]).reshape([-1 if k == place else 1 for k in range(len(shape))])
        columns.append(np.broadcast_to(line, shape)[..., None])
    made = np.concatenate(columns, axis=-1)
    return Folded(made, (*x.parts[:vector], *x.parts[vector + 1 :], discrete(made.shape[-1])))


def gather(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    """Positions become classes of the operand; equal ones give equal slices."""
    x, raw = xs
    a = op.attrs
    paired = a["operand_batching_dims"]
    mapped, sizes = (*a["start_index_map"], *paired), list(a["slice_sizes"])
    starts = _vectors(op, raw, a["start_indices_batching_dims"], room)
    column = {d: i for i, d in enumerate(mapped)}
    x = opened(op, x, [d for d, n in enumerate(sizes) if d in column and n not in (1, x.shape[d])], room)
    x = sliced(x, [(0, x.shape[d] if d in column else n, 1) for d, n in enumerate(sizes)])
    places: Any = starts.core.copy()
    windows: list[Partition] = []
    for d, p in enumerate(x.parts):
        n = sizes[d]
        if d in column:
            at = places[..., column[d]]
            inside = np.clip(at, 0, p.size - n)
            room.strayed = room.strayed or bool(np.any(inside != at))
            places[..., column[d]] = 0 if n == p.size else p.labels[inside] if n == 1 else inside
        windows.append(p if n == p.size else single(1) if n == 1 else discrete(n))
        sizes[d] = p.count if n == p.size else n
    where = compressed(Folded(places, starts.parts))
    batch = where.parts[:-1]
    where = opened(op, where, (len(batch),), room)
    gone = {*a["collapsed_slice_dims"], *paired}
    free = iter(p for d, p in enumerate(windows) if d not in gone)
    outer = iter(batch)
    rank = len(op.result.type.shape)
    parts = tuple(next(free) if d in a["offset_dims"] else next(outer) for d in range(rank))
    shape = tuple(p.count for p in parts)
    room.need(op, shape, x.core.dtype)
    plain = {
        "slice_sizes": tuple(sizes),
        "start_index_map": mapped,
        "collapsed_slice_dims": tuple(sorted(gone)),
        "index_vector_dim": len(batch),
        "operand_batching_dims": (),
        "start_indices_batching_dims": (),
    }
    (core,) = apply(op, [x.core, where.core], [shape], **plain)
    return (compressed(Folded(core, parts)),)


def scatter(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    """Positions of the operand are in one class when the same is written there; see `_hits`."""
    x, raw, updates = xs
    a = op.attrs
    removed = (*a["inserted_window_dims"], *a["input_batching_dims"])
    kept = [d for d in range(len(x.parts)) if d not in removed]
    windows = dict(zip(kept, a["update_window_dims"], strict=True))
    mapped = (*a["scatter_dims_to_operand_dims"], *a["input_batching_dims"])
    written = [d for d in range(len(x.parts)) if d in mapped or d in removed]
    carried = [d for d in range(len(x.parts)) if d not in written]
    simple = all(updates.shape[windows[d]] == 1 for d in written if d in windows)
    simple = simple and all(updates.shape[windows[d]] == x.shape[d] for d in carried)
    if not simple or not updates.core.size or not written:
        room.strayed = True
        return whole(op, xs, room)
    starts = _vectors(op, raw, a["scatter_indices_batching_dims"], room)
    starts = opened(op, starts, range(len(starts.parts)), room)
    batch = starts.core.shape[:-1]
    outer = [d for d in range(len(updates.parts)) if d not in a["update_window_dims"]]
    which = np.zeros(1, np.int64)
    for d in outer:
        p = updates.parts[d]
        which = (which[:, None] * p.count + p.labels[None, :]).reshape(-1)
    columns: list[Any] = [
        starts.core[..., mapped.index(d)].reshape(-1) if d in mapped else np.zeros(prod(batch), np.int64)
        for d in written
    ]
    extents = [x.shape[d] for d in written]
    inside = np.ones(prod(batch), np.bool_)
    for at, n in zip(columns, extents, strict=True):
        inside &= (at >= 0) & (at < n)
    room.strayed = room.strayed or not bool(inside.all())
    columns, which = [at[inside] for at in columns], which[inside]
    if not len(which):
        return (x,)
    if (a["kind"] == "set" or a["unique"]) and _repeats(columns, extents):
        raise Unsupported("scatter", "positions that must be distinct repeat")
    parts = list(x.parts)
    for n, d in enumerate(written):
        others = [at for k, at in enumerate(columns) if k != n]
        hits = _hits(columns[n], [*others, which], extents[n])
        parts[d] = classes_of(x.parts[d].labels * (int(hits.max(initial=0)) + 1) + hits)
    for d in carried:
        parts[d] = refined(x.parts[d], updates.parts[windows[d]])
    counts = [p.count for p in parts]
    room.need(op, counts, x.core.dtype)
    core = np.moveaxis(filled(x, parts).copy(), written, range(len(written)))
    shape = core.shape
    flat = core.reshape(prod(shape[: len(written)]), -1).copy()
    first = np.ones(len(which), np.bool_)
    row = np.zeros(len(which), np.int64)
    for at, d in zip(columns, written, strict=True):
        label = parts[d].labels[at]
        first &= parts[d].first[label] == at
        row = row * parts[d].count + label
    inner = [windows[d] for d in carried]
    dropped = [windows[d] for d in written if d in windows]
    want = [parts[d] for d in carried]
    order = [*outer, *inner, *dropped]
    made = Folded(updates.core.transpose(order), tuple(updates.parts[d] for d in order))
    grain = (*made.parts[: len(outer)], *want, *made.parts[len(outer) + len(want) :])
    values: Any = filled(made, grain)
    values = values.reshape(prod(values.shape[: len(outer)]), -1)[which[first]]
    if a["kind"] == "set":
        flat[row[first]] = values
    else:
        monoid(a["kind"], op.result.type.dtype).at(flat, row[first], values)
    core = np.moveaxis(flat.reshape(shape), range(len(written)), written)
    return (compressed(Folded(settle(core, op.result.type.dtype), tuple(parts))),)


def _repeats(columns: Sequence[Numbers], extents: Sequence[int]) -> bool:
    flat = np.ravel_multi_index(tuple(columns), tuple(extents))
    return bool(np.unique(flat).size != flat.size)


def _hits(at: Numbers, rest: Sequence[Numbers], size: int) -> Numbers:
    """For each position of a dim a number, equal where the same is written to the same other positions.

    0 where nothing is written. `at` and `rest` are parallel: where along the dim, and what and where else.
    """
    order = np.lexsort((*rest[::-1], at))
    sorted_at = at[order]
    rows = np.stack([r[order] for r in rest], axis=1)
    places, begin = np.unique(sorted_at, return_index=True)
    known: dict[bytes, int] = {}
    hits = np.zeros(size, np.int64)
    ends = [*begin[1:], len(order)]
    for place, start, end in zip(places, begin, ends, strict=True):
        hits[place] = known.setdefault(rows[start:end].tobytes(), len(known) + 1)
    return hits
