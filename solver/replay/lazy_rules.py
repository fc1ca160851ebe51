"""Which box of each operand a box of an operator's result needs, and how to compute it from those.

The values come from the operator table's NumPy meanings, applied to operators whose types and
attributes are those of the boxes. An operator without a rule needs its operands whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Op, Value
from shardproof.ir.named_functions import is_named
from shardproof.ir.numpy_meaning import Unsupported
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Array, TensorType
from shardproof.solver.replay.draws import Box, shape_of, whole
from shardproof.solver.replay.shrink_rules import reshape_groups

Read = Callable[[Value, Box], Array]
"""Values of an operand on the same rank, evaluated now: for positions that decide what is needed."""
Results = tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one operator's work: the operand boxes (None: not needed), and how to use them.

    `run` gets one array per operand (an unneeded one is an empty array) and gives the box of each result.
    """

    needs: tuple[Box | None, ...]
    run: Callable[[Sequence[Array]], Results]


Rule = Callable[[Op, Box, Read], Piece]


def is_empty(box: Box) -> bool:
    """Whether a box holds no element."""
    return any(hi <= lo for lo, hi in box)


def relative(inner: Box, outer: Box) -> tuple[slice, ...]:
    """Where `inner` lies in the values of `outer`."""
    return tuple(slice(lo - at, hi - at) for (lo, hi), (at, _) in zip(inner, outer, strict=True))


def hull(a: Box, b: Box) -> Box:
    """The smallest box that holds both."""
    return tuple((min(p, r), max(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))


def apply(op: Op, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]], **attrs: Any) -> Results:
    """The NumPy meaning of `op` on other shapes and attributes."""
    row = TABLE.get(op.opcode)
    if row is None or row.numpy is None:
        raise Unsupported(op.opcode)
    operands = tuple(
        Value(v.name, TensorType(v.type.dtype, a.shape), v.location)
        for v, a in zip(op.operands, arrays, strict=True)
    )
    results = tuple(
        Value(v.name, TensorType(v.type.dtype, tuple(s)), v.location)
        for v, s in zip(op.results, shapes, strict=True)
    )
    return row.numpy(Op(op.opcode, operands, results, {**op.attrs, **attrs}), arrays)


def piece(op: Op, box: Box, read: Read) -> Piece:
    """The piece of `op`, which is no collective, that gives `box` of each of its results.

    Raises Unsupported when the operator has no NumPy meaning.
    """
    row = TABLE.get(op.opcode)
    if row is None or row.numpy is None:
        raise Unsupported(op.opcode)
    rule = RULES.get(op.opcode)
    if rule is not None:
        return rule(op, box, read)
    if "elementwise" in row.traits:
        return _pointwise(op, box, read)
    return _whole(op, box)


def _direct(op: Op, box: Box, needs: Sequence[Box], **attrs: Any) -> Piece:
    shape = shape_of(box)
    return Piece(tuple(needs), lambda arrays: apply(op, arrays, [shape] * len(op.results), **attrs))


def _whole(op: Op, box: Box) -> Piece:
    shapes = [r.type.shape for r in op.results]
    if any(s != shapes[0] for s in shapes):
        raise Unsupported(op.opcode, "results of different shapes can't be evaluated in part")
    cut = relative(box, whole(shapes[0]))
    return Piece(
        tuple(whole(v.type.shape) for v in op.operands),
        lambda arrays: tuple(a[cut] for a in apply(op, arrays, shapes)),
    )


def _pointwise(op: Op, box: Box, read: Read) -> Piece:
    return _direct(op, box, [box if v.type.shape else () for v in op.operands])


def _opaque(op: Op, box: Box, read: Read) -> Piece:
    if not is_named(op):
        raise Unsupported(op.opcode, f"%{op.results[0].name} has no NumPy meaning")
    return _pointwise(op, box, read)


