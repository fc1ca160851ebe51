"""Sharding metadata: how many equal contiguous parts each dim of the global tensor has."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod


def tile_counts(
    dims: Sequence[int],
    devices: Sequence[int] | None,
    transpose: Sequence[int],
    *,
    replicate_last: bool,
    subgroups: int = 0,
) -> tuple[int, ...] | None:
    """Parts per dim when shard number i is on device i in row-major order, else None.

    `devices` lists them explicitly (None for the plain order, which `transpose` may permute). Tiles that
    are copied (the last tile dim) are told only when everything is copied: a count alone would not say
    over which ranks.
    """
    parts = tuple(dims)
    copies = 1
    if replicate_last:
        if not parts:
            return None
        copies, parts = parts[-1], parts[:-1]
    elif subgroups:
        return None
    if any(p < 1 for p in parts):
        return None
    if prod(parts) == 1:
        return parts
    if copies > 1:
        return None
    if devices is not None and list(devices) != list(range(len(devices))):
        return None
    if transpose and list(transpose) != list(range(len(transpose))):
        return None
    return parts
