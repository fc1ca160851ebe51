"""`verify`: from two programs to a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardproof.frontends.source import Initializers
from shardproof.ir.module import Module, ModuleError, Op
from shardproof.passes.fold_ranks import Divergent
from shardproof.passes.roll import rolled
from shardproof.passes.unroll import has_loops, unrolled, unrolled_size
from shardproof.solver import relation_file
from shardproof.solver.apart import apart
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
from shardproof.solver.capture_relation import side_by_side, told_partly
from shardproof.solver.certificate import CertificateError
from shardproof.solver.certificate_file import write
from shardproof.solver.certify import lemma_assumptions, rechecked
from shardproof.solver.claims import unique
from shardproof.solver.collection import rare_collection
from shardproof.solver.infer import Inferred, infer
from shardproof.solver.meaning import CUSTOM, meant, target_of
from shardproof.solver.names import is_draw
from shardproof.solver.nodes import by_node
from shardproof.solver.pair import Pair, read_pair
from shardproof.solver.parts import (
    assumptions_of,
    layout_assumptions,
    layouts_of,
    output_verdicts,
    unchecked,
    warnings_of,
)
from shardproof.solver.placement import describe
from shardproof.solver.programs import Program, checked_only, mesh_of
from shardproof.solver.prove import Clock, Proof, TimeUp, prove
from shardproof.solver.randomness import with_draws
from shardproof.solver.refute import Replayed, replay
from shardproof.solver.relation import PER_RANK, Relation, compose
from shardproof.solver.run import Check, Progress, unknown
from shardproof.solver.stored_values import contradictions, difference
from shardproof.solver.verdict import Assumption, Blocked, LemmaUse, OutputVerdict, Place, Result, Verdict

LARGE: Final = 1_500
"""Fewest operators of both programs whose layers are looked for."""
EARLY: Final = 2_000
"""Most operators of all ranks together that are put side by side before lemmas are tried."""
UNROLLED: Final = 200_000
"""Most operators of a program whose loops are written out."""
SHORT: Final = 10_000
"""Most operators of both programs whose loops are written out before an induction with lemmas is tried."""
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


@rare_collection()
def verify(
    reference: Program,
    implementation: Program | Sequence[Program],
    *,
    relation: str | Path | relation_file.Declared | None = None,
    mesh: str | Mapping[str, int] | None = None,
    outputs: str = "natural",
    timeout: float | None = None,
    strict: bool = False,
    assume: Sequence[str] = (),
    save_relation: str | Path | None = None,
    lemmas: Sequence[str | Path] = (),
    certificate: str | Path | None = None,
    goals: str | Path | None = None,
    layers: bool = True,
    initializers: Initializers | None = None,
    progress: Progress | None = None,
) -> Result:
    """Whether `implementation` computes what `reference` does, on every rank, over the reals.

    Programs are files, the folders or files of saved captures, modules, captures, or graphs of live PyTorch
    objects; `implementation` is one SPMD program or the programs of all ranks. `relation` is a file
    (docs/relations.md) or its content; what it leaves out is inferred and listed. `mesh` names the axes, as
    in `{"dp": 2, "tp": 4}` or `"dp=2,tp=4"`, row-major over the ranks. `outputs="any"` also
    accepts outputs that are partial sums or whole on one rank only. `timeout` is in seconds. `assume`
    names implementation values that are taken to be right; `lemmas` are files with lemmas and definitions
    beyond the library (docs/lemmas.md). `certificate` is where a `verified` writes its certificate, `goals`
    the folder where an `unknown` writes what is left to prove as lemmas. With `layers` equal layers of large
    programs are proved as one loop. `initializers` says which stored tensors of ONNX models are inputs, that
    is any values: those that look like weights ("auto"), all ("inputs") or none ("constants"). Raises
    ModuleError for files that can't be read, RelationError for relations that don't fit.
    """
    if outputs not in ("natural", "any"):
        raise ModuleError(f"outputs is `natural` or `any`, not `{outputs}`")
    check = Check(
        strict, assume, outputs, Clock(timeout), progress or (lambda name, fraction: None), tuple(lemmas)
    )
    check.certificate, check.goals, check.layers = certificate, goals, layers
    check.phase("read", 0.0)
    declared = relation_file.told(relation)
    if initializers is not None:
        declared = replace(declared, initializers=initializers)
    try:
        pair = read_pair(
            reference, implementation, declared, (declared.reference_mesh, mesh_of(mesh) or declared.mesh)
        )
    except Divergent as e:
        check.done("read")
        return unknown(check, "U02", str(e), findings=(str(e),))
    first, second = pair.reference, pair.implementation
    check.names = pair.names
    check.instructions = len(first.ops) + len(second.ops)
    first, second = _written_out(check, first, second)
    check.guesses = tuple(a for a in pair.assumed if not _settled(a, (first, second)))
    check.done("read")
    check.phase("relation", 0.1)
    relations = relation_file.resolve(pair.declared, first, second)
    relations = told_partly(relations, pair.captured, declared)
    if pair.side_by_side:
        relations = side_by_side(relations, first, second)
    if pair.dumps == 2:
        named = {relations.sources.get("output " + name, name) for name in relations.outputs}
        first = checked_only(first, named)
    inferred = infer(first, second, relations, pair.captured.data if pair.captured is not None else ())
    wrong = contradicted(check, pair, inferred, first, second)
    check.done("relation")
    if wrong is not None:
        return wrong
    try:
        small = len(second.ops) * second.mesh.size <= EARLY

        def side_by_side_first() -> Result | None:
            return _apart(check, pair, first, second, inferred, search=False) if small else None

        result = _check(check, first, second, inferred, early=side_by_side_first)
        if result.verdict is Verdict.UNKNOWN and not inferred.gaps:
            other = _apart(check, pair, first, second, inferred)
            result = result if other is None else other
    except TimeUp:
        limit = "the time that a part of it may take" if timeout is None else f"{timeout:g} s"
        result = unknown(check, "U04", f"no answer within {limit}")
    if save_relation is not None and not inferred.gaps:
        text = relation_file.write(inferred.relation, second.mesh, first.mesh)
        Path(save_relation).write_text(text, encoding="utf-8")
    told = [name for name in ("groups", "reference_groups", "constants") if getattr(declared, name)]
    if pair.constants_used and "constants" in told:
        told.remove("constants")
    if told and not pair.dumps:
        idle = f"sections {', '.join(told)} of the relation are not used: the programs state their own"
        result = replace(result, findings=(*(result.findings or ()), idle))
    if result.verdict is Verdict.REFUTED and pair.stored is not None and pair.told:
        result = _upheld(check, pair, first, second, inferred, result)
    if pair.told:
        result = replace(result, findings=(*(result.findings or ()), *pair.told))
    if any(pair.torch):
        own = [m for m, torch in zip((first, second), pair.torch, strict=True) if not torch]
        result = by_node(result, _named(first, second) | _values(*own))
    return replace(result, mesh=str(second.mesh) if second.mesh.size > 1 else "")


def _upheld(
    check: Check, pair: Pair, reference: Module, implementation: Module, inferred: Inferred, result: Result
) -> Result:
    """A refutation where weights are related by what they hold, if it is one of the files, too."""
    from shardproof.solver.stored_refutation import upheld

    assert pair.stored is not None
    relation, weights = inferred.relation, pair.stored.whole
    try:
        if upheld(reference, implementation, relation, weights, check.clock, certain=pair.certain):
            return result
    except TimeUp:
        pass
    text = "they differ for some weights, not for those in the files: which belong together is not certain"
    outputs = tuple(replace(o, verdict=Verdict.UNKNOWN) for o in result.outputs)
    help = ("--initializers constants compares the programs with the weights in the files",)
    return unknown(check, "U10", text, outputs=outputs, location=result.location, help=help)


def contradicted(
    check: Check, pair: Pair, inferred: Inferred, reference: Module, implementation: Module
) -> Result | None:
    """The verdict where the files' stored tensors do not hold what the relation says of them."""
    if pair.stored is None or inferred.gaps or reference.mesh.size > 1:
        return None
    wrong = contradictions(pair.stored, inferred.relation, implementation.mesh)
    if not wrong:
        return None
    first, count = wrong[0], len({f.name for f in wrong})
    text = f"rank {first.rank}'s" if implementation.mesh.size > 1 else "the implementation's"
    more = f" (and {count - 1} more)" if count > 1 else ""
    return unknown(
        check,
        "U16",
        f"{text} `{first.name}` does not hold {first.expected}{more}: {first.cause or difference(first)}",
        blocked=tuple(Blocked(n) for n in dict.fromkeys(f.name for f in wrong)),
        outputs=tuple(OutputVerdict(o.name, "not checked", Verdict.UNKNOWN) for o in reference.outputs),
        help=(
            "correct the file or declare the layout; to compare the programs for all weights, whatever the "
            "files hold, pass --initializers inputs",
        ),
    )


