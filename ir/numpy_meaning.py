"""What pointwise and element-moving operators compute on one rank, in NumPy.

Real arrays are computed in the floating type they come in and created as float64, whatever the
width of their element type: the model is real arithmetic, so float-to-float conversions are the
identity. Integers wrap in their own width (4-bit ones are stored in 8 bits). A function takes the
operator and its operands' arrays, checks nothing that the type rule checks, and never writes to an
operand. Contractions, reductions and indexing are in `shardproof.ir.numpy_compute`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Op
from shardproof.ir.types import Array, DType

Arrays = Sequence[Any]
Meaning = Callable[[Op, Sequence[Array]], tuple[Array, ...]]


class InterpretError(ValueError):
    """A program that can't be run; the message is one line."""


class Unsupported(InterpretError):
    """An operator, or a use of it, without a defined value in NumPy."""

    def __init__(self, opcode: str, reason: str = "it has no NumPy meaning") -> None:
        super().__init__(f"{opcode} can't be interpreted: {reason}")
        self.opcode = opcode


def element_type(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of replay arithmetic: float64 for reals, complex128 for complex, else the storage."""
    if dtype.kind == "real":
        return np.dtype(np.float64)
    return np.dtype(np.complex128) if dtype.kind == "complex" else dtype.storage


def settle(array: Any, dtype: DType) -> Array:
    """`array` as a value of `dtype`: integers wrapped to its width, reals in their floating type."""
    result = np.asarray(array)
    if dtype.kind in ("real", "complex"):
        wanted = np.inexact if dtype.kind == "real" else np.complexfloating
        return result if issubclass(result.dtype.type, wanted) else result.astype(element_type(dtype))
    if result.dtype != dtype.storage:
        result = result.astype(dtype.storage)
    if dtype.kind in ("int", "uint") and dtype.bits < 8:
        low, sign = (1 << dtype.bits) - 1, 1 << dtype.bits - 1
        wrapped = result & low
        return np.asarray((wrapped ^ sign) - sign if dtype.kind == "int" else wrapped, dtype=dtype.storage)
    return result


def _pointwise(function: Callable[..., Any]) -> Meaning:
    def meaning(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (settle(function(*arrays), op.result.type.dtype),)

    return meaning


def _is_integer(x: Any) -> bool:
    return bool(np.issubdtype(x.dtype, np.integer))


def _divide(x: Any, y: Any) -> Any:
    if not _is_integer(x):
        return np.divide(x, y)
    zero = np.equal(y, 0)
    safe = np.where(zero, np.ones_like(y), y)
    floor = np.floor_divide(x, safe)
    inexact = np.not_equal(np.multiply(floor, safe), x) & (np.less(x, 0) != np.less(safe, 0))
    return np.where(zero, np.zeros_like(x) - np.ones_like(x), floor + inexact.astype(x.dtype))


def _remainder(x: Any, y: Any) -> Any:
    if not _is_integer(x):
        return np.fmod(x, y)
    zero = np.equal(y, 0)
    return np.where(zero, x, np.fmod(x, np.where(zero, np.ones_like(y), y)))


def _power(x: Any, y: Any) -> Any:
    if not _is_integer(x):
        return np.power(x, y)
    result, base, left = np.ones_like(x), x, np.maximum(y, 0)
    while np.any(left):
        result = np.where(left & 1, np.multiply(result, base), result)
        base, left = np.multiply(base, base), np.right_shift(left, 1)
    parity = np.where(y & 1, x, np.ones_like(x))
    unit = np.where(np.equal(x, 1), np.ones_like(x), np.where(np.equal(x, -1), parity, np.zeros_like(x)))
    return np.where(np.less(y, 0), unit, result)


def _bitwise(on_bool: Any, on_integer: Any) -> Meaning:
    return _pointwise(lambda *xs: (on_bool if xs[0].dtype == np.bool_ else on_integer)(*xs))


def _unsigned(x: Any, bits: int) -> Any:
    unsigned = x.astype(np.dtype(f"u{x.dtype.itemsize}"))
    return unsigned & (1 << bits) - 1 if bits < 8 else unsigned


_SIGNED: Final = {2: DType.S2, 4: DType.S4}


def _shift(shift: Any, *, arithmetic: bool = False) -> Meaning:
    def meaning(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
        dtype = op.result.type.dtype
        x, amount = (_unsigned(a, dtype.bits) for a in arrays)
        too_far = np.greater_equal(amount, dtype.bits)
        if arithmetic:
            value: Any = arrays[0]
            whole = dtype.bits >= 8
            signed = value.astype(f"i{value.dtype.itemsize}") if whole else settle(value, _SIGNED[dtype.bits])
            last = np.full_like(amount, dtype.bits - 1)
            return (settle(shift(signed, np.where(too_far, last, amount).astype(signed.dtype)), dtype),)
        shifted = shift(x, np.where(too_far, np.zeros_like(amount), amount))
        return (settle(np.where(too_far, np.zeros_like(x), shifted), dtype),)

    return meaning


def _bits_of(op: Op, x: Any) -> Any:
    """One more dim: the bits of each integer, most significant first."""
    dtype = op.operands[0].type.dtype
    unsigned = np.ascontiguousarray(_unsigned(x, dtype.bits)).reshape(*x.shape, 1)
    octets = unsigned.astype(unsigned.dtype.newbyteorder(">")).view(np.uint8)
    return np.unpackbits(octets, axis=-1)[..., -dtype.bits :]


def popcnt(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    return (settle(_bits_of(op, arrays[0]).sum(axis=-1), op.result.type.dtype),)


def clz(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    bits = _bits_of(op, arrays[0])
    leading = np.where(bits.any(axis=-1), bits.argmax(axis=-1), bits.shape[-1])
    return (settle(leading, op.result.type.dtype),)


def _round_away(x: Any) -> Any:
    whole = np.trunc(x)
    return whole + np.where(np.greater_equal(np.abs(x - whole), 0.5), np.copysign(1.0, x), 0.0)


_ERF: Final = np.vectorize(math.erf, otypes=[np.float64])

add = _pointwise(np.add)
subtract = _pointwise(np.subtract)
multiply = _pointwise(np.multiply)
divide = _pointwise(_divide)
remainder = _pointwise(_remainder)
maximum = _pointwise(np.maximum)
minimum = _pointwise(np.minimum)
power = _pointwise(_power)
atan2 = _pointwise(np.arctan2)
and_ = _bitwise(np.logical_and, np.bitwise_and)
or_ = _bitwise(np.logical_or, np.bitwise_or)
xor = _bitwise(np.logical_xor, np.bitwise_xor)
not_ = _bitwise(np.logical_not, np.invert)
shift_left = _shift(np.left_shift)
shift_right_logical = _shift(np.right_shift)
shift_right_arithmetic = _shift(np.right_shift, arithmetic=True)
complex_ = _pointwise(lambda x, y: np.asarray(x) + 1j * np.asarray(y))
negate = _pointwise(np.negative)
abs_ = _pointwise(np.abs)
exponential = _pointwise(np.exp)
expm1 = _pointwise(np.expm1)
log = _pointwise(np.log)
log1p = _pointwise(np.log1p)
logistic = _pointwise(lambda x: 1 / (1 + np.exp(np.negative(x))))
tanh = _pointwise(np.tanh)
tan = _pointwise(np.tan)
sine = _pointwise(np.sin)
cosine = _pointwise(np.cos)
acos = _pointwise(np.arccos)
acosh = _pointwise(np.arccosh)
asin = _pointwise(np.arcsin)
asinh = _pointwise(np.arcsinh)
atanh = _pointwise(np.arctanh)
cosh = _pointwise(np.cosh)
sinh = _pointwise(np.sinh)
sqrt = _pointwise(np.sqrt)
rsqrt = _pointwise(lambda x: 1 / np.sqrt(x))
cbrt = _pointwise(np.cbrt)
sign = _pointwise(np.sign)
floor = _pointwise(np.floor)
ceil = _pointwise(np.ceil)
round_even = _pointwise(np.rint)
round_away = _pointwise(_round_away)
is_finite = _pointwise(np.isfinite)
erf = _pointwise(lambda x: _ERF(x) if x.size else x)
real = _pointwise(np.real)
imag = _pointwise(np.imag)
select = _pointwise(np.where)
clamp = _pointwise(lambda low, x, high: np.minimum(np.maximum(low, x), high))

_COMPARE: Final = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def compare(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    """IEEE comparison, or with `total` the order -nan < -inf < ... < -0 < 0 < ... < inf < nan."""
    x, y = (_total_order(a) for a in arrays) if op.attrs["total"] else arrays
    return (np.asarray(_COMPARE[op.attrs["direction"]](x, y)),)


def _total_order(x: Any) -> Any:
    bits = np.asarray(x, dtype=np.float64).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)


def constant(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    dtype = op.result.type.dtype
    return (np.asarray(op.attrs["value"]).astype(element_type(dtype), copy=False),)


def iota(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    type_, dim = op.result.type, op.attrs["dim"]
    line = settle(np.arange(type_.shape[dim]), type_.dtype)
    shape = [size if d == dim else 1 for d, size in enumerate(type_.shape)]
    return (np.broadcast_to(line.reshape(shape), type_.shape),)


def convert(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    """Real to int truncates and saturates (nan gives 0), int to int wraps, to bool is `!= 0`."""
    x, dtype = arrays[0], op.result.type.dtype
    if dtype.kind == "bool":
        return (settle(np.not_equal(x, 0), dtype),)
    if dtype.kind in ("int", "uint") and op.operands[0].type.dtype.kind == "real":
        signed = dtype.kind == "int"
        low = -(2 ** (dtype.bits - 1)) if signed else 0
        high = 2 ** (dtype.bits - 1) - 1 if signed else 2**dtype.bits - 1
        whole = np.trunc(np.where(np.isnan(x), 0.0, x))
        inside = np.clip(whole, low, np.nextafter(float(high), 0) if dtype.bits == 64 else high)
        integers = inside.astype(dtype.storage)
        return (settle(np.where(whole >= high, np.array(high, dtype=dtype.storage), integers), dtype),)
    return (settle(x, dtype),)


def bitcast_convert(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    """Reinterprets the bits; a real that its element type does not hold exactly has no such bits."""
    source, result = op.operands[0].type.dtype, op.result.type
    words = _to_words(source, arrays[0])
    if source.bits != result.dtype.bits and min(source.bits, result.dtype.bits) < 8:
        raise Unsupported("bitcast_convert", "packing of elements of less than a byte is not defined here")
    target = np.dtype(f"u{max(result.dtype.bits // 8, 1)}")
    if words.dtype != target:
        wide = words.reshape(*words.shape, 1) if words.dtype.itemsize > target.itemsize else words
        words = np.ascontiguousarray(wide).view(target).reshape(result.shape)
    return (_from_words(result.dtype, words),)


def _to_words(dtype: DType, x: Any) -> Any:
    if dtype.kind != "real":
        return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").reshape(x.shape)
    narrow = x.astype({16: np.float16, 32: np.float32, 64: np.float64}[_ieee(dtype)])
    words = np.ascontiguousarray(narrow).view(f"u{narrow.dtype.itemsize}").reshape(x.shape)
    exact = np.array_equal(narrow, x, equal_nan=True)
    if dtype is DType.BF16:
        exact = exact and not np.any(words & 0xFFFF)
        words = (words >> np.uint32(16)).astype(np.uint16)
    if not exact:
        raise Unsupported("bitcast_convert", f"a value has no exact {dtype.value} bits")
    return words


def _from_words(dtype: DType, words: Any) -> Array:
    if dtype.kind != "real":
        return settle(words.view(dtype.storage), dtype)
    if dtype is DType.BF16:
        words = words.astype(np.uint32) << np.uint32(16)
    values = words.view({16: np.float16, 32: np.float32, 64: np.float64}[_ieee(dtype)])
    return np.asarray(values.astype(np.float64))


def _ieee(dtype: DType) -> int:
    """Width of the IEEE type whose leading bits are this type's."""
    if dtype.bits <= 8:
        raise Unsupported("bitcast_convert", f"the bits of {dtype.value} are not modelled")
    return 32 if dtype is DType.BF16 else dtype.bits


def reshape(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    return (arrays[0].reshape(op.result.type.shape),)


def broadcast_in_dim(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    x, dims, shape = arrays[0], op.attrs["dims"], op.result.type.shape
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    aligned = [1] * len(shape)
    for i, dim in enumerate(dims):
        aligned[dim] = x.shape[i]
    return (np.broadcast_to(x.transpose(order).reshape(aligned), shape),)


def transpose(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    return (arrays[0].transpose(op.attrs["permutation"]),)


def slice_(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    attrs = op.attrs
    cut = map(slice, attrs["starts"], attrs["limits"], attrs["strides"])
    return (arrays[0][(*cut, ...)],)


def pad_array(x: Any, value: Any, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Any:
    """`x` with `interior` copies of `value` between elements and `low`, `high` around; negative ones cut."""
    dilated = [max(0, size + max(size - 1, 0) * i) for size, i in zip(x.shape, interior, strict=True)]
    shape = [l + size + h for l, size, h in zip(low, dilated, high, strict=True)]
    result = np.full(shape, value, dtype=x.dtype)
    source, target = [], []
    for size, step, start, limit in zip(x.shape, (i + 1 for i in interior), low, shape, strict=True):
        first = max(0, -(start // step))
        last = min(size - 1, (limit - 1 - start) // step)
        last = max(last, first - 1)
        source.append(slice(first, last + 1))
        begin = start + first * step
        target.append(slice(begin, begin + (last - first) * step + 1 if last >= first else begin, step))
    result[tuple(target)] = x[tuple(source)]
    return result


def pad(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    attrs = op.attrs
    return (pad_array(arrays[0], arrays[1], attrs["low"], attrs["high"], attrs["interior"]),)


def reverse(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    return (np.asarray(np.flip(arrays[0], op.attrs["dims"])),)


def concatenate(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    return (np.concatenate(arrays, axis=op.attrs["dim"]),)
