"""Builds modules operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.ir.verify import verify

GATHER = {
    "offset_dims": (1,),
    "collapsed_slice_dims": (0,),
    "start_index_map": (0,),
    "index_vector_dim": 1,
    "operand_batching_dims": (),
    "start_indices_batching_dims": (),
}


class Program:
    """A module in the making; the type rules give the types of results that aren't declared."""

    def __init__(self, ranks: int = 1) -> None:
        self.mesh = Mesh((("tp", ranks),)) if ranks > 1 else Mesh()
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.outputs: list[Output] = []
        self.values: list[Value] = []

    def input(self, name: str, *shape: int, dtype: DType = DType.F32) -> Value:
        value = Value(name, TensorType(dtype, shape))
        self.inputs.append(Input(value, len(self.inputs)))
        self.values.append(value)
        return value

    def op(self, opcode: str, *operands: Value, type: TensorType | None = None, **attrs: Any) -> Value:
        return self.many(opcode, *operands, types=() if type is None else (type,), **attrs)[0]

    def many(
        self, opcode: str, *operands: Value, types: tuple[TensorType, ...] = (), **attrs: Any
    ) -> tuple[Value, ...]:
        kinds = TABLE[opcode].type([v.type for v in operands], attrs, types)
        results = tuple(Value(f"v{len(self.values) + n}", t) for n, t in enumerate(kinds))
        self.values.extend(results)
        self.ops.append(Op(opcode, operands, results, attrs))
        return results

    def shape(self, opcode: str, x: Value, *shape: int, **attrs: Any) -> Value:
        return self.op(opcode, x, type=TensorType(x.type.dtype, shape), **attrs)

    def constant(self, value: Any, dtype: DType = DType.F32) -> Value:
        array = np.asarray(value, dtype.storage)
        return self.op("constant", type=TensorType(dtype, array.shape), value=array)

    def rank(self) -> Value:
        return self.op("rank_id", type=TensorType(DType.U32, ()))

    def shard(self, x: Value, dim: int, ranks: int) -> Value:
        """The own contiguous shard of a value that all ranks hold whole."""
        part = x.type.shape[dim] // ranks
        start = self.op("multiply", self.rank(), self.constant(part, DType.U32))
        zero = self.constant(0, DType.U32)
        starts = [start if d == dim else zero for d in range(len(x.type.shape))]
        sizes = tuple(part if d == dim else n for d, n in enumerate(x.type.shape))
        return self.op("dynamic_slice", x, *starts, sizes=sizes)

    def output(self, name: str, value: Value) -> None:
        self.outputs.append(Output(name, value))

    def module(self) -> Module:
        module = Module("test", self.mesh, tuple(self.inputs), tuple(self.ops), tuple(self.outputs))
        verify(module)
        return module


@pytest.fixture(scope="session")
def program() -> type[Program]:
    return Program


