"""The state of one import of a jaxpr, and what rules build operators with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np

from shardproof.frontends.jaxpr.locations import Places
from shardproof.ir.module import ModuleError, Op, Value
from shardproof.ir.numpy_compute import identity
from shardproof.ir.positions import Positions
from shardproof.ir.types import Array, DType, Location, Mesh, TensorType

Rule: TypeAlias = "Callable[[Lowering, Equation, Sequence[Value]], Sequence[Value]]"
Groups = tuple[tuple[int, ...], ...]

DTYPES: Final[Mapping[str, DType]] = {
    "bool": DType.BOOL,
    "int4": DType.S4,
    "int8": DType.S8,
    "int16": DType.S16,
    "int32": DType.S32,
    "int64": DType.S64,
    "uint4": DType.U4,
    "uint8": DType.U8,
    "uint16": DType.U16,
    "uint32": DType.U32,
    "uint64": DType.U64,
    "float8_e4m3": DType.F8E4M3,
    "float8_e4m3fn": DType.F8E4M3FN,
    "float8_e4m3b11fnuz": DType.F8E4M3B11FNUZ,
    "float8_e4m3fnuz": DType.F8E4M3FNUZ,
    "float8_e5m2": DType.F8E5M2,
    "float8_e5m2fnuz": DType.F8E5M2FNUZ,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "float64": DType.F64,
    "complex64": DType.C64,
    "complex128": DType.C128,
}


def dtype_of(dtype: Any) -> DType:
    """The element type of a NumPy or ml_dtypes type. Raises ModuleError for others."""
    found = DTYPES.get(getattr(dtype, "name", str(dtype)))
    if found is None:
        raise ModuleError(f"element type {dtype}, which has no counterpart here")
    return found


def type_of(aval: Any) -> TensorType:
    """The tensor type of an abstract value; a random key is its words. Raises ModuleError."""
    shape = getattr(aval, "shape", None)
    if shape is None or hasattr(aval, "inner_aval"):
        raise ModuleError(f"a value of type {aval}, which is no array")
    if not all(type(n) is int for n in shape):
        raise ModuleError(f"a value of type {aval}, whose extents are not all known")
    return _type_of(tuple(shape), aval.dtype)


@cache
def _type_of(shape: tuple[int, ...], dtype: Any) -> TensorType:
    key = getattr(getattr(dtype, "_impl", None), "key_shape", None)
    if key is not None:
        return TensorType(DType.U32, (*shape, *key))
    return TensorType(dtype_of(dtype), shape)


class Equation:
    """One equation, for its rule: parameters, result types, where it was written."""

    __slots__ = ("location", "name", "params", "results", "source")

    def __init__(self, eqn: Any, location: Location | None) -> None:
        self.source = eqn
        self.name: str = eqn.primitive.name
        self.params: Mapping[str, Any] = eqn.params
        self.results = tuple(type_of(v.aval) for v in eqn.outvars)
        self.location = location

    @property
    def result(self) -> TensorType:
        """The type of the one result. Raises ModuleError when there are several."""
        if len(self.results) != 1:
            raise ModuleError(f"has {len(self.results)} results, 1 is known")
        return self.results[0]

    def only(self, *names: str) -> None:
        """Raises ModuleError for a parameter beyond `names` that may change what is computed."""
        for name, value in self.params.items():
            if name not in names and name not in IDLE and value is not None:
                raise ModuleError(f"has the parameter {name}={value!r}, which is not known")


IDLE: Final = frozenset(
    {
        "precision",
        "accuracy",
        "out_sharding",
        "sharding",
        "weak_type",
        "indices_are_sorted",
        "unroll",
        "linear",
        "_split_transpose",
    }
)
"""Parameters that change how something is computed, or where, and not what (result types are compared)."""


class Lowering:
    """The operators made so far, over `mesh`; `manual` are the axes that the program sees its rank along."""

    def __init__(self, mesh: Mesh, wrapper_files: Sequence[str]) -> None:
        self.mesh = mesh
        self.manual: frozenset[str] = frozenset()
        self.ops: list[Op] = []
        self.warnings: list[str] = []
        self.places = Places(wrapper_files)
        self.location: Location | None = None
        self.ranks = Positions(mesh, self.op)
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        self._constants: dict[tuple[Any, ...], Value] = {}

    def fresh(self, stem: str, type: TensorType) -> Value:
        """A value with a name not used yet."""
        while True:
            number = self._counts.get(stem, 0)
            self._counts[stem] = number + 1
            name = f"{stem}.{number}" if number else stem
            if name not in self._taken:
                return Value(name, type, self.location)

    def nested(self) -> Lowering:
        """The state for a function that becomes a module of its own, at this place."""
        inner = Lowering(self.mesh, ())
        inner.places, inner.location, inner.manual = self.places, self.location, self.manual
        return inner

    def known(self, x: Value) -> Array | None:
        """The integer or truth value of a scalar that a constant gives."""
        maker = next((op for op in reversed(self.ops) if x in op.results), None)
        if maker is None or maker.opcode != "constant" or x.type.shape:
            return None
        found: Array = maker.attrs["value"]
        return found if x.type.dtype.kind in ("int", "bool") else None

    def claim(self, names: Iterable[str]) -> None:
        """Keep `names` for values that are made elsewhere."""
        self._taken.update(names)

    def op(self, opcode: str, operands: tuple[Value, ...], type: TensorType, /, **attrs: Any) -> Value:
        """Append an operator with one result."""
        value = self.fresh(opcode, type)
        self.ops.append(Op(opcode, operands, (value,), plain(attrs)))
        return value

    def op_many(
        self, opcode: str, operands: tuple[Value, ...], types: Sequence[TensorType], /, **attrs: Any
    ) -> tuple[Value, ...]:
        """Append an operator with several results."""
        values = tuple(self.fresh(opcode, type) for type in types)
        self.ops.append(Op(opcode, operands, values, plain(attrs)))
        return values

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    # what rules are made of

    def constant(self, value: Any, dtype: DType, shape: tuple[int, ...] = ()) -> Value:
        """A constant of one number, or of an array of the given shape; a number is made once."""
        array = np.asarray(value)
        if array.shape:
            stored = array.astype(dtype.storage)
            return self.op("constant", (), TensorType(dtype, array.shape), value=stored)
        stored = array.astype(dtype.storage)
        key = (dtype, stored.tobytes())
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self.op("constant", (), TensorType(dtype, ()), value=stored)
        return self.spread(found, shape)

    def spread(self, x: Value, shape: tuple[int, ...]) -> Value:
        """A scalar, or a tensor with extents of 1 in their place, as a tensor of `shape`."""
        own = x.type.shape
        if own == shape:
            return x
        if own and (len(own) != len(shape) or any(a not in (1, b) for a, b in zip(own, shape, strict=True))):
            raise ModuleError(f"operands of shapes {list(own)} and {list(shape)} do not fit")
        kept = tuple(d for d, n in enumerate(own) if n == shape[d])
        return self.broadcast(self.reshape(x, [own[d] for d in kept]), shape, kept)

    def broadcast(self, x: Value, shape: tuple[int, ...], dims: tuple[int, ...]) -> Value:
        """`x` with dim k at dim `dims[k]` of `shape`."""
        return self.op("broadcast_in_dim", (x,), TensorType(x.type.dtype, shape), dims=dims)

    def reshape(self, x: Value, shape: Iterable[int]) -> Value:
        new = tuple(shape)
        return x if new == x.type.shape else self.op("reshape", (x,), TensorType(x.type.dtype, new))

    def convert(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.op("convert", (x,), TensorType(dtype, x.type.shape))

    def elementwise(self, opcode: str, *operands: Value, **attrs: Any) -> Value:
        """An operator on tensors of one shape and type, with scalars spread."""
        shape = next((x.type.shape for x in operands if x.type.shape), ())
        whole = tuple(self.spread(x, shape) for x in operands)
        return self.op(opcode, whole, TensorType(operands[0].type.dtype, shape), **attrs)

    def compare(self, direction: str, a: Value, b: Value) -> Value:
        shape = a.type.shape or b.type.shape
        pair = (self.spread(a, shape), self.spread(b, shape))
        return self.op("compare", pair, TensorType(DType.BOOL, shape), direction=direction, total=False)

    def select(self, test: Value, on_true: Value, on_false: Value) -> Value:
        if test.type.shape and test.type.shape != on_true.type.shape:
            raise ModuleError(f"selects {on_true.type} by {test.type}, one shape is needed")
        return self.op("select", (test, on_true, on_false), on_true.type)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        order = tuple(permutation)
        if order == tuple(range(len(order))):
            return x
        shape = tuple(x.type.shape[p] for p in order)
        return self.op("transpose", (x,), TensorType(x.type.dtype, shape), permutation=order)

    def slice(
        self, x: Value, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None
    ) -> Value:
        steps = tuple(map(int, strides)) if strides is not None else (1,) * len(x.type.shape)
        starts, limits = tuple(map(int, starts)), tuple(map(int, limits))
        shape = tuple(-(-(b - a) // s) for a, b, s in zip(starts, limits, steps, strict=True))
        type = TensorType(x.type.dtype, shape)
        return self.op("slice", (x,), type, starts=starts, limits=limits, strides=steps)

    def concatenate(self, parts: Sequence[Value], dim: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].type.shape)
        shape[dim] = sum(p.type.shape[dim] for p in parts)
        return self.op("concatenate", tuple(parts), TensorType(parts[0].type.dtype, tuple(shape)), dim=dim)

    def reduce(self, x: Value, dims: Sequence[int], kind: str) -> Value:
        """`x` without `dims`, from the value that changes nothing."""
        init = self.constant(identity(kind, x.type.dtype), x.type.dtype)
        gone = tuple(sorted(dims))
        shape = tuple(n for d, n in enumerate(x.type.shape) if d not in gone)
        return self.op("reduce", (x, init), TensorType(x.type.dtype, shape), dims=gone, kind=kind)

    def opaque(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        free: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (),
    ) -> tuple[Value, ...]:
        """A function known by `name` only, slice by slice along `free`."""
        self.warn(f"{name.partition(' ')[0]} is kept opaque")
        return self.op_many("opaque", tuple(operands), types, name=name, free=free)

    # ranks

    def agree(self, x: Value, axes: Sequence[str]) -> Value:
        """`x`, which all ranks along `axes` are said to hold alike."""
        if self.size(axes) == 1:
            return x
        return self.op("agree", (x,), x.type, groups=self.groups(axes))

    def axes(self, names: Any) -> tuple[str, ...]:
        """Axis names as a tuple. Raises ModuleError for one that the program does not see its rank along."""
        found = tuple(names) if isinstance(names, tuple | list | frozenset) else (names,)
        for name in found:
            if name not in self.manual:
                known = ", ".join(sorted(self.manual)) or "none"
                raise ModuleError(f"names the axis {name!r}; the axes here are {known}")
        return found

    def size(self, axes: Sequence[str]) -> int:
        """The number of ranks along `axes`."""
        sizes = dict(self.mesh.axes)
        return math.prod(sizes[a] for a in axes)

    def groups(self, axes: Sequence[str], within: Any = None) -> Groups:
        """The groups along `axes` (`Mesh.groups`); `within` are lists of positions that each group is parted
        into."""
        whole = self.mesh.groups(axes)
        if within is None:
            return whole
        return tuple(tuple(group[k] for k in part) for group in whole for part in within)


def plain(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The attributes with Python's integers for NumPy's, which JAX has in some parameters."""
    return {
        name: tuple([int(n) if isinstance(n, np.integer) else n for n in value])
        if type(value) is tuple
        else value
        for name, value in attrs.items()
    }


def array_of(value: Any) -> tuple[Array, DType]:
    """A concrete array, in the type that holds its elements; an array of random keys is its words."""
    value = getattr(value, "_base_array", value)
    dtype = dtype_of(value.dtype) if hasattr(value, "dtype") else dtype_of(np.asarray(value).dtype)
    found: Array = np.asarray(value)
    return np.ascontiguousarray(found.astype(dtype.storage)).reshape(found.shape), dtype
