"""`verify`: from two programs to a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardproof.frontends.source import Initializers
from shardproof.ir.module import Module, ModuleError
from shardproof.passes.fold_ranks import Divergent
from shardproof.solver.apart import apart
from shardproof.solver.certificates.claims import unique
from shardproof.solver.collection import rare_collection
from shardproof.solver.decide import decide
from shardproof.solver.meaning import CUSTOM, meant, target_of
from shardproof.solver.nodes import by_node
from shardproof.solver.pair import Pair, read_pair
from shardproof.solver.parts import (
    layout_assumptions,
    layouts_of,
)
from shardproof.solver.programs import Program, checked_only, mesh_of
from shardproof.solver.prove import Clock, TimeUp
from shardproof.solver.randomness import with_draws
from shardproof.solver.relations import relation_file
from shardproof.solver.relations.capture_relation import side_by_side, told_partly
from shardproof.solver.relations.infer import Inferred, infer
from shardproof.solver.relations.placement import describe
from shardproof.solver.relations.stored_values import contradictions, difference
from shardproof.solver.run import Check, Progress, unknown
from shardproof.solver.verdict import Assumption, Blocked, OutputVerdict, Result, Verdict

EARLY: Final = 2_000
"""Most operators of all ranks together that are put side by side before lemmas are tried."""


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

        result = decide(check, first, second, inferred, early=side_by_side_first)
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
    from shardproof.solver.relations.stored_refutation import upheld

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
        result = decide(check, reference, module, own, search=search and pair.captured is not None)
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