def grow(p: Any, rng: Any, ranks: int, kinds: Sequence[str]) -> Value | None:
    """Append one random operator; None when the chosen one doesn't fit the chosen operand."""
    x: Value = rng.choice([v for v in p.values if v.type.dtype is DType.F32])
    shape = x.type.shape
    dims = range(len(shape))
    d = rng.choice(list(dims)) if shape else 0
    n = shape[d] if shape else 1
    groups = (tuple(range(ranks)),) if rng.random() < 0.6 else tuple((r,) for r in range(ranks))
    size = len(groups[0])
    same = [v for v in p.values if v.type == x.type]
    match rng.choice(kinds):
        case "add" | "multiply" | "maximum" as code:
            return p.op(code, x, rng.choice(same))
        case "tanh":
            return p.op("tanh", x)
        case "select":
            return p.op(
                "select", p.op("compare", x, rng.choice(same), direction="LT", total=False), x, same[0]
            )
        case "transpose":
            return p.op("transpose", x, permutation=tuple(rng.sample(list(dims), len(shape))))
        case "reshape":
            flat, rest = [], int(np.prod(shape))
            while rest > 1:
                f = rng.choice([f for f in range(2, rest + 1) if rest % f == 0])
                flat.append(f)
                rest //= f
            return p.shape("reshape", x, *flat) if len(flat) < 5 else None
        case "slice" if shape:
            lo = rng.randrange(n)
            hi, step = rng.randrange(lo + 1, n + 1), rng.choice([1, 1, 2])
            cut = [[0, m, 1] for m in shape]
            cut[d] = [lo, hi, step]
            starts, limits, strides = (tuple(c) for c in zip(*cut, strict=True))
            return p.op("slice", x, starts=starts, limits=limits, strides=strides)
        case "pad" if shape:
            low, high, interior = ([0] * len(shape) for _ in range(3))
            low[d], high[d], interior[d] = rng.choice([-1, 0, 2]), rng.choice([0, 1]), rng.choice([0, 1])
            if n + low[d] < 1:
                return None
            zero = p.constant(0.5)
            return p.op("pad", x, zero, low=tuple(low), high=tuple(high), interior=tuple(interior))
        case "reverse" if shape:
            return p.op("reverse", x, dims=(d,))
        case "concatenate" if shape:
            return p.op("concatenate", x, rng.choice(same), dim=d)
        case "broadcast" if len(shape) < 4:
            at = rng.randrange(len(shape) + 1)
            return p.shape(
                "broadcast_in_dim",
                x,
                *shape[:at],
                2,
                *shape[at:],
                dims=tuple(i + (i >= at) for i in dims),
            )
        case "dot" if shape:
            others = [v for v in p.values if v.type.dtype is DType.F32 and n in v.type.shape]
            y = rng.choice(others)
            rd = y.type.shape.index(n)
            attrs = {"lhs_contracting": (d,), "rhs_contracting": (rd,), "lhs_batch": (), "rhs_batch": ()}
            if len(shape) + len(y.type.shape) > 6:
                return None
            kept = [m for i, m in enumerate(shape) if i != d] + [
                m for i, m in enumerate(y.type.shape) if i != rd
            ]
            return p.op("dot_general", x, y, type=TensorType(DType.F32, tuple(kept)), **attrs)
        case "reduce" if shape:
            kind = rng.choice(["sum", "max"])
            return p.op("reduce", x, p.constant(0.0 if kind == "sum" else -np.inf), dims=(d,), kind=kind)
        case "sort" if shape:
            return p.op("sort", x, dim=d, comparator="lt:0", stable=True)
        case "top_k" if shape:
            return p.many("top_k", x, k=rng.randrange(1, shape[-1] + 1))[0]
        case "iota" if shape:
            return p.op("add", x, p.op("iota", type=x.type, dim=d))
        case "gather" if len(shape) == 2:
            ids = p.shape("reshape", p.values[1], 3, 1)
            return p.op("gather", x, ids, slice_sizes=(1, shape[1]), **GATHER)
        case "dynamic_slice" if shape:
            start, zero = p.op("multiply", p.rank(), p.constant(2, DType.U32)), p.constant(0, DType.U32)
            sizes = tuple(rng.randrange(1, m + 1) if i == d else m for i, m in enumerate(shape))
            starts = [start if i == d else zero for i in dims]
            part = p.op("dynamic_slice", x, *starts, sizes=sizes)
            return part if rng.random() < 0.5 else p.op("dynamic_update_slice", x, part, *reversed(starts))
        case "all_reduce":
            return p.op("all_reduce", x, kind=rng.choice(["sum", "max"]), groups=groups)
        case "all_gather" if shape:
            return p.op("all_gather", x, dim=d, groups=groups)
        case "reduce_scatter" if shape and n % size == 0:
            return p.op("reduce_scatter", x, dim=d, kind="sum", groups=groups)
        case "all_to_all" if shape and n % size == 0:
            return p.op("all_to_all", x, split_dim=d, concat_dim=rng.choice(list(dims)), groups=groups)
        case "permute":
            return p.op("collective_permute", x, pairs=tuple((r, r + 1) for r in range(ranks - 1)))
        case "collective_broadcast":
            return p.op("collective_broadcast", x, groups=groups)
        case "agree":
            return p.op("agree", x, groups=groups)
    return None


KINDS = [
    *("add", "multiply", "maximum", "tanh", "select", "transpose", "reshape", "reshape", "slice", "slice"),
    *("pad", "reverse", "concatenate", "broadcast", "dot", "reduce", "sort", "top_k", "iota", "gather"),
    *("dynamic_slice", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"),
    *("collective_broadcast", "agree"),
]


def random_module(
    seed: int, ranks: int, shape: tuple[int, int], kinds: Sequence[str] = tuple(KINDS), *, steps: int = 14
) -> Module:
    """A program of up to `steps` random operators; its outputs are its last small real values."""
    rng = Random(seed)
    p = Program(ranks)
    x = p.input("x", *shape)
    p.input("ids", 3, dtype=DType.S32)
    p.input("w", shape[1], 2, 3)
    spread = p.op("broadcast_in_dim", p.rank(), type=TensorType(DType.U32, shape), dims=())
    p.op("multiply", x, p.op("convert", spread, type=TensorType(DType.F32, shape)))
    while len(p.ops) < steps:
        value = grow(p, rng, ranks, kinds)
        if value is not None and value.type.size > 25 * prod(shape):
            break
    values = [v for v in p.values if v.type.dtype is DType.F32 and 0 < v.type.size <= 3 * prod(shape)]
    for value in values[-3:]:
        p.output(value.name, value)
    return p.module()


@pytest.fixture(scope="session")
def random_program() -> Any:
    return random_module


@pytest.fixture(scope="session")
def gather() -> dict[str, Any]:
    return GATHER
