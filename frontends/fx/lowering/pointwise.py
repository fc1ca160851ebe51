"""Pointwise operators: arithmetic with type promotion, comparisons, selections."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from shardproof.frontends.fx.lowering.call import Table, entries, overloads
from shardproof.frontends.fx.lowering.state import Arguments, Lowering, Rule
from shardproof.ir.build import Number
from shardproof.ir.module import Value
from shardproof.ir.types import DType

Operand = Value | Number
_INTEGER: Final = ("int", "uint")


def promoted(s: Lowering, *operands: Operand, real: bool = False) -> tuple[Value, ...]:
    """The operands in their common element type; with `real`, integers become reals."""
    dtype = s.result_type(*operands)
    if real:
        dtype = s.floating(dtype)
    return tuple(s.tensor(x, dtype) for x in operands)


def unary(opcode: str, *, real: bool = True) -> Rule:
    """A function of one tensor; with `real` it is one of reals."""

    def rule(s: Lowering, a: Arguments) -> Value:
        x = a["self"]
        return s.emit(opcode, s.convert(x, s.floating(x.type.dtype)) if real else x)

    return rule


def binary(opcode: str, *, real: bool = False) -> Rule:
    """A function of two operands in their common type."""

    def rule(s: Lowering, a: Arguments) -> Value:
        return s.pair(opcode, *promoted(s, a["self"], a["other"], real=real))

    return rule


def _shift_right(s: Lowering, a: Arguments) -> Value:
    x, amount = promoted(s, a["self"], a["other"])
    return s.pair(
        "shift_right_logical" if x.type.dtype.kind == "uint" else "shift_right_arithmetic", x, amount
    )


def composed(function: Callable[[Lowering, Value], Value]) -> Rule:
    """A function of one real tensor that the IR states by several operators."""

    def rule(s: Lowering, a: Arguments) -> Value:
        x = a["self"]
        return function(s, s.convert(x, s.floating(x.type.dtype)))

    return rule


def _rounded(opcode: str) -> Rule:
    """Rounding; of integers the identity."""

    def rule(s: Lowering, a: Arguments) -> Value:
        x: Value = a["self"]
        if a.get("decimals", 0) != 0:
            s.fail("rounds to decimals, which is not supported")
        if x.type.dtype.kind in _INTEGER:
            return x
        return _truncated(s, x) if opcode == "truncate" else s.emit(opcode, x)

    return rule


def _truncated(s: Lowering, x: Value) -> Value:
    return s.select(s.compare("LT", x, 0), s.emit("ceil", x), s.emit("floor", x))


def compare(direction: str) -> Rule:
    def rule(s: Lowering, a: Arguments) -> Value:
        return s.compare(direction, *promoted(s, a["self"], a["other"]))

    return rule


def scaled(s: Lowering, x: Operand, factor: Number, dtype: DType) -> Value:
    """`factor * x` in `dtype`."""
    value = s.tensor(x, dtype)
    return value if factor == 1 else s.pair("multiply", value, factor)


def sum_of(sign: str) -> Rule:
    """`self + alpha*other` or `self - alpha*other`."""

    def rule(s: Lowering, a: Arguments) -> Value:
        dtype = s.result_type(a["self"], a["other"])
        return s.pair(sign, s.tensor(a["self"], dtype), scaled(s, a["other"], a["alpha"], dtype))

    return rule


def _reverse_difference(s: Lowering, a: Arguments) -> Value:
    dtype = s.result_type(a["self"], a["other"])
    return s.pair("subtract", s.tensor(a["other"], dtype), scaled(s, a["self"], a["alpha"], dtype))


def _divide(s: Lowering, a: Arguments) -> Value:
    mode = a.get("rounding_mode")
    if mode is None:
        return s.pair("divide", *promoted(s, a["self"], a["other"], real=True))
    x, y = promoted(s, a["self"], a["other"])
    if mode == "floor":
        return floor_divided(s, x, y)
    if mode != "trunc":
        s.fail(f"rounds by {mode!r}, which is not known")
    quotient = s.pair("divide", x, y)
    return quotient if x.type.dtype.kind in _INTEGER else _truncated(s, quotient)


def floor_divided(s: Lowering, x: Value, y: Value) -> Value:
    """The quotient rounded down, of two operands of one type."""
    quotient = s.pair("divide", x, y)
    if x.type.dtype.kind == "real":
        return s.emit("floor", quotient)
    if x.type.dtype.kind == "uint":
        return quotient
    return s.select(_crosses_zero(s, s.pair("remainder", x, y), y), s.pair("subtract", quotient, 1), quotient)


def _crosses_zero(s: Lowering, remainder: Value, y: Value) -> Value:
    """Whether a remainder with the sign of the dividend is not one with the sign of `y`."""
    signs = s.pair("xor", s.compare("LT", remainder, 0), s.compare("LT", y, 0))
    return s.pair("and", s.compare("NE", remainder, 0), signs)


def _floor_divide(s: Lowering, a: Arguments) -> Value:
    return floor_divided(s, *promoted(s, a["self"], a["other"]))


def _remainder(s: Lowering, a: Arguments) -> Value:
    """With the sign of the divisor."""
    x, y = promoted(s, a["self"], a["other"])
    rest = s.pair("remainder", x, y)
    if x.type.dtype.kind == "uint":
        return rest
    return s.select(_crosses_zero(s, rest, y), s.pair("add", rest, y), rest)


def _where(s: Lowering, a: Arguments) -> Value:
    condition = s.convert(a["condition"], DType.BOOL)
    return s.select(condition, *promoted(s, a["self"], a["other"]))


def _masked_fill(s: Lowering, a: Arguments) -> Value:
    x: Value = a["self"]
    value = a["value"]
    if isinstance(value, Value) and value.type.shape:
        s.fail(f"fills with {value.type}, a scalar is needed")
    shape = s.common_shape(x, a["mask"])
    return s.select(a["mask"], s.spread(s.tensor(value, x.type.dtype), shape), x)


def _clamp(s: Lowering, a: Arguments) -> Value:
    given = [bound for bound in (a.get("min"), a.get("max")) if bound is not None]
    if not given:
        s.fail("has no bound")
    dtype = s.result_type(a["self"], *given)
    x = s.tensor(a["self"], dtype)
    for opcode, bound in (("maximum", a.get("min")), ("minimum", a.get("max"))):
        if bound is not None:
            x = s.pair(opcode, x, s.tensor(bound, dtype))
    return x


def _logical(opcode: str) -> Rule:
    def rule(s: Lowering, a: Arguments) -> Value:
        x = s.convert(a["self"], DType.BOOL)
        if opcode == "not":
            return s.emit("not", x)
        return s.pair(opcode, x, s.convert(a["other"], DType.BOOL))

    return rule


def _lerp(s: Lowering, a: Arguments) -> Value:
    x, end = a["self"], a["end"]
    weight = s.tensor(a["weight"], x.type.dtype)
    return s.pair("add", x, s.pair("multiply", weight, s.pair("subtract", end, x)))


def _with_product(opcode: str) -> Rule:
    """`self + value * (tensor1 op tensor2)`."""

    def rule(s: Lowering, a: Arguments) -> Value:
        dtype = s.result_type(a["self"], a["tensor1"], a["tensor2"])
        if opcode == "divide":
            dtype = s.floating(dtype)
        inner = s.pair(opcode, s.tensor(a["tensor1"], dtype), s.tensor(a["tensor2"], dtype))
        return s.pair("add", s.tensor(a["self"], dtype), scaled(s, inner, a["value"], dtype))

    return rule


def _is_infinite(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    if x.type.dtype.kind != "real":
        return s.full(False, DType.BOOL, x.type.shape)
    return s.compare("EQ", s.emit("abs", x), math.inf)


def _is_nan(s: Lowering, a: Arguments) -> Value:
    return s.compare("NE", a["self"], a["self"])


def _is_finite(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    if x.type.dtype.kind != "real":
        return s.full(True, DType.BOOL, x.type.shape)
    return s.emit("is_finite", x)


def _atan(s: Lowering, a: Arguments) -> Value:
    x = s.convert(a["self"], s.floating(a["self"].type.dtype))
    return s.pair("atan2", x, 1)


def _unary_opaque(name: str) -> Rule:
    """A function of reals that the IR has no operator for, element by element."""

    def rule(s: Lowering, a: Arguments) -> Value:
        x = s.convert(a["self"], s.floating(a["self"].type.dtype))
        free = tuple(((d,), (d,)) for d in range(len(x.type.shape)))
        return s.emit("opaque", x, type=x.type, name=f"aten::{name}", free=free)

    return rule


_REAL: Final = {
    "exp": "exponential",
    "expm1": "expm1",
    "log": "log",
    "log1p": "log1p",
    "sigmoid": "logistic",
    "tanh": "tanh",
    "tan": "tan",
    "sin": "sine",
    "cos": "cosine",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "erf": "erf",
    "acos": "acos",
    "acosh": "acosh",
    "asin": "asin",
    "asinh": "asinh",
    "atanh": "atanh",
    "cosh": "cosh",
    "sinh": "sinh",
}
_COMPARISONS: Final = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_BITS: Final = {
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "__and__": "and",
    "__or__": "or",
    "__xor__": "xor",
}
_OPAQUE: Final = ("digamma", "lgamma")


def _named(parameters: str, rules: Mapping[str, Rule], *found: str) -> Table:
    """One rule for each operator name, in these overloads."""
    return {
        k: e
        for name, rule in rules.items()
        for k, e in overloads(parameters, rule, f"aten.{name}", *found).items()
    }


TABLE: Final[Table] = {
    **_named("self", {name: unary(opcode) for name, opcode in _REAL.items()}, "default"),
    **_named("self", {name: _unary_opaque(name) for name in _OPAQUE}, "default"),
    **_named("self other", {name: compare(d) for name, d in _COMPARISONS.items()}, "Tensor", "Scalar"),
    **_named("self other", {name: binary(opcode) for name, opcode in _BITS.items()}, "Tensor", "Scalar"),
    **overloads("self other", binary("shift_left"), "aten.bitwise_left_shift", "Tensor", "Tensor_Scalar"),
    **entries("self", _atan, "aten.atan"),
    **entries("self", unary("negate", real=False), "aten.neg"),
    **entries("self", unary("abs", real=False), "aten.abs"),
    **entries("self", unary("sign", real=False), "aten.sign"),
    **entries("self", unary("not", real=False), "aten.bitwise_not"),
    **entries("self", _rounded("floor"), "aten.floor"),
    **entries("self", _rounded("ceil"), "aten.ceil"),
    **entries("self", _rounded("truncate"), "aten.trunc"),
    **entries("self", _rounded("round_even"), "aten.round"),
    **entries("self decimals", _rounded("round_even"), "aten.round.decimals"),
    **entries(
        "self", composed(lambda s, x: s.pair("divide", s.scalar(1, x.type.dtype), x)), "aten.reciprocal"
    ),
    **entries(
        "self",
        composed(lambda s, x: s.pair("subtract", s.scalar(1, x.type.dtype), s.emit("erf", x))),
        "aten.erfc",
    ),
    **entries(
        "self",
        composed(lambda s, x: s.pair("divide", s.emit("log", x), s.emit("log", s.scalar(2, x.type.dtype)))),
        "aten.log2",
    ),
    **entries(
        "self",
        composed(lambda s, x: s.pair("divide", s.emit("log", x), s.emit("log", s.scalar(10, x.type.dtype)))),
        "aten.log10",
    ),
    **entries("self", composed(lambda s, x: s.pair("power", s.like(x, 2), x)), "aten.exp2"),
    **entries("self", lambda s, a: s.pair("multiply", a["self"], a["self"]), "aten.square"),
    **overloads("self other alpha=1", sum_of("add"), "aten.add", "Tensor", "Scalar"),
    **overloads("self other alpha=1", sum_of("subtract"), "aten.sub", "Tensor", "Scalar"),
    **overloads("self other alpha=1", _reverse_difference, "aten.rsub", "Tensor", "Scalar"),
    **overloads("self other", binary("multiply"), "aten.mul", "Tensor", "Scalar"),
    **overloads("self other", _divide, "aten.div", "Tensor", "Scalar"),
    **overloads("self other rounding_mode", _divide, "aten.div", "Tensor_mode", "Scalar_mode"),
    **overloads("self other", _floor_divide, "aten.floor_divide", "default", "Scalar"),
    **overloads("self other", _remainder, "aten.remainder", "Tensor", "Scalar", "Scalar_Tensor"),
    **overloads("self other", binary("remainder"), "aten.fmod", "Tensor", "Scalar"),
    **overloads(
        "self exponent:other", binary("power"), "aten.pow", "Tensor_Tensor", "Tensor_Scalar", "Scalar"
    ),
    **overloads("self other", _shift_right, "aten.bitwise_right_shift", "Tensor", "Tensor_Scalar"),
    **entries("self other", binary("maximum"), "aten.maximum"),
    **entries("self other", binary("minimum"), "aten.minimum"),
    **entries("self other", binary("atan2", real=True), "aten.atan2"),
    **entries("self other", _logical("and"), "aten.logical_and"),
    **entries("self other", _logical("or"), "aten.logical_or"),
    **entries("self other", _logical("xor"), "aten.logical_xor"),
    **entries("self", _logical("not"), "aten.logical_not"),
    **overloads("condition self other", _where, "aten.where", "self", "ScalarOther", "ScalarSelf", "Scalar"),
    **overloads("self mask value", _masked_fill, "aten.masked_fill", "Scalar", "Tensor"),
    **overloads("self min=None max=None", _clamp, "aten.clamp", "default", "Tensor"),
    **overloads("self min", _clamp, "aten.clamp_min", "default", "Tensor"),
    **overloads("self max", _clamp, "aten.clamp_max", "default", "Tensor"),
    **entries("self min_val:min=-1 max_val:max=1", _clamp, "aten.hardtanh"),
    **overloads("self end weight", _lerp, "aten.lerp", "Scalar", "Tensor"),
    **entries("self tensor1 tensor2 value=1", _with_product("multiply"), "aten.addcmul"),
    **entries("self tensor1 tensor2 value=1", _with_product("divide"), "aten.addcdiv"),
    **entries("self", _is_infinite, "aten.isinf"),
    **entries("self", _is_nan, "aten.isnan"),
    **entries("self", _is_finite, "aten.isfinite"),
}
