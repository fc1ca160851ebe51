"""Collectives: plain, with several operands, in tuple form, and in start/done pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from shardproof.frontends.hlo.binding import arrays, attribute, result
from shardproof.frontends.hlo.instruction import HloInstruction
from shardproof.frontends.hlo.lower import Bound, Lowering, Pending
from shardproof.frontends.hlo.reducers import monoids
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import TensorType

Rule: TypeAlias = Callable[[Lowering, HloInstruction, list[Bound], str], Bound]


def _kind(state: Lowering, op: HloInstruction, values: tuple[Value, ...]) -> str:
    (body,) = state.called(op, 1)
    kinds = {monoids(body, [v.type.dtype]) for v in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        raise ModuleError(
            f"`{op.name}` reduces with {body.name}, which is no known sum, product, max, min, and, or"
        )
    return kind[0]


def _dim(op: HloInstruction) -> int:
    dims = attribute(op, "dimensions")
    if len(dims) != 1:
        raise ModuleError(f"`{op.name}` runs along {len(dims)} dims, 1 needed")
    return int(dims[0])


def _results(op: HloInstruction, count: int) -> tuple[tuple[TensorType, ...], bool]:
    """The declared types of the `count` results, and whether they are a tuple.

    A start, but that of all-reduce, declares its operands first and its results second.
    """
    shape = op.shape
    if op.opcode.endswith("-start") and op.opcode != "all-reduce-start":
        if shape.type is not None or len(shape.parts) < 2:
            raise ModuleError(f"`{op.name}` is declared as {shape}, operands and results are needed")
        shape = shape.parts[1]
    parts = shape.parts if shape.type is None else (shape,)
    types = tuple(part.type for part in parts if part.type is not None)
    if len(types) != count or len(parts) != count:
        raise ModuleError(f"`{op.name}` has {count} operands, but is declared as {op.shape}")
    return types, shape.type is None


def _each(
    opcode: str, attributes: Callable[[Lowering, HloInstruction, tuple[Value, ...]], dict[str, Any]]
) -> Rule:
    """One collective per operand."""

    def rule(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
        values = arrays(op, operands)
        types, packed = _results(op, len(values))
        attrs = attributes(state, op, values)
        if len(values) == 1:
            one = state.emit(opcode, values, types[0], attrs, op, prefix)
            return (one,) if packed else one
        return tuple(
            state.emit(opcode, (value,), type, attrs, op, prefix, str(k))
            for k, (value, type) in enumerate(zip(values, types, strict=True))
        )

    return rule


def _all_reduce(state: Lowering, op: HloInstruction, values: tuple[Value, ...]) -> dict[str, Any]:
    return {"kind": _kind(state, op, values), "groups": state.ranks.groups(op)}


def _all_gather(state: Lowering, op: HloInstruction, values: tuple[Value, ...]) -> dict[str, Any]:
    return {"dim": _dim(op), "groups": state.ranks.groups(op)}


def _reduce_scatter(state: Lowering, op: HloInstruction, values: tuple[Value, ...]) -> dict[str, Any]:
    return {"dim": _dim(op), "kind": _kind(state, op, values), "groups": state.ranks.groups(op)}


def _permute(state: Lowering, op: HloInstruction, values: tuple[Value, ...]) -> dict[str, Any]:
    return {"pairs": state.ranks.pairs(op)}


def _broadcast(state: Lowering, op: HloInstruction, values: tuple[Value, ...]) -> dict[str, Any]:
    return {"groups": state.ranks.groups(op)}


def _all_to_all(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    values = arrays(op, operands)
    groups = state.ranks.groups(op)
    if not op.shape.is_tuple:
        dim = _dim(op)
        attrs = {"split_dim": dim, "concat_dim": dim, "groups": groups}
        return state.emit("all_to_all", arrays(op, operands, 1), result(op), attrs, op, prefix)
    size = len(groups[0])
    types, _ = _results(op, len(values))
    if len(values) != size or any(v.type != values[0].type for v in values) or set(types) != {values[0].type}:
        raise ModuleError(
            f"`{op.name}` exchanges {len(values)} pieces in groups of {size}: equal ones are needed"
        )
    piece = values[0].type
    row = TensorType(piece.dtype, (1, *piece.shape))
    rows = TensorType(piece.dtype, (size, *piece.shape))
    raised = tuple(state.emit("reshape", (v,), row, {}, op, prefix, f"row{k}") for k, v in enumerate(values))
    joined = state.emit("concatenate", raised, rows, {"dim": 0}, op, prefix, "rows")
    attrs = {"split_dim": 0, "concat_dim": 0, "groups": groups}
    moved = state.emit("all_to_all", (joined,), rows, attrs, op, prefix, "exchange")
    received: list[Value] = []
    for k in range(size):
        cut = {
            "starts": (k, *(0 for _ in piece.shape)),
            "limits": (k + 1, *piece.shape),
            "strides": (1,) * (1 + len(piece.shape)),
        }
        part = state.emit("slice", (moved,), row, cut, op, prefix, f"received{k}")
        received.append(state.emit("reshape", (part,), piece, {}, op, prefix, str(k)))
    return tuple(received)


def _start(rule: Rule) -> Rule:
    def started(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
        return Pending(op.name, rule(state, op, operands, prefix))

    return started


def _done(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    if len(operands) != 1 or not isinstance(operands[0], Pending):
        raise ModuleError(f"`{op.name}` waits for something that no start gave")
    return operands[0].value


def _async_start(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    (body,) = state.called(op, 1)
    inside = f"{prefix}/{op.name}" if prefix else op.name
    return Pending(op.name, state.computation(body, operands, inside))


def _async_update(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    return Pending(op.name, _done(state, op, operands, prefix))


def _copy_start(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    (value,) = arrays(op, operands, 1)
    return Pending(op.name, value)


_PLAIN: Final[Mapping[str, Rule]] = {
    "all-reduce": _each("all_reduce", _all_reduce),
    "all-gather": _each("all_gather", _all_gather),
    "reduce-scatter": _each("reduce_scatter", _reduce_scatter),
    "collective-permute": _each("collective_permute", _permute),
    "collective-broadcast": _each("collective_broadcast", _broadcast),
    "all-to-all": _all_to_all,
}

RULES: Final[Mapping[str, Rule]] = {
    **_PLAIN,
    **{f"{name}-start": _start(_PLAIN[name]) for name in ("all-reduce", "all-gather", "collective-permute")},
    **dict.fromkeys(
        ("all-reduce-done", "all-gather-done", "collective-permute-done", "copy-done", "async-done"), _done
    ),
    "async-start": _async_start,
    "async-update": _async_update,
    "copy-start": _copy_start,
}
