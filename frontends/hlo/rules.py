"""One rule per HLO opcode: what it becomes in the IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from shardproof.frontends.hlo import collective_rules, control_rules, custom_calls, reduce_rules
from shardproof.frontends.hlo.binding import arrays, attribute, opaque, result, shapes_of
from shardproof.frontends.hlo.instruction import HloInstruction
from shardproof.frontends.hlo.lower import TOKEN, Bound, Lowering, Pending
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType, TensorType

Rule: TypeAlias = Callable[[Lowering, HloInstruction, list[Bound], str], Bound]

ELEMENTWISE: Final[Mapping[str, tuple[str, int]]] = {
    "abs": ("abs", 1),
    "acos": ("acos", 1),
    "acosh": ("acosh", 1),
    "asin": ("asin", 1),
    "asinh": ("asinh", 1),
    "atanh": ("atanh", 1),
    "cosh": ("cosh", 1),
    "sinh": ("sinh", 1),
    "cbrt": ("cbrt", 1),
    "ceil": ("ceil", 1),
    "convert": ("convert", 1),
    "cosine": ("cosine", 1),
    "count-leading-zeros": ("clz", 1),
    "erf": ("erf", 1),
    "exponential": ("exponential", 1),
    "exponential-minus-one": ("expm1", 1),
    "floor": ("floor", 1),
    "imag": ("imag", 1),
    "is-finite": ("is_finite", 1),
    "log": ("log", 1),
    "log-plus-one": ("log1p", 1),
    "logistic": ("logistic", 1),
    "negate": ("negate", 1),
    "not": ("not", 1),
    "popcnt": ("popcnt", 1),
    "real": ("real", 1),
    "round-nearest-afz": ("round_away", 1),
    "round-nearest-even": ("round_even", 1),
    "rsqrt": ("rsqrt", 1),
    "sign": ("sign", 1),
    "sine": ("sine", 1),
    "sqrt": ("sqrt", 1),
    "tan": ("tan", 1),
    "tanh": ("tanh", 1),
    "reshape": ("reshape", 1),
    "bitcast-convert": ("bitcast_convert", 1),
    "add": ("add", 2),
    "and": ("and", 2),
    "atan2": ("atan2", 2),
    "complex": ("complex", 2),
    "divide": ("divide", 2),
    "maximum": ("maximum", 2),
    "minimum": ("minimum", 2),
    "multiply": ("multiply", 2),
    "or": ("or", 2),
    "power": ("power", 2),
    "remainder": ("remainder", 2),
    "shift-left": ("shift_left", 2),
    "shift-right-arithmetic": ("shift_right_arithmetic", 2),
    "shift-right-logical": ("shift_right_logical", 2),
    "subtract": ("subtract", 2),
    "xor": ("xor", 2),
    "clamp": ("clamp", 3),
    "select": ("select", 3),
}
"""Opcodes without attributes: the IR's name and the number of operands."""

_OPAQUE_ELEMENTWISE: Final = ("stochastic-convert",)
_OPAQUE: Final = (
    "batch-norm-grad",
    "batch-norm-inference",
    "batch-norm-training",
    "cholesky",
    "fft",
    "select-and-scatter",
    "triangular-solve",
)
REFUSED: Final = {
    "infeed": "reads from the host",
    "outfeed": "writes to the host",
    "send": "sends to another program",
    "send-done": "sends to another program",
    "recv": "receives from another program",
    "recv-done": "receives from another program",
    "rng-get-and-update-state": "changes hidden state",
    "set-dimension-size": "makes a dynamic dim",
    "dynamic-reshape": "makes a dynamic dim",
    "ragged-all-to-all": "is a collective without a meaning here",
}


