"""Operators that work element by element."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from shardproof.frontends.gelu import gelu
from shardproof.frontends.onnx.elements import dtype_of
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType


def _unary(opcode: str) -> Rule:
    def rule(s: Lowering, n: Node) -> Value:
        return s.emit(opcode, n.operand(0))

    return rule


def _binary(opcode: str) -> Rule:
    def rule(s: Lowering, n: Node) -> Value:
        return s.pair(opcode, n.operand(0), n.operand(1))

    return rule


def _folded(opcode: str) -> Rule:
    """Any number of operands, from left to right."""

    def rule(s: Lowering, n: Node) -> Value:
        return reduce(lambda x, y: s.pair(opcode, x, y), [v for v in n.inputs if v is not None])

    return rule


def _compare(direction: str) -> Rule:
    def rule(s: Lowering, n: Node) -> Value:
        return s.compare(direction, n.operand(0), n.operand(1))

    return rule


def _identity(s: Lowering, n: Node) -> Value:
    return n.operand(0)


def _cast(s: Lowering, n: Node) -> Value:
    return _converted(s, n, dtype_of(n.attrs["to"]))


def _cast_like(s: Lowering, n: Node) -> Value:
    return _converted(s, n, n.operand(1).type.dtype)


LARGEST: Final[Mapping[DType, float]] = {
    DType.F4E2M1FN: 6.0,
    DType.F8E4M3FN: 448.0,
    DType.F8E4M3FNUZ: 240.0,
    DType.F8E5M2: 57344.0,
    DType.F8E5M2FNUZ: 57344.0,
}
"""The largest finite number of types that a cast may saturate to."""


def _converted(s: Lowering, n: Node, dtype: DType) -> Value:
    """A real beyond the largest of a narrow type becomes that one when told to saturate; the bits of an
    integer that a narrow type does not have are dropped."""
    x = n.operand(0)
    source, saturates, mode = x.type.dtype, n.attrs.get("saturate", 1), n.attrs.get("round_mode", "up")
    if source is dtype:
        return x
    if dtype is DType.F8E8M0FNU:
        return s.convert(_power_of_two(s, s.convert(x, DType.F32), mode, bool(saturates)), dtype)
    if dtype in LARGEST and (saturates or dtype is DType.F4E2M1FN):
        x = x if source.kind == "real" else s.convert(x, DType.F32)
        ends = [s.scalar(sign * LARGEST[dtype], x.type.dtype) for sign in (-1, 1)]
        x = s.emit("clamp", ends[0], x, ends[1])
    if dtype.kind in ("int", "uint") and dtype.bits < 8 and source.kind == "real":
        x = s.convert(x, DType.S32)
    return s.convert(x, dtype)


def _power_of_two(s: Lowering, x: Value, mode: str, saturates: bool) -> Value:
    """A positive f32 rounded to a power of two, by the bits below its exponent."""
    added = {"up": (1 << 23) - 1, "down": 0, "nearest": 1 << 22}
    if mode not in added or not saturates:
        s.fail(f"rounds to a power of two, mode {mode!r}, saturate={int(saturates)}, which is not known")
    bits = s.emit("bitcast_convert", x, type=TensorType(DType.U32, x.type.shape))
    kept = s.pair("and", s.pair("add", bits, added[mode]), 0xFF << 23)
    rounded = s.emit("bitcast_convert", kept, type=TensorType(DType.F32, x.type.shape))
    least = s.like(x, 2.0**-127)
    found = s.emit("minimum", rounded, s.like(x, 2.0**127))
    return s.select(s.compare("LE", x, least), least, s.emit("maximum", found, least))


def _bit_cast(s: Lowering, n: Node) -> Value:
    x, dtype = n.operand(0), dtype_of(n.attrs["to"])
    if dtype.bits != x.type.dtype.bits:
        s.fail(f"reinterprets {x.type} as {dtype.value}, as many bits are needed")
    if x.type.dtype is DType.BOOL:
        x = s.convert(x, DType.U8)
    if dtype is x.type.dtype:
        return x
    return s.emit("bitcast_convert", x, type=TensorType(dtype, x.type.shape))


def _where(s: Lowering, n: Node) -> Value:
    return s.select(n.operand(0), n.operand(1), n.operand(2))


def _pow(s: Lowering, n: Node) -> Value:
    """The exponent may be of another type; the result is of the base's."""
    x, y = n.operand(0), n.operand(1)
    if x.type.dtype.kind != "real" and y.type.dtype.kind == "real":
        return s.convert(s.pair("power", s.convert(x, y.type.dtype), y), x.type.dtype)
    return s.pair("power", x, s.convert(y, x.type.dtype))


