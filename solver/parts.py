"""Parts of a result, from a proof: outputs, layouts, assumptions, what blocks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from shardproof.ir.module import Module, Op
from shardproof.passes.decompose import CUSTOM_CALLS
from shardproof.solver.infer import OWN_TENSORS, Inferred
from shardproof.solver.placement import describe
from shardproof.solver.prove import Proof
from shardproof.solver.relation import BASE, Relation
from shardproof.solver.verdict import Assumption, Blocked, OutputVerdict, Place, Verdict

if TYPE_CHECKING:
    from shardproof.solver.locate import Finding

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
        if i.name in names and (implementation.mesh.size > 1)
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
    return tuple(found)


def assumptions_of(proof: Proof, reference: Module, implementation: Module) -> tuple[Assumption, ...]:
    found = [
        Assumption(kind, text.replace(BASE, ""), value)
        for (kind, text), value in proof.store.assumptions.items()
    ]
    known = _known(proof)
    for module in (reference, implementation):
        for op in _needed(module):
            if op.opcode in ("custom_call", "opaque") and op.result.name not in known:
                name = op.attrs.get("target") or op.attrs.get("name")
                claim = "is a function of its operands and attributes, the same on every rank"
                found.append(Assumption("opaque_function", f"`{_short(str(name))}` {claim}", op.result.name))
    unique = {(a.kind, a.text): a for a in reversed(found)}
    return tuple(reversed(unique.values()))


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _needed(module: Module) -> list[Op]:
    """The operators that some output depends on."""
    wanted = {o.value.name for o in module.outputs}
    needed = []
    for op in reversed(module.ops):
        if any(v.name in wanted for v in op.results):
            wanted.update(v.name for v in op.operands)
            needed.append(op)
    return needed[::-1]


def _known(proof: Proof) -> set[str]:
    """Values of composite operators that were written out, and operators that became fresh values."""
    written = {
        op.result.name
        for module in (proof.composed.reference, proof.composed.implementation)
        for op in module.ops
        if op.opcode == "custom_call" and op.attrs["target"] in CUSTOM_CALLS
    }
    return written | set(proof.reference.opaque) | set(proof.implementation.opaque)


def warnings_of(reference: Module, implementation: Module) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys((*reference.warnings, *implementation.warnings))) or None


def what_blocks(proof: Proof, finding: Finding | None) -> tuple[Blocked, ...]:
    if finding is None:
        return tuple(Blocked(n) for n, ok in proof.proved.items() if not ok)
    reason = proof.implementation.opaque.get(finding.value.name)
    return (Blocked(finding.value.name, failed_condition=reason or finding.found),)


def has_no_meaning(proof: Proof, finding: Finding | None) -> bool:
    return finding is not None and finding.value.name in proof.implementation.opaque


def reference_place(reference: Module, name: str | None) -> Place | None:
    for op in reference.ops:
        for v in op.results:
            if v.name == name:
                return Place.at(v.name, op.opcode, v.location)
    return None
