"""Loops by induction: what they compute, what they prove, and what they must not prove."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from evaluated import agree, equal_views, ranks_of
from random_graphs import Graph
from random_loops import evaluation, mutant, random_loops, redrawn

from shardproof.ir.interpret import InterpretError, run
from shardproof.ir.module import Module
from shardproof.passes.classes import Store
from shardproof.passes.normalise import Normalised, input_view, new_store, normalise
from shardproof.passes.unroll import unrolled


def _opaque(module: Module, state: Normalised) -> set[str]:
    """Values that depend on an operator whose meaning is not known."""
    unknown = {name.partition("/")[0] for name in state.opaque}
    drawn: set[str] = set()
    for op in module.ops:
        if unknown & {v.name for v in op.results} or drawn & {v.name for v in op.operands}:
            drawn |= {v.name for v in op.results}
    return drawn


def check_values(g: Graph, *, folding: bool = False, algebra: bool = False) -> int:
    """Every value on every rank is what the loops written out compute; the number compared."""
    store = new_store(folding=folding, algebra=algebra)
    module = g.module()
    inputs = {x.name: input_view(store, x.value) for x in g.inputs}
    state = normalise(store, module, inputs)
    values = evaluation(store, {x.name: g.values[x.name][0] for x in g.inputs})
    drawn = _opaque(module, state)
    count = 0
    for v in g.pool:
        if v.name in drawn:
            continue
        for rank, at in enumerate(ranks_of(state)):
            found = values.view(state.views[v.name], at)
            wanted = g.values[v.name][rank]
            message = f"{v.name} on rank {rank}: {found.tolist()} is not {wanted.tolist()}"
            assert agree(found, wanted), message
            count += 1
    return count


def both(a: Module, b: Module, **flags: Any) -> tuple[Store, Normalised, Normalised]:
    """Two programs over the same inputs and ranks, in one store."""
    store = new_store(**flags)
    inputs = {i.name: input_view(store, i.value) for i in a.inputs}
    first = normalise(store, a, inputs)
    return store, first, normalise(store, b, inputs, algebra=first.algebra)


def shown(a: Module, b: Module, **flags: Any) -> list[int]:
    """The outputs that are shown to be equal, by number."""
    store, first, second = both(a, b, **flags)
    return [
        k
        for k, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True))
        if equal_views(store, first.views[x.value.name], second.views[y.value.name])
    ]


def check_pair(g: Graph, a: Module, b: Module, **flags: Any) -> int:
    """What is shown equal is equal on random inputs; the number of outputs of loops that are."""
    equal = shown(a, b, **flags)
    if not equal:
        return 0
    long = [unrolled(m, 5000) for m in (a, b)]
    for _ in range(2):
        inputs = redrawn(g.draw, g)
        try:
            first, second = (run(m, inputs, values=True) for m in long)
        except InterpretError:
            return 0
        if not all(np.isfinite(x).all() for m in (first, second) for arrays in m.values() for x in arrays):
            continue
        for k in equal:
            x, y = first[long[0].outputs[k].value.name], second[long[1].outputs[k].value.name]
            for p, q in zip(x, y, strict=True):
                assert agree(p, q), f"output {k} {a.outputs[k].name}: {p} {q}"
    return len(equal)


def test_loops_compute_what_their_rounds_do() -> None:
    count = 0
    for seed in range(250):
        count += check_values(random_loops(Random(seed)), folding=seed % 3 == 0, algebra=seed % 5 == 0)
    assert count > 1000


def test_mutants_of_loops_are_not_shown_equal() -> None:
    tried = 0
    for seed in range(250):
        g = random_loops(Random(seed))
        changed = mutant(g.draw, g.module())
        if changed is not None:
            tried += 1
            check_pair(g, g.module(), changed, folding=seed % 2 == 0)
    assert tried > 100


def test_a_loop_is_shown_equal_to_itself() -> None:
    loops = met = 0
    for seed in range(150):
        g = random_loops(Random(seed))
        module = g.module()
        ends = {v.name for op in module.ops if op.opcode == "scan" for v in op.results}
        store, first, second = both(module, module)
        drawn = _opaque(module, first)
        for name in ends - drawn:
            loops += 1
            met += equal_views(store, first.views[name], second.views[name])
    assert met > 0.95 * loops > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 1600, 200))
def test_many_random_loops(seed: int) -> None:
    for s in range(seed, seed + 200):
        check_values(random_loops(Random(s)), folding=s % 3 == 0, algebra=s % 5 == 0)
        g = random_loops(Random(s))
        for n in range(3):
            changed = mutant(g.draw, g.module())
            if changed is not None:
                check_pair(g, g.module(), changed, folding=n == 0, lenient=n == 1)
