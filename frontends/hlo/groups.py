"""Replica groups: every encoding to explicit ids, and ids to flat ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from shardproof.frontends.hlo.instruction import Groups
from shardproof.ir.module import ModuleError

MAX_RANKS: Final = 1 << 20


def _count(dims: Sequence[int], where: str) -> int:
    if any(d < 1 for d in dims) or prod(dims) > MAX_RANKS:
        raise ModuleError(f"{where} has device dims {list(dims)}, not between 1 and {MAX_RANKS} devices")
    return prod(dims)


def iota_devices(dims: Sequence[int], permutation: Sequence[int], where: str) -> tuple[int, ...]:
    """The ids 0.. reshaped to `dims`, transposed by `permutation` (none when empty), flattened."""
    count = _count(dims, where)
    if permutation and sorted(permutation) != list(range(len(dims))):
        raise ModuleError(f"{where} transposes {len(dims)} device dims by {list(permutation)}")
    ids = np.arange(count).reshape(tuple(dims))
    if permutation:
        ids = ids.transpose(tuple(permutation))
    return tuple(ids.ravel().tolist())


def cut(devices: Sequence[int], groups: int, size: int, where: str) -> Groups:
    """Consecutive runs of `size` devices."""
    if groups < 1 or size < 1 or groups * size != len(devices):
        raise ModuleError(f"{where} cuts {len(devices)} devices into {groups} groups of {size}")
    return tuple(tuple(devices[k : k + size]) for k in range(0, len(devices), size))


@dataclass(frozen=True, slots=True)
class AxisRef:
    """A mesh axis, or the part of it of `size` positions with `pre_size` coarser ones."""

    axis: int
    pre_size: int = 1
    size: int | None = None


def mesh_groups(sizes: Sequence[int], devices: Sequence[int], axes: Sequence[AxisRef], where: str) -> Groups:
    """Groups that run over `axes` (in that order, the last fastest) of a mesh of `sizes`.

    `devices` are the ids in row-major mesh order. Each axis is cut into digits at the sub-axes that are
    named; the digits that are named make a group, one group per value of the others.
    """
    count = _count(sizes, where)
    if sorted(devices) != list(range(count)):
        raise ModuleError(f"{where} names {len(devices)} devices for a mesh of {count}")
    spans: list[list[tuple[int, int]]] = [[] for _ in sizes]
    named: list[tuple[int, int]] = []
    for ref in axes:
        if not 0 <= ref.axis < len(sizes):
            raise ModuleError(f"{where} names mesh axis {ref.axis} of {len(sizes)}")
        size = sizes[ref.axis] if ref.size is None else ref.size
        if ref.pre_size < 1 or size < 1 or sizes[ref.axis] % (ref.pre_size * size):
            raise ModuleError(f"{where} cuts an axis of {sizes[ref.axis]} at {ref.pre_size} and {size}")
        spans[ref.axis].append((ref.pre_size, size))
        named.append((ref.axis, ref.pre_size))
    digits: list[int] = []
    position: dict[tuple[int, int], int] = {}
    free: list[int] = []
    for axis, total in enumerate(sizes):
        at = 1
        for pre, size in sorted(spans[axis]):
            if pre % at or pre < at:
                raise ModuleError(f"{where} names overlapping parts of mesh axis {axis}")
            if pre > at:
                free.append(len(digits))
                digits.append(pre // at)
            position[axis, pre] = len(digits)
            digits.append(size)
            at = pre * size
        if total // at > 1:
            free.append(len(digits))
            digits.append(total // at)
    if len(position) != len(named):
        raise ModuleError(f"{where} names a mesh axis twice")
    order = [*free, *(position[key] for key in named)]
    flat = np.asarray(devices).reshape(digits or [1]).transpose(order or [0]).ravel().tolist()
    size = prod(digits[position[key]] for key in named)
    return cut(flat, count // size, size, where)


def check_groups(groups: Groups, ranks: int, where: str, *, cover: bool) -> None:
    """Raise `ModuleError` unless every id is a rank, at most once, and (`cover`) every rank is there."""
    seen: set[int] = set()
    for group in groups:
        if not group:
            raise ModuleError(f"{where} has an empty replica group")
        for rank in group:
            if not 0 <= rank < ranks:
                raise ModuleError(f"{where} names rank {rank}, but there are {ranks} ranks")
            if rank in seen:
                raise ModuleError(f"{where} names rank {rank} twice")
            seen.add(rank)
    if cover and len(seen) != ranks:
        missing = next(r for r in range(ranks) if r not in seen)
        raise ModuleError(f"{where} has rank {missing} in no replica group")
