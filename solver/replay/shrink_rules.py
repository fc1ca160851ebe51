"""How each operator ties the extents of its operands and results together.

A rule unifies extents and returns what must be rewritten once the new sizes are known. An operator
without a rule keeps all its dims at their original sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Op, Value
from shardproof.ir.types import Array
from shardproof.solver.replay.extents import (
    Extent,
    atom,
    chosen,
    cut,
    fix,
    kept,
    product,
    split_fastest,
    total,
    unify,
    window,
)

Dims = tuple[Extent, ...]
Starts = Mapping[int, tuple[int, ...]]
"""Operand number of a scalar start -> its new value on each rank."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a rebuilt operator gets: new attributes, and new values of start operands."""

    attrs: Mapping[str, Any] = field(default_factory=dict)
    starts: Starts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Site:
    """One operator with its dims; `static` gives a value on every rank when the program determines it."""

    op: Op
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    static: Callable[[Value], Sequence[Array] | None]

    def attr(self, name: str) -> Any:
        return self.op.attrs[name]


Rule = Callable[[Site], Callable[[], Change] | None]


def fix_all(site: Site) -> None:
    """Nothing is known of this operator: keep its shapes."""
    for dims in (*site.operands, *site.results):
        for dim in dims:
            fix(dim)


def pointwise(site: Site) -> None:
    """All operands have the result's dims; scalars stand for any shape."""
    for dims in (*site.operands, *site.results[1:]):
        if dims:
            _same(dims, site.results[0])


def _same(a: Sequence[Extent], b: Sequence[Extent]) -> None:
    for x, y in zip(a, b, strict=True):
        unify(x, y)


def _constant(site: Site) -> Callable[[], Change] | None:
    dims = site.results[0]
    value = np.asarray(site.attr("value"))
    return lambda: Change({"value": value[np.ix_(*(kept(d) for d in dims))] if dims else value})


def _broadcast(site: Site) -> None:
    for dim, target in zip(site.operands[0], site.attr("dims"), strict=True):
        if dim.size == site.results[0][target].size:
            unify(dim, site.results[0][target])


def _transpose(site: Site) -> None:
    _same([site.operands[0][d] for d in site.attr("permutation")], site.results[0])


def reshape_groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Minimal runs (source dims, target dims) with equal numbers of elements; needs no extent 0."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left, right = [], []
        size = other = 1
        if i < len(source):
            size = source[i]
            left.append(i)
            i += 1
        elif j < len(target):
            other = target[j]
            right.append(j)
            j += 1
        while size != other:
            if size < other:
                size *= source[i]
                left.append(i)
                i += 1
            else:
                other *= target[j]
                right.append(j)
                j += 1
        groups.append((left, right))
    return groups


def _reshape(site: Site) -> None:
    source, target = site.operands[0], site.results[0]
    if any(d.size == 0 for d in source):
        fix_all(site)
        return
    for left, right in reshape_groups([d.size for d in source], [d.size for d in target]):
        unify(product(source[i] for i in left), product(target[j] for j in right))


def _slice(site: Site) -> Callable[[], Change] | None:
    befores: list[Extent | None] = []
    attrs = (site.attr("starts"), site.attr("limits"), site.attr("strides"))
    for dim, out, start, limit, stride in zip(site.operands[0], site.results[0], *attrs, strict=True):
        if stride == 1:
            unify(window(dim, start, limit), out)
            befores.append(cut(dim, start)[0])
            continue
        befores.append(None)
        halves = split_fastest(dim, stride) if start < stride and out.size * stride == dim.size else None
        if halves is None:
            fix(dim)
            fix(out)
        else:
            fix(halves[1])
            unify(halves[0], out)

    def change() -> Change:
        starts, limits = [], []
        sides = zip(site.operands[0], site.results[0], befores, *attrs, strict=True)
        for dim, out, before, start, limit, stride in sides:
            starts.append(start if before is None else chosen(before))
            if before is not None:
                limits.append(starts[-1] + chosen(out))
            else:
                limits.append(limit if chosen(dim) == dim.size else start + (chosen(out) - 1) * stride + 1)
        return Change({"starts": tuple(starts), "limits": tuple(limits)})

    return change


