"""What lowering a graph builds up, and the few ways in which rules emit operators of the IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NoReturn

import numpy as np

from shardproof.frontends.fx.graph import Node, Symbol, Tensor
from shardproof.frontends.fx.lowering_dtypes import combine, of_number, promote
from shardproof.frontends.fx.lowering_sizes import size_of, symbols
from shardproof.ir.module import ModuleError, Op, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, TensorType

Groups = tuple[tuple[int, ...], ...]
"""Disjoint lists of ranks, each in its group's order."""
Arguments = Mapping[str, Any]
"""The arguments of a call by parameter name, references resolved."""
Number = int | float | bool | complex

_KEEPS: Final = frozenset(
    {"reshape", "broadcast_in_dim", "transpose", "slice", "convert", "all_gather", "concatenate", "reverse"}
)
"""Operators that only repeat, drop or rename elements that are all equal."""
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "EQ": lambda x, y: bool(x == y),
    "NE": lambda x, y: bool(x != y),
    "LT": lambda x, y: bool(x < y),
    "LE": lambda x, y: bool(x <= y),
    "GT": lambda x, y: bool(x > y),
    "GE": lambda x, y: bool(x >= y),
}


@dataclass(frozen=True, slots=True)
class Guess:
    """What the lowering took to be so although the program does not say it.

    `kind` is `group_guess`, `constant_guess`, `ids_in_range` or `opaque_batched`; `value` names the node,
    group, constant or custom operator that it is about.
    """

    kind: str
    text: str
    value: str


@dataclass(frozen=True, slots=True)
class Pending:
    """The result of a collective that was not waited for."""

    value: Value
    name: str


Rule = Callable[["Lowering", Arguments], Any]
"""Gives what a node stands for: a Value, a Pending, a number, None or a tuple of those."""


