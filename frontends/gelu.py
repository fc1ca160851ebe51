"""Gelu in both of its forms, of exact numbers: frontends mean the real function by it."""

from __future__ import annotations

from shardproof.ir.build import Builder
from shardproof.ir.module import Value
from shardproof.ir.types import DType


def gelu(s: Builder, x: Value, form: str) -> Value:
    """`x` times the normal distribution's integral, with `form` "tanh" times what approximates it."""
    if form == "none":
        return s.pair("multiply", x, normal_distribution(s, x))
    if form != "tanh":
        s.fail(f"approximates by {form!r}, which is not known")
    inner = s.pair("add", s.emit("tanh", tanh_argument(s, x)), 1)
    return s.pair("multiply", s.pair("multiply", x, inner), 0.5)


def sqrt_of(s: Builder, value: float, dtype: DType) -> Value:
    """The square root of a number, kept as an operator so that it is exact."""
    return s.emit("sqrt", s.scalar(value, dtype))


def quarter_pi(s: Builder, dtype: DType) -> Value:
    """The number pi/4, exact."""
    return s.emit("atan2", s.scalar(1, dtype), s.scalar(1, dtype))


def normal_distribution(s: Builder, x: Value) -> Value:
    """`(1 + erf(x / sqrt(2))) / 2`."""
    erf = s.emit("erf", s.pair("multiply", x, sqrt_of(s, 0.5, x.type.dtype)))
    return s.pair("divide", s.pair("add", erf, 1), 2)


def tanh_argument(s: Builder, x: Value) -> Value:
    """`sqrt(2/pi) * (x + 0.044715 x**3)`, which the tanh form reads."""
    scale = s.emit("sqrt", s.pair("divide", s.scalar(0.5, x.type.dtype), quarter_pi(s, x.type.dtype)))
    cube = s.pair("multiply", s.pair("multiply", s.pair("multiply", x, x), x), 0.044715)
    return s.pair("multiply", s.pair("add", x, cube), scale)
