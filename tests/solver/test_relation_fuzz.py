"""Random layouts, collectives and placements: every verdict against plain evaluation of the same programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from arrays import Graph, Tensor

from shardproof.ir.interpret import run
from shardproof.ir.module import Module
from shardproof.ir.types import Array, Mesh
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import Composed, Relation, compose
from shardproof.solver.relations.relation_file import read, resolve
from shardproof.solver.relations.steps import RelationError
from shardproof.solver.verify import verify

LAYOUTS = [
    *(
        "replicate",
        "shard(0)",
        "shard(1)",
        "shard(0) | ranks({ranks})",
        "permute(1, 0) | shard(0)",
        "partial",
    ),
    *("repeat(0, 2) | shard(0)", "repeat(1, 2, block=2) | shard(1)", "slice(0, 0, 2) | shard(0)"),
    *("pad(1, 0, {n}) | shard(1)", "a (b c) -> (b a) c, c=2 | shard(0)"),
]
PLACEMENTS = ["replicate", "shard(0)", "shard(1)", "partial", "permute(1, 0)", "shard(0) | ranks({ranks})"]


GRID_LAYOUTS = [
    *(
        "shard(0, dp) | shard(1, tp)",
        "shard(0, tp) | shard(1, dp)",
        "shard(0, tp)",
        "shard(1, dp)",
        "partial(tp)",
    ),
    *("shard(0, dp) | partial(tp)", "shard(0, tp, dp)", "shard(1, dp, tp)", "shard(0, dp) | ranks(1, 0)"),
    *("shard(0, dp) | permute(1, 0)", "replicate", "repeat(0, 2) | shard(0, dp, tp)"),
]
GRID_PLACEMENTS = ["replicate", *GRID_LAYOUTS]


def orders(rng: Random, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Groups: all ranks in order, in another order, in pairs, or each alone."""
    everyone = list(range(ranks))
    match rng.randrange(6):
        case 0:
            rng.shuffle(everyone)
        case 1:
            rng.shuffle(everyone)
            return tuple(tuple(everyone[k : k + 2]) for k in range(0, ranks, 2))
        case 2:
            return tuple((r,) for r in everyone)
    return (tuple(everyone),)


def local(rng: Random, g: Graph, t: Tensor) -> Tensor:
    """One random operator that keeps two dims."""
    ranks, dim = g.mesh.size, rng.randrange(2)
    n = t.shape[dim]
    groups = orders(rng, ranks)
    size = len(groups[0])
    match rng.randrange(13 if ranks > 1 else 5):
        case 0:
            return t.apply("tanh")
        case 1:
            return t.T
        case 2:
            return t * 2.0
        case 3:
            return t + t.T if t.shape[0] == t.shape[1] else t + t
        case 4 if n % 2 == 0:
            low, high = (slice(None),) * dim + (slice(0, n // 2),), (slice(None),) * dim + (slice(n // 2, n),)
            return g.concat(dim, t[low], t[high] if rng.random() < 0.7 else t[low])
        case 5 | 6:
            return t.all_reduce(rng.choice(["sum", "sum", "max"]), groups)
        case 7 | 8:
            return t.all_gather(dim, groups)
        case 9 if n % size == 0:
            return g.op("reduce_scatter", t, dim=dim, kind="sum", groups=groups)
        case 10 if n % size == 0:
            return g.op("all_to_all", t, split_dim=dim, concat_dim=1 - dim, groups=groups)
        case 11 if n % ranks == 0:
            return t.shard(dim)
        case 12:
            shuffled = rng.sample(range(ranks), ranks)
            pairs = tuple(enumerate(shuffled))[: ranks - rng.randrange(2)]
            return g.op("collective_permute", t, pairs=pairs)
    return t


def programs(rng: Random, ranks: int, shape: tuple[int, ...]) -> tuple[Module, Module]:
    whole, own = Graph(), Graph(ranks)
    x, y = whole.input("x", 4, 4), own.input("x", *shape)
    for _ in range(rng.randrange(2)):
        x = local(rng, whole, x)
    for _ in range(rng.randrange(4)):
        if y.value.type.size < 200:
            y = local(rng, own, y)
    whole.output("y", x)
    own.output("y", y)
    return whole.module(), own.module()


def text(rng: Random, ranks: int, *, grid: bool) -> str:
    if grid:
        layout, placement = rng.choice(GRID_LAYOUTS), rng.choice(GRID_PLACEMENTS)
        return f'[inputs]\nx = "{layout}"\n[outputs]\ny = "{placement}"\n'
    names = {"ranks": ", ".join(map(str, rng.sample(range(ranks), ranks))), "n": 4 if ranks == 4 else 2}
    layout, placement = (rng.choice(c).format(**names) for c in (LAYOUTS, PLACEMENTS))
    return f'[inputs]\nx = "{layout}"\n[outputs]\ny = "{placement}"\n'


def holds(made: Composed, seed: int) -> bool:
    """Whether plain evaluation on random numbers agrees on every rank."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {
        i.name: rng.normal(size=i.value.type.shape).astype(np.float32) for i in made.reference.inputs
    }
    whole = {f"{name}@": arrays[0] for name, arrays in run(made.reference, inputs).items()}
    wanted, found = run(made.expected, whole), run(made.implementation, inputs)
    return all(
        np.allclose(a, b, rtol=1e-3, atol=1e-3)
        for name in wanted
        for a, b in zip(wanted[name], found[name], strict=True)
    )


SHAPES = {
    2: [(4, 4), (2, 4), (4, 2), (2, 4), (1, 4), (4, 4)],
    4: [(4, 4), (1, 4), (4, 1), (2, 4), (4, 2), (2, 2)],
}


def check(seed: int, file: Path) -> str | None:
    """One random case: its verdict, or None when the layouts don't fit."""
    rng = Random(seed)
    ranks = rng.choice([2, 2, 4])
    whole, own = programs(rng, ranks, rng.choice(SHAPES[ranks]))
    declared, grid = rng.random() < 0.75, ranks == 4 and rng.random() < 0.5
    mesh = Mesh((("dp", 2), ("tp", 2)) if grid else (("tp", ranks),))
    own = replace(own, mesh=mesh)
    file.write_text(text(rng, ranks, grid=grid), encoding="utf-8")
    try:
        if declared:
            relation = resolve(read(file), whole, own)
        else:
            inferred = infer(whole, own, Relation({}, {}, {}))
            if inferred.gaps:
                return None
            relation = inferred.relation
        made = compose(whole, own, relation)
    except RelationError:
        return None
    result = verify(whole, own, relation=file if declared else None, mesh=dict(mesh.axes))
    right = all(holds(made, k) for k in range(3))
    if right:
        assert result.verdict != "refuted", f"seed {seed}: right, but {result.message}"
    else:
        assert result.verdict != "verified", f"seed {seed}: wrong, but verified"
    return f"{result.verdict} {right}"


@pytest.mark.parametrize("block", range(10))
def test_verdicts_agree_with_evaluation(block: int, tmp_path: Path) -> None:
    verdicts = [check(1000 * block + k, tmp_path / "relation.toml") for k in range(150)]
    assert verdicts.count("verified True") > 1
    assert verdicts.count("refuted False") > 3
