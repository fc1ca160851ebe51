"""A PyTorch graph to the project's IR: one lowering for every way of reading a program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from shardproof.frontends.fx.graph import Graph
from shardproof.frontends.fx.lowering import collectives
from shardproof.frontends.fx.lowering.run import Run
from shardproof.frontends.fx.lowering.state import Groups, Lowering
from shardproof.frontends.fx.lowering.table import TABLE
from shardproof.ir.module import Guess, Module, ModuleError
from shardproof.ir.types import Mesh

__all__ = ["TABLE", "Lowered", "lower", "lower_ranks"]


Constant = float | tuple[float, ...]
"""One number for all elements, or one for each."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """The program, and what was taken for granted in it."""

    module: Module
    guesses: tuple[Guess, ...] = ()


def lower(
    graph: Graph,
    *,
    ranks: int = 1,
    groups: Mapping[str, Groups] | None = None,
    shared: Collection[str] = (),
    constants: Mapping[str, Constant] | None = None,
) -> Lowered:
    """The IR of one rank's graph (of all ranks, if the graph names no rank).

    `groups` gives, for the name of a process group on this rank, the ranks of it and of the groups that stand
    for it on the other ranks, each in its order. A name in `shared` occurs on every rank. `constants` are
    values of attributes that the graph lacks, by name or pattern, and of symbolic sizes by name. Raises
    ModuleError: what, where, what to do.
    """
    sizes = {k: int(v) for k, v in (constants or {}).items() if k.isidentifier() and _is_size(v)}
    state = Lowering(ranks, groups or {}, frozenset(shared), sizes)
    run = Run(graph, state, dict(constants or {}))
    for node in graph.nodes:
        run.step(node)
    outputs = run.outputs()
    return Lowered(
        Module(
            name=graph.name,
            mesh=Mesh((("rank", ranks),)) if ranks > 1 else Mesh(),
            inputs=tuple(run.inputs),
            ops=tuple(state.ops),
            outputs=outputs,
            rank=graph.rank if ranks > 1 else None,
            warnings=(*graph.warnings, *state.warnings),
        ),
        tuple(state.guesses),
    )


def _is_size(value: Constant) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()


def lower_ranks(
    graphs: Sequence[Graph],
    *,
    groups: Mapping[str, Groups] | None = None,
    constants: Mapping[str, Constant] | None = None,
) -> list[Lowered]:
    """The IR of the graphs of all ranks, in rank order.

    The members that the graphs record of their own groups are put together where the ranks call their
    collectives in the same order.
    """
    called = [_group_calls(g) for g in graphs]
    shared = frozenset.intersection(*(frozenset(names) for names in called)) if called else frozenset()
    found: list[Lowered] = []
    for rank, graph in enumerate(graphs):
        known = {**_recorded(graphs, called, rank), **(groups or {})}
        found.append(
            lower(graph, ranks=len(graphs), groups=known, shared=shared, constants=constants)
        )
    return found


def _group_calls(graph: Graph) -> list[str]:
    """The group names that collectives use, in order."""
    names = []
    for node in graph.nodes:
        if node.target in collectives.TABLE:
            given = [*node.args, *node.kwargs.values()]
            names += [given[-1]] if given and isinstance(given[-1], str) else []
    return names


def _recorded(graphs: Sequence[Graph], called: Sequence[Sequence[str]], rank: int) -> dict[str, Groups]:
    """The groups that stand at the same calls as those of `rank`, if every rank records its own."""
    if len({len(names) for names in called}) != 1:
        return {}
    found: dict[str, Groups] = {}
    for at, name in enumerate(called[rank]):
        members = [g.groups.get(names[at]) for g, names in zip(graphs, called, strict=True)]
        if any(m is None for m in members):
            continue
        together = tuple(dict.fromkeys(m for m in members if m is not None))
        if found.setdefault(name, together) != together:
            raise ModuleError(f"group {name!r} of rank {rank} stands for different groups of other ranks")
    return found
