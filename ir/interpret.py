"""Runs modules in NumPy: one SPMD program on all ranks in lock-step, or one program per rank.

Reals are computed in float64 (or in the floating type that the inputs come in), integers wrap in
their own width. Ranks whose operands are the same array objects share the work and the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shardproof.ir.collectives import exchange, members, zeros
from shardproof.ir.evaluate import apply, bind, last_uses, per_rank, rank_number
from shardproof.ir.module import Module, Op
from shardproof.ir.numpy_meaning import InterpretError, Unsupported, element_type
from shardproof.ir.ops import TABLE
from shardproof.ir.schedule import Deadlock, GroupMismatch, run_ranks
from shardproof.ir.types import Array

__all__ = ["Deadlock", "GroupMismatch", "InterpretError", "Unsupported", "element_type", "run", "run_ranks"]


def run(
    module: Module, inputs: Mapping[str, Sequence[Array] | Array], *, values: bool = False
) -> dict[str, list[Array]]:
    """Output name -> one array per rank; with `values`, value name -> arrays of every value instead.

    `inputs` maps the name of each input to one array per rank or to one array that all ranks share.
    The module must be well formed (`shardproof.ir.verify`). Raises `Unsupported` at the first
    operator without a NumPy meaning, and `InterpretError` for inputs that do not fit and for a rank
    that is in no group of a collective.
    """
    ranks = module.mesh.size
    if module.rank is not None and ranks > 1:
        raise InterpretError(
            f"module {module.name} is the program of rank {module.rank} only, not of all ranks"
        )
    store = {}
    for parameter in module.inputs:
        if parameter.name not in inputs:
            raise InterpretError(f"input {parameter.name} is missing")
        shared: dict[int, Array] = {}
        given = per_rank(parameter.name, inputs[parameter.name], ranks)
        for array in given:
            if id(array) not in shared:
                shared[id(array)] = bind(parameter, array)
        store[parameter.name] = [shared[id(array)] for array in given]
    free = last_uses(module)
    with np.errstate(all="ignore"):
        for i, op in enumerate(module.ops):
            results = step(op, [store[v.name] for v in op.operands], ranks)
            store |= {value.name: arrays for value, arrays in zip(op.results, results, strict=True)}
            if not values:
                for name in free[i]:
                    del store[name]
    return store if values else {output.name: store[output.value.name] for output in module.outputs}


def step(op: Op, operands: list[list[Array]], ranks: int) -> list[list[Array]]:
    """For each result, its array on each rank."""
    row = TABLE.get(op.opcode)
    if op.opcode == "rank_id":
        return [[rank_number(op, rank) for rank in range(ranks)]]
    if op.opcode == "scan":
        return _repeat(op, operands)
    if row is not None and "collective" in row.traits:
        return [_communicate(op, operands[0])]
    done: dict[tuple[int, ...], tuple[Array, ...]] = {}
    found = []
    for rank in range(ranks):
        mine = [arrays[rank] for arrays in operands]
        key = tuple(map(id, mine))
        if key not in done:
            done[key] = apply(op, mine)
        found.append(done[key])
    return [[results[i] for results in found] for i in range(len(op.results))]


def _repeat(op: Op, operands: list[list[Array]]) -> list[list[Array]]:
    """The rounds of a loop, one after the other."""
    body, consts, carries = op.attrs["body"], op.attrs["consts"], op.attrs["carries"]
    before, order = consts + carries, range(op.attrs["length"])
    names, results = [i.name for i in body.inputs], [o.name for o in body.outputs]
    carried, stacked = operands[consts:before], operands[before:]
    rows: dict[int, list[list[Array]]] = {}
    for k in reversed(order) if op.attrs["reverse"] else order:
        own = [[np.asarray(x[k]) for x in arrays] for arrays in stacked]
        found = run(body, dict(zip(names, (*operands[:consts], *carried, *own), strict=True)))
        carried = [found[name] for name in results[:carries]]
        rows[k] = [found[name] for name in results[carries:]]
    out = [
        [np.stack(parts) for parts in zip(*(rows[k][n] for k in order), strict=True)]
        for n in range(len(results) - carries)
    ]
    return [*carried, *out]


def _communicate(op: Op, operand: list[Array]) -> list[Array]:
    results: dict[int, Array] = {}
    done: dict[tuple[int, ...], list[Array]] = {}
    for rank, x in enumerate(operand):
        if rank in results:
            continue
        group = members(op, rank)
        if not group:
            results[rank] = zeros(x)
            continue
        key = (*map(id, (operand[r] for r in group)), *(group if op.opcode == "collective_permute" else ()))
        if key not in done:
            done[key] = list(exchange(op, {r: operand[r] for r in group}).values())
        results |= dict(zip(group, done[key], strict=True))
    return [results[rank] for rank in range(len(operand))]
