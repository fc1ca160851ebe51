"""Tensors kept as one slice of each class of equal slices, along every dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.ir.types import Array
from shardproof.solver.replay.partitions import (
    Numbers,
    Partition,
    classes_of,
    discrete,
    refined,
    slices_of,
)

_COMPARED: Final = 1 << 22
"""Elements up to which equal slices of a result are looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """The element at (i, j, ...) is `core[parts[0].labels[i], parts[1].labels[j], ...]`."""

    core: Array
    parts: tuple[Partition, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(p.size for p in self.parts)

    def dense(self) -> Array:
        """All elements."""
        if all(p.discrete for p in self.parts):
            return self.core
        return np.asarray(self.core[np.ix_(*(p.labels for p in self.parts))])

    def at(self, index: Sequence[int]) -> Any:
        """One element."""
        return self.core[tuple(int(p.labels[i]) for p, i in zip(self.parts, index, strict=True))]


def plain(array: Array) -> Folded:
    """An array with its equal slices found, when it is not too large to look for them."""
    return compressed(Folded(array, tuple(map(discrete, array.shape))))


def compressed(x: Folded) -> Folded:
    """The same tensor with equal slices in one class, when it is not too large to look for them."""
    if x.core.size <= 1 or x.core.size > _COMPARED:
        return x
    core, parts = x.core, list(x.parts)
    for d, p in enumerate(parts):
        if p.count > 1:
            found = slices_of(core, d)
            if not found.discrete:
                core = core.take(found.first, axis=d)
                parts[d] = classes_of(found.labels[p.labels])
    return x if core is x.core else Folded(core, tuple(parts))


def common(xs: Sequence[Folded]) -> tuple[Partition, ...]:
    """The coarsest partitions of tensors of one shape that all of them have."""
    return tuple(reduce(refined, parts) for parts in zip(*(x.parts for x in xs), strict=True))


def spread(x: Folded, parts: Sequence[Partition]) -> Array:
    """The core over finer partitions; dims of one class keep extent 1."""
    core = x.core
    for d, (own, wanted) in enumerate(zip(x.parts, parts, strict=True)):
        if own is not wanted and own.count > 1:
            core = core.take(own.labels[wanted.first], axis=d)
    return core


def filled(x: Folded, parts: Sequence[Partition]) -> Array:
    """The core over finer partitions, in all their classes."""
    return np.broadcast_to(spread(x, parts), [p.count for p in parts])


def picked(core: Array, picks: Sequence[Numbers | None]) -> Array:
    """The core with other classes along each dim; None keeps a dim as it is."""
    for d, pick in enumerate(picks):
        if pick is not None and not np.array_equal(pick, np.arange(core.shape[d])):
            core = core.take(pick, axis=d)
    return core


def bytes_of(counts: Sequence[int], dtype: np.dtype[Any]) -> int:
    """What a core of these extents takes."""
    return prod(counts) * dtype.itemsize
