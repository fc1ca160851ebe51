"""The lemmas of a run, ready to rewrite: which ones have a pattern, and which wait for a second attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardproof.lemmas.load import Library, load
from shardproof.lemmas.terms import Lemma
from shardproof.passes.normalise import new_store
from shardproof.solver.pattern import Pattern, compiled
from shardproof.solver.prove import Attempt
from shardproof.solver.rewriting import Rules, Search


@dataclass(frozen=True, slots=True)
class Theory:
    """A library and its rules: `early` of the lemmas that are neither late nor assumed, `full` with the
    late ones, `assuming` of all.

    `idle` are lemmas that rewrite nothing, with the reason: most of these the normal form already has.
    """

    library: Library
    early: Rules
    full: Rules
    assuming: Rules
    idle: Mapping[str, str] = field(default_factory=dict)

    def rules(self, attempt: Attempt) -> Rules | None:
        """Those that an attempt may use."""
        return {"none": None, "early": self.early, "all": self.full, "assumed": self.assuming}[attempt.lemmas]


_known: dict[str, Theory] = {}


def theory(files: Sequence[Path] = ()) -> Theory:
    """The rules of the shipped library, the project's lemmas and `files`; made once for each content."""
    library = load(files)
    found = _known.get(library.digest)
    if found is None:
        found = _known[library.digest] = made(library)
    return found


def made(library: Library) -> Theory:
    """Patterns of the lemmas that are used from left to right."""
    idle: dict[str, str] = {}
    plain: list[Pattern] = []
    for lemma in library.lemmas.values():
        if lemma.both:
            idle[lemma.name] = "it goes both ways, so only saturation uses it"
            continue
        pattern = compiled(lemma)
        if isinstance(pattern, str):
            idle[lemma.name] = pattern
        else:
            plain.append(pattern)
    first = [p for p in plain if not _late(p.lemma) and not p.lemma.assumed]
    patterns = [p for p in (_among(p, first, idle) for p in plain) if p is not None]
    full = [p for p in patterns if not p.lemma.assumed]
    early = [p for p in full if not _late(p.lemma)]
    return Theory(library, Rules(early), Rules(full), Rules(patterns), idle)


def _among(pattern: Pattern, others: Sequence[Pattern], idle: dict[str, str]) -> Pattern | None:
    """The pattern as the other early lemmas leave it: they rewrite its left side, too."""
    lemma = pattern.lemma
    store = new_store(folding=True, algebra=True)
    Search(store, Rules([p for p in others if p is not pattern])).begin()
    found = compiled(lemma, store)
    if isinstance(found, str):
        idle[lemma.name] = found if found != "the normal form has it" else "the other lemmas have it"
        return None
    return found


def _late(lemma: Lemma) -> bool:
    return "late" in lemma.triggers
