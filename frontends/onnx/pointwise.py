"""Operators that work element by element."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from shardproof.frontends.onnx.elements import dtype_of
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType


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
    return s.convert(n.operand(0), dtype_of(n.attrs["to"]))


def _cast_like(s: Lowering, n: Node) -> Value:
    return s.convert(n.operand(0), n.operand(1).type.dtype)


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


def _relu(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    return s.emit("maximum", x, s.like(x, 0))


def _mean(s: Lowering, n: Node) -> Value:
    total = _folded("add")(s, n)
    assert isinstance(total, Value)
    return s.pair("divide", total, len(n.inputs))


def _bit_shift(s: Lowering, n: Node) -> Value:
    left = n.attrs["direction"] == "LEFT"
    return s.pair("shift_left" if left else "shift_right_logical", n.operand(0), n.operand(1))


def _is_nan(s: Lowering, n: Node) -> Value:
    return s.compare("NE", n.operand(0), n.operand(0))


def _is_inf(s: Lowering, n: Node) -> Value:
    x = n.operand(0)
    found = s.full(False, DType.BOOL, x.type.shape)
    for wanted, number in (("detect_positive", float("inf")), ("detect_negative", -float("inf"))):
        if n.attrs[wanted]:
            found = s.emit("or", found, s.compare("EQ", x, s.like(x, number)))
    return found


UNARY: Final[Mapping[str, str]] = {
    "Abs": "abs",
    "BitwiseNot": "not",
    "Ceil": "ceil",
    "Cos": "cosine",
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
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
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
    "Sum": _folded("add"),
    "Where": _where,
}
