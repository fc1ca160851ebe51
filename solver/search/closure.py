"""Congruence closure over ground terms, and why two of them are equal.

Terms are numbered nodes `(operator, arguments)`; arguments that are terms are numbers of nodes. `explain`
gives the equality of two terms as steps of whole terms: in each, one equation is used inside one context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shardproof.solver.search.core_terms import OPERATORS

STEPS: Final = 600
"""Most steps of one explanation."""


class Node(NamedTuple):
    """An operator and its arguments; those that are terms are numbers of nodes."""

    op: str
    arguments: tuple[Any, ...]

    def inner(self) -> tuple[int, ...]:
        """The nodes directly inside."""
        return tuple(x for x, s in zip(self.arguments, OPERATORS[self.op], strict=True) if s == "T")


class Equation(NamedTuple):
    """Two nodes that a rule makes equal."""

    rule: str
    left: int
    right: int


class Hole(NamedTuple):
    """One operator around a term: the term is argument `at`; `arguments` are the others."""

    op: str
    arguments: tuple[Any, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Step:
    """An equation used within operators, outermost first; `forward` from its left side to its right."""

    equation: Equation
    forward: bool
    context: tuple[Hole, ...]


class Closure:
    """Equal nodes; equations and congruences are the edges of a forest."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.root = list(range(len(nodes)))
        self.members = [[n] for n in range(len(nodes))]
        self.above: list[list[int]] = [[] for _ in nodes]
        self.edge: list[tuple[int, Equation | None] | None] = [None] * len(nodes)
        self.signed: dict[tuple[Any, ...], int] = {}
        self.work: list[tuple[int, int, Equation | None]] = []
        for n, node in enumerate(nodes):
            for x in node.inner():
                self.above[x].append(n)
            self._sign(n)
        self._settle()

    def same(self, a: int, b: int) -> bool:
        """Whether two nodes are known to be equal."""
        return self.root[a] == self.root[b]

    def add(self, equation: Equation) -> None:
        """Make both sides of an equation equal, and all that follows from it."""
        self.work.append((equation.left, equation.right, equation))
        self._settle()

    def _sign(self, n: int) -> None:
        op, arguments = self.nodes[n]
        sorts = OPERATORS[op]
        key = (op, *(self.root[x] if s == "T" else x for x, s in zip(arguments, sorts, strict=True)))
        other = self.signed.setdefault(key, n)
        if self.root[other] != self.root[n]:
            self.work.append((n, other, None))

    def _settle(self) -> None:
        while self.work:
            a, b, why = self.work.pop()
            x, y = self.root[a], self.root[b]
            if x == y:
                continue
            if len(self.members[x]) > len(self.members[y]):
                a, b, x, y = b, a, y, x
            self._hang(a, b, why)
            moved, self.members[x] = self.members[x], []
            for n in moved:
                self.root[n] = y
            self.members[y] += moved
            for n in moved:
                for up in self.above[n]:
                    self._sign(up)

    def _hang(self, a: int, b: int, why: Equation | None) -> None:
        """Hang `a`'s tree below `b`: the edges from `a` to its root are turned round."""
        n, new = a, (b, why)
        while True:
            old, self.edge[n] = self.edge[n], new
            if old is None:
                return
            new = (n, old[1])
            n = old[0]

    def explain(self, a: int, b: int) -> list[Step] | None:
        """The steps from one node to an equal one; None when there are too many."""
        found: list[Step] = []
        for step in self._steps(a, b, ()):
            found.append(step)
            if len(found) > STEPS:
                return None
        return found

    def _steps(self, a: int, b: int, context: tuple[Hole, ...]) -> Iterator[Step]:
        for u, v, why in self._way(a, b):
            if why is not None:
                yield Step(why, u == why.left, context)
                continue
            op, before = self.nodes[u]
            after = self.nodes[v].arguments
            for at, sort in enumerate(OPERATORS[op]):
                if sort == "T" and before[at] != after[at]:
                    hole = Hole(op, (*after[:at], None, *before[at + 1 :]), at)
                    yield from self._steps(before[at], after[at], (*context, hole))

    def _way(self, a: int, b: int) -> list[tuple[int, int, Equation | None]]:
        """The edges of the forest from one node to another."""
        up: list[tuple[int, int, Equation | None]] = []
        seen = {a: 0}
        n = a
        while (e := self.edge[n]) is not None:
            up.append((n, e[0], e[1]))
            n = e[0]
            seen[n] = len(up)
        down: list[tuple[int, int, Equation | None]] = []
        n = b
        while n not in seen:
            e = self.edge[n]
            assert e is not None
            down.append((e[0], n, e[1]))
            n = e[0]
        return [*up[: seen[n]], *reversed(down)]
