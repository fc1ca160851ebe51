"""Parts of a result, from a proof: outputs, layouts, assumptions, what blocks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from shardproof.ir.module import Module
from shardproof.passes.views import View
from shardproof.solver.certificates.claims import claims
from shardproof.solver.meaning import CUSTOM
from shardproof.solver.names import is_draw
from shardproof.solver.prove import Proof
from shardproof.solver.randomness import alignment
from shardproof.solver.relations.capture_relation import SIDE_BY_SIDE
from shardproof.solver.relations.infer import OWN_TENSORS, Inferred
from shardproof.solver.relations.placement import describe
from shardproof.solver.relations.relation import Relation
from shardproof.solver.sweep import Swept
from shardproof.solver.verdict import Assumption, Blocked, OutputVerdict, Place, Verdict

if TYPE_CHECKING:
    from shardproof.solver.locate.finding import Finding

READERS: Final = 3
"""How many operators after a value that blocks the proof are looked at for a lemma."""
PER_RANK_TEXT: Final = "rank by rank, as in the reference"


def output_verdicts(
    proof: Proof, relation: Relation, placements: Mapping[str, str]
) -> tuple[OutputVerdict, ...]:
    return tuple(
        OutputVerdict(
            relation.sources.get("output " + name, name),
            placements.get(name, ""),
            Verdict.VERIFIED if ok else Verdict.UNKNOWN,
        )
        for name, ok in proof.proved.items()
    )


def unchecked(relation: Relation, implementation: Module) -> tuple[str, ...]:
    return tuple(o.name for o in implementation.outputs if o.name not in relation.outputs)


def layouts_of(inferred: Inferred, implementation: Module) -> dict[str, str]:
    """The inferred layouts in words, by implementation input."""
    names = inferred.relation.inferred
    return {
        i.name: PER_RANK_TEXT
        if names.get(i.name) == OWN_TENSORS
        else describe(inferred.relation.inputs[i.name], implementation.mesh)
        for i in implementation.inputs
        if i.name in names
        and (implementation.mesh.size > 1 or names[i.name] == SIDE_BY_SIDE)
        and not is_draw(i.name)
    }


def layout_assumptions(
    layouts: Mapping[str, str], inferred: Inferred, reference: Module
) -> tuple[Assumption, ...]:
    """The inferred layouts, those of a distributed reference's own inputs included, as assumptions."""
    found = [Assumption("inferred_relation", f"{name}: {text}", name) for name, text in layouts.items()]
    if reference.mesh.size > 1:
        for name, spec in inferred.relation.reference.items():
            text = f"{name} of the reference: {describe(spec, reference.mesh)}"
            found.append(Assumption("reference_layout", text, name))
    return (*found, *alignment(_draws(inferred.relation)))


def _draws(relation: Relation) -> dict[str, str]:
    """The reference draw that each of the implementation's is made of."""
    return {name: relation.sources.get(name, name) for name in relation.inputs if is_draw(name)}


def assumptions_of(proof: Proof, reference: Module, implementation: Module) -> tuple[Assumption, ...]:
    swept = Swept(proof.reference, proof.implementation, proof.expected)
    return claims(proof.store, proof.composed, swept, reference, implementation)


def warnings_of(reference: Module, implementation: Module) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys((*reference.warnings, *implementation.warnings))) or None


def what_blocks(proof: Proof, finding: Finding | None) -> tuple[Blocked, ...]:
    if finding is None:
        return tuple(Blocked(n) for n, ok in proof.proved.items() if not ok)
    reason = proof.implementation.opaque.get(finding.value.name)
    from shardproof.solver.search.closest import closest_lemma

    foreign = reason is not None or finding.op.opcode in CUSTOM
    near = None if foreign else closest_lemma(proof, _around(proof, finding.value.name))
    if near is not None:
        return (Blocked(finding.value.name, near.lemma, near.reason),)
    return (Blocked(finding.value.name, failed_condition=reason or finding.found),)


def _around(proof: Proof, name: str) -> list[View]:
    """A value, those that read it over a few operators, and what its outputs should be."""
    names = {name: 0}
    for op in proof.composed.implementation.ops:
        depth = min((names[x.name] for x in op.operands if x.name in names), default=READERS)
        if depth < READERS:
            names.update((v.name, depth + 1) for v in op.results if v.name not in names)
    open_ = [o.value.name for o in proof.composed.expected.outputs if not proof.proved[o.name]]
    views = proof.implementation.views
    return [*(views[n] for n in names), *(proof.expected.views[n] for n in open_)]


def has_no_meaning(proof: Proof, finding: Finding | None) -> bool:
    return finding is not None and finding.value.name in proof.implementation.opaque


def reference_place(reference: Module, name: str | None) -> Place | None:
    for op in reference.ops:
        for v in op.results:
            if v.name == name:
                return Place.at(v.name, op.opcode, v.location)
    return None
