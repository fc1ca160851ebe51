"""The values of terms on small arrays, by their definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Final

from shardproof.lemmas.check_numbers import Arithmetic, Value
from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Extent,
    Number,
    Opaque,
    Position,
    Reduce,
    Take,
    Term,
    Variable,
)

Table = Mapping[tuple[int, ...], Value]

LOGICAL: Final[Mapping[str, Callable[[Sequence[bool]], bool]]] = {
    "and": all,
    "or": any,
    "not": lambda x: not x[0],
    "xor": lambda x: x[0] != x[1],
}


class Meaning:
    """The values of terms under one choice of extents and of the functions that the names stand for."""

    def __init__(
        self,
        numbers: Arithmetic,
        extents: Mapping[str, int],
        reads: Mapping[str, tuple[str, ...]],
        tables: Mapping[str, Table],
    ) -> None:
        self.numbers = numbers
        self.extents = extents
        self.reads = reads
        self.tables = tables
        self._free: dict[int, tuple[str, ...]] = {}
        self._known: dict[tuple[int, tuple[int, ...]], Value] = {}
        self._alive: list[Term] = []

    def free(self, term: Term) -> tuple[str, ...]:
        """The indices on which the value of a term depends."""
        found = self._free.get(id(term))
        if found is None:
            found = tuple(sorted(free_indices(term, self.reads)))
            self._free[id(term)] = found
            self._alive.append(term)
        return found

    def points(self, indices: Sequence[str]) -> list[dict[str, int]]:
        """Every assignment of positions to the indices."""
        ranges = [range(self.extents[i]) for i in indices]
        return [dict(zip(indices, point, strict=True)) for point in product(*ranges)]

    def at(self, term: Term, point: Mapping[str, int]) -> Value:
        """The value of a term where its free indices have the given positions."""
        key = (id(term), tuple(point[i] for i in self.free(term)))
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = self._value(term, point)
        return value

    def _value(self, term: Term, point: Mapping[str, int]) -> Value:
        match term:
            case Number(x):
                return self.numbers.number(x)
            case Variable(name):
                return self.tables[name][tuple(point[i] for i in self.reads[name])]
            case Position(index):
                return self.numbers.number(Fraction(point[index]))
            case Extent(index):
                return self.numbers.number(Fraction(self.extents[index]))
            case Apply("select", (p, a, b)):
                return self.at(a if self.at(p, point) else b, point)
            case Apply(op, operands):
                values = [self.at(x, point) for x in operands]
                if op in LOGICAL and all(isinstance(v, bool) for v in values):
                    return LOGICAL[op]([bool(v) for v in values])
                return self.numbers.apply(op, values)
            case Compare(direction, a, b):
                return self.numbers.compare(direction, self.at(a, point), self.at(b, point))
            case Reduce(kind, indices, body):
                values = [self.at(body, {**point, **inner}) for inner in self.points(indices)]
                return self._reduced(kind, values)
            case Take(indices, body, position):
                return self._taken(indices, body, self.at(position, point), point)
            case Opaque(name, inputs, outputs, operands):
                arrays = tuple(self._array(inputs, x, point) for x in operands)
                return self.numbers.unknown(name, (arrays, tuple(point[o] for o in outputs)))

    def _reduced(self, kind: str, values: list[Value]) -> Value:
        if kind in ("and", "or") or isinstance(values[0], bool):
            return (all if kind in ("and", "min", "prod") else any)(bool(v) for v in values)
        step = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}[kind]
        total = values[0]
        for value in values[1:]:
            total = self.numbers.apply(step, (total, value))
        return total

    def _array(self, indices: tuple[str, ...], body: Term, point: Mapping[str, int]) -> tuple[object, ...]:
        shape = tuple(self.extents[i] for i in indices)
        return (shape, *(self.at(body, {**point, **inner}) for inner in self.points(indices)))

    def _taken(
        self, indices: tuple[str, ...], body: Term, position: Value, point: Mapping[str, int]
    ) -> Value:
        at = self.numbers.position(position)
        size = math.prod(self.extents[i] for i in indices)
        if at is None or not 0 <= at < size:
            return self.numbers.unknown("take", (self._array(indices, body, point), position))
        return self.at(body, {**point, **digits(at, indices, self.extents)})


def digits(position: int, indices: Sequence[str], extents: Mapping[str, int]) -> dict[str, int]:
    """The row-major digits of a position, one per index."""
    result: dict[str, int] = {}
    for index in reversed(indices):
        position, result[index] = divmod(position, extents[index])
    return result


def free_indices(term: Term, reads: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """The indices on which the value of a term depends, given those that each name reads."""
    match term:
        case Variable(name):
            return frozenset(reads[name])
        case Position(index):
            return frozenset((index,))
        case Number() | Extent():
            return frozenset()
        case Apply(_, operands):
            return frozenset().union(*(free_indices(x, reads) for x in operands))
        case Compare(_, a, b):
            return free_indices(a, reads) | free_indices(b, reads)
        case Reduce(_, indices, body):
            return free_indices(body, reads) - set(indices)
        case Take(indices, body, position):
            return (free_indices(body, reads) - set(indices)) | free_indices(position, reads)
        case Opaque(_, inputs, outputs, operands):
            inner: frozenset[str] = frozenset().union(*(free_indices(x, reads) for x in operands))
            return (inner - set(inputs)) | set(outputs)
