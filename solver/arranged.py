"""Whether two terms read the same elements of one class, in whatever arrangement over their indices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shardproof.passes.access import Element, Expr
from shardproof.passes.classes import Store, Term

Moves = dict[int, Counter[int]]
"""For each index, how far it moves each of the positions that are read."""


def same_elements(store: Store, a: Term, b: Term) -> bool:
    """Whether `b`, over all values of its indices, reads exactly the elements that `a` reads.

    Indices that a term does not read repeat its elements and do not count. A sufficient condition: the
    positions are the same numbers of the same strides, split in whatever way.
    """
    if a.cls != b.cls or a.coef != b.coef:
        return False
    if a.access == b.access:
        return True
    first, second = _Reader(store), _Reader(store)
    if [first.read(e) for e in a.access] != [second.read(e) for e in b.access]:
        return False
    return first.joined() == second.joined()


class _Reader:
    """The positions of a term, numbered in order, and the strides of its indices in them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.count = 0
        self.moves: Moves = {}

    def read(self, e: Expr) -> Any:
        """The expression without its indices, which are noted for the position that it is."""
        own = self.count
        self.count += 1
        rest = []
        for t, stride in sorted(e[1]):
            if t > 0:
                self.moves.setdefault(t, Counter())[own] += stride
                continue
            atom = self.store.atom(t)
            if isinstance(atom, Element):
                rest.append((stride, atom.cls, *(self.read(x) for x in atom.access)))
            else:
                rest.append((stride, -1, atom.div, atom.mod, self.read(atom.expr)))
        return e[0], tuple(rest)

    def joined(self) -> list[tuple[tuple[tuple[int, int], ...], int]]:
        """(how it moves each position, extent) of indices; those that continue one another are one."""
        found = [
            (tuple(sorted((k, s) for k, s in moves.items() if s)), self.store.sizes[i])
            for i, moves in self.moves.items()
        ]
        changed = True
        while changed:
            changed = False
            for low in found:
                high = next((h for h in found if h is not low and h[0] == _times(low[0], low[1])), None)
                if high is not None:
                    found = [x for x in found if x is not low and x is not high]
                    found.append((low[0], low[1] * high[1]))
                    changed = True
                    break
        return sorted(found)


def _times(moves: Sequence[tuple[int, int]], by: int) -> tuple[tuple[int, int], ...]:
    return tuple((k, s * by) for k, s in moves)
