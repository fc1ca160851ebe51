"""Terms made again over what is read of them are the same functions; what differs stays apart."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from arrays import Graph, Tensor
from evaluated import agree, normalised, ranks_of, text
from random_operators import random_graph

from shardproof.ir.module import Module
from shardproof.ir.text import parse, to_text
from shardproof.ir.types import DType, TensorType
from shardproof.passes.evaluate import Evaluation
from shardproof.passes.narrow import Narrowing
from shardproof.passes.normalise import input_view, new_store, normalise, same
from shardproof.passes.views import View, align
from shardproof.solver.verify import verify
from shardproof.tools.command_line import run as command


def narrowed_is_plain(seed: int) -> int:
    """Checks every value of a random program; the number of terms that changed."""
    draw = Random(seed)
    g = random_graph(draw, size=10 + seed % 16)
    for v in list(g.pool):
        shape = v.type.shape
        if shape and min(shape) > 0 and draw.random() < 0.5:
            starts = tuple(draw.randrange(n) if n > 1 else 0 for n in shape)
            limits = tuple(draw.randint(s + 1, n) for s, n in zip(starts, shape, strict=True))
            g.add("slice", (v,), starts=starts, limits=limits, strides=(1,) * len(shape))
    store, state = normalised(g, folding=seed % 3 == 0, algebra=seed % 2 == 0)
    evaluation = Evaluation(store, {x.name: g.values[x.name][0] for x in g.inputs})
    places = list(ranks_of(state))
    narrowing, changed = Narrowing(store), 0
    drawn: set[str] = set()
    made = {}
    for op in g.ops:
        names = {v.name for v in op.results}
        if names & state.opaque.keys() or drawn & {v.name for v in op.operands}:
            drawn |= names
    for v in g.pool:
        view = state.views[v.name]
        if v.name in drawn or 0 in view.shape:
            continue
        term = narrowing.term(view.term)
        changed += term != view.term
        made[v.name] = View(term, view.dims, view.shape, view.dtype)
        for rank, at in enumerate(places):
            found, wanted = evaluation.view(made[v.name], at), g.values[v.name][rank]
            assert agree(found, wanted), f"{v.name}: {found.tolist()} is not {wanted.tolist()}\n{text(g)}"
    for n, a in enumerate(made):
        for b in list(made)[:n]:
            x, y = made[a], made[b]
            if x.shape == y.shape and x.dtype is y.dtype and x.term.cls == y.term.cls:
                _, (s, t) = align(store, (x, y), [range(len(x.shape))] * 2)
                if same(store, s, t):
                    for one, other in zip(g.values[a], g.values[b], strict=True):
                        assert agree(one, other), f"{a} and {b}\n{text(g)}"
    return changed


def test_random_programs() -> None:
    assert sum(narrowed_is_plain(seed) for seed in range(400)) > 60


def test_what_is_read_often_is_made_once() -> None:
    """Sums of sums of one value: each reads the one before under a new name of its index."""
    lines = ["%x0 = input(0) : f32[6,6]", "%zero = constant() {value=f32[](0.0)} : f32[]"]
    for n in range(12):
        lines += [
            f'%s{n} = reduce(%x{n}, %zero) {{dims=(1,), kind="sum"}} : f32[6]',
            f"%t{n} = tanh(%s{n}) : f32[6]",
            f"%a{n} = broadcast_in_dim(%t{n}) {{dims=(0,)}} : f32[6,6]",
            f"%b{n} = broadcast_in_dim(%t{n}) {{dims=(1,)}} : f32[6,6]",
            f"%x{n + 1} = multiply(%a{n}, %b{n}) : f32[6,6]",
        ]
    module = parse('module "m" mesh() {\n' + "\n".join(lines) + '\noutput "y" = %x12\n}\n', source="m.spf")
    store = new_store()
    state = normalise(store, module, {i.name: input_view(store, i.value) for i in module.inputs})
    narrowing = Narrowing(store)
    view = state.views["x12"]
    assert narrowing.term(view.term) == view.term
    assert len(narrowing.known) < 100


@pytest.mark.slow
def test_many_random_programs() -> None:
    for seed in range(1000, 2500):
        narrowed_is_plain(seed)


RANKS = 4
DOWN = tuple((r, r + 1) for r in range(RANKS - 1))


def window_sum(x: Tensor, size: int) -> Tensor:
    """The sum of every `size` neighbours along dim 0, without padding."""
    zero = x.graph.const(0.0)
    shape = (x.shape[0] - size + 1, *x.shape[1:])
    rest = len(x.shape) - 1
    return x.graph.op(
        "reduce_window",
        x,
        zero,
        type=TensorType(x.dtype, shape),
        kind="sum",
        sizes=(size, *[1] * rest),
        strides=(1,) * (rest + 1),
        base_dilations=(1,) * (rest + 1),
        window_dilations=(1,) * (rest + 1),
        pad_low=(0,) * (rest + 1),
        pad_high=(0,) * (rest + 1),
    )


def reference() -> Module:
    """Each row and the two before it, summed."""
    g = Graph()
    x = g.input("x", 16, 3)
    g.output("y", window_sum(g.concat(0, g.zeros(2, 3), x), 3))
    return g.module()


def with_neighbours(*, edge: int = 2, rows: int = 2, pairs: tuple[tuple[int, int], ...] = DOWN) -> Module:
    """The same of shards: the neighbour's last rows in front, zeros where there are none."""
    g = Graph(RANKS)
    x = g.input("x", 4, 3)
    theirs = g.op("collective_permute", x[2 : 2 + rows], pairs=pairs)
    own = g.concat(0, theirs, x)
    position = g.iota(own.shape, 0) + (g.rank() * 4).spread(own.shape, ())
    g.output("y", window_sum(g.where(position.is_("GE", edge), own, 0.0), 3))
    return g.module()


