"""Random loops over a batch, whole and in shards: what is shown to be a shard is one, on every rank."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from evaluated import agree, equal_views
from loop_programs import Build, Results, f32, program, s32

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, Value
from shardproof.ir.types import Mesh
from shardproof.passes.algebra import Views
from shardproof.passes.collectives import Ranks
from shardproof.passes.normalise import input_view, new_store, normalise
from shardproof.passes.unroll import unrolled

BATCH, WIDTH, ROUNDS = 6, 4, 3


def _sum_of_batch(b: Build, x: Value, summed: str, count: int) -> Value:
    """The sum over the batch for every row of it; on ranks completed, as it is, or averaged."""
    y = b("reduce", x, b.full(0, f32()), dims=(0,), kind="sum")
    if count > 1 and summed != "own":
        y = b.all_reduce(y, "max" if summed == "largest" else "sum")
    if count > 1 and summed == "averaged":
        y = b("multiply", y, b.full(1 / count, y.type))
    return b("broadcast_in_dim", y, type=x.type, dims=(1,))


def _step(draw: Random, b: Build, pool: list[Value], w: Value, ranks: int, wrong: float) -> Value:
    """One operator on values of the batch; `wrong` is how likely a sum over it is not completed."""
    x, y = draw.choice(pool), draw.choice(pool)
    summed = "sum" if draw.random() >= wrong else draw.choice(["own", "averaged", "largest"])
    match draw.randrange(10):
        case 0:
            return b("tanh", x)
        case 1 | 2:
            return b(draw.choice(["add", "subtract", "multiply", "maximum"]), x, y)
        case 3:
            sides = {"lhs_contracting": (1,), "rhs_contracting": (0,), "lhs_batch": (), "rhs_batch": ()}
            return b("dot_general", x, w, type=f32(), **sides)
        case 4:
            z = b("reduce", x, b.full(-np.inf, f32()), dims=(1,), kind="max")
            return b("broadcast_in_dim", z, type=x.type, dims=(0,))
        case 5 | 6 | 8:
            return _sum_of_batch(b, x, summed, ranks)
        case 7:
            return b("reverse", x, dims=(1,) if draw.random() >= wrong else (0,))
        case _:
            number = b("convert", b("iota", type=s32(*x.type.shape), dim=1), type=x.type)
            return b("add", x, number)


def looped(seed: int, ranks: int, wrong: float, salt: int = 0) -> Module:
    """The same program for every number of ranks while `wrong` is 0."""

    def build(b: Build, x: Value, y: Value, xs: Value, w: Value) -> Results:
        draw, slips = Random(seed), Random(seed * 7 + salt)

        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            pool = [*c, *r]
            for _ in range(draw.randint(2, 6)):
                own = draw.random()
                slip = wrong if slips.random() < 0.6 else 0.0
                made = _step(Random(own), b, pool, k[0], ranks, slip)
                pool.append(made)
            news = [draw.choice(pool[-2:]) for _ in c]
            if draw.random() < 0.4:
                news[0] = b("add", c[0], draw.choice(pool[2:]))
            return news, [draw.choice(pool)]

        zero = draw.random() < 0.4
        start = [b.full(0, x.type) if zero else x, y]
        return b.scan(body, start, [xs], [w], length=ROUNDS, reverse=draw.random() < 0.3)

    own = BATCH // ranks
    shapes = {"x": f32(own, WIDTH), "y": f32(own, WIDTH), "xs": f32(ROUNDS, own, WIDTH)}
    return program({**shapes, "w": f32(WIDTH, WIDTH)}, build, ranks)


DIMS = {"x": 0, "y": 0, "xs": 1, "w": None}
OUT = (0, 0, 1)


def shown(whole: Module, parts: Module, **flags: Any) -> list[int]:
    """The outputs of `parts` that are shown to be the shards of those of `whole`."""
    store = new_store(**flags)
    inputs = {i.name: input_view(store, i.value) for i in whole.inputs}
    first = normalise(store, whole, inputs, algebra=Views(store, Ranks(store, Mesh())))
    algebra = Views(store, Ranks(store, parts.mesh))
    groups = (tuple(range(parts.mesh.size)),)
    own = {n: v if DIMS[n] is None else algebra.own_shard(v, DIMS[n] or 0, groups) for n, v in inputs.items()}
    second = normalise(store, parts, own, algebra=algebra)
    found = []
    for k, (a, b) in enumerate(zip(whole.outputs, parts.outputs, strict=True)):
        wanted = algebra.own_shard(first.views[a.value.name], OUT[k], groups)
        if equal_views(store, wanted, second.views[b.value.name]):
            found.append(k)
    return found


def check(seed: int, whole: Module, parts: Module, found: list[int]) -> None:
    draw, count = np.random.default_rng(seed), parts.mesh.size
    given = {i.name: draw.normal(size=i.value.type.shape) for i in whole.inputs}
    cut: dict[str, Any] = {
        n: [a] * count if DIMS[n] is None else np.split(a, count, axis=DIMS[n]) for n, a in given.items()
    }
    one, several = run(unrolled(whole, 5000), given), run(unrolled(parts, 5000), cut)
    for k in found:
        name = whole.outputs[k].name
        for rank, wanted in enumerate(np.split(one[name][0], count, axis=OUT[k])):
            assert agree(several[name][rank], wanted), f"seed {seed}: output {k} on rank {rank}"


def rounds_of(seeds: range) -> tuple[int, int, int]:
    """Outputs that are to be shown, those that are, and those of programs with mistakes that are."""
    tried = met = slipped = 0
    for seed in seeds:
        ranks = 2 + seed % 2
        whole, parts, wrong = looped(seed, 1, 0.0), looped(seed, ranks, 0.0), looped(seed, ranks, 1.0)
        flags = {"folding": seed % 3 > 0, "lenient": seed % 5 == 0}
        found = shown(whole, parts, **flags)
        check(seed, whole, parts, found)
        tried, met = tried + 3, met + len(found)
        found = shown(whole, wrong, **flags)
        check(seed, whole, wrong, found)
        slipped += len(found)
    return tried, met, slipped


def test_shards_of_loops_are_shards() -> None:
    tried, met, slipped = rounds_of(range(120))
    assert met > 0.9 * tried
    assert slipped < 0.5 * tried


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1800, 200))
def test_shards_of_many_loops_are_shards(first: int) -> None:
    rounds_of(range(first, first + 200))
