"""The bits of elements: codes of a type as unsigned integers, their values, and rounding between types.

Casts between real types round to nearest, ties to even, as frameworks do; beyond the largest finite
value they give infinity, or NaN in a type without infinities (some frameworks the largest value there).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from shardproof.frontends.hlo.literal import float8_values
from shardproof.ir.types import Array, DType

_FLOAT: Final = {DType.F16: np.float16, DType.F32: np.float32, DType.F64: np.float64}


def code_bits(dtype: DType) -> int | None:
    """Width of the unsigned integers that code `dtype`; None for types without codes of whole bytes, and for
    the one that holds powers of two only."""
    return dtype.bits if dtype.bits in (8, 16, 32, 64, 128) and dtype is not DType.F8E8M0FNU else None


def codes_of(values: Array, dtype: DType) -> Array:
    """Values as their codes; a real that `dtype` does not hold is rounded. 128-bit complex stays as it is."""
    if dtype is DType.C128:
        return np.asarray(values, np.complex128)
    unsigned = f"u{dtype.bits // 8}"
    if dtype in _FLOAT:
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(values.astype(_FLOAT[dtype])).view(unsigned).reshape(values.shape)
    if dtype is DType.BF16:
        with np.errstate(all="ignore"):
            return _bfloat(values.astype(np.float32))
    if dtype.kind == "real":
        return _nearest(values, dtype)
    plain = np.ascontiguousarray(values.astype(dtype.storage, copy=False))
    return plain.view(unsigned).reshape(values.shape)


def values_of(codes: Array, dtype: DType) -> Array:
    """The values of codes, in the type that stores them exactly (float16 stays as it is)."""
    if dtype is DType.C128:
        return codes
    if dtype is DType.BF16:
        return np.asarray((codes.astype(np.uint32) << 16).view(np.float32).reshape(codes.shape))
    if dtype in _FLOAT:
        return np.ascontiguousarray(codes).view(_FLOAT[dtype]).reshape(codes.shape)
    if dtype.kind == "real":
        return np.asarray(float8_values(dtype)[codes.astype(np.uint8)])
    if dtype is DType.BOOL:
        return np.asarray(codes != 0)
    return np.ascontiguousarray(codes).view(dtype.storage).reshape(codes.shape)


def cast(codes: Array, source: DType, target: DType, *, saturate: bool = False) -> Array | None:
    """The codes that a cast makes; None when the kinds differ, or an integer does not fit.

    With `saturate` values beyond an 8-bit real type give its largest finite value.
    """
    if source.kind != target.kind or source.kind not in ("real", "int", "uint"):
        return None
    values = values_of(codes, source)
    if source.kind == "real":
        if saturate and target.bits == 8:
            return _nearest(values, target, saturate)
        return codes_of(values, target)
    narrow = values.astype(target.storage)
    return codes_of(narrow, target) if np.array_equal(narrow, values) else None


def is_nan(codes: Array, dtype: DType) -> Any:
    """Where the codes of a real type are NaN."""
    return np.isnan(values_of(codes, dtype))


def _bfloat(values: Any) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.asarray(np.where(np.isnan(values), quiet, rounded)).astype(np.uint16)


@lru_cache(maxsize=16)
def _finite(dtype: DType) -> tuple[Any, Any]:
    """The finite values at least 0 in order, and the upper end of what rounds to each."""
    values = float8_values(dtype)[:128].astype(np.float64)
    finite = values[np.isfinite(values)]
    last = finite[-1] + (finite[-1] - finite[-2]) / 2
    return finite, np.append((finite[1:] + finite[:-1]) / 2, last)


def _nearest(values: Array, dtype: DType, saturate: bool = False) -> Array:
    with np.errstate(all="ignore"):
        wide: Any = np.asarray(values, np.float64)
    finite, ends = _finite(dtype)
    size: Any = np.abs(wide)
    below = np.searchsorted(ends, size, side="left")
    above = np.searchsorted(ends, size, side="right")
    code = np.where((below != above) & (below % 2 == 1), above, below)
    special = float8_values(dtype)
    over = np.flatnonzero(np.isinf(special))
    nan = int(np.flatnonzero(np.isnan(special))[0])
    beyond = len(finite) - 1 if saturate else int(over[0]) if len(over) else nan
    code = np.where(code >= len(finite), beyond, code)
    signed = np.where(np.signbit(wide) & ((code != 0) | (not np.isnan(special[128]))), code | 128, code)
    return np.asarray(np.where(np.isnan(wide), nan, signed)).astype(np.uint8)
