"""The pairs to verify: each framework's decoder against that of every other, whole and on two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, permutations
from pathlib import Path
from typing import Any, Final

from extents import BUGS as BUGS
from extents import Bug, Config
from programs import FRAMEWORKS as FRAMEWORKS
from programs import MAKE, Framework

import shardproof

CONFIG: Final = Config()
OF_SEVERAL_RANKS: Final = frozenset({"missing_all_reduce"})
"""Mistakes that a program of one rank can't make."""
RELATIONS: Final = Path(__file__).resolve().parent / "relations"
RANKS: Final = 2
NAMES: Final = {"torch": "torch", "onnx": "torch", "jax": "jax", "hlo": "hlo"}
"""Whose names of weights a framework's program has."""
ALIKE: Final = (("torch", "onnx"), ("jax", "hlo"))
"""Frameworks whose whole weights are laid out alike."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A reference on one rank and an implementation on `tp`; `bug` is the mistake that is tried."""

    reference: Framework
    implementation: Framework
    tp: int
    bug: Bug

    @property
    def relation(self) -> Path | None:
        """The relation file; None where the names, or the order, of the inputs say it all."""
        both = {self.reference, self.implementation}
        for alike in ALIKE:
            if both == set(alike):
                return RELATIONS / f"between_{'_and_'.join(alike)}.toml" if self.tp > 1 else None
        own, other = (NAMES[f] for f in (self.reference, self.implementation))
        return RELATIONS / f"{own}_to_{other}.toml"


def pairs() -> Iterator[Pair]:
    """All 24, with mistakes by turns."""
    for tp in (1, RANKS):
        bugs = cycle(b for b in BUGS if tp > 1 or b not in OF_SEVERAL_RANKS)
        for (a, b), bug in zip(permutations(FRAMEWORKS, 2), bugs, strict=False):
            yield Pair(a, b, tp, bug)


class Programs:
    """Programs by framework and configuration, each made once, their files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[tuple[Framework, Config], Any] = {}

    def of(self, framework: Framework, config: Config) -> Any:
        if (framework, config) not in self._made:
            self._made[framework, config] = MAKE[framework](config, self.folder)
        return self._made[framework, config]

    def ready(self, pair: Pair, *, wrong: bool = False) -> tuple[Any, Any]:
        """Both programs of the pair, or of the one with the mistake."""
        own = replace(CONFIG, tp=pair.tp, bug=pair.bug if wrong else None)
        return self.of(pair.reference, CONFIG), self.of(pair.implementation, own)

    def verdict(self, pair: Pair, *, wrong: bool = False) -> shardproof.Result:
        return shardproof.verify(*self.ready(pair, wrong=wrong), relation=pair.relation)
