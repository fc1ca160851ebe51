"""Replica groups as substitutions of rank indices (soundness F2, F3).

A group is an ordered list; the member at a position of the caller's group is a function of the
caller's rank and that position. Where groups are runs of whole mesh axes in rank order the position is
the axes' own indices; every other grouping goes through an exact table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np

from shardproof.ir.types import DType, Mesh
from shardproof.passes.access import Expr, index
from shardproof.passes.classes import Store, Term
from shardproof.passes.folding import tabulated
from shardproof.passes.literals import literal
from shardproof.passes.views import Unsupported

Groups = tuple[tuple[int, ...], ...]


class Ranks:
    """The mesh of one program: an index per axis of size >= 2."""

    def __init__(self, store: Store, mesh: Mesh) -> None:
        self.store = store
        self.mesh = mesh
        self.axes = [(name, store.fresh(size)) for name, size in mesh.axes if size > 1]
        self.shape = tuple(store.sizes[i] for _, i in self.axes)
        self.flat: Expr = store.flatten([i for _, i in self.axes])
        self._runs: dict[Groups, tuple[int, ...] | None] = {}

    def run(self, groups: Groups) -> tuple[int, ...] | None:
        """The axes (by number) along which every group runs in rank order, or None."""
        if groups not in self._runs:
            self._runs[groups] = self._find_run(groups)
        return self._runs[groups]

    def _find_run(self, groups: Groups) -> tuple[int, ...] | None:
        self._check(groups)
        numbers = np.arange(self.mesh.size).reshape(self.shape)
        for count in range(len(self.shape) + 1):
            for chosen in combinations(range(len(self.shape)), count):
                if prod(self.shape[a] for a in chosen) != len(groups[0]):
                    continue
                others = [a for a in range(len(self.shape)) if a not in chosen]
                rows = numbers.transpose([*others, *chosen]).reshape(-1, len(groups[0]))
                if sorted(tuple(int(r) for r in row) for row in rows) == sorted(groups):
                    return chosen
        return None

    def _check(self, groups: Groups) -> None:
        if len({len(g) for g in groups}) != 1:
            raise Unsupported("replica groups of unequal size")
        if sorted(r for g in groups for r in g) != list(range(self.mesh.size)):
            raise Unsupported("replica groups that do not hold every rank once")

    def members(self, groups: Groups) -> tuple[dict[int, Expr], list[int]]:
        """(rank index -> the member's, indices of the member's position, row-major)."""
        run = self.run(groups)
        if run is not None:
            own = [self.axes[a][1] for a in run]
            new = [self.store.fresh(self.store.sizes[i]) for i in own]
            return {i: index(j) for i, j in zip(own, new, strict=True)}, new
        at = self.store.fresh(len(groups[0]))
        table = np.zeros((self.mesh.size, len(groups[0])), np.int64)
        for g in groups:
            table[list(g)] = g
        return self._by_table(table, [at]), [at]

    def position(self, groups: Groups) -> Expr:
        """The position of the caller in its group."""
        run = self.run(groups)
        if run is not None:
            return self.store.flatten([self.axes[a][1] for a in run])
        where = np.zeros(self.mesh.size, np.int64)
        for g in groups:
            where[list(g)] = range(len(g))
        return self._lookup(where.reshape(self.shape), [])

    def sources(self, pairs: Sequence[tuple[int, int]]) -> tuple[dict[int, Expr], Term]:
        """(rank index -> the sender's, whether anything is received)."""
        table = np.arange(self.mesh.size)
        received = np.zeros(self.mesh.size, np.bool_)
        for source, target in pairs:
            if received[target]:
                raise Unsupported(f"two sources for rank {target}")
            table[target], received[target] = source, True
        by = self._by_table(table.reshape(-1, 1), [])
        if received.all():
            return by, self.store.truth(True)
        own = [i for _, i in self.axes]
        return by, literal(self.store, received.reshape(self.shape), DType.BOOL, own)

    def _by_table(self, table: np.ndarray, at: Sequence[int]) -> dict[int, Expr]:
        """Each rank index as a function of the caller's rank and a position, from flat rank numbers."""
        extents = [self.store.sizes[i] for i in at]
        digits = np.unravel_index(table.reshape(-1), self.shape)
        return {
            i: self._lookup(np.asarray(d).reshape(*self.shape, *extents), at)
            for (_, i), d in zip(self.axes, digits, strict=True)
        }

    def _lookup(self, table: np.ndarray, at: Sequence[int]) -> Expr:
        return tabulated(self.store, table, [*(i for _, i in self.axes), *at])
