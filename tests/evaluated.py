"""Compares a program's normalised views with what plain interpretation computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from random_graphs import Graph

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, Value
from shardproof.passes.classes import Store
from shardproof.passes.evaluate import Evaluation
from shardproof.passes.normalise import Normalised, input_view, new_store, normalise, same
from shardproof.passes.views import View, align
from shardproof.solver.search.rewriting import Rules, Search


def normalised(
    g: Graph,
    *,
    lenient: bool = False,
    folding: bool = False,
    algebra: bool = False,
    inside: bool = False,
    rules: Rules | None = None,
) -> tuple[Store, Normalised]:
    """The program's views; `rules` are lemmas that rewrite them."""
    store = new_store(
        lenient=lenient, folding=folding, algebra=algebra or rules is not None, inside=inside
    )
    if rules is not None:
        Search(store, rules).begin()
    inputs = {x.name: input_view(store, x.value) for x in g.inputs}
    return store, normalise(store, g.module(), inputs)


def ranks_of(state: Normalised) -> Iterator[dict[int, int]]:
    ranks = state.algebra.ranks
    for rank in range(ranks.mesh.size):
        at = np.unravel_index(rank, ranks.shape) if ranks.shape else ()
        yield {i: int(n) for (_, i), n in zip(ranks.axes, at, strict=True)}


def agree(a: Any, b: Any) -> bool:
    """Equal; reals up to rounding."""
    if np.asarray(a).dtype.kind == "f" or np.asarray(b).dtype.kind == "f":
        return bool(np.allclose(a, b, rtol=1e-7, atol=1e-6, equal_nan=True))
    return bool(np.array_equal(a, b))


def text(g: Graph) -> str:
    lines = [f"mesh {g.mesh}"]
    lines += [f"{x.name}: {x.value.type} = {g.values[x.name][0].tolist()}" for x in g.inputs]
    for op in g.ops:
        reads = ", ".join(v.name for v in op.operands)
        lines.append(
            f"{', '.join(v.name for v in op.results)}: {op.result.type} = {op.opcode}({reads}) {op.attrs}"
        )
    return "\n".join(lines)


def check_graph(
    g: Graph,
    *,
    folding: bool = False,
    algebra: bool = False,
    inside: bool = False,
    rules: Rules | None = None,
) -> int:
    """Every value on every rank, then every pair of equal views; the number of such pairs."""
    store, state = normalised(g, folding=folding, algebra=algebra, inside=inside, rules=rules)
    evaluation = Evaluation(store, {x.name: g.values[x.name][0] for x in g.inputs})
    places = list(ranks_of(state))
    drawn: set[str] = set()
    for op in g.ops:
        names = {v.name for v in op.results}
        if names & state.opaque.keys() or drawn & {v.name for v in op.operands}:
            drawn |= names
    for v in g.pool:
        if v.name in drawn:
            continue
        for rank, at in enumerate(places):
            found = evaluation.view(state.views[v.name], at)
            wanted = g.values[v.name][rank]
            message = f"{v.name} on rank {rank}: {found.tolist()} is not {wanted.tolist()}\n{text(g)}"
            assert agree(found, wanted), message
    return sum(_check_pair(g, store, state, a, b) for n, a in enumerate(g.pool) for b in g.pool[:n])


def check_module(module: Module, given: Mapping[str, Any]) -> int:
    """Every value of a program on every rank against its view; the number of comparisons.

    All ranks get the same inputs. Values that depend on opaque functions or bits of reals are left out.
    """
    values = run(module, given, values=True)
    store = new_store()
    state = normalise(store, module, {i.name: input_view(store, i.value) for i in module.inputs})
    evaluation = Evaluation(store, {name: np.asarray(x) for name, x in given.items()})
    places = list(ranks_of(state))
    unknown: set[Value] = set()
    count = 0
    for op in module.ops:
        left = op.opcode in ("opaque", "bitcast_convert") or any(v.name in state.opaque for v in op.results)
        if left or any(v in unknown for v in op.operands):
            unknown.update(op.results)
            continue
        for v in op.results:
            for rank, at in enumerate(places if v.type.size else ()):
                found, wanted = evaluation.view(state.views[v.name], at), values[v.name][rank]
                assert agree(found, wanted), f"{op} on rank {rank}: {found.tolist()}, not {wanted.tolist()}"
                count += 1
    return count


def _check_pair(g: Graph, store: Store, state: Normalised, a: Value, b: Value) -> bool:
    x, y = state.views[a.name], state.views[b.name]
    if x.shape != y.shape or 0 in x.shape or x.dtype is not y.dtype or x.term.cls != y.term.cls:
        return False
    if not equal_views(store, x, y):
        return False
    for p, q in zip(g.values[a.name], g.values[b.name], strict=True):
        assert agree(p, q), f"{a.name} and {b.name} have equal views\n{text(g)}"
    return True


def equal(g: Graph, a: Value, b: Value) -> bool:
    """Whether two values of one program have equal views."""
    store, state = normalised(g)
    return equal_views(store, state.views[a.name], state.views[b.name])


def equal_views(store: Store, x: View, y: View) -> bool:
    _, (s, t) = align(store, (x, y), [range(len(x.shape))] * 2)
    return same(store, s, t)
