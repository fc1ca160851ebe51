"""One SPMD program from the programs of all its ranks (soundness F1, F2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from shardproof.ir.module import Module, ModuleError, Op, Value
from shardproof.ir.types import DType, Mesh, TensorType


class RankError(ModuleError):
    """The files are not the ranks of one program."""

    code = "E05"


class Divergent(Exception):
    """The ranks' programs differ in more than constants and slice starts; the message says where."""


class Ranked(Protocol):
    """The program of one rank; None when its file does not say of which."""

    @property
    def rank(self) -> int | None: ...


Program = TypeVar("Program", bound=Ranked)


def order_ranks(modules: Sequence[Program]) -> list[Program]:
    """The programs by rank: by their own rank numbers if all have one, else as given."""
    if any(m.rank is None for m in modules):
        return list(modules)
    by_rank: dict[int, Program] = {}
    for m in modules:
        assert m.rank is not None
        if m.rank in by_rank:
            raise RankError(f"two files say that they are rank {m.rank}: give each rank once")
        by_rank[m.rank] = m
    missing = [r for r in range(len(modules)) if r not in by_rank]
    if missing:
        raise RankError(f"no file is rank {missing[0]} of {len(modules)}: give the files of all ranks")
    return [by_rank[r] for r in range(len(modules))]


def fold_ranks(modules: Sequence[Module]) -> Module:
    """The SPMD program of ranks that run the same operators in the same order.

    Constants and slice starts that differ become exact tables over the rank. Everything else must
    agree, the groups of every collective included; else Divergent. Where exporters let a rank use one scalar
    constant for what are two on another rank, every use has its own.
    """
    modules = order_ranks(modules)
    try:
        return _fold(modules)
    except Divergent as shared:
        try:
            return _fold([_unshared(m) for m in modules])
        except Divergent:
            raise shared from None


def _unshared(module: Module) -> Module:
    """The program with a constant of its own for every use of a scalar constant by an operator."""
    scalars = {
        op.result.name: op for op in module.ops if op.opcode == "constant" and not op.result.type.shape
    }
    kept = {o.value.name for o in module.outputs}
    ops: list[Op] = []
    for op in module.ops:
        if op.opcode == "constant" and op.result.name in scalars and op.result.name not in kept:
            continue
        operands = []
        for n, v in enumerate(op.operands):
            constant = scalars.get(v.name)
            if constant is not None:
                v = replace(v, name=f"{v.name} of {op.results[0].name if op.results else op.opcode} {n}")
                ops.append(replace(constant, results=(v,)))
            operands.append(v)
        ops.append(replace(op, operands=tuple(operands)))
    return replace(module, ops=tuple(ops))


def _fold(modules: Sequence[Module]) -> Module:
    first, n = modules[0], len(modules)
    mesh = first.mesh
    if mesh.size == 1:
        mesh = Mesh((("rank", n),))
    if any(m.mesh.size not in (1, n) for m in modules):
        raise RankError(f"{n} files, but one of them runs on {max(m.mesh.size for m in modules)} ranks")
    for m in modules[1:]:
        if [str(i.value.type) for i in m.inputs] != [str(i.value.type) for i in first.inputs]:
            raise Divergent("the ranks take inputs of different types")
        if [i.number for i in m.inputs] != [i.number for i in first.inputs]:
            raise Divergent("the ranks number their inputs differently")
        mine, theirs = [i.name for i in m.inputs], [i.name for i in first.inputs]
        if mine != theirs and set(mine) & set(theirs):
            raise Divergent("the ranks give the same names to different inputs")
        if len(m.ops) != len(first.ops):
            raise Divergent(f"the ranks run {len(first.ops)} and {len(m.ops)} operators")
    names = [{v.name: k for k, v in enumerate(_values(m))} for m in modules]
    rank = Value("rank of this program", TensorType(DType.S32, ()))
    ops: list[Op] = []
    for at in range(len(first.ops)):
        ops += _folded([m.ops[at] for m in modules], names, rank)
    outputs = [[names[k][o.value.name] for o in m.outputs] for k, m in enumerate(modules)]
    if any(o != outputs[0] for o in outputs[1:]):
        raise Divergent("the ranks return different values")
    states = [
        [None if o.updates is None else names[k][o.updates] for o in m.outputs] for k, m in enumerate(modules)
    ]
    if any(s != states[0] for s in states[1:]):
        raise Divergent("the ranks overwrite different inputs")
    if any(rank in op.operands for op in ops):
        ops.insert(0, Op("rank_id", (), (rank,), {}))
    return replace(first, mesh=mesh, ops=tuple(ops), rank=None)


def _values(module: Module) -> list[Value]:
    return [i.value for i in module.inputs] + [v for op in module.ops for v in op.results]


def _folded(ops: Sequence[Op], names: Sequence[dict[str, int]], rank: Value) -> list[Op]:
    first = ops[0]
    where = first.result.name if first.results else first.opcode
    for k, op in enumerate(ops):
        same = (
            op.opcode == first.opcode
            and [str(v.type) for v in op.results] == [str(v.type) for v in first.results]
            and [names[k][v.name] for v in op.operands] == [names[0][v.name] for v in first.operands]
            and set(op.attrs) == set(first.attrs)
        )
        if not same:
            raise Divergent(f"the ranks run different operators at `{where}`")
    different = {key for op in ops for key in first.attrs if not _equal(op.attrs[key], first.attrs[key])}
    if not different:
        return [first]
    if first.opcode == "constant" and different == {"value"}:
        table = np.stack([op.attrs["value"] for op in ops])
        return _lookup(table, first.result, rank)
    if first.opcode == "slice" and different <= {"starts", "limits"}:
        return _moving_slice(ops, rank)
    raise Divergent(f"the ranks differ in {', '.join(sorted(different))} of `{where}`")


def _equal(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        x, y = np.asarray(a), np.asarray(b)
        return x.shape == y.shape and x.tobytes() == y.tobytes()
    return a == b


def _lookup(table: np.ndarray, result: Value, rank: Value) -> list[Op]:
    dtype, shape = result.type.dtype, result.type.shape
    whole = Value(f"{result.name} of all ranks", TensorType(dtype, table.shape), result.location)
    one = Value(f"{result.name} of this rank", TensorType(dtype, (1, *shape)), result.location)
    zero = Value(f"{result.name} zero", TensorType(DType.S32, ()), result.location)
    return [
        Op("constant", (), (whole,), {"value": table}),
        Op("constant", (), (zero,), {"value": np.zeros((), np.int32)}),
        Op("dynamic_slice", (whole, rank, *[zero] * len(shape)), (one,), {"sizes": (1, *shape)}),
        Op("reshape", (one,), (result,), {}),
    ]


def _moving_slice(ops: Sequence[Op], rank: Value) -> list[Op]:
    first = ops[0]
    if any(s != 1 for op in ops for s in op.attrs["strides"]):
        raise Divergent(f"the ranks take different strided slices at `{first.result.name}`")
    made: list[Op] = []
    starts = []
    for d in range(len(first.attrs["starts"])):
        start = Value(f"{first.result.name} start {d}", TensorType(DType.S32, ()), first.location)
        made += _lookup(np.asarray([op.attrs["starts"][d] for op in ops], np.int32), start, rank)
        starts.append(start)
    operands = (first.operands[0], *starts)
    return [*made, Op("dynamic_slice", operands, first.results, {"sizes": first.result.type.shape})]