def _apart(
    check: Check,
    pair: Pair,
    reference: Module,
    implementation: Module,
    inferred: Inferred,
    search: bool = True,
) -> Result | None:
    """A proof with the ranks side by side, told of all ranks as one, if there is one."""
    found = apart(implementation, pair.captured, reference, inferred.relation)
    if found is None:
        return None
    (module,) = [with_draws(m.module) for m in meant((found[0],), check.lemmas)]
    own = infer(reference, module, found[1])
    if own.gaps or own.relation.inputs.keys() != found[1].inputs.keys():
        return None
    try:
        result = _check(check, reference, module, own, search=search and pair.captured is not None)
    except TimeUp:
        return None
    if result.verdict is not Verdict.VERIFIED:
        return None
    relation = inferred.relation
    layouts = layouts_of(inferred, implementation)
    rest = (a for a in result.assumptions if a.kind != "inferred_relation")
    return replace(
        result,
        outputs=tuple(
            OutputVerdict(
                relation.sources.get("output " + name, name),
                describe(placement, implementation.mesh),
                Verdict.VERIFIED,
            )
            for name, placement in relation.outputs.items()
        ),
        assumptions=(*layout_assumptions(layouts, inferred, reference), *rest),
        inferred_relation=layouts or None,
    )


def _named(*modules: Module) -> set[str]:
    """The names of inputs and outputs."""
    return {v.name for m in modules for v in m.inputs} | {v.name for m in modules for v in m.outputs}


