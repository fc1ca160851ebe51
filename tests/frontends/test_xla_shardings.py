"""Shardings as words: what `PartitionSpec`s say, and what XLA writes, rank by rank."""

from __future__ import annotations

from itertools import permutations
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

from shardproof.frontends.hlo import hlo_pb2
from shardproof.frontends.xla.shardings import Placed, from_proto, from_spec, outputs_of
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Mesh

pb: Any = hlo_pb2
MESH = Mesh((("dp", 2), ("tp", 4)))
OTHER = 3


def test_words_name_dims_and_axes() -> None:
    assert str(from_spec(("dp", None, "tp"), (4, 3, 8), MESH, "x")) == "shard(0, dp) | shard(2, tp)"
    assert str(from_spec((None, ("tp", "dp")), (4, 8), MESH, "x")) == "shard(1, tp, dp)"
    assert str(from_spec((), (4, 8), MESH, "x")) == "replicate"
    assert str(from_spec(("one",), (3,), Mesh((("one", 1), ("tp", 2))), "x")) == "replicate"


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (("tp",), (6,), "dim 0 of [6] is divided into 4 parts, which are not equal"),
        ((None, "tp"), (6,), "has 2 entries"),
        (("pp",), (6,), "names the axis `pp`, the mesh has"),
        (("tp", "tp"), (4, 4), "divides by the axis `tp` twice"),
        ((3,), (4,), "has the entry 3"),
    ],
)
def test_what_does_not_fit_is_an_error(spec: tuple[Any, ...], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModuleError) as caught:
        from_spec(spec, shape, MESH, "input `x`")
    assert str(caught.value).startswith("input `x`: ")
    assert message in str(caught.value)


def written(axes: tuple[tuple[str, ...], ...], mesh: Mesh, *, listed: bool) -> Any:
    """The OpSharding of a tensor whose dims the axes divide, copied over the other axes."""
    names = [name for name, _ in mesh.axes]
    sizes = dict(mesh.axes)
    order = [a for own in axes for a in own]
    rest = [name for name in names if name not in order]
    sharding = pb.OpSharding(type=OTHER)
    tiles = [prod(sizes[a] for a in own) for own in axes]
    copies = prod(sizes[a] for a in rest)
    if copies > 1:
        tiles.append(copies)
        sharding.replicate_on_last_tile_dim = True
    sharding.tile_assignment_dimensions.extend(tiles)
    turn = [names.index(a) for a in (*order, *rest)]
    if listed:
        devices = np.arange(mesh.size).reshape([sizes[n] for n in names]).transpose(turn)
        sharding.tile_assignment_devices.extend(int(d) for d in devices.reshape(-1))
    else:
        sharding.iota_reshape_dims.extend(sizes[n] for n in names)
        sharding.iota_transpose_perm.extend(turn)
    return sharding


@pytest.mark.parametrize("listed", [False, True])
def test_what_xla_writes_is_read_back(listed: bool) -> None:
    draw = Random(7)
    for _ in range(300):
        mesh = Mesh(tuple((f"a{k}", draw.choice((2, 3, 4))) for k in range(draw.randint(1, 3))))
        chosen = draw.choice(list(permutations([n for n, _ in mesh.axes], draw.randint(1, len(mesh.axes)))))
        dims: list[list[str]] = [[] for _ in range(draw.randint(1, 3))]
        for axis in chosen:
            draw.choice(dims).append(axis)
        axes = tuple(map(tuple, dims))
        shape = tuple(prod(dict(mesh.axes)[a] for a in own) * draw.randint(1, 3) for own in axes)
        assert parts(from_proto(written(axes, mesh, listed=listed), shape, mesh, "y"), mesh) == parts(
            Placed(axes), mesh
        )


def parts(placed: Placed, mesh: Mesh) -> list[tuple[int, ...]]:
    """Which part of each dim every rank holds; axes of equal size may be told in another way."""
    found = []
    for rank in range(mesh.size):
        digits = dict(
            zip([n for n, _ in mesh.axes], np.unravel_index(rank, [s for _, s in mesh.axes]), strict=True)
        )
        own = []
        for axes in placed.axes:
            at = 0
            for a in axes:
                at = at * dict(mesh.axes)[a] + int(digits[a])
            own.append(at)
        found.append(tuple(own))
    return found


def test_replicated_and_tuples() -> None:
    whole = pb.OpSharding(type=0)
    both = pb.OpSharding(type=2, tuple_shardings=[whole, written((("tp",),), MESH, listed=False)])
    first, second = outputs_of(both, 2)
    assert str(from_proto(first, (5,), MESH, "y")) == "replicate"
    assert str(from_proto(second, (8,), MESH, "y")) == "shard(0, tp)"
    assert outputs_of(whole, 1) == [whole]
    with pytest.raises(ModuleError, match="2 output shardings, the function has 3"):
        outputs_of(both, 3)


def test_a_part_of_an_axis_is_an_error() -> None:
    half = pb.OpSharding(type=OTHER, tile_assignment_dimensions=[2, 4], replicate_on_last_tile_dim=True)
    half.iota_reshape_dims.extend([2, 2, 2])
    half.iota_transpose_perm.extend([1, 0, 2])
    with pytest.raises(ModuleError, match="by no whole axes of the mesh"):
        from_proto(half, (8,), MESH, "y")
    uneven = written((("tp",),), MESH, listed=True)
    with pytest.raises(ModuleError, match="not equal"):
        from_proto(uneven, (6,), MESH, "y")
    manual = pb.OpSharding(type=4)
    with pytest.raises(ModuleError, match="give one in out_shardings"):
        from_proto(manual, (8,), MESH, "y")
