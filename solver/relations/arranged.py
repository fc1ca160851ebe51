"""Whether terms read the same elements of one class, in whatever arrangement over their indices.

Programs of two frameworks lay the same values out differently: as [sequence, batch, hidden] here, [hidden,
rows] there, one after the other or joined. Where no placement compares two values, their elements do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardproof.passes.access import Element, Expr
from shardproof.passes.arithmetic import scaled
from shardproof.passes.classes import Store, Term
from shardproof.passes.views import View

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


@dataclass(slots=True)
class Arrangements:
    """The values of a program on one rank by the classes that they read, those of joined parts included."""

    store: Store
    _known: dict[int, list[tuple[str, Term]]] = field(default_factory=dict)

    def add(self, name: str, view: View) -> None:
        for t in _parts(self.store, view.term):
            self._known.setdefault(t.cls, []).append((name, t))

    def holders(self, view: View) -> list[str]:
        """Values that hold exactly the elements of this one, or of its parts if it is joined, one for each;
        empty when there is none for some part."""
        found = [next(self._holders(t), None) for t in _parts(self.store, view.term)]
        return [] if None in found else [name for name in found if name is not None]

    def knows(self, view: View) -> bool:
        """Whether some value reads the same classes, wherever, times whatever numbers."""
        return all(_bare(self.store, t).cls in self._known for t in _parts(self.store, view.term))

    def _holders(self, t: Term) -> Iterator[str]:
        for name, other in self._known.get(t.cls, ()):
            if same_elements(self.store, other, t):
                yield name


def _bare(store: Store, t: Term) -> Term:
    """The term without factors that are roots of numbers, if one other is left."""
    if store.classes[t.cls].op != "multiply":
        return t
    factors, _ = store.expand(t)
    left = [f for f in factors if store.classes[f.cls].extents or not store.classes[f.cls].closed]
    return left[0] if len(left) == 1 else t


def _parts(store: Store, t: Term) -> list[Term]:
    """The term, and what a concatenation joins, over the positions of the parts."""
    if store.classes[t.cls].op != "concat":
        return [t]
    operands, _ = store.expand(t)
    return [x for part in operands for x in _parts(store, scaled(part, t.coef))]


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
