"""The proof: both programs as views over one store, and each output compared with what it must be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from shardproof.passes.classes import Store
from shardproof.passes.normalise import Normalised, new_store
from shardproof.solver.sweep import Composed, compare, sweep
from shardproof.solver.sweep import equal as equal
from shardproof.solver.sweep import stacked as stacked

if TYPE_CHECKING:
    from shardproof.lemmas.terms import Lemma
    from shardproof.solver.certificates.install import Instance
    from shardproof.solver.search.rewriting import Rules, Search


class TimeUp(Exception):
    """The time limit was reached."""


class Clock:
    """A time limit in seconds, or none; `check` raises TimeUp."""

    def __init__(self, limit: float | None) -> None:
        self.end = None if limit is None else time.monotonic() + limit

    def check(self) -> None:
        if self.end is not None and time.monotonic() > self.end:
            raise TimeUp

    def within(self, seconds: float) -> Clock:
        """A clock that stops after so many seconds, or with this one."""
        left = self.left()
        return Clock(seconds if left is None else min(seconds, left))

    def left(self) -> float | None:
        """Seconds left, or None without a limit."""
        return None if self.end is None else max(0.0, self.end - time.monotonic())


Level = Literal["none", "masks", "early", "late", "both", "assumed"]
"""Which lemmas are used: none, those that hold only under the condition they state, the early ones, also the
late ones, also those that go both ways, all."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a proof may use.

    `folding` computes closed terms by value, `lenient` allows rewritings that rest on listed assumptions,
    `reading` rounded literals to be read as the numbers they stand for; `lemmas` is the level of lemmas.
    `algebra` lets masks be read as factors and selections be simplified under their condition, as lemmas
    need. `inside` keeps computed positions, and those in a part of a dim, in the classes that read their
    indices in other ways, too.
    """

    folding: bool = False
    lenient: bool = False
    reading: bool = False
    lemmas: Level = "none"
    algebra: bool = False
    inside: bool = False


PLAIN: Final = Attempt()


@dataclass(slots=True)
class Proof:
    """Both programs normalised; `proved` holds, per implementation output, whether it is as expected.

    `uneven` are reference outputs that its own ranks do not agree on. `instances` are the lemmas used, in
    order: those of the sweep, then those of `later`, which name no class. These make the expected term of an
    output (`sweep.sides`) into its own, step by step (`stepping.proved`); `lemmas` has them by
    name. `bounds` are the ranges of integer inputs that were assumed.
    """

    store: Store
    composed: Composed
    reference: Normalised
    implementation: Normalised
    expected: Normalised
    proved: dict[str, bool] = field(default_factory=dict)
    uneven: set[str] = field(default_factory=set)
    attempt: Attempt = PLAIN
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    search: Search | None = None
    later: dict[str, tuple[Instance, ...]] = field(default_factory=dict)
    lemmas: Mapping[str, Lemma] = field(default_factory=dict)

    @property
    def instances(self) -> list[Instance]:
        own = self.search.instances if self.search is not None else []
        return [*own, *(i for more in self.later.values() for i in more)]

    @property
    def complete(self) -> bool:
        return bool(self.proved) and all(self.proved.values()) and not self.uneven


Seconds = dict[str, float]


def prove(
    composed: Composed,
    clock: Clock,
    attempt: Attempt = PLAIN,
    *,
    rules: Rules | None = None,
    seconds: Seconds | None = None,
    bounds: Mapping[str, tuple[int, int]] | None = None,
) -> Proof:
    """Normalise the composed programs and compare every output.

    `rules` are the lemmas of an attempt that uses any. `bounds` are assumed ranges (low, high exclusive) of
    integer base tensors.
    """
    store = new_store(
        folding=attempt.folding,
        lenient=attempt.lenient,
        reading=attempt.reading,
        algebra=(rules is not None and attempt.lemmas != "masks") or attempt.algebra,
        inside=attempt.inside,
    )
    store.check = clock.check
    search = None
    if rules is not None:
        from shardproof.solver.search.rewriting import Search

        search = Search(store, rules)
        search.begin()
    swept = sweep(store, composed, clock.check, bounds=bounds, seconds=seconds)
    start = time.perf_counter()
    proof = Proof(
        store,
        composed,
        swept.reference,
        swept.implementation,
        swept.expected,
        compare(store, composed, swept),
        swept.uneven,
        attempt=attempt,
        bounds=bounds or {},
        search=search,
    )
    if seconds is not None:
        seconds["compare"] = seconds.get("compare", 0.0) + time.perf_counter() - start
    return proof


Progress = Callable[[str, float], None]