def _simple(opcode: str, count: int) -> Rule:
    def rule(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
        values = arrays(op, operands, count)
        return state.emit(opcode, values, result(op), {}, op, prefix)

    return rule


def _constant(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    if op.literal is None:
        raise ModuleError(f"`{op.name}` is a constant without a value")
    return state.emit("constant", (), result(op), {"value": op.literal}, op, prefix)


def _iota(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    dims = attribute(op, "dimensions")
    if len(dims) != 1:
        raise ModuleError(f"`{op.name}` counts along {len(dims)} dims, 1 needed")
    return state.emit("iota", (), result(op), {"dim": dims[0]}, op, prefix)


def _broadcast(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    dims = attribute(op, "dimensions")
    return state.emit("broadcast_in_dim", arrays(op, operands, 1), result(op), {"dims": dims}, op, prefix)


def _transpose(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    attrs = {"permutation": attribute(op, "dimensions")}
    return state.emit("transpose", arrays(op, operands, 1), result(op), attrs, op, prefix)


def _reverse(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    attrs = {"dims": attribute(op, "dimensions")}
    return state.emit("reverse", arrays(op, operands, 1), result(op), attrs, op, prefix)


def _slice(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    starts, limits, strides = attribute(op, "slice")
    attrs = {"starts": starts, "limits": limits, "strides": strides}
    return state.emit("slice", arrays(op, operands, 1), result(op), attrs, op, prefix)


def _pad(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    low, high, interior = attribute(op, "padding")
    attrs = {"low": low, "high": high, "interior": interior}
    return state.emit("pad", arrays(op, operands, 2), result(op), attrs, op, prefix)


def _concatenate(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    dims = attribute(op, "dimensions")
    if len(dims) != 1 or not operands:
        raise ModuleError(f"`{op.name}` joins {len(operands)} operands along {len(dims)} dims, 1 dim needed")
    return state.emit("concatenate", arrays(op, operands), result(op), {"dim": dims[0]}, op, prefix)


def _compare(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    direction, kind = attribute(op, "direction"), attribute(op, "type")
    if direction not in ("EQ", "NE", "LT", "LE", "GT", "GE"):
        raise ModuleError(f"`{op.name}` has the comparison direction {direction!r}, which is not known")
    values = arrays(op, operands, 2)
    total = kind == "TOTALORDER" and values[0].type.dtype.kind == "real"
    return state.emit("compare", values, result(op), {"direction": direction, "total": total}, op, prefix)


def _dot(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    names = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
    attrs = {name: attribute(op, f"{name}_dims") for name in names}
    return state.emit("dot_general", arrays(op, operands, 2), result(op), attrs, op, prefix)


def _convolution(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    window = attribute(op, "window")
    lhs, rhs, out = attribute(op, "dim_labels")
    values = arrays(op, operands, 2)
    kernel = values[1].type.shape
    if tuple(w.size for w in window) != tuple(kernel[d] for d in rhs[2:] if 0 <= d < len(kernel)):
        raise ModuleError(
            f"`{op.name}` has the window {[w.size for w in window]} over the kernel {values[1].type}"
        )
    attrs = {
        "strides": tuple(w.stride for w in window),
        "pad_low": tuple(w.low for w in window),
        "pad_high": tuple(w.high for w in window),
        "lhs_dilation": tuple(w.base_dilation for w in window),
        "rhs_dilation": tuple(w.window_dilation for w in window),
        "reversal": tuple(w.reversal for w in window),
        "lhs_dims": lhs,
        "rhs_dims": rhs,
        "out_dims": out,
        "feature_groups": attribute(op, "feature_group_count"),
        "batch_groups": attribute(op, "batch_group_count"),
    }
    return state.emit("convolution", values, result(op), attrs, op, prefix)


def _gather(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    names = (
        "offset_dims",
        "collapsed_slice_dims",
        "start_index_map",
        "index_vector_dim",
        "slice_sizes",
        "operand_batching_dims",
        "start_indices_batching_dims",
    )
    attrs = {name: attribute(op, name) for name in names}
    return state.emit("gather", arrays(op, operands, 2), result(op), attrs, op, prefix)


def _dynamic_slice(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    values = _with_scalar_starts(state, op, arrays(op, operands), 1, prefix)
    attrs = {"sizes": attribute(op, "dynamic_slice_sizes")}
    return state.emit("dynamic_slice", values, result(op), attrs, op, prefix)


def _dynamic_update_slice(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    values = _with_scalar_starts(state, op, arrays(op, operands), 2, prefix)
    return state.emit("dynamic_update_slice", values, result(op), {}, op, prefix)


def _with_scalar_starts(
    state: Lowering, op: HloInstruction, values: tuple[Any, ...], fixed: int, prefix: str
) -> tuple[Any, ...]:
    """The operands with starts as scalars: older files give them as one vector."""
    if len(values) != fixed + 1 or len(values[fixed].type.shape) != 1:
        return values
    vector = values[fixed]
    if vector.type.shape[0] != len(values[0].type.shape):
        raise ModuleError(f"`{op.name}` has {vector.type.shape[0]} starts for {values[0].type}")
    one, scalar = TensorType(vector.type.dtype, (1,)), TensorType(vector.type.dtype, ())
    starts = []
    for k in range(vector.type.shape[0]):
        cut = {"starts": (k,), "limits": (k + 1,), "strides": (1,)}
        piece = state.emit("slice", (vector,), one, cut, op, prefix, f"cut{k}")
        starts.append(state.emit("reshape", (piece,), scalar, {}, op, prefix, f"start{k}"))
    return (*values[:fixed], *starts)


def _top_k(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    if not attribute(op, "largest"):
        return opaque(state, op, operands, prefix)
    return state.emit_many(
        "top_k", arrays(op, operands, 1), shapes_of(op), {"k": attribute(op, "k")}, op, prefix
    )


def _reduce_precision(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    widths = {(8, 7): DType.BF16, (5, 10): DType.F16, (8, 23): DType.F32, (11, 52): DType.F64}
    narrow = widths.get((attribute(op, "exponent_bits"), attribute(op, "mantissa_bits")))
    if narrow is None:
        return _opaque_elementwise(state, op, operands, prefix)
    (value,) = arrays(op, operands, 1)
    rounded = state.emit("convert", (value,), TensorType(narrow, value.type.shape), {}, op, prefix, "rounded")
    return state.emit("convert", (rounded,), result(op), {}, op, prefix)


def _rng(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    attrs = {"distribution": attribute(op, "distribution")}
    return state.emit("rng", arrays(op, operands, 2), result(op), attrs, op, prefix)


def _rng_bits(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    attrs = {"algorithm": attribute(op, "algorithm")}
    return state.emit_many("rng_bit_generator", arrays(op, operands, 1), shapes_of(op), attrs, op, prefix)


def _bitcast(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    """Read the same memory as another shape: logical to physical order, reshape, and back."""
    (value,) = arrays(op, operands, 1)
    target = result(op)
    source_layout, physical = attribute(op, "operand_layout")
    if not physical or not op.shape.physical:
        raise ModuleError(f"`{op.name}` is a bitcast of a tiled layout, which is not supported")
    if value.type.dtype is not target.dtype:
        if value.type.shape == target.shape and source_layout == op.shape.layout:
            return state.emit("bitcast_convert", (value,), target, {}, op, prefix)
        raise ModuleError(f"`{op.name}` reads {value.type} as {target}, which is not supported")
    if value.type == target and source_layout == op.shape.layout:
        return value
    if source_layout is not None:
        order = tuple(reversed(source_layout))
        moved = TensorType(target.dtype, tuple(value.type.shape[d] for d in order))
        value = state.emit("transpose", (value,), moved, {"permutation": order}, op, prefix, "memory")
    if op.shape.layout is None:
        return value if value.type == target else state.emit("reshape", (value,), target, {}, op, prefix)
    order = tuple(reversed(op.shape.layout))
    moved = TensorType(target.dtype, tuple(target.shape[d] for d in order))
    if value.type != moved:
        value = state.emit("reshape", (value,), moved, {}, op, prefix, "reshape")
    back = tuple(order.index(d) for d in range(len(order)))
    return state.emit("transpose", (value,), target, {"permutation": back}, op, prefix)


def _identity(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    if len(operands) != 1:
        raise ModuleError(f"`{op.name}` has {len(operands)} operands, 1 needed")
    if isinstance(operands[0], Pending):
        raise ModuleError(f"the result of `{operands[0].name}` is used before its wait, by `{op.name}`")
    return operands[0]


def _add_dependency(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    return _identity(state, op, operands[:1], prefix)


def _barrier(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    if len(operands) == 1:
        return _identity(state, op, operands, prefix)
    return _tuple(state, op, operands, prefix)


def _tuple(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    for operand in operands:
        if isinstance(operand, Pending):
            raise ModuleError(f"the result of `{operand.name}` is used before its wait, by `{op.name}`")
    return tuple(operands)


def _get_tuple_element(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    whole = _identity(state, op, operands, prefix)
    index = attribute(op, "index")
    if not isinstance(whole, tuple) or not 0 <= index < len(whole):
        count = len(whole) if isinstance(whole, tuple) else 0
        raise ModuleError(f"`{op.name}` takes part {index} of a tuple of {count}")
    part: Bound = whole[index]
    return part


def _token(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    return TOKEN


def _dimension_size(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    (value,) = arrays(op, operands, 1)
    (dim,) = attribute(op, "dimensions") or (-1,)
    if not 0 <= dim < len(value.type.shape):
        raise ModuleError(f"`{op.name}` asks for dim {dim} of {value.type}")
    size = result(op).dtype.storage.type(value.type.shape[dim])
    return state.emit("constant", (), result(op), {"value": np.asarray(size)}, op, prefix)


def _rank_id(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    if state.ranks.has_id(op):
        return state.emit("rank_id", (), result(op), {}, op, prefix)
    zero = np.zeros((), dtype=result(op).dtype.storage)
    return state.emit("constant", (), result(op), {"value": zero}, op, prefix)


def _opaque_elementwise(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    values = arrays(op, operands)
    rank = len(result(op).shape)
    free = tuple(((d,) * len(values), (d,)) for d in range(rank))
    return opaque(state, op, operands, prefix, free)


def _refused(reason: str) -> Rule:
    def rule(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
        raise ModuleError(f"`{op.name}`: {op.opcode} {reason}, which is not supported")

    return rule


RULES: Final[Mapping[str, Rule]] = {
    **{name: _simple(opcode, count) for name, (opcode, count) in ELEMENTWISE.items()},
    **dict.fromkeys(_OPAQUE_ELEMENTWISE, _opaque_elementwise),
    **dict.fromkeys(_OPAQUE, opaque),
    **{name: _refused(reason) for name, reason in REFUSED.items()},
    **collective_rules.RULES,
    **control_rules.RULES,
    **reduce_rules.RULES,
    "add-dependency": _add_dependency,
    "after-all": _token,
    "bitcast": _bitcast,
    "broadcast": _broadcast,
    "compare": _compare,
    "concatenate": _concatenate,
    "constant": _constant,
    "convolution": _convolution,
    "copy": _identity,
    "custom-call": custom_calls.lower_custom_call,
    "domain": _identity,
    "dot": _dot,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "get-dimension-size": _dimension_size,
    "get-tuple-element": _get_tuple_element,
    "iota": _iota,
    "map": _opaque_elementwise,
    "opt-barrier": _barrier,
    "optimization-barrier": _barrier,
    "pad": _pad,
    "partition-id": _rank_id,
    "reduce-precision": _reduce_precision,
    "replica-id": _rank_id,
    "reverse": _reverse,
    "rng": _rng,
    "rng-bit-generator": _rng_bits,
    "slice": _slice,
    "topk": _top_k,
    "transpose": _transpose,
    "tuple": _tuple,
}
"""Every opcode the importer knows."""
