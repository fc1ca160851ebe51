"""Lemmas on random functions: counterexamples, and the need of each condition.

One sample fixes all further names (SOUNDNESS.md section 2: a lemma that holds on each slice holds in
every environment), so the metavariables are functions of the lemma's indices only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Final

from shardproof.lemmas.check_draws import Draws, Sample
from shardproof.lemmas.check_numbers import CLOSE, Arithmetic, Exact, Extended, Value, arithmetic
from shardproof.lemmas.check_values import Table
from shardproof.lemmas.terms import Condition, Fact, Lemma

POINTS: Final = 12
"""At most this many elements are compared per sample."""
ATTEMPTS: Final = 20
"""Draws per sample that may fail the conditions."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Functions that satisfy the conditions, an element, and the two sides there."""

    sample: Sample
    point: Mapping[str, int]
    left: Value
    right: Value

    def __str__(self) -> str:
        parts = [f"|{i}| = {n}" for i, n in self.sample.extents.items()]
        parts += [f"{v} = {_nested(t, self._shape(v))}" for v, t in self.sample.tables.items()]
        at = ", ".join(f"{i} = {n}" for i, n in self.point.items())
        where = f"at {at}: " if at else ""
        return f"{'; '.join(parts)}; {where}left {shown(self.left)}, right {shown(self.right)}"

    def _shape(self, variable: str) -> list[int]:
        return [self.sample.extents[i] for i in self.sample.reads[variable]]


@dataclass(frozen=True, slots=True)
class Tested:
    """What sampling found: samples that counted, and a counterexample or None."""

    samples: int
    counterexample: Counterexample | None


def shown(value: Value) -> str:
    """A number as the messages print it."""
    if isinstance(value, Decimal):
        return "0" if abs(value) < CLOSE else f"{value:.6g}"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value + 0.0:g}" if isinstance(value, float) else str(value)


def _nested(table: Table, shape: Sequence[int], prefix: tuple[int, ...] = ()) -> str:
    if not shape:
        return shown(table[prefix])
    return f"[{', '.join(_nested(table, shape[1:], (*prefix, n)) for n in range(shape[0]))}]"


def search(
    lemma: Lemma, conditions: Sequence[Condition], samples: int, *, seed: int = 0, infinite: bool = False
) -> Tested:
    """Compare the sides on `samples` draws under the given conditions, until they differ.

    `infinite` computes in extended arithmetic, with infinities where no condition forbids them.
    Raises `Unsupported` if a term has no known value.
    """
    random = Random(f"{seed}|{lemma.name}")
    draws = Draws(lemma, conditions, random)
    counted = 0
    with arithmetic():
        for number in range(samples):
            numbers: Arithmetic = Extended() if infinite else Exact(random.randrange(2**32))
            sample = _drawn(draws, number, numbers, infinite)
            if sample is None:
                if not counted and number > ATTEMPTS:
                    break
                continue
            counted += 1
            found = _difference(lemma, sample, numbers, random)
            if found is not None:
                return Tested(counted, _shrunk(lemma, draws, found, numbers, random))
    return Tested(counted, None)


def _drawn(draws: Draws, number: int, numbers: Arithmetic, infinite: bool) -> Sample | None:
    for _ in range(ATTEMPTS):
        sample = draws.sample(number, numbers, infinite=infinite)
        if sample is not None:
            return sample
    return None


def _difference(lemma: Lemma, sample: Sample, numbers: Arithmetic, random: Random) -> Counterexample | None:
    meaning = sample.meaning(numbers)
    points = meaning.points(sorted({*meaning.free(lemma.left), *meaning.free(lemma.right)}))
    if len(points) > POINTS:
        points = random.sample(points, POINTS)
    for point in points:
        left, right = meaning.at(lemma.left, point), meaning.at(lemma.right, point)
        if not numbers.same(left, right):
            return Counterexample(sample, point, left, right)
    return None


def _shrunk(
    lemma: Lemma, draws: Draws, found: Counterexample, numbers: Arithmetic, random: Random
) -> Counterexample:
    """The counterexample with as many values as possible replaced by 0 and 1."""
    for name, kind in lemma.variables:
        for key in found.sample.tables[name]:
            for simple in (False,) if kind == "bool" else (Fraction(0), Fraction(1)):
                old = found.sample.tables[name][key]
                if old == simple:
                    break
                value: Value = float(simple) if isinstance(old, float) else simple
                tables = {**found.sample.tables, name: {**found.sample.tables[name], key: value}}
                sample = Sample(found.sample.extents, found.sample.reads, tables)
                if draws.allowed(sample, numbers):
                    smaller = _difference(lemma, sample, numbers, random)
                    if smaller is not None:
                        found = smaller
                        break
    return found


def unneeded(lemma: Lemma, samples: int, *, seed: int = 0) -> list[Condition]:
    """The conditions without which no counterexample was found.

    A condition `finite` is needed in extended arithmetic; any other may be shown needed in either.
    """
    result = []
    for dropped in lemma.conditions:
        rest = [c for c in lemma.conditions if c is not dropped]
        exact = not (isinstance(dropped, Fact) and dropped.kind == "finite")
        if exact and search(lemma, rest, samples, seed=seed).counterexample is not None:
            continue
        if search(lemma, rest, samples, seed=seed, infinite=True).counterexample is None:
            result.append(dropped)
    return result
