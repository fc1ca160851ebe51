"""The lemmas of a run as rules, level by level: each level has the lemmas of the one before and more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shardproof.lemmas.load import Library, load
from shardproof.lemmas.terms import Lemma
from shardproof.passes.normalise import new_store
from shardproof.solver.prove import Level
from shardproof.solver.search.pattern import Pattern, among, compiled
from shardproof.solver.search.rewriting import Rules, Search

LEVELS: Final[tuple[Level, ...]] = ("early", "late", "both", "assumed")


def level_of(lemma: Lemma) -> Level:
    """The first level that uses a lemma: `both` from left to right only, `assumed` what is no theorem."""
    if lemma.assumed:
        return "assumed"
    if lemma.both:
        return "both"
    return "late" if "late" in lemma.triggers else "early"


@dataclass(slots=True)
class Theory:
    """A library and its rules, made when a level is first asked for.

    `idle` are lemmas that rewrite nothing, with the reason: most of these the normal form already has.
    """

    statements: Library
    idle: dict[str, str] = field(default_factory=dict)
    _rules: dict[Level, Rules] = field(default_factory=dict)
    _masks: dict[bool, Rules] = field(default_factory=dict)

    def rules(self, level: Level, *, algebra: bool = True) -> Rules | None:
        """Those of a level; None for no lemmas. `algebra` as in the store, which matters for `masks` only."""
        if level == "none":
            return None
        if level == "masks":
            if algebra not in self._masks:
                stated = [x for x in self.statements.lemmas.values() if x.assumed]
                found = (compiled(x, algebra=algebra) for x in stated)
                self._masks[algebra] = Rules([p for p in found if not isinstance(p, str)])
            return self._masks[algebra]
        for n, own in enumerate(LEVELS[: LEVELS.index(level) + 1]):
            if own not in self._rules:
                before = self._rules[LEVELS[n - 1]].patterns if n else ()
                self._rules[own] = Rules([*before, *self._patterns(own)])
        return self._rules[level]

    def _patterns(self, level: Level) -> list[Pattern]:
        plain: list[Pattern] = []
        for lemma in self.statements.lemmas.values():
            if level_of(lemma) != level:
                continue
            pattern = compiled(lemma)
            if isinstance(pattern, str):
                self.idle[lemma.name] = pattern
            else:
                plain.append(pattern)
        early = plain if level == "early" else self._rules["early"].patterns
        return [p for p in (self._among(p, early) for p in plain) if p is not None]

    def _among(self, pattern: Pattern, early: Sequence[Pattern]) -> Pattern | None:
        """The pattern as the other early lemmas leave it: they rewrite its left side, too."""
        store = new_store(folding=True, algebra=True)
        Search(store, Rules([p for p in early if p is not pattern])).begin()
        found = among(pattern, store)
        if isinstance(found, str):
            self.idle[pattern.lemma.name] = found.replace("the normal form has it", "other lemmas have it")
            return None
        return found


_known: dict[str, Theory] = {}


def theory(files: Sequence[Path] = ()) -> Theory:
    """The rules of the shipped library, the project's lemmas and `files`; made once for each content."""
    library = load(files)
    return _known.setdefault(library.digest, Theory(library))
