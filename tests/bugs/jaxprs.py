"""The equations of a traced program in order, calls and loop bodies in place, with where each was written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardproof.frontends.jaxpr.locations import Places
from shardproof.ir.types import Location

INLINED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
SILENT = frozenset({"jaxpr", "call_jaxpr", "fun_jaxpr", "branches", "cond_jaxpr", "body_jaxpr", "mesh", "name"})
"""Parameters that say nothing of what one equation computes by itself."""


@dataclass(frozen=True, slots=True)
class Step:
    """An equation: what it does, the values (by number) it reads and makes, where it was written.

    `says` tells equations apart that do different things to their operands.
    """

    primitive: str
    says: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    location: Location | None


@dataclass(slots=True)
class Program:
    """The equations; `known` has a digest for every value: of how it is computed from inputs and literals.

    `again` are the values that a loop carries round: what its body gives, and what it then takes.
    """

    steps: list[Step]
    known: dict[int, str]
    again: dict[int, int]
    literals: frozenset[int]

    def makers(self) -> dict[int, int]:
        """The equation that makes each value."""
        return {v: n for n, step in enumerate(self.steps) for v in step.makes}

    def readers(self, value: int) -> Iterator[int]:
        """The equations that read a value, also in the next round of a loop."""
        same = {value, *(taken for given, taken in self.again.items() if given == value)}
        for n, step in enumerate(self.steps):
            if same & set(step.reads):
                yield n


def flatten(closed: Any) -> Program:
    """The program of a `ClosedJaxpr`."""
    reader = _Reader()
    inputs = [reader.value(f"input {n}") for n in range(len(closed.jaxpr.invars))]
    results = reader.body(closed, inputs, None)
    end = reader.value("return", [reader.known[v] for v in results])
    reader.steps.append(Step("return", "return", tuple(results), (end,), None))
    return Program(reader.steps, reader.known, reader.again, frozenset(reader.literals))


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class _Reader:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.known: dict[int, str] = {}
        self.again: dict[int, int] = {}
        self.literals: set[int] = set()
        self._places = Places()

    def value(self, *says: object) -> int:
        number = len(self.known)
        self.known[number] = digest(*says)
        return number

    def body(self, closed: Any, arguments: Sequence[int], outer: Location | None) -> list[int]:
        jaxpr = getattr(closed, "jaxpr", closed)
        consts = getattr(closed, "consts", ())
        bound: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            bound[variable] = self.value("constant", str(value), str(getattr(value, "dtype", "")))

        def read(variable: Any) -> int:
            if hasattr(variable, "val"):
                number = self.value("literal", str(variable.val), str(variable.aval))
                self.literals.add(number)
                return number
            return bound[variable]

        for eqn in jaxpr.eqns:
            location = self._places.at(eqn, outer)
            results = self._results(eqn, [read(v) for v in eqn.invars], location)
            bound.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _results(self, eqn: Any, reads: list[int], location: Location | None) -> list[int]:
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            return self._scan(params, reads, location)
        if name == "cond":
            branches = [self.body(b, reads[1:], location) for b in params["branches"]]
            every = [v for branch in branches for v in branch]
            return self._step(eqn, [reads[0], *every], location)
        if name == "while":
            raise NotImplementedError("a loop without a known number of rounds")
        called = next((params[p] for p in INLINED if p in params), None)
        if called is not None:
            return self.body(called, reads, location)
        return self._step(eqn, reads, location)

    def _scan(self, params: Mapping[str, Any], reads: list[int], location: Location | None) -> list[int]:
        consts, carried = params["num_consts"], params["num_carry"]
        start = reads[consts : consts + carried]
        taken = [self.value("carry", self.known[v]) for v in start]
        rows = [self.value("row", self.known[v]) for v in reads[consts + carried :]]
        before = len(self.steps)
        results = self.body(params["jaxpr"], [*reads[:consts], *taken, *rows], location)
        self.again.update(zip(results[:carried], taken, strict=True))
        first = dict(zip(taken, start, strict=True)) | dict(zip(rows, reads[consts + carried :], strict=True))
        for n in range(before, len(self.steps)):
            step = self.steps[n]
            also = tuple(first[v] for v in step.reads if v in first)
            self.steps[n] = Step(step.primitive, step.says, step.reads + also, step.makes, step.location)
        return results

    def _step(self, eqn: Any, reads: Sequence[int], location: Location | None) -> list[int]:
        said = {k: str(v) for k, v in eqn.params.items() if k not in SILENT}
        given = [str(v.val) for v in eqn.invars if hasattr(v, "val")]
        says = str((eqn.primitive.name, sorted(said.items()), given, [str(v.aval) for v in eqn.outvars]))
        operands = [self.known[v] for v in reads]
        makes = [self.value(says, operands, n) for n in range(len(eqn.outvars))]
        self.steps.append(Step(eqn.primitive.name, says, tuple(reads), tuple(makes), location))
        return makes
