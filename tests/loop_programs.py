"""Programs with loops, written as functions of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, Mesh, TensorType

Results = Sequence[Value]


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def s32(*shape: int) -> TensorType:
    return TensorType(DType.S32, shape)


class Build:
    """Operators of a program so far, on a mesh; names start with `prefix`."""

    def __init__(self, mesh: Mesh, prefix: str = "") -> None:
        self.mesh = mesh
        self.prefix = prefix
        self.ops: list[Op] = []

    def many(self, opcode: str, *x: Value, declared: Sequence[TensorType] = (), **attrs: Any) -> Results:
        types = TABLE[opcode].type([v.type for v in x], attrs, tuple(declared))
        names = [f"{self.prefix}{len(self.ops)}.{k}" for k in range(len(types))]
        results = tuple(Value(n, t) for n, t in zip(names, types, strict=True))
        self.ops.append(Op(opcode, x, results, attrs))
        return results

    def __call__(self, opcode: str, *x: Value, type: TensorType | None = None, **attrs: Any) -> Value:
        return self.many(opcode, *x, declared=() if type is None else (type,), **attrs)[0]

    def full(self, value: float, type: TensorType) -> Value:
        array = np.asarray(value).astype(type.dtype.storage)
        scalar = self("constant", type=TensorType(type.dtype, ()), value=array)
        return self("broadcast_in_dim", scalar, type=type, dims=()) if type.shape else scalar

    def spread(self, x: Value, type: TensorType) -> Value:
        return self("broadcast_in_dim", x, type=type, dims=())

    def rank(self) -> Value:
        """The rank as a real number."""
        return self("convert", self("rank_id", type=s32()), type=f32())

    def all_reduce(self, x: Value, kind: str = "sum") -> Value:
        return self("all_reduce", x, kind=kind, groups=(tuple(range(self.mesh.size)),))

    def scan(
        self,
        body: Callable[[Build, Results, Results, Results], tuple[Results, Results]],
        init: Results,
        rows: Results = (),
        consts: Results = (),
        *,
        length: int = 4,
        reverse: bool = False,
    ) -> Results:
        """`body(build, consts, carried, rows)` gives what is carried on and one row of each result."""
        inner = Build(self.mesh, f"{self.prefix}{len(self.ops)}_")
        taken = [v.type for v in (*consts, *init)] + [
            TensorType(v.type.dtype, v.type.shape[1:]) for v in rows
        ]
        given = [Value(f"{inner.prefix}i{k}", t) for k, t in enumerate(taken)]
        n, m = len(consts), len(consts) + len(init)
        carried, stacked = body(inner, given[:n], given[n:m], given[m:])
        module = Module(
            "round",
            self.mesh,
            tuple(Input(v, k) for k, v in enumerate(given)),
            tuple(inner.ops),
            tuple(Output(str(k), v) for k, v in enumerate((*carried, *stacked))),
        )
        settings = {"body": module, "consts": n, "carries": len(init), "length": length, "reverse": reverse}
        return self.many("scan", *consts, *init, *rows, **settings)


def program(
    inputs: Mapping[str, TensorType], body: Callable[..., Value | Results], ranks: int = 1
) -> Module:
    """The program `body(build, *inputs)` on `ranks` ranks."""
    mesh = Mesh((("tp", ranks),)) if ranks > 1 else Mesh()
    build = Build(mesh)
    given = [Value(n, t) for n, t in inputs.items()]
    found = body(build, *given)
    results = [found] if isinstance(found, Value) else found
    return Module(
        "program",
        mesh,
        tuple(Input(v, k) for k, v in enumerate(given)),
        tuple(build.ops),
        tuple(Output(f"y{k}", v) for k, v in enumerate(results)),
    )
