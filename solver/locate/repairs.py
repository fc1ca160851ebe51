"""Repairs of a value, tried on the normal form: whether they prove the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardproof.ir.module import Module, Op
from shardproof.passes.normalise import Normalised, apply, continue_from
from shardproof.passes.views import View
from shardproof.solver.counterpart import Alignment, Status
from shardproof.solver.locate.finding import Finding, partial_operand
from shardproof.solver.locate.rank_tables import others, tables
from shardproof.solver.prove import Clock, equal


def dependents(module: Module, names: set[str]) -> Iterator[Op]:
    """Operators that read one of the values, also through others."""
    dirty = set(names)
    for op in module.ops:
        if any(v.name in dirty for v in op.operands):
            dirty.update(v.name for v in op.results)
            yield op


def rerun(alignment: Alignment, replaced: Mapping[str, View]) -> Normalised:
    """The implementation's views with some values replaced."""
    before = alignment.proof.implementation
    module = alignment.proof.composed.implementation
    state = Normalised(before.algebra, {**before.views, **replaced})
    continue_from(state, list(dependents(module, set(replaced))), replaced)
    return state


def repaired(alignment: Alignment, replaced: Mapping[str, View], failing: Sequence[str]) -> bool:
    """Whether the failing outputs are as expected once some values are replaced."""
    return as_expected(alignment, rerun(alignment, replaced), failing)


def as_expected(alignment: Alignment, state: Normalised, failing: Sequence[str]) -> bool:
    proof = alignment.proof
    wanted = {o.name: proof.expected.views[o.value.name] for o in proof.composed.expected.outputs}
    return all(
        equal(proof.store, wanted[o.name], state.views[o.value.name])
        for o in proof.composed.implementation.outputs
        if o.name in failing
    )


def sums_suffice(alignment: Alignment, failing: Sequence[str], bad: set[str], clock: Clock) -> bool:
    """Whether completing every partial sum where values of `bad` read it as a whole proves the outputs, in
    one sweep."""
    proof = alignment.proof
    state = Normalised(proof.implementation.algebra, dict(proof.implementation.views))
    trial = Alignment(
        replace(proof, implementation=state),
        alignment.relation,
        alignment.reference,
        alignment.implementation,
    )
    trial.begin()
    own = {op.result.name: op for op in alignment.implementation.ops}
    changed: set[str] = set()
    for op in proof.composed.implementation.ops:
        clock.check()
        if any(x.name in changed for x in op.operands):
            views = apply(state, op, [state.views[x.name] for x in op.operands])
            state.views.update((v.name, view) for v, view in zip(op.results, views, strict=True))
            changed.update(v.name for v in op.results)
        mine = own.get(op.result.name)
        if mine is None:
            continue
        trial.step(mine)
        match = trial.matches[mine.result.name]
        if mine.result.name not in bad or match.status is not Status.WRONG or match.view is None:
            continue
        if partial_operand(trial, mine) is not None:
            state.views[mine.result.name] = match.view
            changed.add(mine.result.name)
            trial.matches[mine.result.name] = replace(match, status=Status.SAME)
    return as_expected(trial, state, failing)


def misplaced(
    alignment: Alignment, doubtful: set[str], failing: Sequence[str], clock: Clock
) -> Finding | None:
    """An integer of each rank that proves the outputs when it is what it is in another place."""
    every = tables(alignment.implementation)
    for table in every:
        if table.value.name not in doubtful:
            continue
        for numbers, other in others(table, every):
            clock.check()
            view = alignment.algebra.literal(numbers, table.value.type)
            if repaired(alignment, {table.value.name: view}, failing):
                wanted = f"{_listed(other.numbers)} on the ranks, as `{other.op.result.name}` is"
                found = f"is {_listed(table.numbers)} on the ranks"
                repair = f"using {_listed(other.numbers)} proves all outputs"
                return Finding(table.op, table.op.result, None, "R03", wanted, found, repair, True)
    return None


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