def _constant(op: Op, box: Box, read: Read) -> Piece:
    value = np.asarray(op.attrs["value"])[tuple(slice(lo, hi) for lo, hi in box)]
    return _direct(op, box, [], value=value)


def _iota(op: Op, box: Box, read: Read) -> Piece:
    dim = op.attrs["dim"]
    lo, hi = box[dim]
    line = TensorType(op.result.type.dtype, (hi,))

    def run(arrays: Sequence[Array]) -> Results:
        numbers = Op("iota", (), (Value(op.result.name, line),), {"dim": 0})
        positions = TABLE["iota"].numpy(numbers, ())[0][lo:]  # type: ignore[misc]
        shape = [hi - lo if d == dim else 1 for d in range(len(box))]
        return (np.broadcast_to(positions.reshape(shape), shape_of(box)),)

    return Piece((), run)


def _bitcast(op: Op, box: Box, read: Read) -> Piece:
    if op.operands[0].type.shape == op.result.type.shape:
        return _pointwise(op, box, read)
    return _whole(op, box)


def _broadcast(op: Op, box: Box, read: Read) -> Piece:
    shape = op.operands[0].type.shape
    out = op.result.type.shape
    needs = tuple(box[d] if n == out[d] else (0, 1) for n, d in zip(shape, op.attrs["dims"], strict=True))
    return _direct(op, box, [needs])


def _transpose(op: Op, box: Box, read: Read) -> Piece:
    needs: list[tuple[int, int]] = [(0, 0)] * len(box)
    for target, source in enumerate(op.attrs["permutation"]):
        needs[source] = box[target]
    return _direct(op, box, [tuple(needs)])


def _slice(op: Op, box: Box, read: Read) -> Piece:
    starts, strides = op.attrs["starts"], op.attrs["strides"]
    needs = tuple(
        (s + lo * k, s + (hi - 1) * k + 1) for (lo, hi), s, k in zip(box, starts, strides, strict=True)
    )
    return _direct(op, box, [needs], starts=(0,) * len(box), limits=shape_of(needs))