def _pad(site: Site) -> Callable[[], Change] | None:
    lows: list[tuple[int, Extent, Extent]] = []
    highs: list[tuple[int, Extent, Extent]] = []
    attrs = (site.attr("low"), site.attr("high"), site.attr("interior"))
    for dim, out, low, high, interior in zip(site.operands[0], site.results[0], *attrs, strict=True):
        if interior:
            fix(dim)
            fix(out)
            lows.append((low, atom(0), atom(0)))
            highs.append((high, atom(0), atom(0)))
            continue
        first, last = max(-low, 0), dim.size - max(-high, 0)
        before, after = atom(max(low, 0)), atom(max(high, 0))
        unify(total((before, window(dim, first, last), after)), out)
        lows.append((0, before, cut(dim, first)[0]))
        highs.append((0, after, cut(dim, last)[1]))

    def amounts(sides: list[tuple[int, Extent, Extent]]) -> tuple[int, ...]:
        return tuple(given + chosen(added) - chosen(dropped) for given, added, dropped in sides)

    return lambda: Change({"low": amounts(lows), "high": amounts(highs)})


def _reverse(site: Site) -> None:
    pointwise(site)
    for d in site.attr("dims"):
        fix(site.results[0][d])


def _concatenate(site: Site) -> None:
    dim = site.attr("dim")
    for d, out in enumerate(site.results[0]):
        if d == dim:
            unify(total(operand[d] for operand in site.operands), out)
        else:
            for operand in site.operands:
                unify(operand[d], out)


def _dot(site: Site) -> None:
    lhs, rhs = site.operands
    a, b = site.attr("lhs_contracting"), site.attr("rhs_contracting")
    c, d = site.attr("lhs_batch"), site.attr("rhs_batch")
    _same([lhs[i] for i in a], [rhs[i] for i in b])
    _same([lhs[i] for i in c], [rhs[i] for i in d])
    rows = [x for i, x in enumerate(lhs) if i not in (*a, *c)]
    columns = [x for i, x in enumerate(rhs) if i not in (*b, *d)]
    _same([*(lhs[i] for i in c), *rows, *columns], site.results[0])


def _convolution(site: Site) -> None:
    (x, w), out = site.operands, site.results[0]
    xd, wd, od = site.attr("lhs_dims"), site.attr("rhs_dims"), site.attr("out_dims")
    for dims, spatial in ((x, xd), (w, wd), (out, od)):
        for d in spatial[2:]:
            fix(dims[d])
    if site.attr("feature_groups") != 1 or site.attr("batch_groups") != 1:
        fix_all(site)
        return
    unify(x[xd[0]], out[od[0]])
    unify(x[xd[1]], w[wd[0]])
    unify(w[wd[1]], out[od[1]])


def _reduce(site: Site) -> None:
    gone = site.attr("dims") if "dims" in site.op.attrs else (site.attr("dim"),)
    rest = [x for d, x in enumerate(site.operands[0]) if d not in gone]
    for result in site.results:
        _same(rest, result)


def _reduce_window(site: Site) -> None:
    pointwise_dims = zip(site.operands[0], site.results[0], site.attr("sizes"), strict=True)
    for dim, out, size in pointwise_dims:
        if size == 1 and dim.size == out.size:
            unify(dim, out)
        else:
            fix(dim)
            fix(out)


def _sort(site: Site) -> None:
    for dims in (*site.operands, *site.results):
        _same(dims, site.results[0])


def _top_k(site: Site) -> None:
    fix(site.operands[0][-1])
    for result in site.results:
        fix(result[-1])
        _same(site.operands[0][:-1], result[:-1])


def _index_dims(dims: Dims, vector: int) -> list[Extent]:
    if vector < len(dims):
        fix(dims[vector])
    return [x for d, x in enumerate(dims) if d != vector]


def _gather(site: Site) -> Callable[[], Change] | None:
    operand, indices = site.operands
    result = site.results[0]
    offset = site.attr("offset_dims")
    batch = _index_dims(indices, site.attr("index_vector_dim"))
    _same(batch, [x for d, x in enumerate(result) if d not in offset])
    paired = site.attr("operand_batching_dims")
    vector = site.attr("index_vector_dim")
    for d, other in zip(paired, site.attr("start_indices_batching_dims"), strict=True):
        unify(operand[d], batch[other - (other > vector)])
    gone = (*site.attr("collapsed_slice_dims"), *paired)
    sizes = site.attr("slice_sizes")
    windows = iter(offset)
    whole_dims: set[int] = set()
    for d, size in enumerate(sizes):
        out = None if d in gone else result[next(windows)]
        if size == operand[d].size and d not in paired:
            whole_dims.add(d)
            if out is not None:
                unify(operand[d], out)
            else:
                fix(operand[d])
        elif size != 1:
            fix(operand[d])
            if out is not None:
                fix(out)
    return lambda: Change(
        {"slice_sizes": tuple(chosen(operand[d]) if d in whole_dims else n for d, n in enumerate(sizes))}
    )


