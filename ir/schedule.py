"""Runs one program per rank: each rank goes on until a collective waits for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.ir.collectives import exchange, members, place, zeros
from shardproof.ir.evaluate import apply, bind, last_uses, per_rank, rank_number
from shardproof.ir.module import Module, Op
from shardproof.ir.numpy_meaning import InterpretError
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Array


class Deadlock(InterpretError):
    """Ranks wait for each other, or for a rank that has finished."""


class GroupMismatch(InterpretError):
    """Two ranks meet in calls that are not the same collective."""


class _Rank:
    """One rank's progress; `waiting` is the collective it has reached."""

    def __init__(self, rank: int, module: Module, inputs: Mapping[str, list[Array]]) -> None:
        self.rank, self.module = rank, module
        self.at, self.free = 0, last_uses(module)
        self.store: dict[str, Array] = {}
        for parameter in module.inputs:
            if parameter.name not in inputs:
                raise InterpretError(f"input {parameter.name} of rank {rank} is missing")
            self.store[parameter.name] = bind(parameter, inputs[parameter.name][rank])

    @property
    def waiting(self) -> Op | None:
        return self.module.ops[self.at] if self.at < len(self.module.ops) else None

    @property
    def operand(self) -> Array:
        return self.store[self.module.ops[self.at].operands[0].name]

    def finish(self, results: Sequence[Array]) -> None:
        """Records the results of the current operator and goes to the next one."""
        op = self.module.ops[self.at]
        self.store |= {value.name: array for value, array in zip(op.results, results, strict=True)}
        for name in self.free[self.at]:
            del self.store[name]
        self.at += 1

    def advance(self) -> None:
        """Runs up to the next collective that needs other ranks, or to the end."""
        while (op := self.waiting) is not None:
            if op.opcode == "rank_id":
                self.finish([rank_number(op, self.rank)])
            elif not _is_collective(op):
                self.finish(apply(op, [self.store[v.name] for v in op.operands]))
            elif not members(op, self.rank):
                self.finish([zeros(self.operand)])
            else:
                return

    def describe(self) -> str:
        op = self.waiting
        if op is None:
            return f"rank {self.rank} has finished"
        return f"rank {self.rank} waits at {_call(op)} on group {members(op, self.rank)}"


def run_ranks(
    modules: Sequence[Module], inputs: Mapping[str, Sequence[Array] | Array]
) -> list[dict[str, Array]]:
    """For each rank, output name -> array.

    Module i is the program of rank i, or of its own `rank` when all have one. `inputs` is as for
    `run`; a program takes the inputs that it names. The n-th call of a rank on a group meets the
    n-th call of the other members on it. Raises `GroupMismatch` when the calls that meet differ in
    operator, attributes, types or group, and `Deadlock` when no rank can go on.
    """
    tasks = _tasks(modules, inputs)
    with np.errstate(all="ignore"):
        for task in tasks:
            task.advance()
        while any(task.waiting is not None for task in tasks):
            met = [_meet(tasks, task) for task in tasks]
            if not any(met):
                raise _diagnose(tasks)
    return [{o.name: task.store[o.value.name] for o in task.module.outputs} for task in tasks]


def _tasks(modules: Sequence[Module], inputs: Mapping[str, Sequence[Array] | Array]) -> list[_Rank]:
    ranks = [m.rank for m in modules]
    order = list(range(len(modules))) if None in ranks else [r for r in ranks if r is not None]
    if sorted(order) != list(range(len(modules))):
        raise InterpretError(
            f"programs of ranks {sorted(order)} found, one for each of {len(modules)} is needed"
        )
    for module in modules:
        if module.mesh.size != len(modules):
            raise InterpretError(
                f"module {module.name} has {module.mesh.size} ranks, {len(modules)} programs found"
            )
    given = {name: per_rank(name, arrays, len(modules)) for name, arrays in inputs.items()}
    by_rank = dict(zip(order, modules, strict=True))
    return [_Rank(rank, by_rank[rank], given) for rank in range(len(modules))]


def _is_collective(op: Op) -> bool:
    row = TABLE.get(op.opcode)
    return row is not None and "collective" in row.traits


def _call(op: Op) -> str:
    return f"{op.opcode} %{op.result.name}{place(op)}"


def _meet(tasks: list[_Rank], task: _Rank) -> bool:
    """Completes the collective that `task` waits for, if all members of its group have reached it."""
    op = task.waiting
    if op is None:
        return False
    group = members(op, task.rank)
    for rank in group:
        other = tasks[rank].waiting
        if other is None or members(other, rank) != group:
            return False
        if (difference := _difference(op, other)) is not None:
            raise GroupMismatch(
                f"{difference} differ: rank {task.rank} is at {_call(op)} and rank {rank} at {_call(other)}, "
                f"both on group {group}"
            )
    results = exchange(op, {rank: tasks[rank].operand for rank in group})
    for rank in group:
        tasks[rank].finish([results[rank]])
        tasks[rank].advance()
    return True


def _difference(op: Op, other: Op) -> str | None:
    """What makes two calls on one group different collectives, or None."""
    if op.opcode != other.opcode:
        return "operators"
    if _settings(op) != _settings(other):
        return "attributes"
    if op.operands[0].type != other.operands[0].type:
        return f"operand types {op.operands[0].type} and {other.operands[0].type}"
    return None


def _settings(op: Op) -> dict[str, Any]:
    return {name: value for name, value in op.attrs.items() if name != "groups"}


def _diagnose(tasks: list[_Rank]) -> InterpretError:
    for task in tasks:
        if (op := task.waiting) is None:
            continue
        group = members(op, task.rank)
        for rank in group:
            other = tasks[rank].waiting
            if other is None or (theirs := members(other, rank)) == group or task.rank not in theirs:
                continue
            if set(theirs) == set(group) or not (_reaches(task, theirs) or _reaches(tasks[rank], group)):
                return GroupMismatch(f"groups differ: {task.describe()} and {tasks[rank].describe()}")
    stuck = "; ".join(task.describe() for task in tasks[:8])
    return Deadlock(f"deadlock: {stuck}{'; ...' if len(tasks) > 8 else ''}")


def _reaches(task: _Rank, group: tuple[int, ...]) -> bool:
    """Whether the rank's program still has a call on that very group."""
    left = task.module.ops[task.at :]
    return any(_is_collective(op) and members(op, task.rank) == group for op in left)
