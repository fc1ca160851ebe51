"""The equations of a traced program in order, calls and loop bodies in place, with where each was written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardproof.frontends.jaxpr.locations import Places
from shardproof.ir.types import Location

CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
SILENT = frozenset({*CALLED, "branches", "cond_jaxpr", "body_jaxpr", "mesh", "name"})
"""Parameters that say nothing of what one equation computes by itself."""


@dataclass(frozen=True, slots=True)
class Step:
    """An equation: the values (by number) that it reads and makes, where it was written."""

    primitive: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    location: Location | None


@dataclass(frozen=True, slots=True)
class Program:
    """The equations, and a last one, `return`, that reads the results.

    `known` has a digest of how each value is computed from inputs and literals, `again` for what the body of
    a loop gives to its next round what that takes.
    """

    steps: list[Step]
    known: dict[int, str]
    again: dict[int, int]
    literals: frozenset[int]

    def makers(self) -> dict[int, int]:
        """The number of the equation that makes each value."""
        return {v: n for n, step in enumerate(self.steps) for v in step.makes}

    def readers(self, value: int) -> Iterator[int]:
        """The numbers of the equations that read a value, in this round of a loop or the next."""
        same = {value, self.again.get(value, value)}
        return (n for n, step in enumerate(self.steps) if same & set(step.reads))


def flattened(closed: Any) -> Program:
    """The program of a `ClosedJaxpr`."""
    reader = _Reader()
    inputs = [reader.value("input", n) for n in range(len(closed.jaxpr.invars))]
    results = reader.body(closed, inputs, None)
    end = reader.value("return", [reader.known[v] for v in results])
    reader.steps.append(Step("return", tuple(results), (end,), None))
    return Program(reader.steps, reader.known, reader.again, frozenset(reader.literals))


class _Reader:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.known: dict[int, str] = {}
        self.again: dict[int, int] = {}
        self.literals: set[int] = set()
        self._places = Places()

    def value(self, *says: object) -> int:
        """A new value, that is computed as `says` tells."""
        number = len(self.known)
        self.known[number] = hashlib.sha256(repr(says).encode()).hexdigest()
        return number

    def body(self, closed: Any, arguments: Sequence[int], outer: Location | None) -> list[int]:
        """The results of a function whose equations are appended."""
        jaxpr = getattr(closed, "jaxpr", closed)
        bound: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        for variable, value in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True):
            bound[variable] = self.value("constant", str(value), str(getattr(value, "dtype", "")))
        for eqn in jaxpr.eqns:
            location = self._places.at(eqn, outer)
            results = self._results(eqn, [self._read(v, bound) for v in eqn.invars], location)
            bound.update(zip(eqn.outvars, results, strict=True))
        return [self._read(v, bound) for v in jaxpr.outvars]

    def _read(self, variable: Any, bound: Mapping[Any, int]) -> int:
        if not hasattr(variable, "val"):
            return bound[variable]
        number = self.value("literal", str(variable.val), str(variable.aval))
        self.literals.add(number)
        return number

    def _results(self, eqn: Any, reads: list[int], location: Location | None) -> list[int]:
        params = eqn.params
        if eqn.primitive.name == "scan":
            return self._scan(params, reads, location)
        if eqn.primitive.name == "cond":
            branches = [self.body(b, reads[1:], location) for b in params["branches"]]
            return self._step(eqn, [reads[0], *(v for branch in branches for v in branch)], location)
        called = next((params[p] for p in CALLED if p in params), None)
        return self.body(called, reads, location) if called is not None else self._step(eqn, reads, location)

    def _scan(self, params: Mapping[str, Any], reads: list[int], location: Location | None) -> list[int]:
        """The body once; what it takes at first is read beside what it carries."""
        consts, carried = params["num_consts"], params["num_carry"]
        start, stacked = reads[consts : consts + carried], reads[consts + carried :]
        taken = [self.value("carry", self.known[v]) for v in start]
        rows = [self.value("row", self.known[v]) for v in stacked]
        before = len(self.steps)
        results = self.body(params["jaxpr"], [*reads[:consts], *taken, *rows], location)
        self.again.update(zip(results[:carried], taken, strict=True))
        first = dict(zip((*taken, *rows), (*start, *stacked), strict=True))
        for n in range(before, len(self.steps)):
            step = self.steps[n]
            also = tuple(first[v] for v in step.reads if v in first)
            self.steps[n] = Step(step.primitive, step.reads + also, step.makes, step.location)
        return results

    def _step(self, eqn: Any, reads: Sequence[int], location: Location | None) -> list[int]:
        said = sorted((k, str(v)) for k, v in eqn.params.items() if k not in SILENT)
        types = [str(v.aval) for v in eqn.outvars]
        operands = [self.known[v] for v in reads]
        makes = [self.value(eqn.primitive.name, said, types, operands, n) for n in range(len(types))]
        self.steps.append(Step(eqn.primitive.name, tuple(reads), tuple(makes), location))
        return makes
