"""`verify`: from two programs to a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardproof.frontends.load import load
from shardproof.frontends.locate import configured_wrapper_files
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Mesh
from shardproof.ir.verify import verify as verify_module
from shardproof.passes.fold_ranks import Divergent, fold_ranks
from shardproof.passes.mesh_axes import mesh_axes
from shardproof.passes.views import View
from shardproof.solver import relation_file
from shardproof.solver.infer import Inferred, infer
from shardproof.solver.placement import describe
from shardproof.solver.prove import Clock, Proof, TimeUp, prove
from shardproof.solver.relation import Composed, Relation, compose
from shardproof.solver.verdict import (
    Assumption,
    Blocked,
    Counterexample,
    OutputVerdict,
    Place,
    Result,
    Stats,
    Verdict,
)

if TYPE_CHECKING:
    from shardproof.solver.locate import Finding
    from shardproof.solver.refute import Replayed

Program = str | Path | Module
Progress = Callable[[str, float], None]


@dataclass(slots=True)
class Check:
    """One run: its options, what it has found so far, and the time it took."""

    strict: bool
    assume: Sequence[str]
    outputs: str
    clock: Clock
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    instructions: int = 0
    classes: int = 0
    names: tuple[str, str] = ("", "")
    _last: float = field(default_factory=time.perf_counter)

    def phase(self, name: str, fraction: float) -> None:
        """Start a phase; the time since the last one is its own."""
        self.progress(name, fraction)
        self._last = time.perf_counter()

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def stats(self) -> Stats:
        return Stats(dict(self.seconds), self.instructions, self.classes)


def verify(
    reference: Program,
    implementation: Program | Sequence[Program],
    *,
    relation: str | Path | None = None,
    mesh: str | Mapping[str, int] | None = None,
    outputs: str = "natural",
    timeout: float | None = None,
    strict: bool = False,
    assume: Sequence[str] = (),
    save_relation: str | Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Whether `implementation` computes what `reference` does, on every rank, over the reals.

    `implementation` is one SPMD program or the programs of all ranks. `relation` is a file
    (docs/relations.md); what it leaves out is inferred and listed. `mesh` names the axes, as in
    `{"dp": 2, "tp": 4}` or `"dp=2,tp=4"`, row-major over the ranks. `outputs="any"` also
    accepts outputs that are partial sums or whole on one rank only. `timeout` is in seconds. `assume`
    names implementation values that are taken to be right. Raises ModuleError for files that can't be
    read, RelationError for relations that don't fit.
    """
    if outputs not in ("natural", "any"):
        raise ModuleError(f"outputs is `natural` or `any`, not `{outputs}`")
    check = Check(strict, assume, outputs, Clock(timeout), progress or (lambda name, fraction: None))
    check.phase("read", 0.0)
    declared = relation_file.read(relation) if relation is not None else relation_file.Declared()
    wanted = mesh_of(mesh) or declared.mesh
    first = _module(reference, None)
    first = mesh_axes(first, _sized(declared.reference_mesh, first, "reference"))
    try:
        second = _implementation(implementation, wanted)
    except Divergent as e:
        check.done("read")
        return _unknown(check, "U02", str(e), findings=(str(e),))
    second = mesh_axes(second, _sized(wanted, second, "implementation"))
    check.names = first.name, second.name
    check.instructions = len(first.ops) + len(second.ops)
    check.done("read")
    check.phase("relation", 0.1)
    inferred = infer(first, second, relation_file.resolve(declared, first, second))
    check.done("relation")
    try:
        result = _check(check, first, second, inferred)
    except TimeUp:
        result = _unknown(check, "U04", f"no answer within {timeout:g} s")
    if save_relation is not None and not inferred.gaps:
        text = relation_file.write(inferred.relation, second.mesh, first.mesh)
        Path(save_relation).write_text(text, encoding="utf-8")
    return replace(result, mesh=str(second.mesh) if second.mesh.size > 1 else "")


