"""Random functions for the metavariables of a lemma that satisfy its conditions.

Drawn so that they hold (bounds, signs, distinctness) and then checked everywhere; a draw that fails
is thrown away. Small extents and small integers come first, so the first counterexample is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import inf, prod
from random import Random
from typing import Final

from shardproof.lemmas.check_numbers import Arithmetic, Exact, Value
from shardproof.lemmas.check_values import Meaning, Table, free_indices
from shardproof.lemmas.terms import (
    Apply,
    Condition,
    Direction,
    Extent,
    Fact,
    Kind,
    Lemma,
    NotIn,
    Number,
    Relation,
    Term,
    Variable,
    walk,
)

LEVELS: Final[tuple[tuple[Fraction, ...], ...]] = (
    tuple(map(Fraction, (0, 1))),
    tuple(map(Fraction, (-1, 0, 1, 2))),
    tuple(Fraction(n, d) for n, d in ((-3, 1), (-2, 1), (-1, 2), (0, 1), (1, 2), (1, 1), (5, 3), (3, 1))),
)
"""Values of real metavariables; later samples draw from later rows."""
POINTS: Final = 100
"""At most this many assignments of positions to the indices."""
_MIRRORED: Final[Mapping[Direction, Direction]] = {
    "EQ": "EQ",
    "NE": "NE",
    "LT": "GT",
    "LE": "GE",
    "GT": "LT",
    "GE": "LE",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Extents and, per metavariable, its values; `reads` are the indices that it depends on."""

    extents: Mapping[str, int]
    reads: Mapping[str, tuple[str, ...]]
    tables: Mapping[str, Table]

    def meaning(self, numbers: Arithmetic) -> Meaning:
        return Meaning(numbers, self.extents, self.reads, self.tables)


@dataclass(frozen=True, slots=True)
class Bound:
    """A variable stands in a direction to a term, wherever both are evaluated."""

    direction: Direction
    other: Term


