"""Replica groups to mesh axes (SOUNDNESS F3)."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import Graph

from shardproof.ir.interpret import run
from shardproof.ir.module import Module
from shardproof.ir.types import DType, Mesh
from shardproof.passes.mesh_axes import mesh_axes, refined
from shardproof.solver.verify import verify

Groups = tuple[tuple[int, ...], ...]
ROWS: Groups = ((0, 1), (2, 3))
COLUMNS: Groups = ((0, 2), (1, 3))
EVERYONE: Groups = ((0, 1, 2, 3),)


def gathered(ranks: int, *groups: Groups, name: str = "r") -> Module:
    """Gathers along dim 0 over each of the groups in turn."""
    g = Graph(ranks)
    g.mesh = Mesh(((name, ranks),))
    y = g.input("x", 2)
    for group in groups:
        y = y.all_gather(0, group)
    g.output("y", y)
    return g.module()


def sizes(module: Module) -> list[int]:
    return [n for _, n in mesh_axes(module).mesh.axes]


@pytest.mark.parametrize(
    ("ranks", "groups", "wanted"),
    [
        (4, [], [4]),
        (4, [EVERYONE], [4]),
        (4, [ROWS], [2, 2]),
        (4, [COLUMNS], [2, 2]),
        (4, [ROWS, COLUMNS], [2, 2]),
        (4, [((1, 0), (3, 2))], [2, 2]),
        (8, [((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7))], [2, 4]),
        (8, [((0, 4), (1, 5), (2, 6), (3, 7)), ((0, 1), (2, 3), (4, 5), (6, 7))], [2, 2, 2]),
        (8, [((0, 2, 4, 6), (1, 3, 5, 7))], [4, 2]),
        (8, [((0, 1, 4, 5), (2, 3, 6, 7))], [2, 2, 2]),
        (6, [((0, 1, 2), (3, 4, 5))], [2, 3]),
        (6, [((0, 2, 4), (1, 3, 5))], [3, 2]),
        (8, [((0, 3), (1, 2), (4, 7), (5, 6))], [8]),
        (6, [((0, 1, 2), (3, 4, 5)), ((0, 1), (2, 3), (4, 5))], [2, 3]),
    ],
)
def test_axes(ranks: int, groups: list[Groups], wanted: list[int]) -> None:
    assert sizes(gathered(ranks, *groups)) == wanted


def test_names() -> None:
    assert mesh_axes(gathered(4)).mesh == Mesh((("tp", 4),))
    assert mesh_axes(gathered(4, ROWS)).mesh == Mesh((("axis0", 2), ("axis1", 2)))
    declared = Mesh((("dp", 2), ("tp", 2)))
    assert mesh_axes(gathered(4, ROWS), declared).mesh == declared


def test_refined_axes_keep_the_declared_cuts() -> None:
    module = mesh_axes(gathered(8, ((0, 2), (1, 3), (4, 6), (5, 7))), Mesh((("dp", 2), ("tp", 4))))
    assert [n for _, n in refined(module).axes] == [2, 2, 2]
    assert refined(module).size == 8


def whole(values: int) -> Module:
    g = Graph()
    g.output("y", g.input("x", values))
    return g.module()


def test_group_order_is_part_of_a_gather() -> None:
    """{{1,0}} puts the second shard first."""
    for groups, verdict in ((((0, 1),), "verified"), (((1, 0),), "unknown")):
        assert verify(whole(4), gathered(2, groups)).verdict == verdict


ORDERS: list[list[Groups]] = [
    [((1, 0), (3, 2))],
    [COLUMNS],
    [((2, 0), (1, 3))],
    [((0, 3), (1, 2))],
    [((3, 0), (2, 1))],
    [((3, 1, 0, 2),)],
    [ROWS, COLUMNS],
    [COLUMNS, ROWS],
    [((1, 0), (2, 3)), ((0, 3), (2, 1))],
]


PROVED = [ORDERS[0], ORDERS[1], ORDERS[6], ORDERS[7]]
"""The others' groups are no runs of axes: they are read through tables of ranks, a proof is still missing."""


@pytest.mark.parametrize("groups", ORDERS)
def test_gathers_are_exact(groups: list[Groups]) -> None:
    """Against a program that spells the interpreter's result out as a table; a wrong entry is not proved."""
    module = gathered(4, *groups)
    shards = np.arange(8, dtype=np.float32).reshape(4, 2)
    out = np.stack(run(module, {"x": list(shards)})["y"]).astype(np.int32)
    table = tabulated(out)
    assert verify(table, module, mesh="r=4").verdict == ("verified" if groups in PROVED else "unknown")
    wrong = out.copy()
    wrong[3, -1] = (wrong[3, -1] + 1) % 8
    assert verify(tabulated(wrong), module, mesh="r=4").verdict != "verified"


def tabulated(positions: np.ndarray) -> Module:
    """A program on as many ranks that gathers all shards in rank order, then reads a table of positions."""
    g = Graph(len(positions))
    everything = g.input("x", 2).all_gather(0)
    own = g.const(positions, DType.S32).part(0, g.rank(), 1).reshape(positions.shape[1])
    g.output("y", everything.take(own))
    return g.module()


@pytest.mark.parametrize("groups", [((0, 1), (2,), (3,)), ((0, 1, 2), (3,))])
def test_groups_of_unequal_size_are_not_verified(groups: Groups) -> None:
    """A sum over some of the ranks: no rule, so no proof, and no refusal to read either."""
    g = Graph(4)
    g.output("y", g.input("x", 2).all_reduce(groups=groups))
    result = verify(whole(2), g.module())
    assert result.verdict != "verified"
    same = verify(g.module(), g.module())
    assert same.verdict in ("verified", "unknown")


def test_ranks_in_no_group_are_not_verified() -> None:
    g = Graph(4)
    g.output("y", g.input("x", 2).all_reduce("max", groups=((0, 1),)))
    assert verify(whole(2), g.module()).verdict != "verified"
    g = Graph(4)
    g.output("y", g.input("x", 2).all_reduce("max", groups=ROWS))
    assert verify(whole(2), g.module()).verdict == "verified"


def test_broadcast_leaves_zeros_outside_of_its_groups() -> None:
    for groups, verdict in ((((0, 1), (2, 3)), "verified"), (((0, 1),), "not")):
        g = Graph(4)
        g.output("y", g.op("collective_broadcast", g.input("x", 2), groups=groups))
        assert (verify(whole(2), g.module()).verdict == "verified") == (verdict == "verified")


def test_one_sided_permute_fills_zeros() -> None:
    """Rank 0 receives nothing."""
    g = Graph(2)
    g.output("y", g.op("collective_permute", g.input("x", 2), pairs=((0, 1),)))
    assert verify(whole(2), g.module()).verdict == "refuted"
    shifted = Graph(2)
    first = shifted.input("x", 2).all_gather(0).reshape(2, 2)[:1].reshape(2)
    later = shifted.rank().is_("GE", 1).spread((2,), ())
    shifted.output("y", shifted.where(later, first, 0.0))
    assert verify(shifted.module(), g.module()).verdict == "verified"