def _values(*modules: Module) -> set[str]:
    """The names of all values."""
    return {v.name for m in modules for op in m.ops for v in op.results}


def _settled(guess: Assumption, modules: Sequence[Module]) -> bool:
    """Whether a guess is about an operator that a definition describes, which leaves nothing to guess."""
    if guess.kind != "opaque_batched":
        return False
    left = (target_of(op) for m in modules for op in m.ops if op.opcode in CUSTOM)
    return not any(target.startswith(guess.value or "") for target in left)


def _written_out(check: Check, reference: Module, implementation: Module) -> list[Module]:
    """Both programs with the meaning of their custom operators, their random draws as inputs."""
    both = meant((reference, implementation), check.lemmas)
    check.defines = unique(a for m in both for a in m.assumptions)
    return [with_draws(m.module) for m in both]


def _check(
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
        return _no_relation(check, reference, implementation, inferred)
    found = _by_layers(check, reference, implementation, inferred)
    if found is not None:
        return found
    composed = compose(reference, implementation, relation)
    check.done("relation")
    check.phase("prove", 0.2)
    proof = without_lemmas(composed, check.clock, check.seconds)
    check.classes = len(proof.store.classes)
    placements = _placements(relation, implementation)
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
                return _unstable(check, op, proof, relation, placements)
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
    wrong = _false_lemma(proof)
    if wrong is not None:
        own = (relation.sources.get("output " + name, name) for name in proof.proved)
        outputs = tuple(OutputVerdict(name, "not checked", Verdict.UNKNOWN) for name in own)
        return unknown(check, "U12", wrong, outputs=outputs)
    if proof.complete:
        return _verified(check, proof, inferred, reference, implementation, placements, extra)
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
        if not proof.complete or _false_lemma(proof) is not None or misplaced(plain, second) is not None:
            return None
    if not proof.complete:
        return None
    check.classes = len(proof.store.classes)
    placements = _placements(inferred.relation, second)
    return _verified(check, proof, inferred, first, second, placements, ())


def _placements(relation: Relation, implementation: Module) -> dict[str, str]:
    """How every output that is checked must be laid out, in words."""
    return {
        o.name: "rank by rank"
        if relation.reference_outputs.get(relation.sources.get("output " + o.name, "")) == PER_RANK
        else describe(relation.outputs[o.name], implementation.mesh)
        for o in implementation.outputs
        if o.name in relation.outputs
    }


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
        return _check(check, first, second, inferred, search=search)
    composed = compose(first, second, inferred.relation)
    proof = prove(composed, check.clock, PLAINLY, seconds=check.seconds)
    placements = _placements(inferred.relation, second)
    if proof.complete:
        return _verified(check, proof, inferred, first, second, placements, ())
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
        return _check(check, first, second, inferred, replayed=replayed, early=early)
    from shardproof.solver.unproved import unproved

    return unproved(check, proof, inferred, first, second, placements, replayed)


def _by_induction(
    check: Check, plain: Proof, reference: Module, implementation: Module, inferred: Inferred
) -> Result | None:
    """The verdict of an induction with lemmas, if there is one."""
    from shardproof.solver.stabiliser import misplaced

    proof = briefly(plain.composed, plain, check.clock, check.seconds, theory_of(check.lemmas))
    check.done("lemmas")
    if not proof.complete or _false_lemma(proof) is not None:
        return None
    relation = inferred.relation
    placements = _placements(relation, implementation)
    op = misplaced(plain, implementation)
    if op is not None:
        return _unstable(check, op, proof, relation, placements)
    return _verified(check, proof, inferred, reference, implementation, placements, ())


def _false_lemma(proof: Proof) -> str | None:
    if not proof.instances:
        return None
    from shardproof.solver.usage import false_lemma

    return false_lemma(proof)


def _unstable(
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
    from shardproof.solver.usage import used

    return used(proof)


def _verified(
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


def _no_relation(check: Check, reference: Module, implementation: Module, inferred: Inferred) -> Result:
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
