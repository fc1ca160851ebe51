"""Constants, exactly: the bits in the file become the value in the type's NumPy storage."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shardproof.ir.module import ModuleError
from shardproof.ir.types import Array, DType, TensorType

_REPEATED: Final = {
    DType.BOOL: "preds",
    DType.S32: "s32s",
    DType.S64: "s64s",
    DType.U32: "u32s",
    DType.U64: "u64s",
    DType.F32: "f32s",
    DType.F64: "f64s",
    DType.C64: "c64s",
    DType.C128: "c128s",
}
_BYTES: Final = {
    DType.S4: "s4s",
    DType.U4: "u4s",
    DType.S8: "s8s",
    DType.U8: "u8s",
    DType.S16: "s16s",
    DType.U16: "u16s",
    DType.F16: "f16s",
    DType.BF16: "bf16s",
    DType.F8E4M3: "f8e4m3s",
    DType.F8E4M3FN: "f8e4m3fns",
    DType.F8E4M3B11FNUZ: "f8e4m3b11fnuzs",
    DType.F8E4M3FNUZ: "f8e4m3fnuzs",
    DType.F8E5M2: "f8e5m2s",
    DType.F8E5M2FNUZ: "f8e5m2fnuzs",
}
FLOAT8: Final = {
    DType.F8E4M3: (4, 3, 7, "ieee"),
    DType.F8E4M3FN: (4, 3, 7, "fn"),
    DType.F8E4M3B11FNUZ: (4, 3, 11, "fnuz"),
    DType.F8E4M3FNUZ: (4, 3, 8, "fnuz"),
    DType.F8E5M2: (5, 2, 15, "ieee"),
    DType.F8E5M2FNUZ: (5, 2, 16, "fnuz"),
}
"""Exponent bits, significand bits, bias, and how infinities and NaN are coded."""


def float8_values(dtype: DType) -> Array:
    """The value of each of the 256 codes of an 8-bit float, as float32."""
    exponent_bits, fraction_bits, bias, special = FLOAT8[dtype]
    codes = np.arange(256)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> fraction_bits) & ((1 << exponent_bits) - 1)
    fraction = codes & ((1 << fraction_bits) - 1)
    scale = 2.0**-fraction_bits
    value = np.where(
        exponent == 0,
        fraction * scale * 2.0 ** (1 - bias),
        (1 + fraction * scale) * 2.0 ** (exponent - bias),
    )
    value = sign * value
    top = exponent == (1 << exponent_bits) - 1
    if special == "ieee":
        value = np.where(top, np.where(fraction == 0, sign * np.inf, np.nan), value)
    elif special == "fn":
        value = np.where(top & (fraction == (1 << fraction_bits) - 1), np.nan, value)
    else:
        value = np.where(codes == 0x80, np.nan, value)
    return value.astype(np.float32)


def from_bytes(raw: bytes, type: TensorType, where: str) -> Array:
    """Little-endian bytes of an element type that isn't stored as numbers in the proto."""
    dtype = type.dtype
    if dtype in (DType.S4, DType.U4):
        codes = np.frombuffer(raw, dtype=np.uint8)
        if len(codes) != type.size:
            raise ModuleError(f"{where} packs its {dtype.value} values, in an order that differs by version")
        wide = (codes & 0xF).astype(np.int16)
        signed = np.where(wide > 7, wide - 16, wide) if dtype is DType.S4 else wide
        flat: Array = signed.astype(dtype.storage)
    elif dtype is DType.BF16:
        if len(raw) % 2:
            raise ModuleError(f"{where} holds {len(raw)} bytes of 2-byte elements")
        flat = (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    elif dtype in FLOAT8:
        flat = float8_values(dtype)[np.frombuffer(raw, dtype=np.uint8)]
    else:
        code = {"F16": "<f2", "S8": "<i1", "U8": "<u1", "S16": "<i2", "U16": "<u2"}[dtype.name]
        if len(raw) % np.dtype(code).itemsize:
            raise ModuleError(f"{where} holds {len(raw)} bytes of {np.dtype(code).itemsize}-byte elements")
        flat = np.frombuffer(raw, dtype=code).astype(dtype.storage)
    return shaped(flat, type, where)


def shaped(flat: Array, type: TensorType, where: str) -> Array:
    """`flat` (row-major) in the shape of `type`; the count must agree."""
    if flat.size != type.size:
        raise ModuleError(f"{where} has {flat.size} values, its type {type} needs {type.size}")
    return flat.reshape(type.shape)


def from_proto(literal: Any, type: TensorType, layout: tuple[int, ...] | None, where: str) -> Array:
    """The value of a LiteralProto whose shape is `type` and whose values are in `layout` order."""
    dtype = type.dtype
    if layout is not None:
        physical = tuple(reversed(layout))
        stored = from_proto(literal, TensorType(dtype, tuple(type.shape[d] for d in physical)), None, where)
        return np.ascontiguousarray(stored.transpose(np.argsort(physical)))
    name = _BYTES.get(dtype)
    if name is not None:
        return from_bytes(getattr(literal, name), type, where)
    name = _REPEATED.get(dtype)
    if name is None:
        raise ModuleError(f"{where} is a constant of type {type}, which has no values")
    values = getattr(literal, name)
    if dtype.kind == "complex":
        part = np.float32 if dtype is DType.C64 else np.float64
        pairs: Array = np.array(values, dtype=part)
        if pairs.size % 2:
            raise ModuleError(f"{where} has an odd number of real and imaginary parts")
        return shaped(pairs.view(dtype.storage), type, where)
    return shaped(np.array(values, dtype=dtype.storage), type, where)
