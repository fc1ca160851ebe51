"""Programs that a test writes out, and values that differ from rank to rank."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from evaluated import check_graph, equal
from random_graphs import Graph

from shardproof.ir.module import Op, Value
from shardproof.ir.types import DType, Mesh, TensorType

F, I, B, U = DType.F32, DType.S32, DType.BOOL, DType.U8
ALONG = {"index_vector_dim": 1, "operand_batching_dims": (), "start_indices_batching_dims": ()}


class Program(Graph):
    """A program written out in a test; every value is computed as it is made."""

    def __init__(self, *axes: int, special: bool = False) -> None:
        super().__init__(Random(5), Mesh(tuple((f"axis{k}", n) for k, n in enumerate(axes))), special=special)

    def __call__(
        self, opcode: str, *operands: Value, to: tuple[DType, tuple[int, ...]] | None = None, **attrs: Any
    ) -> Value:
        declared = () if to is None else (TensorType(*to),)
        made = self.add(opcode, operands, *declared, **attrs)
        assert made is not None, f"{opcode} does not type, run or stay small"
        return made

    def number(self, value: Any, dtype: DType = F) -> Value:
        a = np.asarray(value)
        return self("constant", to=(dtype, a.shape), value=a.astype(dtype.storage))

    def full(self, value: float, like: Value) -> Value:
        return self.spread(self.number(value, like.type.dtype), like.type.shape)

    def spread(self, x: Value, shape: tuple[int, ...], *dims: int) -> Value:
        return self("broadcast_in_dim", x, to=(x.type.dtype, shape), dims=dims)

    def reduced(self, x: Value, kind: str, *dims: int, init: float | None = None) -> Value:
        start = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf}[kind] if init is None else init
        before, self.special = self.special, True
        c = self.number(start, x.type.dtype)
        self.special = before
        return self("reduce", x, c, dims=dims, kind=kind)

    def cut(self, x: Value, dim: int, start: int, limit: int, stride: int = 1) -> Value:
        starts, limits, strides = [0] * len(x.type.shape), list(x.type.shape), [1] * len(x.type.shape)
        starts[dim], limits[dim], strides[dim] = start, limit, stride
        return self("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))

    def rank(self) -> Value:
        return self("rank_id", to=(I, ()))

    def take(self, x: Value, ids: Value) -> Value:
        """Rows of `x`."""
        rest = x.type.shape[1:]
        return self(
            "gather",
            x,
            ids,
            offset_dims=tuple(range(1, 1 + len(rest))),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            slice_sizes=(1, *rest),
            **ALONG,
        )

    def meet(self, a: Value, b: Value) -> bool:
        check_graph(self)
        return equal(self, a, b)


def local(p: Program, dtype: DType, shape: tuple[int, ...]) -> Value:
    """A value that differs from rank to rank: the whole input times or at the rank."""
    x = p.input(dtype, (p.mesh.size, *shape))
    zero = p.number(0, I)
    block = p("dynamic_slice", x, p.rank(), *[zero] * len(shape), sizes=(1, *shape))
    return p("reshape", block, to=(dtype, shape))


def unrun_pair(p: Program, opcode: str, x: Value, y: Value) -> Value:
    """An operator on two operands of one type that joins the program without a value."""
    made = Value(f"o{len(p.ops)}", x.type)
    p.ops.append(Op(opcode, (x, y), (made,), {}))
    return made


def unrun(p: Program, opcode: str, x: Value, shape: tuple[int, ...], **attrs: Any) -> Value:
    """An operator that NumPy cannot run joins the program without a value."""
    made = Value(f"o{len(p.ops)}", TensorType(F, shape))
    p.ops.append(Op(opcode, (x,), (made,), attrs))
    return made