def mesh_of(mesh: str | Mapping[str, int] | None) -> Mesh | None:
    """A mesh from a mapping or from text such as `dp=2,tp=4`."""
    if mesh is None:
        return None
    if isinstance(mesh, str):
        pairs = [part.partition("=") for part in mesh.split(",")]
        if not all(name.strip() and size.strip().isdecimal() for name, _, size in pairs):
            raise ModuleError(f"mesh `{mesh}`: write axes and sizes, as in dp=2,tp=4")
        mesh = {name.strip(): int(size) for name, _, size in pairs}
    if any(n < 1 for n in mesh.values()):
        raise ModuleError(f"mesh {dict(mesh)}: every axis has at least one rank")
    return Mesh(tuple(mesh.items()))


def _sized(mesh: Mesh | None, module: Module, role: str) -> Mesh | None:
    if mesh is not None and mesh.size != module.mesh.size:
        raise ModuleError(f"the {role} runs on {module.mesh.size} ranks, the mesh {mesh} has {mesh.size}")
    return mesh


def _module(program: Program, ranks: int | None) -> Module:
    if isinstance(program, Module):
        verify_module(program)
        return program
    return load(program, ranks=ranks, wrapper_files=configured_wrapper_files(Path.cwd()))


def _implementation(given: Program | Sequence[Program], mesh: Mesh | None) -> Module:
    ranks = mesh.size if mesh is not None else None
    if isinstance(given, str | Path | Module):
        return _module(given, ranks)
    if not given:
        raise ModuleError("no implementation is given")
    if len(given) == 1:
        return _module(given[0], ranks)
    modules = [_module(g, len(given)) for g in given]
    folded = fold_ranks(modules)
    verify_module(folded)
    return folded


# from programs and relation to a result


def _check(check: Check, reference: Module, implementation: Module, inferred: Inferred) -> Result:
    relation = inferred.relation
    if inferred.gaps:
        return _no_relation(check, reference, implementation, inferred)
    composed = compose(reference, implementation, relation)
    check.done("relation")
    check.phase("prove", 0.2)
    proof = prove(composed, check.clock, seconds=check.seconds)
    check.classes = len(proof.store.classes)
    if not proof.complete:
        for reading in (False, True):
            assuming = prove(
                composed,
                check.clock,
                lenient=True,
                reading=reading,
                seconds=check.seconds,
                bounds=proof.store.wishes,
            )
            if assuming.complete:
                proof = assuming
                break
    extra: tuple[Assumption, ...] = ()
    placements = {
        o.name: describe(relation.outputs[o.name], implementation.mesh)
        for o in implementation.outputs
        if o.name in relation.outputs
    }
    if not proof.complete and check.assume:
        extra = _assume(check, proof, relation, reference, implementation)
    if not proof.complete and check.outputs == "any":
        _accept_any(proof, implementation, placements)
    if proof.complete:
        return _verified(check, proof, inferred, reference, implementation, placements, extra)
    return _failed(check, proof, inferred, reference, implementation, placements)


def _verified(
    check: Check,
    proof: Proof,
    inferred: Inferred,
    reference: Module,
    implementation: Module,
    placements: Mapping[str, str],
    extra: tuple[Assumption, ...],
) -> Result:
    layouts = _layouts(inferred, implementation)
    assumptions = (*_layout_assumptions(layouts), *_assumptions(proof, reference, implementation), *extra)
    own, other = check.names
    result = Result(
        verdict=Verdict.VERIFIED,
        code="V02" if layouts else "V01",
        outputs=_outputs(proof, inferred.relation, placements),
        unchecked_outputs=_unchecked(inferred.relation, implementation),
        assumptions=assumptions,
        inferred_relation=layouts or None,
        stats=check.stats(),
        message=f"{other} refines {own}",
        findings=_warnings(reference, implementation),
    )
    if check.strict and (layouts or any(a.kind in STRICT for a in assumptions)):
        why = "an inferred layout" if layouts else "a guess"
        return replace(
            result,
            verdict=Verdict.UNKNOWN,
            code="U08",
            message=f"proved, but it rests on {why}, which --strict does not accept",
            help=("declare the layouts in a relation file (--save-relation writes one to review)",),
        )
    return result


