"""What a proof gives: `verified`, checked again, or the reason why it is none after all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shardproof.ir.module import Module, Op
from shardproof.solver.attempts import (
    theory_of,
)
from shardproof.solver.certificates.certificate import CertificateError
from shardproof.solver.certificates.certificate_file import write
from shardproof.solver.certificates.certify import lemma_assumptions, rechecked
from shardproof.solver.names import is_draw
from shardproof.solver.parts import (
    assumptions_of,
    layout_assumptions,
    layouts_of,
    output_verdicts,
    unchecked,
    warnings_of,
)
from shardproof.solver.prove import Proof
from shardproof.solver.relations.infer import Inferred
from shardproof.solver.relations.placement import describe
from shardproof.solver.relations.relation import PER_RANK, Relation
from shardproof.solver.run import Check, unknown
from shardproof.solver.verdict import Assumption, Blocked, LemmaUse, OutputVerdict, Place, Result, Verdict

STRICT: Final = frozenset(
    {
        "inferred_relation",
        "group_guess",
        "constant_guess",
        "constant_tolerance",
        "tested_lemma",
        "user_assumed",
    }
)
"""Kinds of assumptions that --strict does not accept."""


def placements_of(relation: Relation, implementation: Module) -> dict[str, str]:
    """How every output that is checked must be laid out, in words."""
    return {
        o.name: "rank by rank"
        if relation.reference_outputs.get(relation.sources.get("output " + o.name, "")) == PER_RANK
        else describe(relation.outputs[o.name], implementation.mesh)
        for o in implementation.outputs
        if o.name in relation.outputs
    }


def false_lemma_of(proof: Proof) -> str | None:
    if not proof.instances:
        return None
    from shardproof.solver.search.usage import false_lemma

    return false_lemma(proof)


def unstable(
    check: Check, op: Op, proof: Proof, relation: Relation, placements: Mapping[str, str]
) -> Result:
    name = op.result.name
    return unknown(
        check,
        "U14",
        f"equal over the reals only: an exponent subtracts `{name}` ({op.opcode}), which is no maximum",
        location=Place.at(name, op.opcode, op.result.location),
        outputs=output_verdicts(proof, relation, placements),
        help=("subtract the maximum over all ranks, or another value that bounds the exponent",),
    )


def _used(proof: Proof) -> tuple[LemmaUse, ...] | None:
    if not proof.instances:
        return None
    from shardproof.solver.search.usage import used

    return used(proof)


def verified(
    check: Check,
    proof: Proof,
    inferred: Inferred,
    reference: Module,
    implementation: Module,
    placements: Mapping[str, str],
    extra: tuple[Assumption, ...],
) -> Result:
    layouts = layouts_of(inferred, implementation)
    assumptions = (
        *layout_assumptions(layouts, inferred, reference),
        *assumptions_of(proof, reference, implementation),
        *lemma_assumptions(proof),
        *check.guesses,
        *check.defines,
        *extra,
    )
    check.phase("recheck", 0.9)
    try:
        certificate = rechecked(
            proof,
            reference,
            implementation,
            [
                (name, inferred.relation.sources.get("output " + name, name), placements.get(name, ""))
                for name in proof.proved
            ],
            assumptions,
            check.defines,
            check.clock,
        )
    except CertificateError as e:
        return unknown(check, "U11", f"the proof does not hold when it is checked again: {e}")
    check.done("recheck")
    own, other = check.names
    result = Result(
        verdict=Verdict.VERIFIED,
        code="V02" if layouts else "V01",
        outputs=output_verdicts(proof, inferred.relation, placements),
        unchecked_outputs=unchecked(inferred.relation, implementation),
        assumptions=assumptions,
        inferred_relation=layouts or None,
        lemmas=_used(proof),
        stats=check.stats(),
        message=f"{other} refines {own}",
        findings=warnings_of(reference, implementation),
        lemma_count=len(theory_of(check.lemmas).statements.lemmas) if proof.instances else None,
    )
    paired = any(is_draw(name) for name in inferred.relation.inferred)
    if check.strict and (layouts or paired or any(a.kind in STRICT for a in assumptions)):
        why = "an inferred layout" if layouts else "a guess"
        return replace(
            result,
            verdict=Verdict.UNKNOWN,
            code="U08",
            message=f"proved, but it rests on {why}, which --strict does not accept",
            help=("declare the layouts in a relation file (--save-relation writes one to review)",),
        )
    if check.certificate is None:
        return result
    write(certificate, check.certificate)
    return replace(result, certificate=str(check.certificate))


def no_relation(check: Check, reference: Module, implementation: Module, inferred: Inferred) -> Result:
    gap = inferred.gaps[0]
    count = len(inferred.gaps)
    what = gap.name if gap.name.startswith("output") else f"input {gap.name}"
    code = "U07" if gap.ambiguous else "U05" if gap.name.startswith("output") else "U01"
    kind, _, name = what.partition(" ")
    message = f"no layout can be inferred for {kind} `{name}`: {gap.reason}"
    if count > 1:
        message += f" (and {count - 1} more)"
    return unknown(
        check,
        code,
        message,
        blocked=tuple(Blocked(g.name, failed_condition=g.reason) for g in inferred.gaps),
        outputs=tuple(OutputVerdict(o.name, "not checked", Verdict.UNKNOWN) for o in reference.outputs),
        findings=warnings_of(reference, implementation),
        help=(
            "declare the layout in a relation file (--relation, docs/relations.md); "
            "weights that are padded or repeated take the steps pad and repeat",
        ),
    )
