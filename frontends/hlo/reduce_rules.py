"""Operators with a small computation inside: reduce, reduce-window, scatter, sort."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from shardproof.frontends.hlo.binding import arrays, attribute, opaque, shapes_of
from shardproof.frontends.hlo.instruction import HloInstruction
from shardproof.frontends.hlo.lower import Bound, Lowering
from shardproof.frontends.hlo.reducers import arg_reduction, comparator, is_second_parameter, monoids
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import DType, TensorType

Rule: TypeAlias = Callable[[Lowering, HloInstruction, list[Bound], str], Bound]


def _reduce(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    values = arrays(op, operands)
    count = len(values) // 2
    if not count or len(values) != 2 * count:
        raise ModuleError(
            f"`{op.name}` has {len(values)} operands, as many inputs as initial values are needed"
        )
    shapes = {v.type.shape for v in values[:count]}
    if len(shapes) > 1 or any(v.type.shape for v in values[count:]):
        raise ModuleError(f"`{op.name}` needs inputs of one shape and scalar initial values")
    types = shapes_of(op)
    if len(types) != count:
        raise ModuleError(f"`{op.name}` reduces {count} arrays, but is declared as {op.shape}")
    dims = tuple(sorted(attribute(op, "dimensions")))
    rank = len(values[0].type.shape)
    if len(set(dims)) != len(dims) or any(not 0 <= d < rank for d in dims):
        raise ModuleError(f"`{op.name}` reduces dims {list(dims)} of {values[0].type}")
    (body,) = state.called(op, 1)
    kinds = monoids(body, [v.type.dtype for v in values[:count]])
    if kinds is not None:
        if count == 1:
            attrs = {"dims": dims, "kind": kinds[0]}
            one = state.emit("reduce", values, types[0], attrs, op, prefix)
            return (one,) if op.shape.is_tuple else one
        return tuple(
            state.emit(
                "reduce",
                (values[k], values[count + k]),
                types[k],
                {"dims": dims, "kind": kinds[k]},
                op,
                prefix,
                str(k),
            )
            for k in range(count)
        )
    kind = arg_reduction(body) if count == 2 else None
    if (
        kind is not None
        and len(dims) == 1
        and _counts(state, values[1], dims[0])
        and _is_bound(state, values[2], kind)
        and _is_constant(state, values[3], 0)
    ):
        attrs = {"dim": dims[0], "kind": kind}
        return state.emit_many("argreduce", values[:1], types, attrs, op, prefix)
    if kind is not None and values[0].type.dtype.kind == "real" and values[1].type.dtype.kind == "int":
        return _labelled_extremum(state, op, values, dims, kind, prefix)
    kept = [d for d in range(rank) if d not in dims]
    free = tuple(
        ((*(d for _ in range(count)), *(-1 for _ in range(count))), (k,) * count) for k, d in enumerate(kept)
    )
    return opaque(state, op, operands, prefix, free)


def _labelled_extremum(
    state: Lowering,
    op: HloInstruction,
    values: Sequence[Value],
    dims: tuple[int, ...],
    kind: str,
    prefix: str,
) -> Bound:
    """The extremum of reals and the least of the integers beside those that have it, NaN apart.

    So a partitioner combines the results of shards, which hold positions in the whole.
    """
    x, labels, start, first = values
    low, high = shapes_of(op)
    kept = tuple(d for d in range(len(x.type.shape)) if d not in dims)
    equal = {"direction": "EQ", "total": False}
    best = state.emit("reduce", (x, start), low, {"dims": dims, "kind": kind}, op, prefix, "0")
    last = np.asarray((1 << (labels.type.dtype.bits - 1)) - 1, dtype=labels.type.dtype.storage)
    scalar = state.emit("constant", (), first.type, {"value": last}, op, prefix, "last")

    def where_equal(a: Value, b: Value, label: Value, part: str) -> Value:
        """The label where both are equal, else the largest integer."""
        mask = TensorType(DType.BOOL, a.type.shape)
        held = state.emit("compare", (a, b), mask, equal, op, prefix, f"{part}held")
        rest = state.emit("broadcast_in_dim", (scalar,), label.type, {"dims": ()}, op, prefix, f"{part}rest")
        return state.emit("select", (held, label, rest), label.type, {}, op, prefix, f"{part}label")

    spread = state.emit("broadcast_in_dim", (best,), x.type, {"dims": kept}, op, prefix, "spread")
    inside = where_equal(x, spread, labels, "")
    found = state.emit("reduce", (inside, scalar), high, {"dims": dims, "kind": "min"}, op, prefix, "found")
    starts = state.emit("broadcast_in_dim", (start,), low, {"dims": ()}, op, prefix, "start")
    firsts = state.emit("broadcast_in_dim", (first,), high, {"dims": ()}, op, prefix, "first")
    outside = where_equal(starts, best, firsts, "start")
    return best, state.emit("minimum", (found, outside), high, {}, op, prefix, "1")


def _producer(state: Lowering, value: Value) -> tuple[str, tuple[Value, ...], Mapping[str, object]]:
    for op in reversed(state.ops):
        if value in op.results:
            return op.opcode, op.operands, op.attrs
    return "", (), {}


def _counts(state: Lowering, value: Value, dim: int) -> bool:
    """Whether `value` holds its own position along `dim`."""
    opcode, operands, attrs = _producer(state, value)
    if opcode == "iota":
        return attrs["dim"] == dim
    if opcode == "broadcast_in_dim" and len(operands[0].type.shape) == 1 and attrs["dims"] == (dim,):
        return operands[0].type.shape[0] == value.type.shape[dim] and _counts(state, operands[0], 0)
    if opcode == "constant":
        array = np.asarray(attrs["value"])
        line = np.arange(array.shape[dim]).reshape([-1 if d == dim else 1 for d in range(array.ndim)])
        return bool(np.array_equal(array, np.broadcast_to(line, array.shape)))
    return False


def _is_bound(state: Lowering, value: Value, kind: str) -> bool:
    """Whether `value` is a constant that no element loses against."""
    opcode, _, attrs = _producer(state, value)
    dtype = value.type.dtype
    if opcode != "constant":
        return False
    found = np.asarray(attrs["value"]).item()
    if dtype.kind == "real":
        return bool(found == (-np.inf if kind == "max" else np.inf))
    if dtype.kind == "bool":
        return bool(found == (kind == "min"))
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    high = (1 << (dtype.bits - (dtype.kind == "int"))) - 1
    return bool(found == (low if kind == "max" else high))


def _is_constant(state: Lowering, value: Value, expected: int) -> bool:
    opcode, _, attrs = _producer(state, value)
    return opcode == "constant" and bool(np.asarray(attrs["value"]).item() == expected)


def _reduce_window(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    values = arrays(op, operands)
    (body,) = state.called(op, 1)
    count = len(values) // 2
    paired = count > 0 and len(values) == 2 * count
    kinds = monoids(body, [v.type.dtype for v in values[:count]]) if paired else None
    window = attribute(op, "window")
    types = shapes_of(op)
    if kinds is None or any(w.reversal for w in window) or len(types) != count:
        return opaque(state, op, operands, prefix)
    attrs = {
        "sizes": tuple(w.size for w in window),
        "strides": tuple(w.stride for w in window),
        "base_dilations": tuple(w.base_dilation for w in window),
        "window_dilations": tuple(w.window_dilation for w in window),
        "pad_low": tuple(w.low for w in window),
        "pad_high": tuple(w.high for w in window),
    }
    found = tuple(
        state.emit(
            "reduce_window",
            (values[k], values[count + k]),
            types[k],
            {"kind": kinds[k], **attrs},
            op,
            prefix,
            None if count == 1 else str(k),
        )
        for k in range(count)
    )
    return found if op.shape.is_tuple else found[0]


def _scatter(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    values = arrays(op, operands)
    count = (len(values) - 1) // 2
    if count < 1 or len(values) != 2 * count + 1:
        raise ModuleError(f"`{op.name}` has {len(values)} operands, inputs, indices and updates are needed")
    (body,) = state.called(op, 1)
    dtypes = [v.type.dtype for v in values[:count]]
    kinds = ("set",) if count == 1 and is_second_parameter(body) else monoids(body, dtypes)
    types = shapes_of(op)
    names = (
        "update_window_dims",
        "inserted_window_dims",
        "scatter_dims_to_operand_dims",
        "index_vector_dim",
        "input_batching_dims",
        "scatter_indices_batching_dims",
    )
    if kinds is None or any(k in ("and", "or") for k in kinds) or len(types) != count:
        return opaque(state, op, operands, prefix)
    attrs = {name: attribute(op, name) for name in names}
    attrs["unique"] = attribute(op, "unique_indices")
    found = tuple(
        state.emit(
            "scatter",
            (values[k], values[count], values[count + 1 + k]),
            types[k],
            {**attrs, "kind": kinds[k]},
            op,
            prefix,
            None if count == 1 else str(k),
        )
        for k in range(count)
    )
    return found if op.shape.is_tuple else found[0]


def _sort(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    values = arrays(op, operands)
    dims = attribute(op, "dimensions")
    types = shapes_of(op)
    if len(dims) != 1 or len(types) != len(values):
        raise ModuleError(f"`{op.name}` sorts {len(values)} arrays along {len(dims)} dims as {op.shape}")
    (body,) = state.called(op, 1)
    if len(body.parameters()) != 2 * len(values):
        raise ModuleError(f"`{op.name}` compares with {body.name}, which needs {2 * len(values)} parameters")
    attrs = {
        "dim": dims[0],
        "comparator": comparator(state.module, body, state.structures),
        "stable": attribute(op, "is_stable"),
    }
    found = state.emit_many("sort", values, types, attrs, op, prefix)
    return found if op.shape.is_tuple else found[0]


RULES: Final[Mapping[str, Rule]] = {
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "scatter": _scatter,
    "sort": _sort,
}
