"""Builds modules from array expressions that read like NumPy: `g.input("x", 3, 4) @ g.input("w", 4, 5)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.ir.verify import verify


class Tensor:
    """One value of a graph in the making."""

    def __init__(self, graph: Graph, value: Value) -> None:
        self.graph, self.value = graph, value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.type.shape

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    def _pair(self, code: str, other: Any, *, flip: bool = False, **attrs: Any) -> Tensor:
        a, b = self.graph.broadcast(self, self.graph.lift(other, self.dtype))
        return self.graph.op(code, *((b, a) if flip else (a, b)), **attrs)

    def __add__(self, other: Any) -> Tensor:
        return self._pair("add", other)

    def __radd__(self, other: Any) -> Tensor:
        return self._pair("add", other, flip=True)

    def __sub__(self, other: Any) -> Tensor:
        return self._pair("subtract", other)

    def __rsub__(self, other: Any) -> Tensor:
        return self._pair("subtract", other, flip=True)

    def __mul__(self, other: Any) -> Tensor:
        return self._pair("multiply", other)

    def __truediv__(self, other: Any) -> Tensor:
        return self._pair("divide", other)

    def __mod__(self, other: Any) -> Tensor:
        return self._pair("remainder", other)

    def __or__(self, other: Any) -> Tensor:
        return self._pair("or", other)

    def __neg__(self) -> Tensor:
        return self.graph.op("negate", self)

    def __matmul__(self, other: Tensor) -> Tensor:
        attrs = {"lhs_contracting": (1,), "rhs_contracting": (0,), "lhs_batch": (), "rhs_batch": ()}
        type = TensorType(self.dtype, (self.shape[0], other.shape[1]))
        return self.graph.op("dot_general", self, other, type=type, **attrs)

    def is_(self, direction: str, other: Any) -> Tensor:
        """A comparison: EQ, NE, LT, LE, GT, GE."""
        return self._pair("compare", other, direction=direction, total=False)

    def apply(self, code: str) -> Tensor:
        """An elementwise operator without attributes."""
        return self.graph.op(code, self)

    @property
    def T(self) -> Tensor:
        return self.permute(*reversed(range(len(self.shape))))

    def permute(self, *dims: int) -> Tensor:
        return self.graph.op("transpose", self, permutation=dims)

    def reshape(self, *shape: int) -> Tensor:
        return self.graph.op("reshape", self, type=TensorType(self.dtype, shape))

    def astype(self, dtype: DType) -> Tensor:
        return self.graph.op("convert", self, type=TensorType(dtype, self.shape))

    def spread(self, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
        """Broadcast: dim i becomes dim dims[i] of `shape`."""
        type = TensorType(self.dtype, tuple(shape))
        return self.graph.op("broadcast_in_dim", self, type=type, dims=tuple(dims))

    def __getitem__(self, key: Any) -> Tensor:
        cuts = list(key) if isinstance(key, tuple) else [key]
        cuts += [slice(None)] * (len(self.shape) - len(cuts))
        starts, limits, strides = zip(
            *(c.indices(n) for c, n in zip(cuts, self.shape, strict=True)), strict=True
        )
        return self.graph.op("slice", self, starts=starts, limits=limits, strides=strides)

    def part(self, dim: int, start: Any, size: int) -> Tensor:
        """`size` elements along `dim` from a computed position."""
        zero = self.graph.const(0, DType.S32)
        at = self.graph.lift(start, DType.S32)
        starts = [at if d == dim else zero for d in range(len(self.shape))]
        sizes = tuple(size if d == dim else n for d, n in enumerate(self.shape))
        return self.graph.op("dynamic_slice", self, *starts, sizes=sizes)

    def shard(self, dim: int) -> Tensor:
        """The rank's own contiguous shard."""
        size = self.shape[dim] // self.graph.mesh.size
        return self.part(dim, self.graph.rank() * size, size)

    def reduce(self, kind: str, *dims: int) -> Tensor:
        identity = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf}[kind]
        start = self.graph.const(identity, self.dtype)
        return self.graph.op("reduce", self, start, dims=dims or tuple(range(len(self.shape))), kind=kind)

    def sum(self, *dims: int) -> Tensor:
        return self.reduce("sum", *dims)

    def max(self, *dims: int) -> Tensor:
        return self.reduce("max", *dims)

    def take(self, ids: Tensor) -> Tensor:
        """Rows (elements of a vector) at `ids`, clamped as HLO does."""
        rest = self.shape[1:]
        return self.graph.op(
            "gather",
            self,
            ids.reshape(*ids.shape, 1),
            offset_dims=tuple(range(1, 1 + len(rest))),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            index_vector_dim=1,
            operand_batching_dims=(),
            start_indices_batching_dims=(),
            slice_sizes=(1, *rest),
        )

    def scatter(self, ids: Tensor, updates: Tensor, kind: str) -> Tensor:
        """A vector with `updates` combined in at `ids`."""
        return self.graph.op(
            "scatter",
            self,
            ids.reshape(*ids.shape, 1),
            updates,
            update_window_dims=(),
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
            index_vector_dim=1,
            input_batching_dims=(),
            scatter_indices_batching_dims=(),
            kind=kind,
            unique=False,
        )

    def cumsum(self, dim: int) -> Tensor:
        n, rank = self.shape[dim], len(self.shape)
        at = [(n if d == dim else 1) for d in range(rank)]
        ones = (1,) * rank
        return self.graph.op(
            "reduce_window",
            self,
            self.graph.const(0, self.dtype),
            kind="sum",
            sizes=tuple(at),
            strides=ones,
            base_dilations=ones,
            window_dilations=ones,
            pad_low=tuple(k - 1 for k in at),
            pad_high=(0,) * rank,
        )

    def sort(self, dim: int) -> Tensor:
        return self.graph.op("sort", self, dim=dim, comparator="lt:0", stable=True)

    def softmax(self) -> Tensor:
        """Over the last dim, shifted by its maximum."""
        last = len(self.shape) - 1
        lead = range(last)
        e = (self - self.max(last).spread(self.shape, lead)).apply("exponential")
        return e / e.sum(last).spread(self.shape, lead)

    def all_reduce(self, kind: str = "sum", groups: Any = None) -> Tensor:
        return self.graph.op("all_reduce", self, kind=kind, groups=groups or self.graph.everyone)

    def all_gather(self, dim: int, groups: Any = None) -> Tensor:
        return self.graph.op("all_gather", self, dim=dim, groups=groups or self.graph.everyone)


