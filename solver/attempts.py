"""The attempts at a proof, from the plainest on: each may use more than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardproof.solver.prove import PLAIN, Attempt, Clock, Proof, Seconds, TimeUp, prove
from shardproof.solver.relation import Composed

if TYPE_CHECKING:
    from shardproof.solver.theory import Theory

LITERAL: Final = (
    PLAIN,
    Attempt(folding=True),
    Attempt(folding=True, lenient=True),
    Attempt(folding=True, lenient=True, reading=True),
)
"""Attempts without lemmas."""
BY_LEMMAS: Final = (
    Attempt(folding=True, lemmas="early"),
    Attempt(folding=True, lemmas="late"),
    Attempt(folding=True, lemmas="both"),
    Attempt(folding=True, lenient=True, reading=True, lemmas="late"),
    Attempt(folding=True, lenient=True, reading=True, lemmas="assumed"),
)
BUDGET: Final = 20.0
"""Seconds that one attempt with lemmas may take."""


def without_lemmas(composed: Composed, clock: Clock, seconds: Seconds) -> Proof:
    """The first complete proof, else the plain one."""
    plain = proof = prove(composed, clock, LITERAL[0], seconds=seconds)
    for attempt in LITERAL[1:]:
        if proof.complete:
            return proof
        bounds = plain.store.wishes if attempt.lenient else None
        proof = prove(composed, clock, attempt, seconds=seconds, bounds=bounds)
    return proof if proof.complete else plain


def by_lemmas(composed: Composed, plain: Proof, clock: Clock, seconds: Seconds, theory: Theory) -> Proof:
    """The first complete proof by the lemmas of a theory, else the one that shows most, else `plain`."""
    best = plain
    for attempt in BY_LEMMAS:
        bounds = plain.store.wishes if attempt.lenient else None
        try:
            proof = prove(
                composed,
                clock.within(BUDGET),
                attempt,
                rules=theory.rules(attempt.lemmas),
                seconds=seconds,
                bounds=bounds,
            )
        except TimeUp:
            clock.check()
            continue
        if proof.complete:
            return proof
        if best is plain:
            best = proof
    return best


def theory_of(files: Sequence[str | Path]) -> Theory:
    """The theory of the library and these files."""
    from shardproof.solver.theory import theory

    return theory([Path(f) for f in files])
