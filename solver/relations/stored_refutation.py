"""Whether a difference is one of the weights that files hold, too (soundness R5, V1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardproof.frontends.weights import Weight
from shardproof.ir.module import Module
from shardproof.solver.prove import Clock
from shardproof.solver.relations.relation import Relation, compose
from shardproof.solver.relations.stored_matching import constant
from shardproof.solver.replay.refute import Replayed, replay


def upheld(
    reference: Module,
    implementation: Module,
    relation: Relation,
    weights: Mapping[str, Weight],
    clock: Clock,
    *,
    certain: bool,
) -> bool:
    """Whether two programs that differ for some weights differ for those of the reference's file.

    Stored tensors that hold the same in two ways, such as a symmetric matrix, do not tell which way is meant.
    Where the programs are too large to be run, what the files hold has to be `certain`.
    """
    first, second = _fixed(reference, weights), _fixed(implementation, weights)
    names = {i.name for i in second.inputs}
    kept = replace(relation, inputs={n: s for n, s in relation.inputs.items() if n in names})
    found: Replayed = replay(compose(first, second, kept), clock)
    return found.difference is not None or (certain and found.tested is None)


def _fixed(module: Module, weights: Mapping[str, Weight]) -> Module:
    """The program with its weights as constants."""
    held = {i.name: w for i in module.inputs if (w := weights.get(i.name)) is not None}
    ops = [constant(i.value, held[i.name]) for i in module.inputs if i.name in held]
    inputs = tuple(i for i in module.inputs if i.name not in held)
    return replace(module, inputs=inputs, ops=(*ops, *module.ops))
