"""Shardings as the words of relation files: those of `PartitionSpec`, and those that XLA writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.ir.module import ModuleError
from shardproof.ir.types import Mesh

_REPLICATED, _MAXIMAL, _TUPLE, _OTHER = 0, 1, 2, 3
_CHOICES: Final = 6
"""Most mesh axes that are tried in every order."""


@dataclass(frozen=True, slots=True)
class Placed:
    """For each dim the mesh axes that divide it, outermost first."""

    axes: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Words of a relation file, as in `shard(0, dp) | shard(1, tp)`."""
        steps = (f"shard({dim}, {', '.join(own)})" for dim, own in enumerate(self.axes) if own)
        return " | ".join(steps) or "replicate"


def from_spec(spec: Sequence[Any], shape: tuple[int, ...], mesh: Mesh, where: str) -> Placed:
    """What a `PartitionSpec` says of a tensor of a global shape.

    Raises ModuleError when it does not fit: another rank, an axis that the mesh does not have or that
    divides two dims, or a dim that does not divide evenly, for which XLA pads.
    """
    sizes = dict(mesh.axes)
    entries = [_axes(entry, where) for entry in spec]
    if len(entries) > len(shape):
        raise ModuleError(f"{where}: the sharding {spec} has {len(entries)} entries for shape {list(shape)}")
    entries += [()] * (len(shape) - len(entries))
    named = [axis for own in entries for axis in own]
    for axis in named:
        if axis not in sizes:
            raise ModuleError(f"{where}: the sharding names the axis `{axis}`, the mesh has {mesh}")
        if named.count(axis) > 1:
            raise ModuleError(f"{where}: the sharding divides by the axis `{axis}` twice")
    placed = Placed(tuple(tuple(a for a in own if sizes[a] > 1) for own in entries))
    _check_even(placed, shape, sizes, where)
    return placed


def _axes(entry: Any, where: str) -> tuple[str, ...]:
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, tuple) and all(isinstance(axis, str) for axis in entry):
        return entry
    raise ModuleError(f"{where}: the sharding has the entry {entry!r}, a name or names of axes are needed")


def _check_even(placed: Placed, shape: tuple[int, ...], sizes: dict[str, int], where: str) -> None:
    for dim, own in enumerate(placed.axes):
        parts = prod(sizes[a] for a in own)
        if shape[dim] % parts:
            raise ModuleError(
                f"{where}: dim {dim} of {list(shape)} is divided into {parts} parts, which are not equal: "
                "XLA pads such dims, choose an extent that divides"
            )


def outputs_of(sharding: Any, count: int) -> list[Any]:
    """The OpSharding of each of a module's outputs."""
    found = list(sharding.tuple_shardings) if sharding.type == _TUPLE else [sharding]
    if len(found) != count:
        raise ModuleError(f"XLA states {len(found)} output shardings, the function has {count} outputs")
    return found


def from_proto(sharding: Any, shape: tuple[int, ...], mesh: Mesh, where: str) -> Placed:
    """What an OpSharding says of a tensor of a global shape, partition i being rank i of the mesh.

    Raises ModuleError when it is none that whole axes of the mesh make, or does not divide evenly.
    """
    if sharding.type == _REPLICATED or mesh.size == 1:
        return Placed(((),) * len(shape))
    if sharding.type != _OTHER or sharding.last_tile_dims or sharding.named_sharding:
        raise ModuleError(f"{where}: XLA chose a sharding of kind {sharding.type}: give one in out_shardings")
    tiles = tuple(sharding.tile_assignment_dimensions)
    devices = _devices(sharding, tiles)
    rank = len(shape)
    if len(tiles) not in (rank, rank + 1) or sorted(devices.flat) != list(range(mesh.size)):
        raise ModuleError(f"{where}: XLA chose a sharding over {list(tiles)} devices for {list(shape)}")
    position = np.empty((mesh.size, len(tiles)), dtype=np.int64)
    for at in np.ndindex(*tiles):
        position[devices[at]] = at
    sizes = dict(mesh.axes)
    coordinates = np.stack(
        np.unravel_index(np.arange(mesh.size), tuple(sizes.values()) or (1,)), axis=1
    )
    found = []
    for dim in range(rank):
        own = _dividing(position[:, dim], tiles[dim], coordinates, list(sizes.items()))
        if own is None:
            raise ModuleError(
                f"{where}: XLA divides dim {dim} by no whole axes of the mesh {mesh}: "
                "give a sharding in out_shardings"
            )
        found.append(own)
    placed = Placed(tuple(found))
    _check_even(placed, shape, sizes, where)
    return placed


def _devices(sharding: Any, tiles: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    listed = list(sharding.tile_assignment_devices)
    reshape = list(sharding.iota_reshape_dims)
    if listed:
        flat = np.array(listed, dtype=np.int64)
    elif reshape:
        order = list(sharding.iota_transpose_perm)
        flat = np.arange(prod(reshape), dtype=np.int64).reshape(reshape).transpose(order or None).reshape(-1)
    else:
        flat = np.arange(prod(tiles), dtype=np.int64)
    return flat.reshape(tiles)


def _dividing(
    position: np.ndarray[Any, Any],
    parts: int,
    coordinates: np.ndarray[Any, Any],
    axes: list[tuple[str, int]],
) -> tuple[str, ...] | None:
    """The axes of which the row-major number is the position of every rank, if there are any."""
    wide = [n for n, (_, size) in enumerate(axes) if size > 1]
    for count in range(min(len(wide), _CHOICES) + 1):
        for chosen in permutations(wide, count):
            if prod(axes[n][1] for n in chosen) != parts:
                continue
            number = np.zeros(len(position), dtype=np.int64)
            for n in chosen:
                number = number * axes[n][1] + coordinates[:, n]
            if np.array_equal(number, position):
                return tuple(axes[n][0] for n in chosen)
    return None
