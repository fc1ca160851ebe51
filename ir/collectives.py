"""What collectives compute, given the operand of each member of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.ir.module import Op
from shardproof.ir.numpy_compute import monoid
from shardproof.ir.numpy_meaning import InterpretError, settle
from shardproof.ir.types import Array

Groups = tuple[tuple[int, ...], ...]


def members(op: Op, rank: int) -> tuple[int, ...]:
    """The ranks, in order, that exchange data with `rank` in this collective; empty when none do.

    A rank without a group is an error, but for collectives that give it zeros.
    """
    if op.opcode == "collective_permute":
        taking_part = sorted({r for pair in op.attrs["pairs"] for r in pair})
        return tuple(taking_part) if rank in taking_part else ()
    for group in op.attrs["groups"]:
        if rank in group:
            return tuple(group)
    if op.opcode == "collective_broadcast":
        return ()
    raise InterpretError(f"rank {rank} is in no group of {op.opcode} %{op.result.name}{place(op)}")


def place(op: Op) -> str:
    """The source location of an operator, for a message."""
    return f" at {op.location}" if op.location is not None else ""


def exchange(op: Op, operands: Mapping[int, Array]) -> dict[int, Array]:
    """Results of the ranks of one group, from their operands in the group's order.

    Members that get the same value get the same array object.
    """
    ranks, arrays = list(operands), list(operands.values())
    if op.opcode == "collective_permute":
        sources = {target: source for source, target in op.attrs["pairs"]}
        return {r: operands[sources[r]] if r in sources else zeros(operands[r]) for r in ranks}
    if op.opcode == "collective_broadcast":
        return dict.fromkeys(ranks, arrays[0])
    if op.opcode == "agree":
        return dict(operands)
    if op.opcode == "all_reduce":
        return dict.fromkeys(ranks, _combine(op, arrays))
    if op.opcode == "all_gather":
        return dict.fromkeys(ranks, np.concatenate(arrays, axis=op.attrs["dim"]))
    if op.opcode == "reduce_scatter":
        pieces = np.split(_combine(op, arrays), len(ranks), axis=op.attrs["dim"])
        return dict(zip(ranks, pieces, strict=True))
    split, concat = op.attrs["split_dim"], op.attrs["concat_dim"]
    parts = [np.split(x, len(ranks), axis=split) for x in arrays]
    return {r: np.concatenate([p[i] for p in parts], axis=concat) for i, r in enumerate(ranks)}


def zeros(x: Array) -> Array:
    """What a rank gets that receives nothing."""
    return np.zeros_like(x)


def _combine(op: Op, arrays: Sequence[Array]) -> Any:
    dtype = op.result.type.dtype
    function = monoid(op.attrs["kind"], dtype)
    result: Any = arrays[0]
    for x in arrays[1:]:
        result = settle(function(result, x), dtype)
    return result
