"""What `--assume` and `--outputs any` accept beyond the proof."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from shardproof.ir.module import Module, ModuleError
from shardproof.passes.views import Unsupported, View
from shardproof.solver.counterpart import Alignment, Status
from shardproof.solver.locate import rerun
from shardproof.solver.placement import runs
from shardproof.solver.prove import Proof, equal
from shardproof.solver.relation import Relation, rank_groups
from shardproof.solver.verdict import Assumption


def assume(
    values: Sequence[str], proof: Proof, relation: Relation, reference: Module, implementation: Module
) -> tuple[Assumption, ...]:
    """Take the named implementation values to be their counterparts, and compare the outputs again."""
    alignment = Alignment(proof, relation, reference, implementation)
    alignment.run()
    replaced: dict[str, View] = {}
    out = []
    for name in values:
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


def accept_any(proof: Proof, implementation: Module, placements: dict[str, str]) -> None:
    """Outputs that are partial sums of what they should be, or right up to an order of dims."""
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