STRICT = frozenset({"inferred_relation", "group_guess", "constant_guess", "tested_lemma", "user_assumed"})


def _failed(
    check: Check,
    proof: Proof,
    inferred: Inferred,
    reference: Module,
    implementation: Module,
    placements: Mapping[str, str],
) -> Result:
    from shardproof.solver.counterpart import Alignment
    from shardproof.solver.locate import locate
    from shardproof.solver.refute import replay

    check._last = time.perf_counter()
    check.phase("locate", 0.5)
    relation = inferred.relation
    failing = [n for n, ok in proof.proved.items() if not ok]
    alignment = Alignment(proof, relation, reference, implementation)
    alignment.run()
    finding = locate(alignment, failing, check.clock)
    check.done("locate")
    check.phase("replay", 0.7)
    replayed = replay(proof.composed, check.clock)
    check.done("replay")
    layouts = _layouts(inferred, implementation)
    common: dict[str, Any] = {
        "outputs": _outputs(proof, relation, placements),
        "unchecked_outputs": _unchecked(relation, implementation),
        "assumptions": (*_layout_assumptions(layouts), *_assumptions(proof, reference, implementation)),
        "inferred_relation": layouts or None,
        "findings": _warnings(reference, implementation),
    }
    if finding is not None:
        common |= {
            "location": Place.at(finding.value.name, finding.op.opcode, finding.value.location),
            "expected": finding.expected,
            "found": finding.found,
            "repair": finding.repair,
            "reference_location": _reference_place(reference, finding.reference),
        }
    if replayed.difference is not None:
        blocked_by = _other_explanation(check, proof, inferred, reference, implementation, finding)
        check.done("layouts")
        if blocked_by is None:
            return _refuted(check, finding, replayed, common, failing)
        code, text = blocked_by
        return _unknown(check, code, text, blocked=_blocked(proof, finding), **common)
    help_, notes = [], []
    if finding is not None:
        help_.append(f"write a lemma for it, or accept the value with --assume {finding.value.name}")
    if replayed.reason is not None:
        notes.append(f"replay gave no answer: {replayed.reason}")
    code = "U03" if _opaque_block(proof, finding) else "U02"
    message = (
        f"nothing relates `{finding.value.name}` ({finding.op.opcode}) to the reference"
        if finding is not None
        else "an output is not proved"
    )
    if finding is not None and finding.value.name in proof.implementation.opaque:
        why = proof.implementation.opaque[finding.value.name]
        message = f"`{finding.value.name}` ({finding.op.opcode}) has no known meaning: {why}"
    return _unknown(
        check,
        code,
        message,
        blocked=_blocked(proof, finding),
        tested_equal=replayed.tested,
        notes=tuple(notes),
        help=tuple(help_),
        **common,
    )