class Draws:
    """Samples of a lemma under some of its conditions."""

    def __init__(self, lemma: Lemma, conditions: Sequence[Condition], random: Random) -> None:
        self.random = random
        self.indices = lemma.indices
        excluded = {(c.variable, c.index) for c in conditions if isinstance(c, NotIn)}
        self.reads = {
            name: tuple(i for i in lemma.indices if (name, i) not in excluded) for name, _ in lemma.variables
        }
        self.kinds: dict[str, Kind] = dict(lemma.variables)
        self.relations = [c for c in conditions if isinstance(c, Relation)]
        facts = [c for c in conditions if isinstance(c, Fact)]
        self.distinct = [c for c in facts if c.kind == "distinct"]
        self.finite = {c.term.name for c in facts if c.kind == "finite" and isinstance(c.term, Variable)}
        self.finite_terms = [c.term for c in facts if c.kind == "finite"]
        self.shapes = [c for c in self.relations if _of_extents(c)]
        self.bounds: dict[str, list[Bound]] = {name: [] for name in self.reads}
        for c in self.relations:
            mirrored = _MIRRORED[c.direction]
            for direction, a, b in ((c.direction, c.left, c.right), (mirrored, c.right, c.left)):
                if isinstance(a, Variable) and a not in walk(b):
                    self.bounds[a.name].append(Bound(direction, b))
        self.order = _ordered(self.bounds)
        self.sizes = self._sizes()

    def _sizes(self) -> list[dict[str, int]]:
        """The extents that satisfy the relations between extents, smallest first."""
        top = 4 if not self.shapes else 6 if len(self.indices) <= 4 else 4
        found = []
        for choice in product(range(1, top + 1), repeat=len(self.indices)):
            extents = dict(zip(self.indices, choice, strict=True))
            if prod(choice) <= POINTS and all(_true_of_extents(c, extents) for c in self.shapes):
                found.append(extents)
        return sorted(found, key=lambda extents: (prod(extents.values()), max(extents.values(), default=0)))

    def sample(self, number: int, numbers: Arithmetic, *, infinite: bool = False) -> Sample | None:
        """The `number`-th sample, or None if this draw does not satisfy the conditions.

        `infinite` puts infinities into the real metavariables that no condition calls finite.
        """
        if not self.sizes:
            return None
        some = 1 + len(self.sizes) * min(number, 40) // 40
        extents = self.random.choice(self.sizes[: max(2, some)])
        level = LEVELS[0 if number < 10 else 1 if number < 30 else 2]
        tables: dict[str, dict[tuple[int, ...], Value]] = {}
        for name in self.order:
            table = self._table(name, extents, tables, level, numbers)
            if table is None:
                return None
            if infinite and self.kinds[name] == "real":
                self._spoil(name, table)
            tables[name] = table
        sample = Sample(extents, self.reads, tables)
        return sample if self.allowed(sample, numbers) else None

    def _spoil(self, name: str, table: dict[tuple[int, ...], Value]) -> None:
        chance = 0.0 if name in self.finite else self.random.choice((0.0, 0.3, 0.6, 1.0))
        sign = self.random.choice(((inf,), (-inf,), (inf, -inf)))
        for key, value in table.items():
            table[key] = self.random.choice(sign) if self.random.random() < chance else float(value)

    def _table(
        self,
        name: str,
        extents: Mapping[str, int],
        tables: Mapping[str, Table],
        level: Sequence[Fraction],
        numbers: Arithmetic,
    ) -> dict[tuple[int, ...], Value] | None:
        reads, kind = self.reads[name], self.kinds[name]
        meaning = Meaning(numbers, extents, self.reads, tables)
        usable = [
            (b, free_indices(b.other, self.reads))
            for b in self.bounds[name]
            if all(x.name in tables for x in walk(b.other) if isinstance(x, Variable))
        ]
        different = next((c for c in self.distinct if c.term == Variable(name)), None)
        constant = self.random.random() < 0.15
        table: dict[tuple[int, ...], Value] = {}
        used: dict[tuple[int, ...], set[Value]] = {}
        for point in meaning.points(reads):
            candidates = self._candidates(kind, level, extents)
            fixed = []
            for bound, free in usable:
                values = [
                    meaning.at(bound.other, {**point, **rest})
                    for rest in meaning.points([i for i in free if i not in point])
                ]
                fixed += [(bound.direction, v) for v in values]
            candidates = self._within(kind, candidates, fixed, numbers)
            seen: set[Value] = set()
            if different is not None:
                slice_key = tuple(v for i, v in point.items() if i not in different.indices)
                seen = used.setdefault(slice_key, set())
                candidates = [c for c in candidates if c not in seen]
            elif constant and table and next(iter(table.values())) in candidates:
                candidates = [next(iter(table.values()))]
            if not candidates:
                return None
            value = self.random.choice(candidates)
            seen.add(value)
            table[tuple(point.values())] = value
        return table

    def _candidates(self, kind: Kind, level: Sequence[Fraction], extents: Mapping[str, int]) -> list[Value]:
        if kind == "bool":
            return [False, True]
        if kind == "int":
            return [Fraction(n) for n in range(-2, max(extents.values(), default=1) + 2)]
        return list(level)

    def _within(
        self,
        kind: Kind,
        candidates: list[Value],
        bounds: Sequence[tuple[Direction, Value]],
        numbers: Arithmetic,
    ) -> list[Value]:
        """The candidates within the bounds, and some more if the bounds leave none."""
        if kind == "bool" or not bounds:
            return candidates
        whole = [v for d, v in bounds if d == "EQ"]
        if whole:
            candidates = whole[:1]
        plain = [b for _, v in bounds if (b := _plain(v)) is not None]
        if kind == "int" and plain:
            candidates = [Fraction(n) for n in range(int(min(plain)) - 2, int(max(plain)) + 3)]
        elif not whole and plain:
            low, high = min(plain), max(plain)
            candidates = [*candidates, low, high, (low + high) / 2, (2 * low + high) / 3, low - 1, high + 1]
        found = [c for c in candidates if all(numbers.compare(d, c, v) for d, v in bounds)]
        return sorted(set(found), key=lambda x: (abs(_plain(x) or 0), _plain(x) or 0))

    def allowed(self, sample: Sample, numbers: Arithmetic) -> bool:
        """Whether the conditions hold everywhere."""
        meaning = sample.meaning(numbers)
        for c in self.relations:
            for point in meaning.points(sorted({*meaning.free(c.left), *meaning.free(c.right)})):
                if not numbers.compare(c.direction, meaning.at(c.left, point), meaning.at(c.right, point)):
                    return False
        for term in self.finite_terms:
            for point in meaning.points(sorted(meaning.free(term))):
                value = meaning.at(term, point)
                if isinstance(value, float) and value - value != 0:
                    return False
        return all(self._distinct(meaning, c) for c in self.distinct)

    def _distinct(self, meaning: Meaning, c: Fact) -> bool:
        free = meaning.free(c.term)
        for point in meaning.points([i for i in sorted(free) if i not in c.indices]):
            values = [meaning.at(c.term, {**point, **inner}) for inner in meaning.points(c.indices)]
            if any(meaning.numbers.same(a, b) for n, a in enumerate(values) for b in values[:n]):
                return False
        return True


def _plain(value: Value) -> Fraction | None:
    """A finite number as a fraction of moderate size."""
    if isinstance(value, Decimal):
        return Fraction(value).limit_denominator(1000)
    if isinstance(value, float):
        return Fraction(value).limit_denominator(1000) if value - value == 0 else None
    return Fraction(value)


def _of_extents(c: Relation) -> bool:
    """Whether a relation speaks of extents only."""
    return not any(_more_than_extents(x) for x in (c.left, c.right))


def _more_than_extents(term: Term) -> bool:
    """Whether a term holds more than numbers, extents and arithmetic on them."""
    return not all(isinstance(x, Number | Extent | Apply) for x in walk(term))


def _true_of_extents(c: Relation, extents: Mapping[str, int]) -> bool:
    numbers = Exact(0)
    meaning = Meaning(numbers, extents, {}, {})
    return numbers.compare(c.direction, meaning.at(c.left, {}), meaning.at(c.right, {}))


def _ordered(bounds: Mapping[str, Sequence[Bound]]) -> list[str]:
    """The variables, those that others are bounded by first where that is possible."""
    order: list[str] = []
    left = list(bounds)
    while left:
        ready = [v for v in left if not any(x in left and x != v for b in bounds[v] for x in _names(b.other))]
        chosen = ready or left[-1:]
        order += chosen
        left = [v for v in left if v not in chosen]
    return order


def _names(term: Term) -> set[str]:
    return {x.name for x in walk(term) if isinstance(x, Variable)}