def _pad(op: Op, box: Box, read: Read) -> Piece:
    needs, lows, highs = [], [], []
    attrs = (op.attrs["low"], op.attrs["high"], op.attrs["interior"])
    for (lo, hi), n, low, _, interior in zip(box, op.operands[0].type.shape, *attrs, strict=True):
        step = interior + 1
        first = min(max(-((low - lo) // step), 0), n)
        last = max(min((hi - 1 - low) // step, n - 1), first - 1)
        needs.append((first, last + 1))
        lows.append(low + first * step - lo)
        highs.append(hi - (low + last * step) - 1)
    if is_empty(tuple(needs)):
        return Piece((None, ()), lambda arrays: (np.full(shape_of(box), arrays[1], arrays[1].dtype),))
    return _direct(op, box, [tuple(needs), ()], low=tuple(lows), high=tuple(highs))


def _reverse(op: Op, box: Box, read: Read) -> Piece:
    needs = list(box)
    for d in op.attrs["dims"]:
        n = op.result.type.shape[d]
        needs[d] = (n - box[d][1], n - box[d][0])
    return _direct(op, box, [tuple(needs)])


def _concatenate(op: Op, box: Box, read: Read) -> Piece:
    dim = op.attrs["dim"]
    lo, hi = box[dim]
    needs: list[Box | None] = []
    at = 0
    for operand in op.operands:
        n = operand.type.shape[dim]
        first, last = max(lo, at), min(hi, at + n)
        needs.append((*box[:dim], (first - at, last - at), *box[dim + 1 :]) if first < last else None)
        at += n
    used = [n for n, need in enumerate(needs) if need is not None]
    part = Op(op.opcode, tuple(op.operands[n] for n in used), op.results, op.attrs)
    return Piece(tuple(needs), lambda arrays: apply(part, [arrays[n] for n in used], [shape_of(box)]))


def _reshape(op: Op, box: Box, read: Read) -> Piece:
    source, target = op.operands[0].type.shape, op.result.type.shape
    groups = reshape_groups(source, target)
    needs: list[tuple[int, int]] = []
    flat: list[int] = []
    picks: list[np.ndarray[Any, np.dtype[np.int64]] | None] = []
    for left, right in groups:
        part = tuple(box[j] for j in right)
        low = _flat_index([lo for lo, _ in part], [target[j] for j in right])
        high = _flat_index([hi - 1 for _, hi in part], [target[j] for j in right])
        ranges, base = _flat_hull(low, high, [source[i] for i in left])
        needs.extend(ranges)
        flat.append(prod(shape_of(tuple(ranges))))
        if flat[-1] == prod(shape_of(part)):
            picks.append(None)
            continue
        positions = np.zeros(1, np.int64)
        for j, (lo, hi) in zip(right, part, strict=True):
            positions = (positions[:, None] * target[j] + np.arange(lo, hi)[None, :]).reshape(-1)
        picks.append(positions - base)

    def run(arrays: Sequence[Array]) -> Results:
        x = arrays[0].reshape(flat)
        for dim, pick in enumerate(picks):
            if pick is not None:
                x = x.take(pick, axis=dim)
        return (x.reshape(shape_of(box)),)

    return Piece((tuple(needs),), run)


def _flat_index(position: Sequence[int], shape: Sequence[int]) -> int:
    at = 0
    for i, n in zip(position, shape, strict=True):
        at = at * n + i
    return at


def _flat_hull(low: int, high: int, shape: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """Ranges of dims `shape` that hold flat positions low .. high contiguously, and their first position."""
    ranges: list[tuple[int, int]] = []
    base = 0
    same = True
    for d, n in enumerate(shape):
        stride = prod(shape[d + 1 :])
        first, last = (low // stride) % n, (high // stride) % n
        if not same:
            first, last = 0, n - 1
        same = same and first == last
        ranges.append((first, last + 1))
        base += first * stride
    return ranges, base


def _dot(op: Op, box: Box, read: Read) -> Piece:
    lhs, rhs = (v.type.shape for v in op.operands)
    a, b = op.attrs["lhs_contracting"], op.attrs["rhs_contracting"]
    c, d = op.attrs["lhs_batch"], op.attrs["rhs_batch"]
    left, right = list(whole(lhs)), list(whole(rhs))
    for n, (i, j) in enumerate(zip(c, d, strict=True)):
        left[i] = right[j] = box[n]
    rest = iter(box[len(c) :])
    for i in range(len(lhs)):
        if i not in a and i not in c:
            left[i] = next(rest)
    for j in range(len(rhs)):
        if j not in b and j not in d:
            right[j] = next(rest)
    return _direct(op, box, [tuple(left), tuple(right)])


def _reduce(op: Op, box: Box, read: Read) -> Piece:
    dims = op.attrs["dims"] if "dims" in op.attrs else (op.attrs["dim"],)
    rest = iter(box)
    needs = tuple((0, n) if d in dims else next(rest) for d, n in enumerate(op.operands[0].type.shape))
    return _direct(op, box, [needs, *(() for _ in op.operands[1:])])


def _along_one(dim_of: Callable[[Op], int]) -> Rule:
    """Slice by slice along every dim but one, which is needed and computed whole."""

    def rule(op: Op, box: Box, read: Read) -> Piece:
        dim = dim_of(op)
        full = (*box[:dim], (0, op.operands[0].type.shape[dim]), *box[dim + 1 :])
        shape = (*shape_of(box[:dim]), op.results[0].type.shape[dim], *shape_of(box[dim + 1 :]))
        cut = (slice(None),) * dim + (slice(*box[dim]),)
        return Piece(
            (full,) * len(op.operands),
            lambda arrays: tuple(a[cut] for a in apply(op, arrays, [shape] * len(op.results))),
        )

    return rule


def _gather(op: Op, box: Box, read: Read) -> Piece:
    """The positions are read first; the operand is needed in the hull of the windows."""
    operand, indices = op.operands
    attrs = op.attrs
    if attrs["operand_batching_dims"]:
        return _whole(op, box)
    offset, vector, sizes = attrs["offset_dims"], attrs["index_vector_dim"], attrs["slice_sizes"]
    outer = [r for d, r in enumerate(box) if d not in offset]
    index_box = list(outer)
    if vector < len(indices.type.shape):
        index_box.insert(vector, (0, indices.type.shape[vector]))
    positions = np.asarray(read(indices, tuple(index_box)))
    columns = np.moveaxis(positions, vector, -1) if vector < positions.ndim else positions[..., None]
    windows = dict(
        zip((d for d in range(len(sizes)) if d not in attrs["collapsed_slice_dims"]), offset, strict=True)
    )
    needs, small, shifted = [], [], np.zeros(columns.shape, np.int64)
    for d, (n, size) in enumerate(zip(operand.type.shape, sizes, strict=True)):
        lo, hi = box[windows[d]] if d in windows else (0, 1)
        small.append(hi - lo)
        if d not in attrs["start_index_map"]:
            needs.append((lo, hi))
            continue
        at = attrs["start_index_map"].index(d)
        starts = np.clip(columns[..., at].astype(np.int64), 0, n - size) + lo
        first = int(starts.min())
        needs.append((first, int(starts.max()) + hi - lo))
        shifted[..., at] = starts - first
    local = np.moveaxis(shifted, -1, vector) if vector < positions.ndim else shifted[..., 0]

    def run(arrays: Sequence[Array]) -> Results:
        moved = local.astype(np.int64)
        return apply(op, [arrays[0], moved], [shape_of(box)], slice_sizes=tuple(small))

    return Piece((tuple(needs), None), run)


def _clamped(op: Op, first: int, shape: Sequence[int], sizes: Sequence[int], read: Read) -> list[int]:
    starts = [int(read(v, ())) for v in op.operands[first:]]
    return [min(max(s, 0), n - m) for s, n, m in zip(starts, shape, sizes, strict=True)]


def _dynamic_slice(op: Op, box: Box, read: Read) -> Piece:
    starts = _clamped(op, 1, op.operands[0].type.shape, op.attrs["sizes"], read)
    needs = tuple((lo + s, hi + s) for (lo, hi), s in zip(box, starts, strict=True))
    return Piece((needs, *(None for _ in starts)), lambda arrays: (arrays[0],))


def _dynamic_update_slice(op: Op, box: Box, read: Read) -> Piece:
    shape, part = op.operands[0].type.shape, op.operands[1].type.shape
    starts = _clamped(op, 2, shape, part, read)
    nothing = (None,) * len(starts)
    inner = tuple((max(lo, s), min(hi, s + n)) for (lo, hi), s, n in zip(box, starts, part, strict=True))
    if is_empty(inner):
        return Piece((box, None, *nothing), lambda arrays: (arrays[0],))
    update = tuple((lo - s, hi - s) for (lo, hi), s in zip(inner, starts, strict=True))
    if inner == box:
        return Piece((None, update, *nothing), lambda arrays: (arrays[1],))

    def run(arrays: Sequence[Array]) -> Results:
        result = arrays[0].copy()
        result[relative(inner, box)] = arrays[1]
        return (result,)

    return Piece((box, update, *nothing), run)


RULES: Final[Mapping[str, Rule]] = {
    "constant": _constant,
    "iota": _iota,
    "opaque": _opaque,
    "bitcast_convert": _bitcast,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "reverse": _reverse,
    "concatenate": _concatenate,
    "reshape": _reshape,
    "dot_general": _dot,
    "reduce": _reduce,
    "argreduce": _reduce,
    "sort": _along_one(lambda op: int(op.attrs["dim"])),
    "top_k": _along_one(lambda op: len(op.operands[0].type.shape) - 1),
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
