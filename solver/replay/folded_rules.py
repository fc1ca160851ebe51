"""What operators give on folded tensors: the interpreter's own meanings, applied to one slice of each class.

An operator without a rule is computed on whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Op
from shardproof.ir.named_functions import is_named
from shardproof.ir.numpy_compute import fold
from shardproof.ir.numpy_meaning import element_type, settle
from shardproof.ir.types import Array
from shardproof.solver.replay.folded import (
    Folded,
    bytes_of,
    common,
    compressed,
    filled,
    picked,
    plain,
    spread,
)
from shardproof.solver.replay.lazy import TooLarge
from shardproof.solver.replay.lazy_rules import apply
from shardproof.solver.replay.partitions import (
    Numbers,
    Partition,
    classes_of,
    cut,
    discrete,
    joined,
    refined,
    regrouped,
    single,
    taken,
)
from shardproof.solver.replay.shrink_rules import reshape_groups

Results = tuple[Folded, ...]
_PRODUCTS: Final = 1 << 31
"""How many products a run may make; about as many are made in a second."""
_COPIES: Final = 3
"""Arrays of the size of a result that may be alive while it is made."""


@dataclass(slots=True)
class Room:
    """What may be allocated: `budget` bytes, of which `alive` are taken.

    `strayed` tells whether a position that an operator read at was out of range.
    """

    budget: int
    alive: int = 0
    strayed: bool = False
    work: int = 0

    def need(self, op: Op, counts: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Raises TooLarge when an array of these extents does not fit."""
        size = self.alive + _COPIES * bytes_of(counts, dtype)
        if size > self.budget:
            raise TooLarge(
                f"evaluating {op.opcode} %{op.results[0].name} on folded tensors takes {size >> 20} MiB, "
                f"the budget is {self.budget >> 20} MiB"
            )


    def multiply(self, op: Op, products: int) -> None:
        """Raises TooLarge when the contractions of a run, this one with them, take too long."""
        self.work += products
        if self.work > _PRODUCTS:
            raise TooLarge(
                f"evaluating {op.opcode} %{op.results[0].name} and what comes before it takes "
                f"{self.work >> 20} Mi products, at most {_PRODUCTS >> 20} Mi are made"
            )


Rule = Callable[[Op, Sequence[Folded], Room], Results]
"""The results of an operator that is no collective. Raises Unsupported, TooLarge, TooLong."""


def aligned(xs: Sequence[Folded]) -> tuple[tuple[Partition, ...], list[Array]]:
    """The common classes of pointwise operands, and their cores over those; scalars go with any shape."""
    tensors = [x for x in xs if x.parts]
    parts = common(tensors) if tensors else ()
    return parts, [spread(x, parts) if x.parts else x.core for x in xs]


