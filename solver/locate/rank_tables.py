"""Integers that each rank has of its own, and whether those of another place would be the right ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Module, Op, Value

MOST: Final = 8
"""How many other tables are tried in place of one."""


@dataclass(frozen=True, slots=True)
class Table:
    """The constant `value` with an integer of each rank, and the operator that has this rank's."""

    value: Value
    content: Any
    op: Op

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(n) for n in np.ravel(self.content))


def tables(module: Module) -> list[Table]:
    """Constants of which every rank reads its own element."""
    made = {v.name: op for op in module.ops for v in op.results}
    ranked: set[str] = set()
    found: dict[str, Table] = {}
    read: dict[str, str] = {}
    for op in module.ops:
        source = made.get(op.operands[0].name) if op.operands else None
        if op.opcode == "dynamic_slice" and source is not None and source.opcode == "constant":
            value = source.result
            whole = value.type.dtype.kind in ("int", "uint") and value.type.size == module.mesh.size
            if whole and any(x.name in ranked for x in op.operands[1:]):
                found[value.name] = Table(value, source.attrs["value"], op)
                read[op.result.name] = value.name
        elif op.opcode == "reshape" and op.operands[0].name in read:
            table = found[read[op.operands[0].name]]
            found[table.value.name] = Table(table.value, table.content, op)
        of_rank = op.opcode == "rank_id" or any(x.name in ranked for x in op.operands)
        if of_rank and all(v.type.size == 1 for v in op.results):
            ranked.update(v.name for v in op.results)
    return list(found.values())


def others(table: Table, every: list[Table]) -> Iterator[tuple[Any, Table]]:
    """The contents of other tables that would fit in place of one, each once, with where they stand."""
    seen = {table.numbers}
    for other in every:
        if other.value.type == table.value.type and other.numbers not in seen and len(seen) <= MOST:
            seen.add(other.numbers)
            yield other.content, other