class Graph:
    """A module in the making, on `ranks` ranks of one axis or on the axes given."""

    def __init__(self, ranks: int = 1, axes: tuple[tuple[str, int], ...] | None = None) -> None:
        self.mesh = Mesh(axes if axes is not None else (("tp", ranks),) if ranks > 1 else ())
        self.everyone = (tuple(range(self.mesh.size)),)
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.outputs: list[Output] = []
        self.count = 0

    def input(
        self, name: str, *shape: int, dtype: DType = DType.F32, sharding: tuple[int, ...] | None = None
    ) -> Tensor:
        value = Value(name, TensorType(dtype, shape))
        self.inputs.append(Input(value, len(self.inputs), sharding))
        return Tensor(self, value)

    def many(
        self, code: str, *operands: Tensor, types: tuple[TensorType, ...] = (), **attrs: Any
    ) -> list[Tensor]:
        found = TABLE[code].type([t.value.type for t in operands], attrs, types)
        results = tuple(Value(f"v{self.count + n}", t) for n, t in enumerate(found))
        self.count += len(results)
        self.ops.append(Op(code, tuple(t.value for t in operands), results, attrs))
        return [Tensor(self, v) for v in results]

    def op(self, code: str, *operands: Tensor, type: TensorType | None = None, **attrs: Any) -> Tensor:
        return self.many(code, *operands, types=() if type is None else (type,), **attrs)[0]

    def const(self, value: Any, dtype: DType = DType.F32) -> Tensor:
        array = np.asarray(value, dtype.storage)
        return self.op("constant", type=TensorType(dtype, array.shape), value=array)

    def lift(self, value: Any, dtype: DType) -> Tensor:
        return value if isinstance(value, Tensor) else self.const(value, dtype)

    def broadcast(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Scalars spread to the other's shape; other shapes must agree."""
        if a.shape != b.shape and not a.shape:
            a = a.spread(b.shape, ())
        if a.shape != b.shape and not b.shape:
            b = b.spread(a.shape, ())
        return a, b

    def rank(self) -> Tensor:
        return self.op("rank_id", type=TensorType(DType.S32, ()))

    def iota(self, shape: tuple[int, ...], dim: int, dtype: DType = DType.S32) -> Tensor:
        return self.op("iota", type=TensorType(dtype, shape), dim=dim)

    def where(self, p: Tensor, a: Any, b: Any, dtype: DType = DType.F32) -> Tensor:
        x, y = (self.lift(v, dtype) for v in (a, b))
        x = x if x.shape else x.spread(p.shape, ())
        y = y if y.shape else y.spread(p.shape, ())
        return self.op("select", p, x, y)

    def zeros(self, *shape: int) -> Tensor:
        return self.const(0.0).spread(shape, ())

    def concat(self, dim: int, *parts: Tensor) -> Tensor:
        return self.op("concatenate", *parts, dim=dim)

    def output(self, name: str, t: Tensor, updates: str | None = None) -> None:
        self.outputs.append(Output(name, t.value, updates))

    def module(self, name: str = "test") -> Module:
        module = Module(name, self.mesh, tuple(self.inputs), tuple(self.ops), tuple(self.outputs))
        verify(module)
        return module
