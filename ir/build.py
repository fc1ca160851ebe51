"""What frontends make operators with: each is typed by its row as it is added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NoReturn

import numpy as np

from shardproof.ir.evaluate import apply
from shardproof.ir.module import ModuleError, Op, Value
from shardproof.ir.numpy_compute import identity
from shardproof.ir.numpy_meaning import InterpretError, Unsupported
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Array, DType, Location, TensorType

Number = int | float | bool | complex
KNOWN_SIZE: Final = 1 << 16
"""Elements of the largest array that `Builder.known` computes."""


class Builder:
    """The operators of a program made so far, in `ops`.

    `begin` says which node of the framework's graph is read next; its operators take its name and place.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.name = ""
        self.location: Location | None = None
        self.first = 0
        self._count = 0
        self._taken: set[str] = set()
        self._makers: dict[Value, Op] = {}
        self._known: dict[Value, Array | None] = {}

    def begin(self, name: str, location: Location | None = None) -> None:
        """Operators from here on are of the node `name`."""
        self.name, self.location = name, location
        self.first, self._count = len(self.ops), 0

    def fail(self, text: str) -> NoReturn:
        """Refuse the node: raises ModuleError."""
        place = f" at {self.location}" if self.location is not None else ""
        raise ModuleError(f"`{self.name}`{place}: {text}")

    # values

    def claim(self, name: str) -> str:
        """`name` for one value; no operator's result takes it but by `rename`."""
        self._taken.add(name)
        return name

    def unmade(self, type: TensorType) -> Value:
        """A value that no operator gives, named after the node: what a body is given."""
        self._count += 1
        while (name := f"{self.name}.{self._count}") in self._taken:
            self._count += 1
        return Value(self.claim(name), type, self.location)

    def rename(self, names: Mapping[Value, str]) -> dict[Value, Value]:
        """Give results of the node's operators these names; the new values by the old ones, which stay where
        they are of other nodes."""
        own = {v for op in self.ops[self.first :] for v in op.results}
        fresh = {v: Value(self.claim(n), v.type, v.location) for v, n in names.items() if v in own}
        for at in range(self.first, len(self.ops)):
            op = self.ops[at]
            if any(v in fresh for v in (*op.operands, *op.results)):
                operands = tuple(fresh.get(v, v) for v in op.operands)
                results = tuple(fresh.get(v, v) for v in op.results)
                self.ops[at] = op = Op(op.opcode, operands, results, op.attrs)
                self._makers |= dict.fromkeys(results, op)
        self._known |= {new: self._known[old] for old, new in fresh.items() if old in self._known}
        return {v: fresh.get(v, v) for v in names}

    def known(self, x: Value) -> Array | None:
        """The elements of `x` if they follow from constants alone; None if not, or if they are many."""
        pending = [x]
        while pending:
            value = pending[-1]
            op = self._makers.get(value)
            if value in self._known:
                pending.pop()
            elif op is None or not _computable(op):
                self._known[value] = None
            else:
                missing = [v for v in op.operands if v not in self._known]
                pending += missing
                if not missing:
                    self._compute(op)
        return self._known[x]

    def maker(self, x: Value) -> Op | None:
        """The operator that gives `x`; None for an input."""
        return self._makers.get(x)

    def sources(self, x: Value) -> list[Value]:
        """The values without operator, so inputs, that `x` is computed from."""
        found: dict[Value, None] = {}
        pending = [x]
        seen = {x}
        while pending:
            value = pending.pop()
            op = self._makers.get(value)
            if op is None:
                found[value] = None
            else:
                new = [v for v in op.operands if v not in seen]
                seen.update(new)
                pending += new
        return list(found)

    def _compute(self, op: Op) -> None:
        arrays = [a for v in op.operands if (a := self._known[v]) is not None]
        found: Sequence[Array | None] = [None] * len(op.results)
        if len(arrays) == len(op.operands):
            try:
                with np.errstate(all="ignore"):
                    found = apply(op, arrays)
            except (Unsupported, InterpretError):
                pass
        self._known |= dict(zip(op.results, found, strict=True))

    # operators

    def emit_many(
        self, opcode: str, operands: Sequence[Value], types: Sequence[TensorType], **attrs: Any
    ) -> tuple[Value, ...]:
        """Append an operator and give its results, of the types that its type rule gives.

        Refuses the node where the rule refuses the operands or attributes.
        """
        values = []
        try:
            found = TABLE[opcode].type([v.type for v in operands], attrs, types)
        except ModuleError as error:
            self.fail(str(error))
        for type in found:
            values.append(self.unmade(type))
        op = Op(opcode, tuple(operands), tuple(values), attrs)
        self.ops.append(op)
        self._makers |= dict.fromkeys(values, op)
        return op.results

    def emit(self, opcode: str, *operands: Value, type: TensorType | None = None, **attrs: Any) -> Value:
        """Append an operator with one result; `type` where the operands do not give it."""
        return self.emit_many(opcode, operands, () if type is None else (type,), **attrs)[0]

    def literal(self, value: Any, dtype: DType) -> Value:
        """An array of constants."""
        try:
            array = np.asarray(value, dtype=dtype.storage)
        except (OverflowError, TypeError, ValueError):
            self.fail(f"the number {value!r} is not one of {dtype.value}")
        return self.emit("constant", type=TensorType(dtype, array.shape), value=array)

    def scalar(self, value: Number, dtype: DType) -> Value:
        """A constant without dims; to an integer type a real is truncated, to bool it is `!= 0`."""
        if dtype.kind == "bool":
            return self.literal(value != 0, dtype)
        if isinstance(value, complex) and dtype.kind != "complex":
            self.fail(f"the number {value!r} is not one of {dtype.value}")
        if dtype.kind in ("int", "uint"):
            if isinstance(value, float) and not np.isfinite(value):
                self.fail(f"the number {value!r} is not one of {dtype.value}")
            return self.literal(int(value), dtype)  # type: ignore[arg-type]
        return self.literal(value, dtype)

    def full(self, value: Number, dtype: DType, shape: Sequence[int]) -> Value:
        return self.spread(self.scalar(value, dtype), tuple(shape))

    def like(self, x: Value, value: Number) -> Value:
        """A tensor of the type of `x` whose elements are all `value`."""
        return self.full(value, x.type.dtype, x.type.shape)

    def iota(self, dtype: DType, shape: Sequence[int], dim: int) -> Value:
        return self.emit("iota", type=TensorType(dtype, tuple(shape)), dim=dim)

    def convert(self, x: Value, dtype: DType) -> Value:
        if x.type.dtype is dtype:
            return x
        return self.emit("convert", x, type=TensorType(dtype, x.type.shape))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        if x.type.shape == tuple(shape):
            return x
        return self.emit("reshape", x, type=TensorType(x.type.dtype, tuple(shape)))

    def place(self, x: Value, dims: Sequence[int], shape: Sequence[int]) -> Value:
        """`x` repeated to `shape`, its dim i becoming dim `dims[i]`."""
        shape = tuple(shape)
        if x.type.shape == shape and tuple(dims) == tuple(range(len(shape))):
            return x
        return self.emit("broadcast_in_dim", x, type=TensorType(x.type.dtype, shape), dims=tuple(dims))

    def spread(self, x: Value, shape: Sequence[int]) -> Value:
        """`x` broadcast to `shape`, dims aligned at the last."""
        shape = tuple(shape)
        extra = len(shape) - len(x.type.shape)
        if extra < 0 or any(n not in (1, m) for n, m in zip(x.type.shape, shape[extra:], strict=True)):
            self.fail(f"an operand is {x.type}, which does not broadcast to {list(shape)}")
        return self.place(x, tuple(range(extra, len(shape))), shape)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        if tuple(permutation) == tuple(range(len(x.type.shape))):
            return x
        return self.emit("transpose", x, permutation=tuple(permutation))

    def slice(self, x: Value, dim: int, start: int, limit: int, stride: int = 1) -> Value:
        """Elements `start`, `start + stride`, ... below `limit` along `dim`."""
        shape = x.type.shape
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        limits = tuple(limit if d == dim else n for d, n in enumerate(shape))
        strides = tuple(stride if d == dim else 1 for d in range(len(shape)))
        return self.emit("slice", x, starts=starts, limits=limits, strides=strides)

    def pair(self, opcode: str, x: Value, y: Value | Number, **attrs: Any) -> Value:
        """A pointwise operator on two operands of one element type, broadcast to each other."""
        if not isinstance(y, Value):
            y = self.scalar(y, x.type.dtype)
        shape = self.common_shape(x, y)
        return self.emit(opcode, self.spread(x, shape), self.spread(y, shape), **attrs)

    def compare(self, direction: str, x: Value, y: Value | Number) -> Value:
        return self.pair("compare", x, y, direction=direction, total=False)

    def select(self, where: Value, x: Value, y: Value) -> Value:
        """`x` where the predicate holds, else `y`; all broadcast to each other."""
        shape = self.common_shape(where, x, y)
        return self.emit("select", *(self.spread(v, shape) for v in (where, x, y)))

    def reduce(self, x: Value, dims: Sequence[int], kind: str, *, keepdim: bool = False) -> Value:
        """A reduction that starts at its identity."""
        start = self.literal(identity(kind, x.type.dtype), x.type.dtype)
        result = self.emit("reduce", x, start, dims=tuple(dims), kind=kind)
        if not keepdim:
            return result
        return self.reshape(result, [1 if d in dims else n for d, n in enumerate(x.type.shape)])

    def mean(self, x: Value, dims: Sequence[int], *, keepdim: bool = False) -> Value:
        count = prod(x.type.shape[d] for d in dims)
        return self.pair("divide", self.reduce(x, dims, "sum", keepdim=keepdim), count)

    def dot(
        self, x: Value, y: Value, contracting: tuple[int, int], batch: tuple[Sequence[int], Sequence[int]]
    ) -> Value:
        """A contraction over one dim of each; batch dims, then the free dims of `x` and of `y`."""
        return self.emit(
            "dot_general",
            x,
            y,
            type=TensorType(x.type.dtype, ()),
            lhs_contracting=(contracting[0],),
            rhs_contracting=(contracting[1],),
            lhs_batch=tuple(batch[0]),
            rhs_batch=tuple(batch[1]),
        )

    def draw(self, dtype: DType, shape: Sequence[int], distribution: str = "uniform") -> Value:
        """A fresh random tensor: uniform in 0 to 1, or normal with deviation 1; integers of any bits."""
        low, high = 0, 1
        if dtype.kind in ("int", "uint"):
            low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
            high = low + (1 << dtype.bits) - 1
        bounds = self.scalar(low, dtype), self.scalar(high, dtype)
        return self.emit("rng", *bounds, type=TensorType(dtype, tuple(shape)), distribution=distribution)

    # element types and dims

    def common_shape(self, *values: Value) -> tuple[int, ...]:
        """The shape that all broadcast to."""
        shape: list[int] = []
        for value in values:
            mine = list(value.type.shape)
            if len(mine) < len(shape):
                mine = [1] * (len(shape) - len(mine)) + mine
            shape = [1] * (len(mine) - len(shape)) + shape
            for d, (n, m) in enumerate(zip(shape, mine, strict=True)):
                if n != m and 1 not in (n, m):
                    self.fail(f"operands {', '.join(str(v.type) for v in values)} do not broadcast")
                shape[d] = m if n == 1 else n
        return tuple(shape)

    def dim(self, dim: int, rank: int) -> int:
        """A dim, counted from the end if negative; a scalar has the dims 0 and -1."""
        size = max(rank, 1)
        if not isinstance(dim, int) or isinstance(dim, bool) or not -size <= dim < size:
            self.fail(f"names dim {dim!r} of a tensor with {rank} dims")
        return dim % size

    def dims(self, dims: Any, rank: int, *, empty_is_all: bool = True) -> tuple[int, ...]:
        """The dims that an argument names: an int, a list, or None for all."""
        if dims is None or (empty_is_all and dims == ()):
            return tuple(range(rank))
        named = dims if isinstance(dims, tuple) else (dims,)
        if rank == 0:
            for d in named:
                self.dim(d, rank)
            return ()
        found = tuple(self.dim(d, rank) for d in named)
        if len(set(found)) != len(found):
            self.fail(f"names a dim twice in {dims}")
        return found


def _computable(op: Op) -> bool:
    row = TABLE[op.opcode]
    small = all(v.type.size <= KNOWN_SIZE for v in (*op.operands, *op.results))
    return row.numpy is not None and small and op.opcode != "opaque"
