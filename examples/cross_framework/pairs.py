"""The pairs to verify: each framework's decoder against that of every other, whole and on two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from extents import BUGS, Bug, Config
from programs import FRAMEWORKS, MAKE, Framework

import shardproof

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
    """All 24; mistakes by turns, those of the sum over ranks where there are ranks."""
    for k, (a, b) in enumerate(permutations(FRAMEWORKS, 2)):
        yield Pair(a, b, 1, BUGS[1 + k % (len(BUGS) - 1)])
    for k, (a, b) in enumerate(permutations(FRAMEWORKS, 2)):
        yield Pair(a, b, RANKS, BUGS[k % len(BUGS)])


class Programs:
    """Programs by framework and configuration, each made once, their files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[tuple[Framework, Config], Any] = {}

    def of(self, framework: Framework, config: Config) -> Any:
        if (framework, config) not in self._made:
            self._made[framework, config] = MAKE[framework](config, self.folder)
        return self._made[framework, config]

    def verdict(self, pair: Pair, *, wrong: bool = False, config: Config = Config()) -> shardproof.Result:
        """The verdict on the pair, or on the one with the mistake."""
        own = replace(config, tp=pair.tp, bug=pair.bug if wrong else None)
        return shardproof.verify(
            self.of(pair.reference, config),
            self.of(pair.implementation, own),
            relation=pair.relation,
        )
