"""Quantised operators: those that round are opaque, the others exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.frontends.onnx.contract import matmul
from shardproof.frontends.onnx.convolutions import convolution
from shardproof.frontends.onnx.elements import DTYPES
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType

_INTEGERS: Final = ("int", "uint")


_NOTE: Final = "rounds and saturates, which is not modelled"


def _rounding(s: Lowering, n: Node) -> Sequence[Value]:
    """A function of its operands and no more."""
    types = [t for t in n.declared if t is not None]
    if len(types) != len(n.outputs):
        s.fail("rounds to a quantised type, and the types of its results are not known")
    s.warn(_NOTE)
    return s.opaque(n, types)


def _quantize(s: Lowering, n: Node) -> Value:
    """A function, element by element, of the numbers, their scales and zero points."""
    x, scale, zero, told = n.operand(0), n.operand(1), n.given(2), n.attrs.get("output_dtype", 0)
    dtype = zero.type.dtype if zero is not None else DTYPES[told] if told else DType.U8
    if told and DTYPES[told] is not dtype:
        s.fail(f"gives {DTYPES[told].value} by its attribute and {dtype.value} by its zero point")
    point = s.full(0, dtype, scale.type.shape) if zero is None else zero
    operands = [x, _slices(s, n, scale, x), _slices(s, n, point, x)]
    saturate, precision = n.attrs.get("saturate", 1), n.attrs.get("precision", 0)
    s.warn(_NOTE)
    return s.emit(
        "opaque",
        *operands,
        type=TensorType(dtype, x.type.shape),
        name=f"QuantizeLinear(to={dtype.value}, saturate={saturate}, precision={precision})",
        free=tuple(((d,) * 3, (d,)) for d in range(len(x.type.shape))),
    )


def _dequantize(s: Lowering, n: Node) -> Value:
    """`(x - zero point) * scale`: one of each, or one for each slice along a dim or block of it."""
    x, scale, zero = n.operand(0), n.operand(1), n.given(2)
    told = n.attrs.get("output_dtype", 0)
    dtype = DTYPES[told] if told else scale.type.dtype
    found = s.convert(x, dtype)
    if zero is not None:
        found = s.emit("subtract", found, _slices(s, n, s.convert(zero, dtype), x))
    return s.emit("multiply", found, _slices(s, n, s.convert(scale, dtype), x))


def _slices(s: Lowering, n: Node, v: Value, x: Value) -> Value:
    """A scale or zero point for each element of `x`."""
    shape, block, axis = x.type.shape, n.attrs.get("block_size", 0), n.attrs["axis"]
    rank = len(shape)
    if block == 0 and v.type.size == 1 and len(v.type.shape) <= 1:
        return s.spread(s.reshape(v, ()), shape)
    dim = s.dim(axis, rank)
    if block == 0:
        if v.type.shape != (shape[dim],):
            s.fail(f"has {v.type} for the slices along dim {dim} of {x.type}")
        return s.place(v, (dim,), shape)
    count = -(-shape[dim] // block) if block > 0 else 0
    if v.type.shape != (*shape[:dim], count, *shape[dim + 1 :]):
        s.fail(f"has {v.type} for the blocks of {block} along dim {dim} of {x.type}")
    places = [d + (d > dim) for d in range(rank)]
    spread = s.place(v, places, (*shape[:dim], count, block, *shape[dim + 1 :]))
    whole = s.reshape(spread, (*shape[:dim], count * block, *shape[dim + 1 :]))
    return whole if count * block == shape[dim] else s.slice(whole, dim, 0, shape[dim])


def _centred(s: Lowering, x: Value, zero: Value | None, dim: int) -> Value:
    """`x` less its zero point, one or one for each slice along `dim`, as 32-bit integers."""
    if x.type.dtype.kind not in _INTEGERS:
        s.fail(f"multiplies {x.type}, integers are needed")
    wide = s.convert(x, DType.S32)
    if zero is None:
        return wide
    point = s.convert(zero, DType.S32)
    if point.type.size == 1:
        return s.pair("subtract", wide, s.reshape(point, ()))
    if point.type.shape == (x.type.shape[dim],):
        return s.emit("subtract", wide, s.place(point, (dim,), x.type.shape))
    return s.emit("subtract", wide, s.spread(point, x.type.shape))


def _matmul_integer(s: Lowering, n: Node) -> Value:
    """A zero point for each row of the left and each column of the right operand."""
    x, y = n.operand(0), n.operand(1)
    left = _centred(s, x, n.given(2), max(len(x.type.shape) - 2, 0))
    return matmul(s, left, _centred(s, y, n.given(3), len(y.type.shape) - 1))


def _conv_integer(s: Lowering, n: Node) -> Value:
    """A zero point of the image, and one of each output channel of the kernel."""
    zero = n.given(2)
    if zero is not None and zero.type.size != 1:
        s.fail(f"has the zero points {zero.type} of an image, one is needed")
    return convolution(s, n, _centred(s, n.operand(0), zero, 0), _centred(s, n.operand(1), n.given(3), 0))


RULES: Final[Mapping[str, Rule]] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _rounding,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _rounding,
    "QLinearMatMul": _rounding,
    "QuantizeLinear": _quantize,
}
