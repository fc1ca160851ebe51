"""Which boxes of its operand on which ranks a box of a collective's result needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardproof.ir.collectives import exchange, members
from shardproof.ir.module import Op
from shardproof.ir.numpy_meaning import Unsupported, element_type
from shardproof.ir.types import Array
from shardproof.solver.replay.draws import Box, shape_of


@dataclass(frozen=True, slots=True)
class Exchange:
    """A rank's part of a collective: boxes of the operand on several ranks, and how to use them."""

    needs: tuple[tuple[int, Box], ...]
    run: Callable[[Sequence[Array]], Array]


def exchange_piece(op: Op, rank: int, box: Box) -> Exchange:
    """What `rank` needs of the members of its group for `box` of its result."""
    ranks = members(op, rank)
    code = op.opcode
    if code == "collective_permute":
        sources = [s for s, t in op.attrs["pairs"] if t == rank]
        return _copy(op, sources[0] if sources else None, box)
    if code == "agree":
        return _copy(op, rank, box)
    if code == "collective_broadcast":
        return _copy(op, ranks[0] if ranks else None, box)
    if code == "all_reduce":
        return _combined(op, ranks, box)
    position = ranks.index(rank)
    if code == "reduce_scatter":
        dim = op.attrs["dim"]
        return _combined(op, ranks, _shifted(box, dim, position * op.result.type.shape[dim]))
    if code not in ("all_gather", "all_to_all"):
        raise Unsupported(code)
    dim = op.attrs["dim" if code == "all_gather" else "concat_dim"]
    shape = op.operands[0].type.shape
    part = shape[dim]
    if code == "all_to_all":
        split = op.attrs["split_dim"]
        length = shape[split] // len(ranks)
        part = length if split == dim else part
    needs: list[tuple[int, Box]] = []
    lo, hi = box[dim]
    for n, member in enumerate(ranks):
        first, last = max(lo, n * part), min(hi, (n + 1) * part)
        if first >= last:
            continue
        piece_box = (*box[:dim], (first - n * part, last - n * part), *box[dim + 1 :])
        if code == "all_to_all":
            piece_box = _shifted(piece_box, split, position * length)
        needs.append((member, piece_box))
    return Exchange(tuple(needs), lambda arrays: np.concatenate(arrays, axis=dim))


def _shifted(box: Box, dim: int, by: int) -> Box:
    return (*box[:dim], (box[dim][0] + by, box[dim][1] + by), *box[dim + 1 :])


def _copy(op: Op, source: int | None, box: Box) -> Exchange:
    if source is None:
        return Exchange((), lambda arrays: np.zeros(shape_of(box), element_type(op.result.type.dtype)))
    return Exchange(((source, box),), lambda arrays: arrays[0])


def _combined(op: Op, ranks: Sequence[int], box: Box) -> Exchange:
    attrs = {"kind": op.attrs["kind"], "groups": (tuple(ranks),)}
    reduction = Op("all_reduce", op.operands, op.results, attrs)
    return Exchange(
        tuple((r, box) for r in ranks),
        lambda arrays: exchange(reduction, dict(zip(ranks, arrays, strict=True)))[ranks[0]],
    )
