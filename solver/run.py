"""One run of `verify`: its options, its clock, and the time it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardproof.solver.prove import Clock
from shardproof.solver.verdict import Assumption, Result, Stats, Verdict

Progress = Callable[[str, float], None]


@dataclass(slots=True)
class Check:
    """One run: its options, what it has found so far, and the time it took."""

    strict: bool
    assume: Sequence[str]
    outputs: str
    clock: Clock
    progress: Progress
    lemmas: Sequence[str | Path] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    instructions: int = 0
    classes: int = 0
    names: tuple[str, str] = ("", "")
    defines: tuple[Assumption, ...] = ()
    guesses: tuple[Assumption, ...] = ()
    certificate: str | Path | None = None
    goals: str | Path | None = None
    layers: bool = True
    _last: float = field(default_factory=time.perf_counter)

    def phase(self, name: str, fraction: float) -> None:
        """Start a phase; the time since the last one is its own."""
        self.progress(name, fraction)
        self._last = time.perf_counter()

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def stats(self) -> Stats:
        return Stats(dict(self.seconds), self.instructions, self.classes)


def unknown(check: Check, code: str, message: str, **fields: Any) -> Result:
    return Result(verdict=Verdict.UNKNOWN, code=code, message=message, stats=check.stats(), **fields)
