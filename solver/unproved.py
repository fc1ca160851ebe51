"""What a run says when the proof does not go through: refuted with a counterexample, or unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardproof.ir.module import Module
from shardproof.passes.views import View
from shardproof.solver.certificates.certify import lemma_assumptions
from shardproof.solver.counterpart import Alignment
from shardproof.solver.locate.faults import fault
from shardproof.solver.locate.finding import Finding
from shardproof.solver.locate.locate import locate
from shardproof.solver.meaning import CUSTOM, target_of
from shardproof.solver.names import drawn
from shardproof.solver.parts import (
    assumptions_of,
    has_no_meaning,
    layout_assumptions,
    layouts_of,
    output_verdicts,
    reference_place,
    unchecked,
    warnings_of,
    what_blocks,
)
from shardproof.solver.prove import Proof
from shardproof.solver.relations.infer import Inferred, unread
from shardproof.solver.relations.relation import Relation
from shardproof.solver.replay.outcome import Difference
from shardproof.solver.replay.refute import Replayed, differs_anyway, misread, other_layout, rank_orders
from shardproof.solver.run import Check, unknown
from shardproof.solver.verdict import Counterexample, Place, Result, Verdict

OF_PROOFS: Final = frozenset(
    {
        "assume_lemma",
        "constant_tolerance",
        "literal_rounding",
        "mask_value",
        "row_not_fully_masked",
        "tested_lemma",
    }
)
"""Kinds of assumption that the search for the place may have used, but no program that was run."""


def unproved(
    check: Check,
    proof: Proof,
    inferred: Inferred,
    reference: Module,
    implementation: Module,
    placements: Mapping[str, str],
    replayed: Replayed,
) -> Result:
    """Locate the departure, and judge whether the difference that the replay found refutes."""
    check.phase("locate", 0.5)
    relation = inferred.relation
    failing = [n for n, ok in proof.proved.items() if not ok]
    alignment = Alignment(proof, relation, reference, implementation)
    alignment.run()
    finding = locate(alignment, failing, check.clock)
    check.done("locate")
    doubt = None
    if replayed.difference is not None:
        doubt = _other_explanation(check, proof, inferred, reference, implementation, finding)
        check.done("layouts")
        if doubt is None:
            finding = fault(alignment, failing, replayed.difference, check.clock, finding)
            check.done("locate")
    layouts = layouts_of(inferred, implementation)
    common: dict[str, Any] = {
        "outputs": output_verdicts(proof, relation, placements),
        "unchecked_outputs": unchecked(relation, implementation),
        "assumptions": (
            *layout_assumptions(layouts, inferred, reference),
            *assumptions_of(proof, reference, implementation),
            *lemma_assumptions(proof),
            *check.defines,
        ),
        "inferred_relation": layouts or None,
        "findings": warnings_of(reference, implementation),
    }
    if finding is not None:
        common |= {
            "location": Place.at(finding.value.name, finding.op.opcode, finding.value.location),
            "expected": finding.expected,
            "found": finding.found,
            "repair": finding.repair,
            "reference_location": reference_place(reference, finding.reference),
        }
    if replayed.difference is not None:
        if doubt is None:
            return _refuted(check, finding, replayed.difference, common, relation, implementation)
        code, text = doubt
        declare = "declare the layout in a relation file (--relation; --save-relation writes one to edit)"
        common["help"] = (declare,)
        return unknown(check, code, text, blocked=what_blocks(proof, finding), **common)
    help_, notes = [], []
    if finding is not None:
        what = "a lemma for it"
        if finding.op.opcode in CUSTOM:
            what = f"a definition of `{target_of(finding.op)}`"
        accept = f"accept the value with --assume {finding.value.name}"
        help_.append(f"write {what} (docs/lemmas.md, --lemmas FILE), or {accept}")
    if replayed.reason is not None:
        notes.append(f"replay gave no answer: {replayed.reason}")
    code = "U03" if has_no_meaning(proof, finding) else "U02"
    message = (
        f"nothing relates `{finding.value.name}` ({finding.op.opcode}) to the reference"
        if finding is not None
        else "an output is not proved"
    )
    if finding is not None and finding.value.name in proof.implementation.opaque:
        why = proof.implementation.opaque[finding.value.name]
        message = f"`{finding.value.name}` ({finding.op.opcode}) has no known meaning: {why}"
    if check.goals is not None:
        notes += write_goals(Path(check.goals), proof, alignment, finding, failing)
    return unknown(
        check,
        code,
        message,
        blocked=what_blocks(proof, finding),
        tested_equal=replayed.tested,
        notes=tuple(notes),
        help=tuple(help_),
        **common,
    )


def write_goals(
    folder: Path, proof: Proof, alignment: Alignment, finding: Finding | None, failing: Sequence[str]
) -> list[str]:
    """Write what is left to prove of each output, and of the value that blocks it where proving that is
    enough, as lemma files; says which files were written."""
    from shardproof.solver.certificates.stepping import undone
    from shardproof.solver.search.goals import goal
    from shardproof.solver.sweep import sides

    blocking: list[tuple[str, str, View, View]] = []
    wanted = alignment.matches[finding.value.name].view if finding is not None else None
    if finding is not None and finding.proves and wanted is not None:
        place = Place.at(finding.value.name, finding.op.opcode, finding.value.location)
        where = f"{place.file}:{place.line}" if place.file is not None else ""
        found = proof.implementation.views[finding.value.name]
        blocking.append((finding.value.name, where, wanted, found))
    composed = proof.composed
    for out, own in zip(composed.expected.outputs, composed.implementation.outputs, strict=True):
        if own.name in failing:
            a, b = proof.expected.views[out.value.name], proof.implementation.views[own.value.name]
            blocking.append((f"output {own.name}", "", a, b))
    folder.mkdir(parents=True, exist_ok=True)
    notes = []
    for name, where, a, b in blocking:
        with undone(proof.store):
            both = sides(proof.store, a, b)
            if both is None:
                continue
            text = goal(proof.store, *both, name, where)
        file = folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.lemma"
        file.write_text(text, encoding="utf-8")
        notes.append(f"what is left to prove is in {file}")
    return notes


def _refuted(
    check: Check,
    finding: Finding | None,
    d: Difference,
    common: dict[str, Any],
    relation: Relation,
    implementation: Module,
) -> Result:
    shape = next(o.value.type.shape for o in implementation.outputs if o.name == d.output)
    extents = {f"dim {k}": n for k, n in enumerate(shape)}
    own = relation.sources.get("output " + d.output, d.output)
    message = f"output `{d.output}` differs"
    if finding is not None:
        subject = "" if finding.found.startswith("`") else f"`{finding.value.name}` "
        message = subject + finding.found
        message += f", the reference needs {finding.expected}" if finding.code == "R03" else ""
    common["assumptions"] = tuple(a for a in common["assumptions"] if a.kind not in OF_PROOFS)
    outputs = tuple(
        replace(o, verdict=Verdict.REFUTED if o.name == own else o.verdict) for o in common["outputs"]
    )
    return Result(
        verdict=Verdict.REFUTED,
        code=finding.code if finding is not None else "R01",
        counterexample=Counterexample(
            d.seed, d.rank, d.output, d.index, d.reference, d.implementation, extents
        ),
        stats=check.stats(),
        message=message,
        **{**common, "outputs": outputs},
    )


def _other_explanation(
    check: Check,
    proof: Proof,
    inferred: Inferred,
    reference: Module,
    implementation: Module,
    finding: Finding | None,
) -> tuple[str, str] | None:
    """Why a difference under an inferred relation is no refutation: (code, text), or None when it is one."""
    loose = sorted(set(inferred.relation.independent) - unread(implementation))
    if loose:
        name = drawn(loose[0])
        return "U10", f"the outputs differ, but which draw of the reference `{name}` stands for is not known"
    if not inferred.relation.inferred:
        return None
    wrong = misread(implementation, reference, inferred)
    if wrong is not None:
        return None
    check.phase("layouts", 0.9)
    rearranged = finding.value.name if finding is not None and finding.rearranged else None
    other = other_layout(reference, implementation, inferred, check.clock, rearranged)
    if other is not None:
        return other
    orders = rank_orders(implementation.ops)
    if finding is not None and finding.proves and not finding.ordered and not orders:
        return None
    if not inferred.alternatives and not orders:
        return None
    lacks_a_sum = finding is not None and finding.code == "R02"
    if lacks_a_sum and not orders and differs_anyway(reference, implementation, inferred, check.clock):
        return None
    unsure = ", ".join(sorted(inferred.alternatives)[:3]) or "the order of ranks"
    return "U10", f"the outputs differ under the inferred layout, but the layout of {unsure} is not certain"
