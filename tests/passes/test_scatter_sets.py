"""Blocks set at computed positions, each in a batch of its own, need no statement that they are apart."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from arrays import Graph, Tensor
from evaluated import check_graph, normalised
from random_graphs import Graph as Drawn

from shardproof.ir.module import Module, Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.solver.verify import verify

BATCHED = {
    "update_window_dims": (1, 2),
    "inserted_window_dims": (),
    "scatter_dims_to_operand_dims": (1,),
    "index_vector_dim": 1,
    "input_batching_dims": (0,),
    "scatter_indices_batching_dims": (0,),
    "kind": "set",
    "unique": False,
}
"""A block of rows of [batch, rows, columns] for each of the batch."""
LISTED = {
    **BATCHED,
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0, 1),
    "input_batching_dims": (),
    "scatter_indices_batching_dims": (),
}
"""The same, with the number of the batch beside the position."""


def drawn(draw: Random) -> tuple[Drawn, Value | None]:
    """A batch of blocks set into a tensor, or into zeros, at positions that may be out of range."""
    batch, rows, columns, block = (draw.randint(*ends) for ends in ((2, 3), (2, 4), (1, 3), (1, 2)))
    g = Drawn(draw, Mesh())
    x = g.input(DType.F32, (batch, rows, columns))
    update = g.input(DType.F32, (batch, block, columns))
    at = g.input(DType.S32, (batch, 1))
    if draw.random() < 0.3:
        x = g.add("subtract", (x, x)) or x
    if draw.random() < 0.5:
        return g, g.add("scatter", (x, at, update), **BATCHED)
    number = g.add("iota", (), at.type, dim=0)
    both = None if number is None else g.add("concatenate", (number, at), dim=1)
    return g, None if both is None else g.add("scatter", (x, both, update), **LISTED)


def test_blocks_of_a_batch_are_what_is_computed() -> None:
    known = 0
    for seed in range(200):
        g, made = drawn(Random(seed))
        if made is None:
            continue
        check_graph(g, algebra=seed % 2 == 0)
        store, state = normalised(g, algebra=seed % 2 == 0)
        known += made.name not in state.opaque
        assert not any(kind == "distinct_indices" for kind, _ in store.assumptions)
    assert known > 100


def test_blocks_that_may_overlap_are_not_known() -> None:
    draw = Random(1)
    g = Drawn(draw, Mesh())
    x, update, at = (
        g.input(d, s) for d, s in ((DType.F32, (4, 3)), (DType.F32, (2, 1, 3)), (DType.S32, (2, 1)))
    )
    none = {"input_batching_dims": (), "scatter_indices_batching_dims": ()}
    made = g.add(
        "scatter", (x, at, update), **{**BATCHED, **none, "scatter_dims_to_operand_dims": (0,)}
    )
    assert made is not None
    _, state = normalised(g)
    assert made.name in state.opaque


def test_whether_any_position_is_the_one_asked_for() -> None:
    """`any[j](j == e and p[j])` is `p[e]` where e is a position, else false."""
    for seed in range(100):
        draw = Random(seed)
        g = Drawn(draw, Mesh())
        count, size = draw.randint(1, 3), draw.randint(1, 4)
        ids, p = g.input(DType.S32, (count,)), g.input(DType.BOOL, (size,))
        type_ = TensorType(DType.S32, (count, size))
        truth = TensorType(DType.BOOL, (count, size))
        position = g.add("iota", (), type_, dim=1)
        spread = g.add("broadcast_in_dim", (ids,), type_, dims=(0,))
        mask = g.add("broadcast_in_dim", (p,), truth, dims=(1,))
        start = g.add("constant", (), TensorType(DType.BOOL, ()), value=np.array(False))
        assert position and spread and mask and start
        same = g.add("compare", (position, spread), direction="EQ", total=False)
        assert same
        both = g.add("and", (same, mask))
        assert both
        assert g.add("reduce", (both, start), dims=(1,), kind="or")
        check_graph(g, algebra=seed % 2 == 0)


def cached(ranks: int, *, row: int = 0, other: bool = False) -> Module:
    """A row of each batch written at its position, the last dim of all in shards."""
    g = Graph(ranks)
    cache, new = g.input("cache", 3, 5, 8 // ranks), g.input("new", 3, 1, 8 // ranks)
    at = g.input("at", 3, dtype=DType.S32)
    if other:
        at = g.concat(0, at[1:], at[:1])
    place: Tensor = (at + row).reshape(3, 1)
    g.output("y", g.op("scatter", cache, place, new, **BATCHED))
    return g.module()


@pytest.mark.parametrize(
    ("changes", "verdict"), [({}, "verified"), ({"row": 1}, "refuted"), ({"other": True}, "refuted")]
)
def test_caches_in_shards(changes: dict[str, Any], verdict: str, tmp_path: Path) -> None:
    relation = tmp_path / "relation.toml"
    relation.write_text(
        '[inputs]\ncache = "shard(2)"\nnew = "shard(2)"\nat = "replicate"\n[outputs]\ny = "shard(2)"\n'
        "[ranges]\nat = [0, 5]\n"
    )
    assert verify(cached(1), cached(2, **changes), relation=relation).verdict.value == verdict
