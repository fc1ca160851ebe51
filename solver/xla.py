"""`verify_xla`: whether what XLA's partitioner makes of a function computes the function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shardproof.frontends.hlo.instruction import HloModule
from shardproof.frontends.hlo.lower import lower
from shardproof.frontends.hlo.read_proto import parse, read_proto
from shardproof.frontends.jaxpr.lower import lower as lower_jaxpr
from shardproof.frontends.jaxpr.walk import NotRead
from shardproof.frontends.locate import configured_wrapper_files
from shardproof.frontends.xla.locations import TracedLocator
from shardproof.frontends.xla.partition import partitioned
from shardproof.frontends.xla.program import Tensor, Traced, trace
from shardproof.frontends.xla.shardings import from_proto, outputs_of
from shardproof.ir.module import Module, ModuleError, Op, Output, Value
from shardproof.passes.spell_out import spell_out
from shardproof.solver.jax_programs import not_read
from shardproof.solver.relations.relation_file import Declared
from shardproof.solver.verdict import Result
from shardproof.solver.verify import verify

PARTITIONED: Final = "partitioned by XLA"


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A function as it was traced, what XLA made of it, and how inputs and outputs are laid out."""

    reference: Module
    implementation: Module
    declared: Declared

    def verify(self, **options: Any) -> Result:
        """The verdict; `options` are those of `solver.verify.verify`."""
        return verify(self.reference, self.implementation, relation=self.declared, **options)


@dataclass(frozen=True, slots=True)
class Unread:
    """Programs of which one has a part that is not supported: `unknown`, whatever the options."""

    result: Result

    def verify(self, **options: Any) -> Result:
        return self.result


def prepared(*case: Any, **options: Any) -> Partitioned | Unread:
    """As `partition`; what is not supported is the verdict instead of an error."""
    try:
        return partition(*case, **options)
    except NotRead as error:
        return Unread(not_read(error, ()))


def partition(
    function: Callable[..., Any],
    inputs: Any,
    mesh: Any,
    in_shardings: Any,
    out_shardings: Any,
    *,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    partitioner: str | None = None,
    timeout: float | None = None,
) -> Partitioned:
    """The two programs that `shardproof.verify_xla` compares.

    Raises as it does, and NotRead for a primitive, or an instruction of XLA's, that is not supported.
    """
    traced = trace(function, inputs, mesh, in_shardings, out_shardings, partitioner=partitioner)
    names = [t.name for t in traced.inputs]
    unknown = sorted(set(ranges or {}) - set(names))
    if unknown:
        raise ModuleError(f"`ranges` names {unknown[0]!r}; the inputs are {', '.join(names)}")
    wrappers = configured_wrapper_files(Path.cwd())
    whole = lower_jaxpr(
        traced.jaxpr,
        name=traced.name,
        inputs=names,
        outputs=[t.name for t in traced.outputs],
        wrapper_files=wrappers,
    )
    data = partitioned(
        traced.stablehlo,
        traced.mesh.size,
        shardy=traced.shardy,
        chosen=[t.placed is None for t in traced.outputs],
        timeout=timeout,
    )
    proto = parse(data)
    own = _lowered(read_proto(proto, TracedLocator(wrappers)), traced.mesh.size)
    return Partitioned(
        spell_out(whole.module),
        spell_out(_titled(own, traced)),
        Declared(
            mesh=traced.mesh,
            reference_mesh=whole.module.mesh if whole.module.mesh.size > 1 else None,
            inputs={t.name: str(t.placed) for t in traced.inputs},
            outputs={t.name: str(t.placed) for t in _placed(proto, traced)},
            reference=whole.inputs,
            reference_outputs=whole.outputs,
            ranges=dict(ranges or {}),
        ),
    )


def _lowered(module: HloModule, ranks: int) -> Module:
    """XLA's module on its ranks. Raises NotRead, with the instruction that the message is about."""
    try:
        return lower(replace(module, replicas=1, partitions=ranks))
    except ModuleError as error:
        text = str(error)
        named = set(re.findall(r"`([^`]+)`", text))
        every = (op for body in module.computations.values() for op in body.instructions.values())
        op = next((op for op in every if op.name in named), None)
        if op is None:
            raise
        raise NotRead(op.opcode, op.location, text) from None


def _placed(proto: Any, traced: Traced) -> list[Tensor]:
    """The outputs of the function with the shardings that XLA chose where it had to."""
    stated = outputs_of(proto.spmd_output_sharding, len(traced.outputs))
    return [
        replace(t, placed=from_proto(s, t.shape, traced.mesh, f"output `{t.name}`"))
        if t.placed is None
        else t
        for t, s in zip(traced.outputs, stated, strict=True)
    ]


def _titled(module: Module, traced: Traced) -> Module:
    """XLA's module on the mesh, with the function's names for its inputs and outputs."""
    found = len(module.inputs), len(module.outputs)
    if found != (len(traced.inputs), len(traced.outputs)):
        raise ModuleError(
            f"XLA's module has {found[0]} inputs and {found[1]} outputs, the function "
            f"{len(traced.inputs)} and {len(traced.outputs)}"
        )
    names = {i.name: traced.inputs[i.number].name for i in module.inputs}
    taken = set(names.values())
    renamed: dict[str, Value] = {}

    def value(old: Value) -> Value:
        if old.name not in renamed:
            new = names.get(old.name, old.name)
            while old.name not in names and new in taken:
                new += "'"
            renamed[old.name] = old if new == old.name else replace(old, name=new)
        return renamed[old.name]

    def op(old: Op) -> Op:
        operands, results = (tuple(map(value, values)) for values in (old.operands, old.results))
        return replace(old, operands=operands, results=results)

    inputs = [replace(i, value=value(i.value), sharding=None) for i in module.inputs]
    return replace(
        module,
        name=f"{traced.name} {PARTITIONED}",
        mesh=traced.mesh,
        inputs=tuple(sorted(inputs, key=lambda i: i.number)),
        ops=tuple(map(op, module.ops)),
        outputs=tuple(
            Output(t.name, value(o.value)) for t, o in zip(traced.outputs, module.outputs, strict=True)
        ),
    )
