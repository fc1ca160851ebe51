"""Operators that stand in an edit for a value, and the words for groups, pairs and positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np

from shardproof.ir.module import Op, Value
from shardproof.ir.types import Mesh, TensorType
from shardproof.solver.relations.relation import rank_groups

_AXES: Final = 4


def axis_groups(mesh: Mesh) -> list[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]]:
    """Every set of axes that are divided, few axes first, with its groups."""
    names = [name for name, size in mesh.axes if size > 1][:_AXES]
    sets = [c for k in range(1, len(names) + 1) for c in combinations(names, k)]
    return [(c, rank_groups(mesh, c)) for c in sets]


def stand_in(type: TensorType) -> Value:
    return Value("in its place", type)


def times_words(n: int) -> str:
    return "twice" if n == 2 else f"{n} times"


def shown(groups: Sequence[Sequence[int]]) -> str:
    text = " ".join("{" + ",".join(map(str, g)) + "}" for g in groups)
    return text if len(text) < 60 else text[:56] + " ..."


def listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")


def moved_slice(op: Op, number: int, moved: Sequence[int]) -> tuple[Op, ...]:
    """A slice with one of its positions moved by an integer of each rank."""
    x = op.operands[number]
    whole, one = (Value(n, TensorType(x.type.dtype, (k,))) for n, k in (("of all", len(moved)), ("own", 1)))
    rank, own, at = (Value(n, TensorType(x.type.dtype, ())) for n in ("rank", "by", "position"))
    operands = (*op.operands[:number], at, *op.operands[number + 1 :])
    return (
        Op("constant", (), (whole,), {"value": np.asarray(moved).astype(x.type.dtype.storage)}),
        Op("rank_id", (), (rank,)),
        Op("dynamic_slice", (whole, rank), (one,), {"sizes": (1,)}),
        Op("reshape", (one,), (own,)),
        Op("add", (x, own), (at,)),
        Op(op.opcode, operands, (stand_in(op.result.type),), op.attrs),
    )


def number_like(like: TensorType, n: int) -> tuple[Op, Op]:
    scalar = Value("number", TensorType(like.dtype, ()))
    number = Op("constant", (), (scalar,), {"value": np.asarray(n, like.dtype.storage)})
    return number, Op("broadcast_in_dim", (scalar,), (Value("numbers", like),), {"dims": ()})


def scaled_by(x: Value, n: int, divided: bool) -> tuple[Op, ...]:
    number, numbers = number_like(x.type, n)
    opcode = "divide" if divided else "multiply"
    return number, numbers, Op(opcode, (x, numbers.result), (stand_in(x.type),))


def all_reduced(x: Value, kind: str, groups: tuple[tuple[int, ...], ...]) -> tuple[Op, ...]:
    own = "sum" if kind == "mean" else kind
    total = Op("all_reduce", (x,), (Value("total", x.type),), {"kind": own, "groups": groups})
    return (total, *scaled_by(total.result, len(groups[0]), True)) if kind == "mean" else (total,)


def permutes(op: Op, mesh: Mesh) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
    pairs = op.attrs["pairs"]
    turned = tuple((b, a) for a, b in pairs)
    if set(turned) != set(pairs):
        yield "the ranks the other way round", turned
    for axes, groups in axis_groups(mesh):
        n = len(groups[0])
        for shift in (1, n - 1):
            for whole in (True, False):
                moved = tuple(
                    (g[k], g[(k + shift) % n])
                    for g in groups
                    for k in range(n)
                    if whole or 0 <= k + (shift if shift == 1 else -1) < n
                )
                if set(moved) not in (set(pairs), set(turned)):
                    yield f"{shown(moved)} along {'+'.join(axes)}", moved