def _refuted(
    check: Check, finding: Finding | None, replayed: Replayed, common: dict[str, Any], failing: Sequence[str]
) -> Result:
    d = replayed.difference
    assert d is not None
    message = f"output `{d.output}` differs"
    if finding is not None:
        subject = "" if finding.found.startswith("`") else f"`{finding.value.name}` "
        message = subject + finding.found
        message += f", the reference needs {finding.expected}" if finding.code == "R03" else ""
    outputs = tuple(
        replace(o, verdict=Verdict.REFUTED if o.name == d.output else o.verdict) for o in common["outputs"]
    )
    return Result(
        verdict=Verdict.REFUTED,
        code=finding.code if finding is not None else "R01",
        counterexample=Counterexample(
            d.seed, d.rank, d.output, d.index, d.reference, d.implementation, replayed.extents
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
    from shardproof.solver.refute import misread, other_layout, rank_orders

    if not inferred.relation.inferred:
        return None
    wrong = misread(implementation, reference, inferred)
    if wrong is not None:
        return None
    check.phase("layouts", 0.9)
    other = other_layout(reference, implementation, inferred, check.clock)
    if other is not None:
        name, layout = other
        return "U06", f"not proved as inferred; it would hold if `{name}` were laid out as {layout}"
    orders = rank_orders(implementation.ops)
    if finding is not None and finding.proves and not finding.ordered and not orders:
        return None
    only = not inferred.alternatives and not orders
    if only:
        return None
    unsure = ", ".join(sorted(inferred.alternatives)[:3]) or "the order of ranks"
    return "U10", f"the outputs differ under the inferred layout, but the layout of {unsure} is not certain"


def _no_relation(
    check: Check, reference: Module, implementation: Module, inferred: Inferred
) -> Result:
    gap = inferred.gaps[0]
    count = len(inferred.gaps)
    what = gap.name if gap.name.startswith("output") else f"input {gap.name}"
    code = "U07" if gap.ambiguous else "U05" if gap.name.startswith("output") else "U01"
    kind, _, name = what.partition(" ")
    message = f"no layout can be inferred for {kind} `{name}`: {gap.reason}"
    if count > 1:
        message += f" (and {count - 1} more)"
    return _unknown(
        check,
        code,
        message,
        blocked=tuple(Blocked(g.name, failed_condition=g.reason) for g in inferred.gaps),
        outputs=tuple(OutputVerdict(o.name, "not checked", Verdict.UNKNOWN) for o in reference.outputs),
        findings=_warnings(reference, implementation),
        help=(
            "declare the layout in a relation file (--relation, docs/relations.md); "
            "names and padding are yours to state",
        ),
    )


def _unknown(check: Check, code: str, message: str, **fields: Any) -> Result:
    return Result(verdict=Verdict.UNKNOWN, code=code, message=message, stats=check.stats(), **fields)


# parts of a result


def _outputs(proof: Proof, relation: Relation, placements: Mapping[str, str]) -> tuple[OutputVerdict, ...]:
    return tuple(
        OutputVerdict(
            relation.sources.get("output " + name, name),
            placements.get(name, ""),
            Verdict.VERIFIED if ok else Verdict.UNKNOWN,
        )
        for name, ok in proof.proved.items()
    )


def _unchecked(relation: Relation, implementation: Module) -> tuple[str, ...]:
    return tuple(o.name for o in implementation.outputs if o.name not in relation.outputs)


def _layouts(inferred: Inferred, implementation: Module) -> dict[str, str]:
    """The inferred layouts in words, by implementation input."""
    names = inferred.relation.inferred
    return {
        i.name: describe(inferred.relation.inputs[i.name], implementation.mesh)
        for i in implementation.inputs
        if i.name in names and (implementation.mesh.size > 1)
    }


def _layout_assumptions(layouts: Mapping[str, str]) -> tuple[Assumption, ...]:
    return tuple(Assumption("inferred_relation", f"{name}: {text}", name) for name, text in layouts.items())


def _assumptions(proof: Proof, reference: Module, implementation: Module) -> tuple[Assumption, ...]:
    found = [Assumption(kind, text, value) for (kind, text), value in proof.store.assumptions.items()]
    for module in (reference, implementation):
        for op in module.ops:
            if op.opcode in ("custom_call", "opaque") and op.result.name not in _known(proof):
                name = op.attrs.get("target") or op.attrs.get("name")
                claim = "is a function of its operands and attributes, the same on every rank"
                found.append(Assumption("opaque_function", f"`{_short(str(name))}` {claim}", op.result.name))
    unique = {(a.kind, a.text): a for a in reversed(found)}
    return tuple(reversed(unique.values()))


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _known(proof: Proof) -> set[str]:
    """Values of composite operators that were written out, and operators that became fresh values."""
    from shardproof.passes.decompose import CUSTOM_CALLS

    written = {
        op.result.name
        for module in (proof.composed.reference, proof.composed.implementation)
        for op in module.ops
        if op.opcode == "custom_call" and op.attrs["target"] in CUSTOM_CALLS
    }
    return written | set(proof.reference.opaque) | set(proof.implementation.opaque)


def _warnings(reference: Module, implementation: Module) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys((*reference.warnings, *implementation.warnings))) or None


def _blocked(proof: Proof, finding: Finding | None) -> tuple[Blocked, ...]:
    if finding is None:
        return tuple(Blocked(n) for n, ok in proof.proved.items() if not ok)
    reason = proof.implementation.opaque.get(finding.value.name)
    return (Blocked(finding.value.name, failed_condition=reason or finding.found),)


def _opaque_block(proof: Proof, finding: Finding | None) -> bool:
    return finding is not None and finding.value.name in proof.implementation.opaque


def _reference_place(reference: Module, name: str | None) -> Place | None:
    for op in reference.ops:
        for v in op.results:
            if v.name == name:
                return Place.at(v.name, op.opcode, v.location)
    return None


# options


def _assume(
    check: Check, proof: Proof, relation: Relation, reference: Module, implementation: Module
) -> tuple[Assumption, ...]:
    """Take the named implementation values to be their counterparts, and compare the outputs again."""
    from shardproof.solver.counterpart import Alignment, Status
    from shardproof.solver.locate import rerun
    from shardproof.solver.prove import equal

    alignment = Alignment(proof, relation, reference, implementation)
    alignment.run()
    replaced: dict[str, View] = {}
    out = []
    for name in check.assume:
        match = alignment.matches.get(name)
        if match is None:
            raise ModuleError(f"--assume `{name}`: the implementation has no such value")
        if match.status is not Status.SAME and match.view is not None:
            replaced[name] = match.view
            out.append(Assumption("user_assumed", f"`{name}` is `{match.reference}` of the reference", name))
    if replaced:
        state = rerun(alignment, replaced)
        wanted = {o.name: proof.expected.views[o.value.name] for o in proof.composed.expected.outputs}
        for o in proof.composed.implementation.outputs:
            proof.proved[o.name] = equal(proof.store, wanted[o.name], state.views[o.value.name])
        proof.implementation = state
    return tuple(out)


def _accept_any(proof: Proof, implementation: Module, placements: dict[str, str]) -> None:
    """Outputs that are partial sums of what they should be, or right up to an order of dims."""
    from itertools import permutations

    from shardproof.passes.views import Unsupported
    from shardproof.solver.placement import runs
    from shardproof.solver.prove import equal
    from shardproof.solver.relation import rank_groups

    store, algebra = proof.store, proof.implementation.algebra
    wanted = {o.name: proof.expected.views[o.value.name] for o in proof.composed.expected.outputs}
    for o in proof.composed.implementation.outputs:
        if proof.proved[o.name]:
            continue
        found, goal = proof.implementation.views[o.value.name], wanted[o.name]
        for axes, _ in runs(implementation.mesh):
            try:
                total = algebra.all_reduce(found, "sum", rank_groups(implementation.mesh, axes))
            except Unsupported:
                continue
            if equal(store, goal, total):
                proof.proved[o.name] = True
                placements[o.name] = f"partial sums over {'+'.join(axes)}"
        for order in permutations(range(len(found.shape))) if len(found.shape) <= 4 else ():
            if proof.proved[o.name]:
                break
            turned = algebra.transpose(found, order)
            if turned.shape == goal.shape and equal(store, goal, turned):
                proof.proved[o.name] = True
                placements[o.name] = f"dims in the order {list(order)}"


__all__ = ["Composed", "mesh_of", "verify"]
