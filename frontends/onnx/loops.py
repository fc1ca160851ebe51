"""Repetitions: written out where there are few rounds, else a `scan` whose body is traced once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from shardproof.frontends.onnx.state import Lowering
from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import TensorType

Step = Callable[[Sequence[Value], Sequence[Value]], tuple[Sequence[Value], Sequence[Value]]]
"""Carried values and one row of each stacked tensor -> new carried values and a row of each result."""
FEW: Final = 4
"""Rounds that are written out."""


def repeated(
    s: Lowering,
    length: int,
    carried: Sequence[Value],
    rows: Sequence[Value],
    step: Step,
    *,
    reverse: bool = False,
) -> tuple[list[Value], list[Value]]:
    """The carried values after `length` rounds, and the rows of all rounds stacked in a first dim.

    With `reverse` the last rows come first, and results go to the place of the rows that they are made from.
    """
    if length > FEW:
        return scanned(s, length, carried, rows, step, reverse=reverse)
    state = list(carried)
    results: list[Sequence[Value]] = []
    for k in reversed(range(length)) if reverse else range(length):
        new, out = step(state, [s.reshape(s.slice(x, 0, k, k + 1), x.type.shape[1:]) for x in rows])
        state = list(new)
        results.append(out)
    if not results:
        return state, [s.full(0, t.dtype, (0, *t.shape)) for t in _row_types(s, carried, rows, step)]
    return state, [stacked(s, each) for each in zip(*(results[::-1] if reverse else results), strict=True)]


def stacked(s: Lowering, parts: Sequence[Value]) -> Value:
    """Tensors of one type as rows of one tensor."""
    if any(p.type != parts[0].type for p in parts):
        s.fail(f"gives {parts[0].type} in one round and another type in the next, which cannot be stacked")
    made = [s.reshape(p, (1, *p.type.shape)) for p in parts]
    return made[0] if len(made) == 1 else s.emit("concatenate", *made, dim=0)


def scanned(
    s: Lowering,
    length: int,
    carried: Sequence[Value],
    rows: Sequence[Value],
    step: Step,
    *,
    reverse: bool = False,
) -> tuple[list[Value], list[Value]]:
    """As `repeated`, by one operator. Raises ModuleError when a round changes the type of what it carries."""
    with traced(s) as ops:
        state = [s.unmade(v.type) for v in carried]
        row = [s.unmade(TensorType(v.type.dtype, v.type.shape[1:])) for v in rows]
        new, out = step(state, row)
    for before, after in zip(carried, new, strict=True):
        if before.type != after.type:
            s.fail(f"carries on {after.type} in place of {before.type}")
    free = _free(ops, (*new, *out), (*state, *row))
    inner = {v: s.unmade(v.type) for v in free}
    body = Module(
        "round",
        s.mesh,
        tuple(Input(v, k) for k, v in enumerate((*inner.values(), *state, *row))),
        tuple(replace(op, operands=tuple(inner.get(v, v) for v in op.operands)) for op in ops),
        tuple(Output(f"{k}", inner.get(v, v)) for k, v in enumerate((*new, *out))),
    )
    found = s.emit_many(
        "scan",
        (*free, *carried, *rows),
        (),
        body=body,
        consts=len(free),
        carries=len(carried),
        length=length,
        reverse=reverse,
    )
    return list(found[: len(carried)]), list(found[len(carried) :])


@contextmanager
def traced(s: Lowering) -> Iterator[list[Op]]:
    """What is emitted meanwhile goes into the list that is given, and not into the program."""
    start, place = len(s.ops), (s.name, s.location, s.op_type, s.first)
    ops: list[Op] = []
    try:
        yield ops
    finally:
        ops += s.ops[start:]
        del s.ops[start:]
        s.name, s.location, s.op_type, s.first = place


def communicates(ops: Sequence[Op]) -> bool:
    """Whether operators, or bodies in them, need other ranks."""
    return any(
        "collective" in TABLE[op.opcode].traits
        or any(isinstance(a, Module) and communicates(a.ops) for a in op.attrs.values())
        for op in ops
    )


def _free(ops: Sequence[Op], results: Sequence[Value], given: Sequence[Value]) -> list[Value]:
    """The values from outside that operators or results read."""
    made = {*given, *(v for op in ops for v in op.results)}
    read = dict.fromkeys(v for vs in (*(op.operands for op in ops), results) for v in vs)
    return [v for v in read if v not in made]


def _row_types(s: Lowering, carried: Sequence[Value], rows: Sequence[Value], step: Step) -> list[TensorType]:
    """The types that a round gives for each result."""
    with traced(s):
        _, out = step(carried, [s.unmade(TensorType(v.type.dtype, v.type.shape[1:])) for v in rows])
    return [v.type for v in out]