def found(implementation: Module, tmp_path: Path) -> str:
    relation = tmp_path / "relation.toml"
    relation.write_text('[inputs]\nx = "shard(0)"\n[outputs]\ny = "shard(0)"\n')
    return verify(reference(), implementation, relation=relation).verdict.value


def test_a_window_over_neighbours_rows(tmp_path: Path) -> None:
    assert found(with_neighbours(), tmp_path) == "verified"


@pytest.mark.parametrize("edge", [0, 1])
def test_a_mask_that_hides_only_zeros_may_be_missing(edge: int, tmp_path: Path) -> None:
    assert found(with_neighbours(edge=edge), tmp_path) == "verified"


@pytest.mark.parametrize(
    "wrong",
    [
        {"edge": 3},
        {"edge": 6},
        {"pairs": tuple((t, s) for s, t in DOWN)},
        {"pairs": DOWN[1:]},
        {"pairs": ((0, 2), (1, 3), (2, 1))},
    ],
    ids=["row", "rank", "backward", "lost", "other"],
)
def test_another_window_is_refuted(wrong: dict[str, Any], tmp_path: Path) -> None:
    assert found(with_neighbours(**wrong), tmp_path) == "refuted"


def test_a_ring_needs_the_mask_at_its_start(tmp_path: Path) -> None:
    ring = (*DOWN, (RANKS - 1, 0))
    assert found(with_neighbours(pairs=ring), tmp_path) == "verified"
    assert found(with_neighbours(pairs=ring, edge=1), tmp_path) == "refuted"


def written(*, ranks: int = 1, last: int = 3, moved: int = 0) -> Module:
    """A row written at a position; on several ranks by the one whose rows hold it."""
    g = Graph(ranks)
    cache, row = g.input("cache", 16 // ranks, 3), g.input("row", 1, 3)
    at, zero = g.input("at", dtype=DType.S32), g.const(0, DType.S32)
    if ranks == 1:
        g.output("y", g.op("dynamic_update_slice", cache, row, at, zero))
        return g.module()
    first = g.rank() * 4
    inside = g.op("and", at.is_("GE", first), at.is_("LE", first + last))
    start = g.where(inside, at - first + moved, zero, DType.S32)
    here = g.op("dynamic_update_slice", cache, row, start, zero)
    g.output("y", g.op("select", inside.spread(cache.shape, ()), here, cache))
    return g.module()


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [({}, "verified"), ({"last": 2}, "refuted"), ({"last": 4}, "refuted"), ({"moved": 1}, "refuted")],
)
def test_a_row_written_into_the_shard_that_holds_it(
    changes: dict[str, int], verdict: str, tmp_path: Path
) -> None:
    relation = tmp_path / "relation.toml"
    relation.write_text(
        '[inputs]\ncache = "shard(0)"\nrow = "replicate"\nat = "replicate"\n'
        '[outputs]\ny = "shard(0)"\n[ranges]\nat = [0, 16]\n'
    )
    found = verify(written(), written(ranks=RANKS, **changes), relation=relation)
    assert found.verdict.value == verdict


def test_a_certificate_of_ranks_side_by_side_is_checked_again(tmp_path: Path) -> None:
    files = {"reference": reference(), "implementation": with_neighbours(), "wrong": with_neighbours(edge=3)}
    for name, module in files.items():
        (tmp_path / f"{name}.spf").write_text(to_text(module))
    (tmp_path / "relation.toml").write_text('[inputs]\nx = "shard(0)"\n[outputs]\ny = "shard(0)"\n')
    paths = [str(tmp_path / f"{n}.spf") for n in ("reference", "implementation")]
    certificate = tmp_path / "proof.cert"
    relation = ["--relation", str(tmp_path / "relation.toml"), "--certificate", str(certificate)]
    assert command(["verify", *paths, *relation]) == 0
    assert command(["cert", "check", str(certificate), *paths]) == 0
    assert command(["cert", "check", str(certificate), paths[0], str(tmp_path / "wrong.spf")]) != 0
