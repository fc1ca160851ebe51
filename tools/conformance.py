"""The conformance kit for frontends: what each sample of a frontend is checked for, and the report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardproof.frontends.source import Constants, Source
from shardproof.tools.conformance_checks import CHECKS, Problem, Skipped, Trial

if TYPE_CHECKING:
    from shardproof.frontends.formats import Frontend

Arrays = Mapping[str, Any]
"""By name, one array per rank in a list, or one array that every rank has."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A program file, and what is known of it.

    - `file`: a path, or the bytes of a file; `ranks` and `constants` are passed on to the frontend.
    - `inputs`, `outputs`: values by name, one array per rank or one for all, and what must come out of them.
    - `run`: the framework's own execution, of inputs by name, each a list with one array per rank, to outputs
      in the same form; it is called on random inputs, integers of which are within `ranges` (low, high
      exclusive; 0 and 1 without one).
    - `locations`: "file:line" that some values must have; None where the file holds no source information.
      Otherwise every operator but a constant has a location.
    - `opaque`: names of the functions that are kept opaque; any other is a failure.
    - `tolerance`: how far values may differ from those expected, as a part of the largest.
    """

    file: str | Path | bytes
    ranks: int | None = None
    constants: Constants = field(default_factory=dict)
    inputs: Arrays | None = None
    outputs: Arrays | None = None
    run: Callable[[Mapping[str, list[Any]]], Arrays] | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    locations: Mapping[str, str] | None = field(default_factory=dict)
    opaque: Collection[str] = ()
    tolerance: float = 1e-4

    @property
    def name(self) -> str:
        return "sample" if isinstance(self.file, bytes) else str(self.file)

    def source(self, data: bytes | None = None) -> Source:
        """The file, with `data` in place of its bytes where they are given."""
        own = self.file if isinstance(self.file, bytes) else None
        return Source(
            self.name, data=own if data is None else data, ranks=self.ranks, constants=self.constants
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """What a check found wrong with a sample: where, what, and what to do."""

    check: str
    sample: str
    where: str
    found: str
    help: str

    def __str__(self) -> str:
        place = f", {self.where}" if self.where else ""
        return f"{self.check}: {self.sample}{place}: {self.found}\n    help: {self.help}"


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What a run of the kit found; `skipped` are checks that a sample gives nothing for."""

    samples: int
    failures: tuple[Failure, ...]
    skipped: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        head = f"{self.samples} samples, {len(self.failures)} failures"
        notes = [f"skipped: {text}" for text in self.skipped]
        return "\n".join([head, *map(str, self.failures), *notes])

    def __repr__(self) -> str:
        return str(self)


_SEED: Final = 7


def frontend_conformance(importer: Frontend, samples: Sequence[Sample], *, seed: int = _SEED) -> Report:
    """Check a frontend on samples; nothing that it raises goes through.

    Each sample is checked for: being recognised by `importer` and claimed by no built-in format; a well
    formed module, its declared types those of the operator table; locations; no opaque functions but those
    named; a text form that reads back the same; two equal readings; the expected outputs, on the inputs given
    and on random ones; a `verified` against itself; and that damaged copies of the file raise nothing but
    `ModuleError`. `seed` chooses random inputs and damage. Raises `ValueError` without samples.
    """
    if not samples:
        raise ValueError("there is no sample, at least one is needed")
    failures: list[Failure] = []
    skipped: list[str] = []
    for sample in samples:
        trial = Trial(importer, sample, seed)
        for name, (check, help_text) in CHECKS.items():
            if trial.module is None and name not in ("recognised", "well formed", "malformed"):
                continue
            try:
                problems = list(check(trial))
            except Skipped as reason:
                skipped.append(f"{name}: {sample.name}: {reason}")
                continue
            failures += [_failure(name, sample, problem, help_text) for problem in problems]
    return Report(len(samples), tuple(failures), tuple(skipped))


def _failure(check: str, sample: Sample, problem: Problem, help_text: str) -> Failure:
    return Failure(check, sample.name, problem.where, problem.found, problem.help or help_text)