def _scatter(site: Site) -> None:
    operand, indices, updates = site.operands
    _same(operand, site.results[0])
    windows = site.attr("update_window_dims")
    batch = _index_dims(indices, site.attr("index_vector_dim"))
    _same(batch, [x for d, x in enumerate(updates) if d not in windows])
    vector = site.attr("index_vector_dim")
    paired = site.attr("input_batching_dims")
    for d, other in zip(paired, site.attr("scatter_indices_batching_dims"), strict=True):
        unify(operand[d], batch[other - (other > vector)])
    gone = (*site.attr("inserted_window_dims"), *paired)
    free = [x for d, x in enumerate(operand) if d not in gone]
    for dim, out in zip(free, (updates[d] for d in windows), strict=True):
        if dim.size == out.size:
            unify(dim, out)
        elif out.size != 1:
            fix(dim)
            fix(out)


def _starts(site: Site, first: int, dims: Dims, parts: Dims) -> Callable[[], Change]:
    """Tie the window `parts` of `dims` to its known starts; fix what has unknown ones."""
    before: dict[int, list[Extent]] = {}
    for d, (dim, part) in enumerate(zip(dims, parts, strict=True)):
        if dim.size == part.size:
            unify(dim, part)
            continue
        values = site.static(site.op.operands[first + d])
        if values is None:
            if part.size != 1:
                fix(dim)
                fix(part)
            continue
        positions = [min(max(int(v), 0), dim.size - part.size) for v in values]
        for position in sorted(set(positions)):
            unify(window(dim, position, position + part.size), part)
        before[first + d] = [cut(dim, position)[0] for position in positions]
    return lambda: Change(starts={n: tuple(chosen(e) for e in extents) for n, extents in before.items()})


def _dynamic_slice(site: Site) -> Callable[[], Change]:
    starts = _starts(site, 1, site.operands[0], site.results[0])

    def change() -> Change:
        return Change({"sizes": tuple(chosen(d) for d in site.results[0])}, starts().starts)

    return change


def _dynamic_update_slice(site: Site) -> Callable[[], Change]:
    _same(site.operands[0], site.results[0])
    return _starts(site, 2, site.operands[0], site.operands[1])


def _scaled(site: Site, dim: int, whole: Dims, part: Dims) -> None:
    size = whole[dim].size // max(part[dim].size, 1)
    for d, (x, y) in enumerate(zip(whole, part, strict=True)):
        unify(x, total([y] * size) if d == dim else y)


def _all_gather(site: Site) -> None:
    _scaled(site, site.attr("dim"), site.results[0], site.operands[0])


def _reduce_scatter(site: Site) -> None:
    _scaled(site, site.attr("dim"), site.operands[0], site.results[0])


def _all_to_all(site: Site) -> None:
    size = len(site.attr("groups")[0])
    operand, result = site.operands[0], site.results[0]
    split, concat = site.attr("split_dim"), site.attr("concat_dim")
    for d, (x, y) in enumerate(zip(operand, result, strict=True)):
        if split == concat == d:
            piece = atom(x.size // size)
            unify(x, total([piece] * size))
            unify(x, y)
        elif d == split:
            unify(x, total([y] * size))
        elif d == concat:
            unify(y, total([x] * size))
        else:
            unify(x, y)


RULES: Final[Mapping[str, Rule]] = {
    "constant": _constant,
    "iota": lambda site: None,
    "rank_id": lambda site: None,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "reverse": _reverse,
    "concatenate": _concatenate,
    "dot_general": _dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "argreduce": _reduce,
    "reduce_window": _reduce_window,
    "sort": _sort,
    "top_k": _top_k,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "all_reduce": pointwise,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "collective_permute": pointwise,
    "collective_broadcast": pointwise,
    "agree": pointwise,
}
