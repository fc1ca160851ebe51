"""Inputs that a program stacks: as free tensors of one type they are the rows of one free tensor.

Their stack then is that tensor, not a concatenation that every operator on it would have to be
distributed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardproof.ir.module import Module, Value
from shardproof.passes.access import constant, index
from shardproof.passes.classes import Store, Term
from shardproof.passes.views import View, fresh

LEAST: Final = 4
"""Fewest inputs of a family."""


def families(module: Module) -> list[tuple[Value, ...]]:
    """The inputs of one real type, each in one family only, that `module` stacks, in that order."""
    inputs = {i.name: i.value for i in module.inputs}
    source: dict[str, Value] = dict(inputs)
    taken: set[str] = set()
    found = []
    for op in module.ops:
        if op.opcode == "reshape" and op.operands[0].name in source:
            own = source[op.operands[0].name]
            source[op.result.name] = own
        if op.opcode != "concatenate" or len(op.operands) < LEAST:
            continue
        members = [source.get(v.name) for v in op.operands]
        rows = [v for v in members if v is not None]
        names = {v.name for v in rows}
        stacked = all(v.type.shape[op.attrs["dim"]] == 1 for v in op.operands)
        fits = stacked and len(rows) == len(members) == len(names) and len({v.type for v in rows}) == 1
        if fits and rows[0].type.dtype.kind == "real" and 0 not in rows[0].type.shape and not names & taken:
            taken |= names
            found.append(tuple(rows))
    return found


def rows(store: Store, members: Sequence[Value]) -> Iterator[tuple[str, View]]:
    """Each member as a row of one free tensor."""
    type = members[0].type
    extents = (len(members), *(n for n in type.shape if n > 1))
    cls = store.leaf("input", tuple(v.name for v in members), "real", extents)
    for number, value in enumerate(members):
        own = tuple(fresh(store, n) for n in type.shape)
        access = (constant(number), *(index(i) for d in own for i in d))
        yield value.name, View(Term(1, cls, access), own, type.shape, type.dtype)
