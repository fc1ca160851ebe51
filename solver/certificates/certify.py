"""Certificates of proofs: what a proof used, written down for `solver.recheck`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from shardproof.ir.digest import digest
from shardproof.ir.module import Module
from shardproof.lemmas.printer import fingerprint
from shardproof.solver.certificates.certificate import Certificate, Claim, Flags, Range, Use, bare
from shardproof.solver.certificates.claims import lemma_claims, stored
from shardproof.solver.certificates.recheck import Statuses, check, status_of
from shardproof.solver.certificates.stepping import proved, undone
from shardproof.solver.prove import Clock, Proof
from shardproof.solver.search.statuses import statuses_of as known_statuses
from shardproof.solver.sweep import Layouts, Swept, outcome, sides
from shardproof.solver.verdict import Assumption

if TYPE_CHECKING:
    from shardproof.lemmas.terms import Lemma


def rechecked(
    proof: Proof,
    reference: Module,
    implementation: Module,
    outputs: Sequence[tuple[str, str, str]],
    assumptions: Sequence[Assumption],
    defines: Sequence[Assumption],
    clock: Clock,
) -> Certificate:
    """The certificate of a complete proof, which holds. Raises CertificateError, or TimeUp.

    `outputs` and `assumptions` are as for `certified`; `defines` are those assumptions that the
    definitions of custom operators made.
    """
    statuses = statuses_of(proof)
    certificate = certified(proof, reference, implementation, outputs, assumptions, statuses)
    lemmas = {lemma.name: lemma for lemma in lemmas_of(proof)}
    check(certificate, reference, implementation, lemmas, statuses, defines=defines, tick=clock.check)
    return certificate


def certified(
    proof: Proof,
    reference: Module,
    implementation: Module,
    outputs: Sequence[tuple[str, str, str]],
    assumptions: Iterable[Assumption],
    statuses: Statuses,
) -> Certificate:
    """The certificate of a complete proof.

    `outputs` are (implementation output, reference output, placement in words), in the order of those
    that were compared. `assumptions` are all that the verdict lists.
    """
    composed = proof.composed
    layouts = composed.layouts
    claim = Claim(
        digest(reference),
        digest(implementation),
        (reference.mesh, implementation.mesh),
        Layouts(bare(layouts.reference), bare(layouts.implementation), bare(layouts.compared)),
        bare(composed.expected),
        composed.assumed and bare(composed.assumed),
        _ranges(composed.ranges),
        tuple(sorted(composed.even)),
        tuple(outputs),
        tuple((a.kind, a.text) for a in assumptions),
    )
    attempt = proof.attempt
    return Certificate(
        claim,
        Flags(attempt.folding, attempt.lenient, attempt.reading, proof.store.algebra, attempt.inside),
        _ranges(proof.bounds),
        uses(proof, statuses),
        tuple(proof.instances),
        tuple((name, len(more)) for name, more in proof.later.items()),
        stated=claim.digest,
    )


def uses(proof: Proof, statuses: Statuses) -> tuple[Use, ...]:
    """The lemmas of a proof's instances."""
    patterns = proof.search.rules.lemmas if proof.search is not None else {}
    found = []
    for lemma in lemmas_of(proof):
        plain = lemma.name not in patterns or patterns[lemma.name].plain
        found.append(Use(lemma.name, fingerprint(lemma), status_of(lemma, statuses), plain))
    return tuple(found)


def lemmas_of(proof: Proof) -> list[Lemma]:
    """The lemmas that a proof used, each once."""
    patterns = proof.search.rules.lemmas if proof.search is not None else {}
    names = dict.fromkeys(i.lemma.partition(".")[0] for i in proof.instances)
    return [patterns[name].lemma if name in patterns else proof.lemmas[name] for name in names]


def lemma_assumptions(proof: Proof) -> tuple[Assumption, ...]:
    """The lemmas that a proof used and that are not proved, and what the store assumes for its last steps."""
    statuses = statuses_of(proof)
    found = lemma_claims((lemma, status_of(lemma, statuses) == "proved") for lemma in lemmas_of(proof))
    return (*found, *_assumed_later(proof))


def _assumed_later(proof: Proof) -> list[Assumption]:
    """Assumptions of the steps after the sweep, which leave no trace in the store."""
    found: list[Assumption] = []
    swept = Swept(proof.reference, proof.implementation, proof.expected)
    for name, instances in proof.later.items():
        with undone(proof.store):
            before = set(proof.store.assumptions)
            both = sides(proof.store, *outcome(proof.composed, swept, name))
            if both is not None:
                proved(proof.store, proof.lemmas, instances, *both)
            found += stored(proof.store, before)
    return found


def statuses_of(proof: Proof) -> Statuses:
    """What is known of the lemmas of a proof."""
    return known_statuses(lemmas_of(proof)) if proof.instances else {}


def _ranges(ranges: Mapping[str, tuple[int, int]]) -> tuple[Range, ...]:
    return tuple((name, low, high) for name, (low, high) in sorted(ranges.items()) if low < high)
