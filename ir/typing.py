"""Type rules of pointwise operators and of operators that only move elements.

A rule takes `(operand types, attributes, declared result types)` and returns the result types, or
raises `ModuleError` with what was found and what was needed. It may rely on the attributes being
exactly those of the operator's row, not on their values. Rules of operators that contract, reduce
or communicate are in `shardproof.ir.typing_compute`, those of indexing in `shardproof.ir.typing_index`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType, Kind, TensorType

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]
Rule = Callable[[Types, Attrs, Types], tuple[TensorType, ...]]

DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def integer(attrs: Attrs, name: str) -> int:
    """The attribute as an int, else `ModuleError`."""
    value = attrs[name]
    if not is_integer(value):
        raise ModuleError(f"attribute {name} is {value!r}, an integer is needed")
    return int(value)


def integers(attrs: Attrs, name: str, length: int | None = None) -> tuple[int, ...]:
    """The attribute as a tuple of ints (of that length), else `ModuleError`."""
    value = attrs[name]
    if not isinstance(value, tuple) or not all(map(is_integer, value)):
        raise ModuleError(f"attribute {name} is {value!r}, a tuple of integers is needed")
    if length is not None and len(value) != length:
        raise ModuleError(f"attribute {name} has {len(value)} entries, {length} are needed")
    return value


def word(attrs: Attrs, name: str, choices: tuple[str, ...] | None = None) -> str:
    """The attribute as a str (one of `choices`), else `ModuleError`."""
    value = attrs[name]
    if not isinstance(value, str):
        raise ModuleError(f"attribute {name} is {value!r}, a string is needed")
    if choices is not None and value not in choices:
        raise ModuleError(f"attribute {name} is {value!r}, one of {', '.join(choices)} is needed")
    return value


def flag(attrs: Attrs, name: str) -> bool:
    """The attribute as a bool, else `ModuleError`."""
    value = attrs[name]
    if not isinstance(value, bool):
        raise ModuleError(f"attribute {name} is {value!r}, true or false is needed")
    return value


def in_range(name: str, dim: int, rank: int) -> int:
    """`dim`, if it is a dim of a tensor with `rank` dims, else `ModuleError`."""
    if not 0 <= dim < rank:
        raise ModuleError(f"attribute {name} names dim {dim} of a tensor with {rank} dims")
    return dim


def dims(attrs: Attrs, name: str, rank: int, length: int | None = None) -> tuple[int, ...]:
    """The attribute as distinct dims of a tensor with `rank` dims, else `ModuleError`."""
    value = integers(attrs, name, length)
    for dim in value:
        in_range(name, dim, rank)
    if len(set(value)) != len(value):
        raise ModuleError(f"attribute {name} is {value!r}, dims must be distinct")
    return value


def operand_count(operands: Types, count: int) -> None:
    if len(operands) != count:
        raise ModuleError(f"{len(operands)} operands found, {count} needed")


def at_least(operands: Types, count: int) -> None:
    if len(operands) < count:
        raise ModuleError(f"{len(operands)} operands found, at least {count} needed")


def declared_one(declared: Types) -> TensorType:
    if len(declared) != 1:
        raise ModuleError(f"{len(declared)} results declared, 1 needed")
    return declared[0]


def same_dtype(operands: Types) -> DType:
    """The one element type of all operands, else `ModuleError`."""
    for other in operands[1:]:
        if other.dtype is not operands[0].dtype:
            raise ModuleError(f"operands are {operands[0]} and {other}, one element type is needed")
    return operands[0].dtype


def of_kind(type_: TensorType, *kinds: Kind) -> None:
    if type_.dtype.kind not in kinds:
        raise ModuleError(f"operand is {type_}, an element type of kind {' or '.join(kinds)} is needed")


def scalar(type_: TensorType, what: str) -> None:
    if type_.shape:
        raise ModuleError(f"{what} is {type_}, a scalar is needed")


def pointwise(arity: int, *kinds: Kind) -> Rule:
    """All operands have one type, of one of `kinds`; the result has it too."""

    def rule(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
        operand_count(operands, arity)
        first = operands[0]
        of_kind(first, *kinds)
        for other in operands[1:]:
            if other != first:
                raise ModuleError(f"operands are {first} and {other}, the same type is needed")
        return (first,)

    return rule


def absolute(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """The same type; of a complex operand the real type of half its width."""
    (x,) = pointwise(1, "int", "uint", "real", "complex")(operands, attrs, declared)
    return (TensorType(_part(x.dtype), x.shape),) if x.dtype.kind == "complex" else (x,)


def complex_part(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """Real or imaginary part of a complex operand."""
    (x,) = pointwise(1, "complex")(operands, attrs, declared)
    return (TensorType(_part(x.dtype), x.shape),)


def _part(dtype: DType) -> DType:
    return DType.F64 if dtype is DType.C128 else DType.F32


def make_complex(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """A complex tensor of two real ones, f32 or f64."""
    (x,) = pointwise(2, "real")(operands, attrs, declared)
    if x.dtype not in (DType.F32, DType.F64):
        raise ModuleError(f"operand is {x}, f32 or f64 is needed")
    return (TensorType(DType.C128 if x.dtype is DType.F64 else DType.C64, x.shape),)


def predicate(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """bool of a real operand."""
    (x,) = pointwise(1, "real")(operands, attrs, declared)
    return (TensorType(DType.BOOL, x.shape),)


def compare(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """bool of two operands of one type; complex ones only for EQ and NE, total order only for reals."""
    (x,) = pointwise(2, "bool", "int", "uint", "real", "complex")(operands, attrs, declared)
    direction = word(attrs, "direction", DIRECTIONS)
    if x.dtype.kind == "complex" and direction not in ("EQ", "NE"):
        raise ModuleError(f"operands are {x}, complex numbers have no order {direction}")
    if flag(attrs, "total") and x.dtype.kind != "real":
        raise ModuleError(f"operands are {x}, a total order is one of reals")
    return (TensorType(DType.BOOL, x.shape),)


def select(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """(bool predicate, on true, on false): the last two of one type, the first of that shape or a scalar."""
    operand_count(operands, 3)
    pred, on_true, on_false = operands
    if pred.dtype is not DType.BOOL or pred.shape not in ((), on_true.shape):
        raise ModuleError(f"predicate is {pred}, bool[] or bool{list(on_true.shape)} is needed")
    if on_true != on_false:
        raise ModuleError(f"branches are {on_true} and {on_false}, the same type is needed")
    return (on_true,)


def clamp(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """(min, x, max): bounds of x's type or scalars."""
    operand_count(operands, 3)
    low, x, high = operands
    of_kind(x, "int", "uint", "real")
    same_dtype(operands)
    for bound in (low, high):
        if bound.shape not in ((), x.shape):
            raise ModuleError(f"bound is {bound}, a scalar or the shape of {x} is needed")
    return (x,)


