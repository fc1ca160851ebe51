"""Element types of PyTorch results: promotion of operands, and of Python numbers beside tensors."""

from __future__ import annotations

from typing import Final

from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType

_RANK: Final = {"bool": 0, "int": 1, "uint": 1, "real": 2, "complex": 3}
_FLOAT8: Final = frozenset(d for d in DType if d.value.startswith("f8"))


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 real, 3 complex."""
    if dtype is DType.TOKEN:
        raise ModuleError("a token has no element type to promote")
    return _RANK[dtype.kind]


def promote(a: DType, b: DType) -> DType:
    """The common type of two tensors of one priority (`torch.promote_types`)."""
    if a is b:
        return a
    if a in _FLOAT8 or b in _FLOAT8:
        raise ModuleError(f"{a.value} and {b.value} have no common element type")
    if category(a) != category(b):
        low, high = sorted((a, b), key=category)
        if high is DType.C64 and low is DType.F64:
            return DType.C128
        return high
    if category(a) == 1 and a.kind != b.kind:
        signed, unsigned = (a, b) if a.kind == "int" else (b, a)
        if unsigned is not DType.U8:
            raise ModuleError(f"{a.value} and {b.value} have no common element type")
        return DType.S16 if signed is DType.S8 else signed
    if {a, b} == {DType.F16, DType.BF16}:
        return DType.F32
    return a if a.bits >= b.bits else b


def combine(high: DType | None, low: DType | None) -> DType | None:
    """A type of higher priority with one of lower: the lower one matters only by a higher category."""
    if high is None or low is None:
        return high if low is None else low
    if category(high) == 2 and category(low) == 3:
        return DType.C128 if high is DType.F64 else DType.C64
    if category(high) >= category(low):
        return high
    return promote(high, low) if category(high) == 0 else low


def of_number(value: complex | float | bool) -> DType:
    """The type of a Python number as an operand, for the default element type f32."""
    if isinstance(value, bool):
        return DType.BOOL
    if isinstance(value, int):
        return DType.S64
    return DType.C64 if isinstance(value, complex) else DType.F32
