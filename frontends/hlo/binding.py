"""What every rule needs: operands as arrays, declared results, and the opaque operator."""

from __future__ import annotations

from typing import Any, TypeAlias

from shardproof.frontends.hlo.elements import Shape
from shardproof.frontends.hlo.instruction import HloInstruction
from shardproof.frontends.hlo.lower import TOKEN, Bound, Lowering, leaves
from shardproof.frontends.hlo.ranks import COLLECTIVES
from shardproof.frontends.hlo.reducers import calls, described, structure
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import DType, TensorType

Free: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def arrays(op: HloInstruction, operands: list[Bound], count: int | None = None) -> tuple[Value, ...]:
    """The operands, each one array; `count` of them if given."""
    if count is not None and len(operands) != count:
        raise ModuleError(f"`{op.name}` has {len(operands)} operands, {count} needed")
    for operand in operands:
        if not isinstance(operand, Value):
            leaves(operand)
            raise ModuleError(f"`{op.name}` has a tuple or token operand, an array is needed")
    return tuple(operands)  # type: ignore[arg-type]


def result(op: HloInstruction) -> TensorType:
    """The type of the one array that `op` gives."""
    if op.shape.type is None or op.shape.type.dtype is DType.TOKEN:
        raise ModuleError(f"`{op.name}` is declared as {op.shape}, an array is needed")
    return op.shape.type


def shapes_of(op: HloInstruction) -> tuple[TensorType, ...]:
    """The types of the arrays that `op` gives."""
    return tuple(s.type for s in op.shape.leaves() if s.type is not None and s.type.dtype is not DType.TOKEN)


def attribute(op: HloInstruction, name: str) -> Any:
    """An attribute that `op` must have."""
    if name not in op.attrs:
        raise ModuleError(f"`{op.name}` has no {name}")
    return op.attrs[name]


def shaped_like(shape: Shape, values: list[Value]) -> Bound:
    """`values` (consumed from the front) as the tuple that `shape` says."""
    if shape.type is None:
        return tuple(shaped_like(part, values) for part in shape.parts)
    return TOKEN if shape.type.dtype is DType.TOKEN else values.pop(0)


def opaque_name(state: Lowering, op: HloInstruction) -> str:
    """What `op` computes, as text without names: equal texts are equal functions.

    Raises `ModuleError` when a computation that it calls is no function of its operands on one rank.
    """
    for key in op.called:
        for inner in calls(state.module, key):
            if inner.opcode in COLLECTIVES or inner.opcode in IMPURE:
                raise ModuleError(
                    f"`{op.name}` can't be taken apart, and it calls `{inner.name}` ({inner.opcode}), "
                    "so it is no function of its operands"
                )
    called = [f"{{{structure(state.module, key, state.structures)}}}" for key in op.called]
    return f"{op.opcode}{described(op)}{''.join(called)}"


IMPURE = frozenset(
    {
        "async-start",
        "infeed",
        "outfeed",
        "partition-id",
        "ragged-all-to-all",
        "recv",
        "replica-id",
        "rng",
        "rng-get-and-update-state",
        "send",
    }
)


def opaque(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str, free: Free = ()) -> Bound:
    """`op` as a function known by its text only, slice by slice along `free`."""
    values = tuple(leaf for operand in operands for leaf in leaves(operand))
    types = shapes_of(op)
    attrs = {"name": opaque_name(state, op), "free": free}
    state.warn(f"{op.opcode} `{op.name}` is kept opaque")
    return shaped_like(op.shape, list(state.emit_many("opaque", values, types, attrs, op, prefix)))