def pointwise(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    if op.opcode == "bitcast_convert" and op.operands[0].type.shape != op.result.type.shape:
        return whole(op, xs, room)
    parts, arrays = aligned(xs)
    counts = [p.count for p in parts]
    room.need(op, counts, element_type(op.result.type.dtype))
    (core,) = apply(op, arrays, [tuple(counts)])
    result = Folded(np.broadcast_to(core, counts), parts)
    return (compressed(result) if core.dtype.kind == "b" and core.size > _SMALL else result,)


_SMALL: Final = 1 << 10


def whole(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    for x, v in zip(xs, op.operands, strict=True):
        room.need(op, x.shape, element_type(v.type.dtype))
    for r in op.results:
        room.need(op, r.type.shape, element_type(r.type.dtype))
    if op.opcode == "convolution":
        kernel, out = xs[1].shape, op.result.type.shape
        room.multiply(op, prod(out) * (prod(kernel) // max(kernel[op.attrs["rhs_dims"][1]], 1)))
    arrays = apply(op, [x.dense() for x in xs], [r.type.shape for r in op.results])
    return tuple(map(plain, arrays))


def opened(op: Op, x: Folded, dims: Sequence[int], room: Room) -> Folded:
    """The same tensor with all positions of some dims apart."""
    parts = [discrete(p.size) if d in dims else p for d, p in enumerate(x.parts)]
    room.need(op, [p.count for p in parts], x.core.dtype)
    return Folded(filled(x, parts), tuple(parts))


def _constant(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    (value,) = apply(op, [], [op.result.type.shape])
    return (plain(value),)


def _iota(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    shape, dim = op.result.type.shape, op.attrs["dim"]
    parts = tuple(discrete(n) if d == dim else single(n) for d, n in enumerate(shape))
    (core,) = apply(op, [], [tuple(p.count for p in parts)])
    return (Folded(core, parts),)


def _reshape(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    (x,), target = xs, op.result.type.shape
    if 0 in target:
        return whole(op, xs, room)
    core = x.core
    parts: list[Partition] = []
    before = 1
    shape = list(x.core.shape)
    for left, right in reshape_groups(x.shape, target):
        own = tuple(x.parts[i] for i in left)
        if len(left) == 1 and len(right) == 1:
            found: tuple[Partition, ...] = own
        else:
            found, picks = regrouped(own, tuple(target[j] for j in right))
            if picks is not None:
                after = prod(shape[len(left) :])
                room.need(op, (before, len(picks), after), x.core.dtype)
                flat = core.reshape(before, prod(shape[: len(left)]), after)
                core = flat.take(picks, axis=1)
        parts += found
        before *= prod(p.count for p in found)
        shape = shape[len(left) :]
    return (Folded(core.reshape([p.count for p in parts]), tuple(parts)),)


def _broadcast(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    (x,), dims, shape = xs, op.attrs["dims"], op.result.type.shape
    parts = [single(n) for n in shape]
    for i, d in enumerate(dims):
        if x.shape[i] == shape[d]:
            parts[d] = x.parts[i]
    (core,) = apply(op, [x.core], [tuple(p.count for p in parts)])
    return (Folded(core, tuple(parts)),)


def _transpose(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    order = op.attrs["permutation"]
    return (Folded(xs[0].core.transpose(order), tuple(xs[0].parts[d] for d in order)),)


def sliced(x: Folded, ranges: Sequence[tuple[int, int, int]]) -> Folded:
    """The positions start, start + stride, ... before limit of each dim."""
    cuts = [
        (p, None) if (start, limit, stride) == (0, p.size, 1) else cut(p, start, limit, stride)
        for p, (start, limit, stride) in zip(x.parts, ranges, strict=True)
    ]
    return Folded(picked(x.core, [pick for _, pick in cuts]), tuple(p for p, _ in cuts))


def _slice(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    a = op.attrs
    return (sliced(xs[0], list(zip(a["starts"], a["limits"], a["strides"], strict=True))),)


def _starts(
    xs: Sequence[Folded], shape: Sequence[int], sizes: Sequence[int], room: Room
) -> list[int]:
    asked = [int(x.core) for x in xs]
    starts = [max(0, min(s, n - k)) for s, n, k in zip(asked, shape, sizes, strict=True)]
    room.strayed = room.strayed or starts != asked
    return starts


def _dynamic_slice(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    sizes = op.attrs["sizes"]
    starts = _starts(xs[1:], xs[0].shape, sizes, room)
    return (sliced(xs[0], [(s, s + n, 1) for s, n in zip(starts, sizes, strict=True)]),)


def _dynamic_update_slice(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    x, update = xs[:2]
    starts = _starts(xs[2:], x.shape, update.shape, room)
    parts, inside, reads = [], [], []
    for p, q, start in zip(x.parts, update.parts, starts, strict=True):
        own = np.zeros(p.size, np.int64)
        own[start : start + q.size] = 1 + q.labels
        part = classes_of(p.labels * (q.count + 1) + own)
        within = np.flatnonzero(own[part.first])
        parts.append(part)
        inside.append(within)
        reads.append(own[part.first[within]] - 1)
    room.need(op, [p.count for p in parts], x.core.dtype)
    core = filled(x, parts).copy()
    core[np.ix_(*inside)] = update.core[np.ix_(*reads)]
    return (compressed(Folded(core, tuple(parts))),)


def concatenated(op: Op, xs: Sequence[Folded], dim: int, room: Room) -> Folded:
    """Tensors side by side along `dim`."""
    ends = [Folded(x.core, (*x.parts[:dim], *x.parts[dim + 1 :])) for x in xs]
    rest = common(ends)
    parts = (*rest[:dim], joined(*(x.parts[dim] for x in xs)), *rest[dim:])
    room.need(op, [p.count for p in parts], xs[0].core.dtype)
    cores = [filled(x, (*rest[:dim], x.parts[dim], *rest[dim:])) for x in xs]
    return compressed(Folded(np.concatenate(cores, axis=dim), parts))


def _concatenate(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    return (concatenated(op, xs, op.attrs["dim"], room),)


def _pad(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    """A position is a class of padding, or of the class of the position that lands there."""
    x, value = xs
    a = op.attrs
    parts, reads = [], []
    sides = zip(x.parts, op.result.type.shape, a["low"], a["interior"], strict=True)
    for p, size, low, interior in sides:
        at = np.arange(size) - low
        source = at // (interior + 1)
        real = (at % (interior + 1) == 0) & (source >= 0) & (source < p.size)
        labels = np.full(size, -1, np.int64)
        labels[real] = p.labels[source[real]]
        part = classes_of(labels)
        parts.append(part)
        reads.append(labels[part.first])
    counts = tuple(p.count for p in parts)
    room.need(op, counts, x.core.dtype)
    core = np.full(counts, value.core, x.core.dtype)
    inside = [np.flatnonzero(r >= 0) for r in reads]
    core[np.ix_(*inside)] = x.core[np.ix_(*(r[i] for r, i in zip(reads, inside, strict=True)))]
    return (Folded(core, tuple(parts)),)


def _reverse(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    (x,) = xs
    parts: list[Partition] = list(x.parts)
    picks: list[Numbers | None] = [None] * len(parts)
    for d in op.attrs["dims"]:
        parts[d], picks[d] = taken(parts[d], np.arange(parts[d].size)[::-1])
    return (Folded(picked(x.core, picks), tuple(parts)),)


def _along(sizes: Numbers, dim: int, rank: int) -> Any:
    return sizes.reshape([-1 if d == dim else 1 for d in range(rank)])


def _reduce(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    """A sum counts each class as often as it occurs, a product raises it; all else sees it once."""
    x, first = xs
    dims, kind, dtype = op.attrs["dims"], op.attrs["kind"], op.result.type.dtype
    if kind == "prod" and dtype.kind not in ("real", "bool"):
        x = opened(op, x, dims, room)
    core: Any = x.core
    room.need(op, core.shape, core.dtype)
    if kind in ("sum", "prod") and dtype.kind != "bool":
        for d in dims:
            if not x.parts[d].discrete:
                sizes = _along(x.parts[d].sizes, d, core.ndim)
                core = core * sizes.astype(core.dtype) if kind == "sum" else np.power(core, sizes)
    parts = tuple(p for d, p in enumerate(x.parts) if d not in dims)
    return (Folded(fold(kind, dtype, core, first.core, tuple(dims)), parts),)


def _argreduce(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    """Classes are in the order of their first positions, so the first extreme class is the first place."""
    (x,), dim = xs, op.attrs["dim"]
    parts = tuple(p for d, p in enumerate(x.parts) if d != dim)
    shape = tuple(p.count for p in parts)
    value, place = apply(op, [x.core], [shape, shape])
    position = x.parts[dim].first[place.astype(np.int64)]
    return Folded(value, parts), Folded(settle(position, op.results[1].type.dtype), parts)


def _dot(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    """Contracted classes count as often as they occur, in the operand that is smaller."""
    a = op.attrs
    dtype = op.result.type.dtype
    sides = [list(x.parts) for x in xs]
    pairs = [*zip(a["lhs_contracting"], a["rhs_contracting"], strict=True)]
    batch = [*zip(a["lhs_batch"], a["rhs_batch"], strict=True)]
    for i, j in (*pairs, *batch):
        sides[0][i] = sides[1][j] = refined(sides[0][i], sides[1][j])
    for parts in sides:
        room.need(op, [p.count for p in parts], element_type(dtype))
    cores: list[Any] = [
        settle(filled(x, parts), dtype) for x, parts in zip(xs, sides, strict=True)
    ]
    smaller = 0 if cores[0].size <= cores[1].size else 1
    for pair in pairs:
        d = pair[smaller]
        part = sides[smaller][d]
        if not part.discrete:
            core = cores[smaller]
            cores[smaller] = core * _along(part.sizes, d, core.ndim).astype(core.dtype)
    free = [
        [p for d, p in enumerate(parts) if d not in {pair[side] for pair in (*pairs, *batch)}]
        for side, parts in enumerate(sides)
    ]
    made = (*(sides[0][i] for i, _ in batch), *free[0], *free[1])
    shape = tuple(p.count for p in made)
    room.need(op, shape, element_type(dtype))
    room.multiply(op, prod(shape) * prod(sides[0][i].count for i, _ in pairs))
    (product,) = apply(op, cores, [shape])
    return (Folded(product, made),)


def _along_one(dim_of: Callable[[Op], int]) -> Rule:
    """Slice by slice along every dim but one, which is computed whole."""

    def rule(op: Op, xs: Sequence[Folded], room: Room) -> Results:
        dim = dim_of(op)
        parts = list(common(xs))
        parts[dim] = discrete(xs[0].shape[dim])
        room.need(op, [p.count for p in parts], xs[0].core.dtype)
        size = op.results[0].type.shape[dim]
        made = (*parts[:dim], discrete(size), *parts[dim + 1 :])
        shape = tuple(p.count for p in made)
        cores = apply(op, [filled(x, parts) for x in xs], [shape] * len(op.results))
        return tuple(compressed(Folded(core, made)) for core in cores)

    return rule


def _opaque(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    """Element by element, all operands and results of one shape."""
    if not xs or not is_named(op):
        return whole(op, xs, room)
    parts, arrays = aligned(xs)
    counts = tuple(p.count for p in parts)
    room.need(op, counts, element_type(op.results[0].type.dtype))
    cores = apply(op, arrays, [counts] * len(op.results))
    return tuple(Folded(np.broadcast_to(core, counts), parts) for core in cores)


def _custom_call(op: Op, xs: Sequence[Folded], room: Room) -> Results:
    """The norm is slice by slice along every dim but one; other calls are computed whole."""
    if op.attrs["target"] != "AwsNeuronRmsNorm":
        return whole(op, xs, room)
    dim = int(op.attrs["config"])
    x = opened(op, xs[0], (dim,), room)
    (core,) = apply(op, [x.core, *(y.dense() for y in xs[1:])], [x.core.shape])
    return (compressed(Folded(core, x.parts)),)


RULES: Final[Mapping[str, Rule]] = {
    "constant": _constant,
    "bitcast_convert": pointwise,
    "iota": _iota,
    "reshape": _reshape,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "reverse": _reverse,
    "reduce": _reduce,
    "argreduce": _argreduce,
    "dot_general": _dot,
    "sort": _along_one(lambda op: int(op.attrs["dim"])),
    "top_k": _along_one(lambda op: len(op.operands[0].type.shape) - 1),
    "custom_call": _custom_call,
    "opaque": _opaque,
}
