"""What `--assume` and `--outputs any` accept beyond the proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod
from typing import Literal

import numpy as np

from shardproof.ir.module import Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.types import TensorType
from shardproof.passes.views import Unsupported
from shardproof.solver.counterpart import Alignment, Match, Status
from shardproof.solver.prove import Clock, Proof, equal, prove
from shardproof.solver.relations.layout import Cutter
from shardproof.solver.relations.placement import runs
from shardproof.solver.relations.relation import (
    OF,
    PER_RANK,
    REPLICATE,
    Composed,
    Relation,
    Spec,
    cut,
    joined,
    rank_groups,
    whole_output,
)
from shardproof.solver.relations.steps import Layout, RelationError, Step
from shardproof.solver.verdict import Assumption


@dataclass(frozen=True, slots=True)
class Reading:
    """How an output was read: summed over mesh axes, or with its dims in another order."""

    kind: Literal["sum", "order"]
    axes: tuple[str, ...] = ()
    order: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind == "sum":
            return f"partial sums over {'+'.join(self.axes)}"
        return f"dims in the order {list(self.order)}"


def assume(
    values: Sequence[str],
    proof: Proof,
    relation: Relation,
    reference: Module,
    implementation: Module,
    clock: Clock,
) -> tuple[Proof, tuple[Assumption, ...]]:
    """Take the named implementation values to be their counterparts, and prove the outputs again."""
    alignment = Alignment(proof, relation, reference, implementation)
    alignment.run()
    own = {v.name: v for op in implementation.ops for v in op.results}
    taking = _Taking(alignment)
    out = []
    for name in dict.fromkeys(values):
        match = alignment.matches.get(name)
        if match is None:
            raise ModuleError(f"--assume `{name}`: the implementation has no such value")
        if name in own and match.status is not Status.SAME and match.view is not None:
            taking.take(own[name], match)
            out.append(Assumption("user_assumed", f"`{name}` is `{match.reference}` of the reference", name))
    if not out:
        return proof, ()
    rules = proof.search.rules if proof.search is not None else None
    composed = replace(proof.composed, assumed=taking.module())
    again = prove(composed, clock, proof.attempt, rules=rules, bounds=proof.bounds)
    return again, tuple(out)


class _Taking:
    """Collects the operators that make implementation values of reference values."""

    def __init__(self, alignment: Alignment) -> None:
        self.alignment = alignment
        self.cutter = Cutter(alignment.mesh, "assumed ")
        self.inputs: dict[str, Value] = {}
        self.outputs: list[Output] = []

    def take(self, own: Value, match: Match) -> None:
        """Make `own` what it should be. Raises ModuleError when that cannot be stated."""
        spec, name = match.spec, match.reference
        try:
            if spec is None or name is None:
                raise RelationError("its placement is not known")
            v = self._placed(self._value(name), spec)
        except RelationError as error:
            raise ModuleError(f"--assume `{own.name}`: {error}") from None
        if match.status is Status.WRONG and match.axes:
            count = prod(dict(self.cutter.mesh.axes)[a] for a in match.axes)
            number = np.full(v.type.shape, count, v.type.dtype.storage)
            ranks = self.cutter.op("constant", (), v.type, value=number)
            v = self.cutter.op("divide", (v, ranks), v.type)
        if v.type.dtype is not own.type.dtype:
            v = self.cutter.op("convert", (v,), own.type)
        self.outputs.append(Output(own.name, v))

    def _value(self, name: str) -> Value:
        """A value of the reference; of all its ranks, along a first dim, if there are several."""
        found = self.inputs.get(name)
        if found is None:
            type, ranks = self.alignment.types[name].type, self.alignment.reference.mesh.size
            shape = (ranks, *type.shape) if ranks > 1 else type.shape
            found = self.inputs[name] = Value(name + OF, TensorType(type.dtype, shape))
        return found

    def _placed(self, v: Value, spec: Spec) -> Value:
        own, other = self.alignment.reference.mesh, self.cutter.mesh
        if own.size == 1:
            return cut(self.cutter, spec, v, self._value)
        if spec == REPLICATE:
            return whole_output(self.cutter, v, PER_RANK if own.size == other.size else spec, own, other)
        assert isinstance(spec, Layout) and isinstance(spec.steps[0], Step)
        whole = whole_output(self.cutter, v, spec, own, other)
        axes = [name for name, n in other.axes if n > 1]
        return cut(
            self.cutter, Layout(None, (Step("shard", (spec.steps[0].args[0], *axes)),)), whole, self._value
        )

    def module(self) -> Module:
        inputs = tuple(Input(v, n) for n, v in enumerate(self.inputs.values()))
        return Module("assumed", self.cutter.mesh, inputs, tuple(self.cutter.ops), tuple(self.outputs))


def accept_any(proof: Proof, implementation: Module) -> dict[str, Reading]:
    """How outputs that are not as expected are partial sums of it, or right up to an order of dims."""
    store, algebra = proof.store, proof.implementation.algebra
    wanted = {o.name: proof.expected.views[o.value.name] for o in proof.composed.expected.outputs}
    readings: dict[str, Reading] = {}
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
                readings[o.name] = Reading("sum", axes=tuple(axes))
        for order in permutations(range(len(found.shape))) if len(found.shape) <= 4 else ():
            if o.name in readings:
                break
            turned = algebra.transpose(found, order)
            if turned.shape == goal.shape and equal(store, goal, turned):
                readings[o.name] = Reading("order", order=tuple(order))
    return readings


def read_so(
    proof: Proof, readings: Mapping[str, Reading], reference: Module, implementation: Module, clock: Clock
) -> Proof:
    """The proof with outputs read in these ways."""
    composed = _read(proof.composed, readings, reference, implementation)
    rules = proof.search.rules if proof.search is not None else None
    return prove(composed, clock, proof.attempt, rules=rules, bounds=proof.bounds)


def _read(
    composed: Composed, readings: Mapping[str, Reading], reference: Module, implementation: Module
) -> Composed:
    after = composed.layouts.compared
    cutter = Cutter(implementation.mesh, "read ")
    outputs = []
    for o in after.outputs:
        reading, v = readings.get(o.name), o.value
        if reading is not None and reading.kind == "sum":
            groups = rank_groups(implementation.mesh, reading.axes)
            v = cutter.op("all_reduce", (v,), v.type, kind="sum", groups=groups)
        elif reading is not None:
            v = cutter.transpose(v, reading.order)
        outputs.append(Output(o.name, v))
    ops: tuple[Op, ...] = (*after.ops, *cutter.ops)
    layouts = replace(composed.layouts, compared=replace(after, ops=ops, outputs=tuple(outputs)))
    return joined(
        reference,
        implementation,
        layouts,
        composed.expected,
        composed.ranges,
        composed.even,
        composed.assumed,
    )
