"""Replay on captured Llama dumps, with a relation written out by hand."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from shardproof.frontends.load import load
from shardproof.ir.module import Module, Op, Value
from shardproof.solver.meaning import meant
from shardproof.solver.replay.draws import counter_inputs
from shardproof.solver.replay.lazy import element
from shardproof.solver.replay.outcome import Difference
from shardproof.solver.replay.replay import Replay, compare, confirm
from shardproof.solver.replay.shrink import Shrunk, shrink

HLO = Path(__file__).parents[2] / "../shared/real/hlo"
FUSED = (2048, 512, 512)

pytestmark = pytest.mark.skipif(not HLO.is_dir(), reason="no captured dumps in ../shared/real/hlo")


def dump(name: str) -> Module:
    (known,) = meant([load(HLO / f"{name}.hlo.pb.gz")])
    return known.module


def placed(p: Any, whole: Value, part: Value, ranks: int) -> Value:
    """The own part of an input: its shard along the dim that differs, the fused one segment by segment."""
    if whole.type == part.type:
        return whole
    sizes = zip(whole.type.shape, part.type.shape, strict=True)
    dim = next(d for d, (n, m) in enumerate(sizes) if n != m)
    if whole.type.shape[dim] != sum(FUSED):
        result: Value = p.shard(whole, dim, ranks)
        return result
    pieces = []
    for start, stop in pairwise((0, *accumulate(FUSED))):
        shape = whole.type.shape
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        limits = tuple(stop if d == dim else n for d, n in enumerate(shape))
        piece = p.op("slice", whole, starts=starts, limits=limits, strides=(1,) * len(shape))
        pieces.append(p.shard(piece, dim, ranks))
    fused: Value = p.op("concatenate", *pieces, dim=dim)
    return fused


def check(program: Any, one: Module, many: Module) -> tuple[Module, Module, Module]:
    ranks = many.mesh.size
    p, goal = program(ranks), program(ranks)
    of: dict[Value, Value] = {}
    for whole, part in zip(one.inputs, many.inputs, strict=True):
        kind = whole.value.type
        of[part.value] = placed(p, p.input(whole.name, *kind.shape, dtype=kind.dtype), part.value, ranks)
    for op in many.ops:
        results = tuple(replace(r, name=f"many.{r.name}") for r in op.results)
        p.ops.append(Op(op.opcode, tuple(of[v] for v in op.operands), results, op.attrs))
        of.update(zip(op.results, results, strict=True))
    for first, second in zip(one.outputs, many.outputs, strict=True):
        kind = first.value.type
        p.output(second.name, of[second.value])
        whole_output = goal.input(first.name, *kind.shape, dtype=kind.dtype)
        goal.output(second.name, placed(goal, whole_output, second.value, ranks))
    return one, p.module(), goal.module()


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_correct_pair_shrinks_and_is_tested_equal(program: Any, ranks: int) -> None:
    modules = check(program, dump("tp1_layer1"), dump(f"tp{ranks}_layer1"))
    shrunk = shrink(*modules)
    assert isinstance(shrunk, Shrunk), shrunk
    assert sum(i.value.type.size for i in shrunk.implementation.inputs) < 20_000
    start = process_time()
    outcome = compare(shrunk.reference, shrunk.implementation, shrunk.expected, seed=1, trials=3)
    assert outcome == Replay((), 3, 0, 0)
    assert process_time() - start < 2


def test_the_broken_dump_differs_and_is_confirmed_at_its_own_shapes(program: Any) -> None:
    modules = check(program, dump("tp1_layer1"), dump("tp2_layer1.broken"))
    shrunk = shrink(*modules)
    assert isinstance(shrunk, Shrunk), shrunk
    outcome = compare(shrunk.reference, shrunk.implementation, shrunk.expected, seed=1)
    assert isinstance(outcome, Replay)
    keys = modules[1].outputs[1].name
    found = next(d for d in outcome.differences if d.output == keys)
    index = shrunk.original(keys, found.index)
    seen = confirm(*modules, output=keys, rank=found.rank, index=index, seed=1)
    assert isinstance(seen, Difference)
    values = modules[1].outputs[2].name
    assert confirm(*modules, output=values, rank=1, index=(3, 1, 0, 5), seed=1) is None


def test_one_key_element_is_cheap_at_its_own_shapes() -> None:
    module = dump("tp1_layer1")
    tracemalloc.start()
    start = process_time()
    found = element(module, counter_inputs(module.inputs, 1), module.outputs[1].name, 0, (63, 3, 7, 63))
    seconds, peak = process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found, float)
    assert seconds < 5
    assert peak < 1 << 30