class Lowering:
    """The state of lowering one graph. `node` is the node being lowered."""

    def __init__(
        self,
        ranks: int,
        groups: Mapping[str, Groups],
        shared: frozenset[str],
        sizes: Mapping[str, int],
    ) -> None:
        self.ranks = ranks
        self.groups = groups
        self.shared = shared
        self.sizes = dict(sizes)
        self.told = frozenset(sizes)
        self.ops: list[Op] = []
        self.guesses: dict[Guess, None] = {}
        self.warnings: dict[str, None] = {}
        self.node: Node = Node("", "output", "output")
        self.declared: Mapping[int, Tensor] = {}
        self.parts: Mapping[int, str] = {}
        self.lines: dict[Value, int] = {}
        self.splats: dict[Value, Any] = {}
        self.raw: set[Value] = set()
        self.first = 0
        self.count = 0

    def begin(self, node: Node, parts: Mapping[int, str], declared: Mapping[int, Tensor]) -> None:
        """Lower `node` next; `parts` names the nodes that take its results, `declared` are their types."""
        self.node, self.parts, self.declared = node, parts, declared
        self.first, self.count = len(self.ops), 0

    def fail(self, text: str) -> NoReturn:
        """Refuse the node."""
        place = f" at {self.node.location}" if self.node.location is not None else ""
        raise ModuleError(f"`{self.node.name}` ({self.node.target}{place}): {text}")

    def guess(self, kind: str, text: str, value: str | None = None) -> None:
        """List a guess about the node, or about the `value` named."""
        self.guesses.setdefault(Guess(kind, text, self.node.name if value is None else value))

    def warn(self, text: str) -> None:
        self.warnings.setdefault(f"`{self.node.name}` ({self.node.target}) {text}")

    def rename(self, names: Mapping[Value, str]) -> dict[Value, Value]:
        """Give results of the node's operators these names; the new values by the old ones."""
        fresh = {old: Value(name, old.type, old.location) for old, name in names.items()}
        for at in range(self.first, len(self.ops)):
            op = self.ops[at]
            if any(v in fresh for v in (*op.operands, *op.results)):
                operands = tuple(fresh.get(v, v) for v in op.operands)
                results = tuple(fresh.get(v, v) for v in op.results)
                self.ops[at] = Op(op.opcode, operands, results, op.attrs)
        for old, new in fresh.items():
            if old in self.splats:
                self.splats[new] = self.splats[old]
            if old in self.lines:
                self.lines[new] = self.lines[old]
            if old in self.raw:
                self.raw.add(new)
        return fresh

    # operators

    def emit_many(
        self, opcode: str, operands: Sequence[Value], types: Sequence[TensorType], **attrs: Any
    ) -> tuple[Value, ...]:
        """Append an operator and give its results, of the types that its type rule gives."""
        found = TABLE[opcode].type([v.type for v in operands], attrs, types)
        values = []
        for type in found:
            self.count += 1
            values.append(Value(f"{self.node.name}.{self.count}", type, self.node.location))
        self.ops.append(Op(opcode, tuple(operands), tuple(values), attrs))
        self._follow(opcode, operands, values[0], attrs)
        return tuple(values)

    def emit(self, opcode: str, *operands: Value, type: TensorType | None = None, **attrs: Any) -> Value:
        """Append an operator with one result; `type` where the operands do not give it."""
        return self.emit_many(opcode, operands, () if type is None else (type,), **attrs)[0]

    def _follow(
        self, opcode: str, operands: Sequence[Value], result: Value, attrs: Mapping[str, Any]
    ) -> None:
        """Keep what is known of integers: all elements equal (`splats`), or counting along a dim (`lines`);
        and which values are uninitialised memory (`raw`)."""
        if operands and operands[0] in self.raw and opcode in _KEEPS:
            self.raw.add(result)
        if result.type.dtype.kind not in ("bool", "int"):
            return
        if opcode == "constant" and not result.type.shape:
            self.splats[result] = attrs["value"][()]
        elif opcode in _KEEPS and all(v in self.splats for v in operands):
            values = [self.splats[v] for v in operands]
            if all(v == values[0] for v in values):
                self.splats[result] = result.type.dtype.storage.type(values[0])
        elif opcode == "compare" and all(v in self.splats for v in operands):
            self.splats[result] = _COMPARE[attrs["direction"]](*(self.splats[v] for v in operands))
        elif opcode == "iota":
            self.lines[result] = attrs["dim"]
        elif operands and operands[0] in self.lines:
            self._follow_line(opcode, operands[0], result, attrs)

    def _follow_line(self, opcode: str, x: Value, result: Value, attrs: Mapping[str, Any]) -> None:
        dim, dtype = self.lines[x], result.type.dtype
        if opcode == "convert":
            if dtype.kind == "int" and x.type.shape[dim] < 1 << (dtype.bits - 1):
                self.lines[result] = dim
        elif opcode == "broadcast_in_dim" and result.type.shape[attrs["dims"][dim]] == x.type.shape[dim]:
            self.lines[result] = attrs["dims"][dim]
        elif opcode == "transpose":
            self.lines[result] = attrs["permutation"].index(dim)
        elif opcode == "reshape":
            size = x.type.shape[dim]
            if x.type.size == size and size > 1 and size in result.type.shape:
                self.lines[result] = result.type.shape.index(size)

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
        from shardproof.ir.numpy_compute import identity

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

    def result_type(self, *operands: Value | Number) -> DType:
        """The element type of an operator on tensors and Python numbers (`torch.result_type`)."""
        kinds: list[DType | None] = [None, None, None]
        for x in operands:
            if isinstance(x, Value):
                level, dtype = (1 if not x.type.shape else 0), x.type.dtype
            else:
                level, dtype = 2, of_number(x)
            known = kinds[level]
            try:
                kinds[level] = dtype if known is None else promote(known, dtype)
            except ModuleError as error:
                self.fail(str(error))
        found = combine(kinds[0], combine(kinds[1], kinds[2]))
        assert found is not None
        return found

    def floating(self, dtype: DType) -> DType:
        """The type of a real function of `dtype`: integers become the default type, as recorded or f32."""
        if dtype.kind in ("real", "complex"):
            return dtype
        told = self.declared.get(0)
        return told.dtype if told is not None and told.dtype.kind == "real" else DType.F32

    def tensor(self, x: Value | Number, dtype: DType) -> Value:
        """An operand in element type `dtype`."""
        return self.convert(x, dtype) if isinstance(x, Value) else self.scalar(x, dtype)

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

    def size(self, value: Any) -> int:
        """An integer argument."""
        if isinstance(value, Symbol):
            return self._size_of(value.expr)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"the argument {value!r} is no size that is known here")
        return value

    def _size_of(self, expression: str) -> int:
        found = size_of(expression, self.sizes)
        if found is None:
            self.fail(f"the size {expression} is symbolic: give the value of each symbol in [constants]")
        for name in sorted(self.told & symbols(expression)):
            text = f"the size {name} is {self.sizes[name]} as told: nothing is shown of other sizes"
            self.warnings.setdefault(text)
        return found

    def resolved(self, shape: Sequence[int | str]) -> tuple[int, ...]:
        """A recorded shape, its symbolic sizes by their values."""
        return tuple(n if isinstance(n, int) else self.size(Symbol(n)) for n in shape)

    def shape(self, value: Any) -> tuple[int, ...]:
        """A shape argument."""
        if not isinstance(value, tuple):
            self.fail(f"the shape {value!r} is not a list of sizes")
        return tuple(self.size(n) for n in value)
