"""Custom calls: the few whose meaning is known, the rest kept by name."""

from __future__ import annotations

from typing import Final

from shardproof.frontends.hlo.binding import arrays, attribute, opaque_name, shaped_like, shapes_of
from shardproof.frontends.hlo.instruction import HloInstruction, HloModule
from shardproof.frontends.hlo.lower import Bound, Lowering, leaves
from shardproof.frontends.hlo.ranks import COLLECTIVES
from shardproof.frontends.hlo.reducers import comparator, described
from shardproof.ir.module import ModuleError

_MANUAL_REGIONS: Final = frozenset(
    {
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
    }
)
_ANNOTATIONS: Final = frozenset({"Sharding", "xla.sdy.FuncResultSharding"})
_KNOWN: Final = frozenset({"AwsNeuronRmsNorm"})
_PLAIN_ATTRS: Final = frozenset({"custom_call_target", "backend_config", "custom_call_has_side_effect"})


def unknown_call(target: str) -> str:
    """How a warning begins that says that custom calls of this target have no known meaning."""
    return f"custom call '{target}' ("


def lower_custom_call(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    """A custom call by its target; one without a known meaning is kept and named in the warnings."""
    target: str = attribute(op, "custom_call_target")
    if target in _MANUAL_REGIONS:
        raise ModuleError(
            f"`{op.name}` ({target}) goes between the whole tensor and one rank's: the module is not "
            "partitioned yet; dump it after the SPMD partitioner"
        )
    if target == "AwsNeuronTransferWithStaticRing" or (
        target in _ANNOTATIONS and not _communicates(state.module)
    ):
        (value,) = arrays(op, operands, 1)
        if op.shape.type != value.type:
            raise ModuleError(
                f"`{op.name}` ({target}) is declared as {op.shape}, its operand is {value.type}"
            )
        return value
    if target == "TopK":
        found = _top_k(state, op, operands, prefix)
        if found is not None:
            return found
    values = tuple(leaf for operand in operands for leaf in leaves(operand))
    config: str = op.attrs.get("backend_config", "")
    if op.called or set(op.attrs) - _PLAIN_ATTRS:
        config = f"{config} {opaque_name(state, op) if op.called else described(op)}".strip()
    attrs = {"target": target, "config": config}
    if target not in _KNOWN:
        effect = ", which has a side effect," if op.attrs.get("custom_call_has_side_effect") else ""
        state.warn(f"{unknown_call(target)}{op.name}){effect} has no known meaning: kept opaque")
    types = shapes_of(op)
    if not types:
        return shaped_like(op.shape, [])
    return shaped_like(op.shape, list(state.emit_many("custom_call", values, types, attrs, op, prefix)))


def _communicates(module: HloModule) -> bool:
    return any(
        op.opcode in COLLECTIVES for body in module.computations.values() for op in body.instructions.values()
    )


def _top_k(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound | None:
    """The k largest along the last dim, when the comparator says so and the shapes fit."""
    types = shapes_of(op)
    if len(operands) != 1 or len(types) != 2 or len(op.called) != 1:
        return None
    (value,) = arrays(op, operands, 1)
    (body,) = state.called(op, 1)
    shape = types[0].shape
    if not shape or shape[:-1] != value.type.shape[:-1] or types[1].shape != shape:
        return None
    if comparator(state.module, body, state.structures) != "gt:0":
        return None
    return state.emit_many("top_k", (value,), types, {"k": shape[-1]}, op, prefix)