def _reciprocal(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    return s.emit("divide", s.like(x, 1), x)


def _mod(s: Lowering, n: Node) -> Value:
    """With `fmod` the sign of the dividend, else that of the divisor."""
    x, y = s.common(n.operand(0), n.operand(1))
    rest = s.emit("remainder", x, y)
    if n.attrs.get("fmod", 0) or x.type.dtype.kind == "uint":
        return rest
    zero = s.like(rest, 0)
    other = s.emit("xor", s.compare("LT", rest, zero), s.compare("LT", y, zero))
    wrong = s.emit("and", other, s.compare("NE", rest, zero))
    return s.select(wrong, s.emit("add", rest, y), rest)


def _clip(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    low, high = n.given(1), n.given(2)
    if low is not None:
        x = s.pair("maximum", x, low)
    return x if high is None else s.pair("minimum", x, high)


def _shrink(s: Lowering, n: Node) -> Value:
    """Numbers moved towards 0 by `bias`, those within `lambd` of it to 0."""
    x, bias, limit = n.operand(0), n.attrs["bias"], n.attrs["lambd"]
    if x.type.dtype.kind != "real":
        s.fail(f"shrinks {x.type}, reals are needed")
    above = s.select(s.compare("GT", x, limit), s.pair("subtract", x, bias), s.like(x, 0))
    return s.select(s.compare("LT", x, -limit), s.pair("add", x, bias), above)


def _atan(s: Lowering, n: Node) -> Value:
    return s.pair("atan2", n.operand(0), 1)


def _relu(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    return s.emit("maximum", x, s.like(x, 0))


def _mean(s: Lowering, n: Node) -> Value:
    total = _folded("add")(s, n)
    assert isinstance(total, Value)
    return s.pair("divide", total, len(n.inputs))


def _bit_shift(s: Lowering, n: Node) -> Value:
    """A shift by no less than the width, or by a negative number, leaves none of the bits."""
    x, by = n.operand(0), n.operand(1)
    direction = n.attrs["direction"]
    if direction not in ("LEFT", "RIGHT"):
        s.fail(f"shifts in the direction {direction!r}, LEFT or RIGHT is needed")
    signed = "shift_right_arithmetic" if x.type.dtype.kind == "int" else "shift_right_logical"
    return s.pair("shift_left" if direction == "LEFT" else signed, x, by)


def _is_nan(s: Lowering, n: Node) -> Value:
    return s.compare("NE", n.operand(0), n.operand(0))


def _is_inf(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    found = s.full(False, DType.BOOL, x.type.shape)
    for wanted, number in (("detect_positive", float("inf")), ("detect_negative", -float("inf"))):
        if n.attrs[wanted]:
            found = s.emit("or", found, s.compare("EQ", x, s.like(x, number)))
    return found


def _gelu(s: Lowering, n: Node) -> Value:
    """Of exact numbers; the function body of the standard rounds pi."""
    return gelu(s, n.operand(0), n.attrs["approximate"])


UNARY: Final[Mapping[str, str]] = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atanh": "atanh",
    "BitwiseNot": "not",
    "Ceil": "ceil",
    "Cos": "cosine",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exponential",
    "Floor": "floor",
    "Log": "log",
    "Neg": "negate",
    "Not": "not",
    "Round": "round_even",
    "Sigmoid": "logistic",
    "Sign": "sign",
    "Sin": "sine",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
BINARY: Final[Mapping[str, str]] = {
    "Add": "add",
    "And": "and",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
    "BitwiseXor": "xor",
    "Div": "divide",
    "Mul": "multiply",
    "Or": "or",
    "Sub": "subtract",
    "Xor": "xor",
}
COMPARE: Final[Mapping[str, str]] = {
    "Equal": "EQ",
    "Greater": "GT",
    "GreaterOrEqual": "GE",
    "Less": "LT",
    "LessOrEqual": "LE",
}

RULES: Final[Mapping[str, Rule]] = {
    **{name: _unary(opcode) for name, opcode in UNARY.items()},
    **{name: _binary(opcode) for name, opcode in BINARY.items()},
    **{name: _compare(direction) for name, direction in COMPARE.items()},
    "BitCast": _bit_cast,
    "Atan": _atan,
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Gelu": _gelu,
    "Identity": _identity,
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "Max": _folded("maximum"),
    "Mean": _mean,
    "Min": _folded("minimum"),
    "Mod": _mod,
    "Pow": _pow,
    "Reciprocal": _reciprocal,
    "Relu": _relu,
    "Shrink": _shrink,
    "Sum": _folded("add"),
    "Where": _where,
}
