"""From two programs and their relation to a verdict: what is tried, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardproof.ir.module import Module, ModuleError
from shardproof.passes.roll import rolled
from shardproof.passes.unroll import has_loops, unrolled, unrolled_size
from shardproof.solver.attempts import (
    PLAINLY,
    Inconsistent,
    briefly,
    by_assumptions,
    by_lemmas,
    by_masks,
    masked,
    theory_of,
    without_lemmas,
)
from shardproof.solver.parts import output_verdicts
from shardproof.solver.prove import Proof, prove
from shardproof.solver.proved import false_lemma_of, no_relation, placements_of, unstable, verified
from shardproof.solver.relations.infer import Inferred
from shardproof.solver.relations.relation import compose
from shardproof.solver.replay.refute import Replayed, replay
from shardproof.solver.run import Check, unknown
from shardproof.solver.verdict import Assumption, OutputVerdict, Result, Verdict

LARGE: Final = 1_500
"""Fewest operators of both programs whose layers are looked for."""
UNROLLED: Final = 200_000
"""Most operators of a program whose loops are written out."""
SHORT: Final = 10_000
"""Most operators of both programs whose loops are written out before an induction with lemmas is tried."""

def decide(
    check: Check,
    reference: Module,
    implementation: Module,
    inferred: Inferred,
    *,
    search: bool = True,
    replayed: Replayed | None = None,
    early: Callable[[], Result | None] | None = None,
) -> Result:
    """The verdict; without `search` neither lemmas nor inputs on which the programs differ are tried.

    `replayed` is what such inputs have shown already. `early` is another proof that is tried before lemmas.
    """
    relation = inferred.relation
    if inferred.gaps:
        return no_relation(check, reference, implementation, inferred)
    found = _by_layers(check, reference, implementation, inferred)
    if found is not None:
        return found
    composed = compose(reference, implementation, relation)
    check.done("relation")
    check.phase("prove", 0.2)
    proof = without_lemmas(composed, check.clock, check.seconds)
    check.classes = len(proof.store.classes)
    placements = placements_of(relation, implementation)
    if not proof.complete and (has_loops(reference) or has_loops(implementation)):
        return _looped(check, reference, implementation, inferred, proof, search, early)
    if not proof.complete and not search:
        return unknown(check, "U02", "the normal forms differ")
    if not proof.complete:
        plain = proof
        if masked(plain):
            proof = by_masks(composed, plain, check.clock, check.seconds, theory_of(check.lemmas))
            check.done("lemmas")
        if not proof.complete and replayed is None:
            replayed = replay(composed, check.clock)
            check.done("replay")
        replayed = replayed or Replayed()
        other = early() if early is not None and not proof.complete and not replayed.difference else None
        if other is not None:
            return other
        if not proof.complete and replayed.difference is None:
            check.phase("lemmas", 0.4)
            theory = theory_of(check.lemmas)
            try:
                proof = by_lemmas(composed, proof, check.clock, check.seconds, theory)
            except Inconsistent:
                text = "lemmas and assumptions make two different numbers equal: nothing is proved"
                return unknown(check, "U13", text)
        if proof.complete:
            from shardproof.solver.stabiliser import misplaced

            op = misplaced(plain, implementation)
            if op is not None:
                return unstable(check, op, proof, relation, placements)
    extra: tuple[Assumption, ...] = ()
    if not proof.complete and (check.assume or check.outputs == "any"):
        from shardproof.solver.options import accept_any, assume, read_so

        if check.assume:
            proof, extra = assume(check.assume, proof, relation, reference, implementation, check.clock)
        if check.outputs == "any" and not proof.complete:
            readings = accept_any(proof, implementation)
            placements |= {name: str(reading) for name, reading in readings.items()}
            if readings:
                proof = read_so(proof, readings, reference, implementation, check.clock)
    wrong = false_lemma_of(proof)
    if wrong is not None:
        own = (relation.sources.get("output " + name, name) for name in proof.proved)
        outputs = tuple(OutputVerdict(name, "not checked", Verdict.UNKNOWN) for name in own)
        return unknown(check, "U12", wrong, outputs=outputs)
    if proof.complete:
        return verified(check, proof, inferred, reference, implementation, placements, extra)
    if proof.uneven and all(proof.proved.values()):
        names = ", ".join(sorted(proof.uneven))
        text = f"the reference's own ranks do not agree on {names}: declare how it is laid out over them"
        return unknown(check, "U07", text, outputs=output_verdicts(proof, relation, placements))
    from shardproof.solver.unproved import unproved

    return unproved(
        check, proof, inferred, reference, implementation, placements, replayed or Replayed()
    )


def _by_layers(
    check: Check, reference: Module, implementation: Module, inferred: Inferred
) -> Result | None:
    """A proof of large programs with their layers as loops, if that is one.

    A certificate is of the programs as they were read, so none is proved like this.
    """
    large = len(reference.ops) + len(implementation.ops) >= LARGE
    if check.certificate is not None or not check.layers or not large:
        return None
    first, second = rolled(reference), rolled(implementation)
    if first is reference or second is implementation:
        return None
    composed = compose(first, second, inferred.relation)
    check.done("relation")
    check.phase("prove", 0.2)
    plain = proof = without_lemmas(composed, check.clock, check.seconds)
    if not proof.complete and masked(proof):
        from shardproof.solver.stabiliser import misplaced

        proof = by_masks(composed, plain, check.clock, check.seconds, theory_of(check.lemmas))
        if not proof.complete or false_lemma_of(proof) is not None or misplaced(plain, second) is not None:
            return None
    if not proof.complete:
        return None
    check.classes = len(proof.store.classes)
    placements = placements_of(inferred.relation, second)
    return verified(check, proof, inferred, first, second, placements, ())


def _looped(
    check: Check,
    reference: Module,
    implementation: Module,
    inferred: Inferred,
    plain: Proof,
    search: bool,
    early: Callable[[], Result | None] | None,
) -> Result:
    """The verdict on programs with loops that no induction without lemmas proves.

    With lemmas it is tried before the loops are written out, unless these are short: then inputs on which the
    programs differ are looked for first. Those come before attempts that rest on assumptions, too.
    """
    size = unrolled_size(reference.ops) + unrolled_size(implementation.ops)
    found = None
    if search and size > SHORT:
        found = _by_induction(check, plain, reference, implementation, inferred)
    if found is not None:
        return found
    try:
        first, second = (unrolled(m, UNROLLED) for m in (reference, implementation))
    except ModuleError as e:
        return unknown(check, "U02", f"no induction proves the loops, and {e}")
    if not search or check.assume or check.outputs == "any":
        return decide(check, first, second, inferred, search=search)
    composed = compose(first, second, inferred.relation)
    proof = prove(composed, check.clock, PLAINLY, seconds=check.seconds)
    placements = placements_of(inferred.relation, second)
    if proof.complete:
        return verified(check, proof, inferred, first, second, placements, ())
    replayed = replay(composed, check.clock)
    check.done("replay")
    if replayed.difference is None and size <= SHORT:
        found = _by_induction(check, plain, reference, implementation, inferred)
    if found is not None:
        return found
    theory = theory_of(check.lemmas)
    if (
        replayed.difference is None
        or proof.uneven
        or by_assumptions(composed, proof, check.clock, check.seconds, theory)
    ):
        return decide(check, first, second, inferred, replayed=replayed, early=early)
    from shardproof.solver.unproved import unproved

    return unproved(check, proof, inferred, first, second, placements, replayed)


def _by_induction(
    check: Check, plain: Proof, reference: Module, implementation: Module, inferred: Inferred
) -> Result | None:
    """The verdict of an induction with lemmas, if there is one."""
    from shardproof.solver.stabiliser import misplaced

    proof = briefly(plain.composed, plain, check.clock, check.seconds, theory_of(check.lemmas))
    check.done("lemmas")
    if not proof.complete or false_lemma_of(proof) is not None:
        return None
    relation = inferred.relation
    placements = placements_of(relation, implementation)
    op = misplaced(plain, implementation)
    if op is not None:
        return unstable(check, op, proof, relation, placements)
    return verified(check, proof, inferred, reference, implementation, placements, ())