def constant(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """The declared type; `value` has its shape and its storage type, and values in its range."""
    operand_count(operands, 0)
    result, value = declared_one(declared), attrs["value"]
    if not isinstance(value, np.ndarray):
        raise ModuleError(f"attribute value is a {type(value).__name__}, an array is needed")
    if value.shape != result.shape:
        raise ModuleError(f"attribute value has shape {list(value.shape)}, {result} is declared")
    if value.dtype != result.dtype.storage or result.dtype is DType.TOKEN:
        raise ModuleError(f"attribute value holds {value.dtype}, {result} needs {result.dtype.storage}")
    if result.dtype.bits < 8 and result.dtype.kind in ("int", "uint") and value.size:
        signed, bits = result.dtype.kind == "int", result.dtype.bits
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if value.min() < low or value.max() > high:
            raise ModuleError(f"attribute value has entries outside of {low} to {high}")
    return (result,)


def iota(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """The declared type, an arithmetic one that has dim `dim`."""
    operand_count(operands, 0)
    result = declared_one(declared)
    in_range("dim", integer(attrs, "dim"), len(result.shape))
    of_kind(result, "int", "uint", "real", "complex")
    return (result,)


def convert(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """The declared element type and the operand's shape; a complex operand stays complex."""
    operand_count(operands, 1)
    x, result = operands[0], declared_one(declared)
    if x.dtype is DType.TOKEN or result.dtype is DType.TOKEN:
        raise ModuleError("a token has no value to convert")
    if x.dtype.kind == "complex" and result.dtype.kind != "complex":
        raise ModuleError(f"operand is {x}, converting it to {result.dtype.value} drops a part")
    return (TensorType(result.dtype, x.shape),)


def bitcast_convert(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """The declared element type; its width decides whether a last dim is added or taken away."""
    operand_count(operands, 1)
    x, dtype = operands[0], declared_one(declared).dtype
    for end in (x.dtype, dtype):
        if end.kind in ("token", "bool", "complex"):
            raise ModuleError(f"{end.value} has no bits to reinterpret")
    if x.dtype.bits == dtype.bits:
        return (TensorType(dtype, x.shape),)
    if x.dtype.bits > dtype.bits:
        return (TensorType(dtype, (*x.shape, x.dtype.bits // dtype.bits)),)
    ratio = dtype.bits // x.dtype.bits
    if not x.shape or x.shape[-1] != ratio:
        raise ModuleError(f"operand is {x}, a last dim of size {ratio} is needed for {dtype.value}")
    return (TensorType(dtype, x.shape[:-1]),)


def reshape(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """The declared shape, with as many elements as the operand."""
    operand_count(operands, 1)
    x, result = operands[0], declared_one(declared)
    if x.size != result.size:
        raise ModuleError(f"operand {x} has {x.size} elements, {result} has {result.size}")
    return (TensorType(x.dtype, result.shape),)


def broadcast_in_dim(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """The declared shape; operand dim i is result dim `dims[i]`, of the same size or expanded from 1."""
    operand_count(operands, 1)
    x, result = operands[0], declared_one(declared)
    for i, dim in enumerate(dims(attrs, "dims", len(result.shape), len(x.shape))):
        if x.shape[i] not in (1, result.shape[dim]):
            raise ModuleError(f"dim {i} of {x} becomes dim {dim} of {result}, its size or 1 is needed")
    return (TensorType(x.dtype, result.shape),)


def transpose(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """Result dim i is operand dim `permutation[i]`."""
    operand_count(operands, 1)
    x = operands[0]
    order = dims(attrs, "permutation", len(x.shape), len(x.shape))
    return (TensorType(x.dtype, tuple(x.shape[d] for d in order)),)


def slice_(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """Elements `starts`, `starts + strides`, ... below `limits`, per dim."""
    operand_count(operands, 1)
    x = operands[0]
    rank = len(x.shape)
    starts, limits, strides = (integers(attrs, name, rank) for name in ("starts", "limits", "strides"))
    shape = []
    for d, size in enumerate(x.shape):
        if not 0 <= starts[d] <= limits[d] <= size:
            raise ModuleError(f"slice {starts[d]}:{limits[d]} of dim {d} does not lie in {x}")
        if strides[d] < 1:
            raise ModuleError(f"stride {strides[d]} of dim {d} found, at least 1 is needed")
        shape.append(-(-(limits[d] - starts[d]) // strides[d]))
    return (TensorType(x.dtype, tuple(shape)),)


def pad(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """(x, scalar): `interior` between elements, `low` and `high` around them; negative ones cut."""
    operand_count(operands, 2)
    x, value = operands
    same_dtype(operands)
    scalar(value, "padding value")
    rank = len(x.shape)
    low, high, interior = (integers(attrs, name, rank) for name in ("low", "high", "interior"))
    shape = []
    for d, size in enumerate(x.shape):
        if interior[d] < 0:
            raise ModuleError(f"interior padding {interior[d]} of dim {d} found, at least 0 is needed")
        padded = low[d] + size + max(size - 1, 0) * interior[d] + high[d]
        if padded < 0:
            raise ModuleError(f"padding of dim {d} of {x} gives the negative size {padded}")
        shape.append(padded)
    return (TensorType(x.dtype, tuple(shape)),)


def reverse(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """The operand's type."""
    operand_count(operands, 1)
    dims(attrs, "dims", len(operands[0].shape))
    return (operands[0],)


def concatenate(operands: Types, attrs: Attrs, declared: Types) -> tuple[TensorType, ...]:
    """Operands agree but for the size of dim `dim`, which adds up."""
    at_least(operands, 1)
    same_dtype(operands)
    first = operands[0]
    dim = in_range("dim", integer(attrs, "dim"), len(first.shape))
    for other in operands[1:]:
        if _without(other.shape, dim) != _without(first.shape, dim) or len(other.shape) != len(first.shape):
            raise ModuleError(f"operands are {first} and {other}, sizes may differ in dim {dim} only")
    size = sum(x.shape[dim] for x in operands)
    return (TensorType(first.dtype, (*first.shape[:dim], size, *first.shape[dim + 1 :])),)


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return shape[:dim] + shape[dim + 1 :]
