"""The attempts at a proof, from the plainest on: each may use more than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardproof.solver.prove import PLAIN, Attempt, Clock, Proof, Seconds, TimeUp, prove
from shardproof.solver.sweep import Composed, Swept, outcome, sides

if TYPE_CHECKING:
    from shardproof.solver.search.theory import Theory

PLAINLY: Final = Attempt(folding=True)
"""An attempt that rests on no assumption."""
LITERAL: Final = (
    PLAIN,
    PLAINLY,
    Attempt(folding=True, algebra=True),
    Attempt(folding=True, lenient=True),
    Attempt(folding=True, lenient=True, algebra=True),
    Attempt(folding=True, lenient=True, reading=True),
)
"""Attempts without lemmas."""
ASSUMING: Final = Attempt(folding=True, lenient=True, reading=True, algebra=True)
"""All that an attempt without lemmas may use."""
BY_MASKS: Final = (
    Attempt(folding=True, lemmas="masks"),
    Attempt(folding=True, lenient=True, lemmas="masks"),
    Attempt(folding=True, lenient=True, reading=True, lemmas="masks"),
    Attempt(folding=True, lemmas="masks", inside=True),
    Attempt(folding=True, lenient=True, lemmas="masks", inside=True),
    Attempt(folding=True, lenient=True, reading=True, lemmas="masks", inside=True),
    Attempt(folding=True, lenient=True, reading=True, lemmas="masks", inside=True, algebra=True),
)
"""Attempts with nothing but the lemmas that say what masks do, which cost little. A softmax over positions at
which something was looked up is one only where that stays inside."""
BY_LEMMAS: Final = (
    Attempt(folding=True, lemmas="early"),
    Attempt(folding=True, lemmas="late"),
    Attempt(folding=True, lemmas="both"),
    Attempt(folding=True, lenient=True, reading=True, lemmas="early"),
    Attempt(folding=True, lenient=True, reading=True, lemmas="late"),
    Attempt(folding=True, lenient=True, reading=True, lemmas="assumed"),
)
BUDGET: Final = 6.0
"""Seconds that one attempt with lemmas may take."""
IN_ALL: Final = 20.0
"""Seconds that all of them may take together, with the search by saturation."""


class Inconsistent(Exception):
    """Lemmas and assumptions make two different literals equal."""


def without_lemmas(composed: Composed, clock: Clock, seconds: Seconds) -> Proof:
    """The first complete proof, else the one that shows most."""
    plain = best = proof = prove(composed, clock, LITERAL[0], seconds=seconds)
    for attempt in LITERAL[1:]:
        if proof.complete:
            return proof
        bounds = plain.store.wishes if attempt.lenient else None
        proof = prove(composed, clock, attempt, seconds=seconds, bounds=bounds)
        if _shown(proof) >= _shown(best):
            best = proof
    return proof if proof.complete else best


def _shown(proof: Proof) -> tuple[int, int, bool]:
    """How much a proof shows: outputs, and real values of the implementation made of the reference's;
    that of two with as many is preferred which knows more of masks."""
    theirs = {view.term.cls for view in proof.reference.views.values()}
    own = [v for v in proof.implementation.views.values() if v.dtype.kind == "real"]
    met = sum(view.term.cls in theirs for view in own)
    return sum(proof.proved.values()), met, proof.attempt.algebra or proof.attempt.lemmas != "none"


def masked(plain: Proof) -> bool:
    """Whether the programs have weights of selected values, so that lemmas about masks may apply."""
    found = {c.op for c in plain.store.classes}
    return {"select", "exponential", "sum"} <= found


def by_masks(composed: Composed, plain: Proof, clock: Clock, seconds: Seconds, theory: Theory) -> Proof:
    """The first complete proof by the lemmas about masks, else of those in which they were used the one that
    shows most, else `plain`."""
    best = plain
    idle: set[bool] = set()
    for attempt in BY_MASKS:
        if attempt.inside in idle:
            continue
        proof = _attempted(composed, plain, clock, attempt, seconds, theory)
        if proof is None:
            continue
        proof.store.check = clock.check
        if proof.complete:
            return proof
        if not proof.instances and (attempt.lenient or not plain.store.wishes):
            idle.add(attempt.inside)
        if not proof.instances:
            continue
        if best is plain or _shown(proof) > _shown(best):
            best = proof
    return best


def by_assumptions(composed: Composed, plain: Proof, clock: Clock, seconds: Seconds, theory: Theory) -> bool:
    """Whether listed assumptions, or lemmas about masks, may prove what no plain attempt does.

    One attempt with all of the former, one with the latter; true also where that takes too long.
    """
    bounds = {**plain.bounds, **plain.store.wishes}
    if prove(composed, clock, ASSUMING, seconds=seconds, bounds=bounds).complete:
        return True
    if not masked(plain):
        return False
    proof = _attempted(composed, plain, clock, BY_MASKS[-1], seconds, theory)
    return proof is None or proof.complete


def briefly(composed: Composed, plain: Proof, clock: Clock, seconds: Seconds, theory: Theory) -> Proof:
    """The first complete proof by lemmas, within a few seconds and without saturation; else `plain`."""
    brief = clock.within(BUDGET)
    try:
        for attempt in (*(BY_MASKS if masked(plain) else ()), *BY_LEMMAS):
            proof = _attempted(composed, plain, brief, attempt, seconds, theory)
            if proof is not None and proof.complete:
                proof.store.check = clock.check
                return proof
    except TimeUp:
        clock.check()
    return plain


def by_lemmas(composed: Composed, plain: Proof, clock: Clock, seconds: Seconds, theory: Theory) -> Proof:
    """The first complete proof by the lemmas of a theory, else the one that shows most, else `plain`.

    Where a level takes too long those with more lemmas are not tried.
    """
    best, last = plain, None
    slow: set[bool] = set()
    whole = clock.within(IN_ALL)
    try:
        for attempt in BY_LEMMAS:
            if attempt.lenient and last is not None and saturated(last, whole, theory):
                return last
            if attempt.lenient in slow:
                continue
            proof = _attempted(composed, plain, whole, attempt, seconds, theory)
            if proof is None:
                slow.add(attempt.lenient)
                continue
            proof.store.check = clock.check
            if proof.complete:
                return proof
            if not attempt.lenient:
                last = proof
                if _shown(proof) >= _shown(best):
                    best = proof
    except TimeUp:
        clock.check()
    return best


def _attempted(
    composed: Composed, plain: Proof, clock: Clock, attempt: Attempt, seconds: Seconds, theory: Theory
) -> Proof | None:
    """One attempt, or None when it takes too long."""
    bounds = {**plain.bounds, **plain.store.wishes} if attempt.lenient else None
    rules = theory.rules(attempt.lemmas, algebra=attempt.algebra)
    try:
        return prove(composed, clock.within(BUDGET), attempt, rules=rules, seconds=seconds, bounds=bounds)
    except TimeUp:
        clock.check()
        return None


def saturated(proof: Proof, clock: Clock, theory: Theory) -> bool:
    """Whether lemmas used in any direction complete a proof, as a search by saturation finds them.

    Raises Inconsistent when two different literals were found equal.
    """
    from shardproof.solver.certificates.stepping import undone
    from shardproof.solver.search.equality import Saturation

    if proof.uneven or proof.later:
        return False
    lemmas = {n: x for n, x in theory.statements.lemmas.items() if not x.assumed}
    swept = Swept(proof.reference, proof.implementation, proof.expected)
    with Saturation(lemmas.values()) as search:
        later = {}
        for name in [n for n, ok in proof.proved.items() if not ok]:
            clock.check()
            with undone(proof.store):
                both = sides(proof.store, *outcome(proof.composed, swept, name))
                found = search.prove_equal(proof.store, *both) if both is not None else None
            if found is not None and found.reason == "inconsistent":
                raise Inconsistent
            if found is None or found.instances is None:
                return False
            later[name] = found.instances
    proof.later, proof.lemmas = later, lemmas
    proof.proved = dict.fromkeys(proof.proved, True)
    return True


def theory_of(files: Sequence[str | Path]) -> Theory:
    """The theory of the library and these files."""
    from shardproof.solver.search.theory import theory

    return theory([Path(f) for f in files])
