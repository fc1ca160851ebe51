"""A program with its ranks side by side on one rank.

Where ranks do work of their own, such as routing their tokens or filling up what a neighbour does not send,
the reference meets each by itself, and not the function of the rank that folds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Final

from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Mesh
from shardproof.passes.unfold_ranks import NotUnfolded, unfold_ranks
from shardproof.passes.unroll import unrolled
from shardproof.solver.captured import Captured
from shardproof.solver.names import is_draw
from shardproof.solver.relations.capture_relation import SIDE_BY_SIDE, of_rank
from shardproof.solver.relations.relation import Relation, Segments, Spec
from shardproof.solver.relations.steps import Layout, Pattern, Step

RANKS: Final = 8
OPS: Final = 20_000
"""Most ranks, and most operators of all ranks together, that are put side by side."""

Shape = tuple[int, ...]


class _Unfit(Exception):
    """A layout that is not made of whole tensors and shards."""


def apart(
    program: Module, captured: Captured | None, reference: Module, relation: Relation
) -> tuple[Module, Relation] | None:
    """`program` with its ranks side by side, and `relation`, which is about all ranks as one, in terms of its
    inputs `n@RANK`; None where it is too large or a layout can't be said so. `captured` is what it is of.
    """
    mesh = program.mesh if captured is None else captured.mesh
    if not 1 < mesh.size <= RANKS or program.mesh.size == 1 or reference.mesh.size > 1:
        return None
    count = len(program.ops) * mesh.size
    if captured is not None:
        count = sum(len(g.nodes) for g in captured.graphs)
    if count > OPS or any(map(is_draw, (*relation.inputs, *relation.independent))):
        return None
    try:
        if captured is None:
            module = unfold_ranks(unrolled(program, OPS // mesh.size))
        else:
            module = captured.apart[0]
        wanted = {i.name: i.value.type.shape for i in reference.inputs}
        results = {o.name: o.value.type.shape for o in reference.outputs}
        inputs = _of_ranks([i.name for i in module.inputs], relation.inputs, mesh, _source(relation, wanted))
        outputs = _of_ranks(
            [o.name for o in module.outputs], relation.outputs, mesh, _source(relation, results, "output ")
        )
    except (_Unfit, NotUnfolded, ModuleError):
        return None
    if not _complete(inputs, relation.inputs, mesh) or not _complete(outputs, relation.outputs, mesh):
        return None
    sources = {n: relation.sources.get(of_rank(n)[0], of_rank(n)[0]) for n in inputs}
    for name in outputs:
        base, _ = of_rank(name)
        sources[f"output {name}"] = relation.sources.get(f"output {base}", base)
    evidence = {n: SIDE_BY_SIDE for n in inputs if of_rank(n)[0] in relation.inferred}
    said = replace(relation, inputs=inputs, outputs=outputs, sources=sources, inferred=evidence, unused=())
    return module, said


def _complete(found: Mapping[str, Spec], said: Mapping[str, Spec], mesh: Mesh) -> bool:
    """Whether every rank has its part of all that the relation is about."""
    return {of_rank(n) for n in found} == {(n, rank) for n in said for rank in range(mesh.size)}


def _source(relation: Relation, shapes: Mapping[str, Shape], prefix: str = "") -> Callable[[str], Shape]:
    return lambda name: shapes[relation.sources.get(prefix + name, name)]


def _of_ranks(
    names: list[str], specs: Mapping[str, Spec], mesh: Mesh, shape: Callable[[str], Shape]
) -> dict[str, Spec]:
    found: dict[str, Spec] = {}
    for name in names:
        base, rank = of_rank(name)
        if base in specs and rank is not None:
            found[name] = _of_rank(specs[base], shape(base), mesh, rank)
    return found


def _of_rank(spec: Spec, shape: Shape, mesh: Mesh, rank: int) -> Spec:
    if isinstance(spec, Layout):
        return _sliced(spec, shape, mesh, rank)
    parts = []
    for size, layout in spec.parts:
        if size is None:
            raise _Unfit
        extents = (*shape[: spec.dim], size, *shape[spec.dim + 1 :])
        parts.append((size, _sliced(layout, extents, mesh, rank)))
    return Segments(spec.dim, tuple(parts), spec.source)


def _sliced(layout: Layout, shape: Shape, mesh: Mesh, rank: int) -> Layout:
    """A rank's part, as a slice of the whole."""
    extents = list(shape)
    steps: list[Step | Pattern] = []
    for step in layout.steps:
        if not isinstance(step, Step) or step.name != "shard":
            raise _Unfit
        dim, *names = step.args
        size, place = _place(mesh, names or [n for n, _ in mesh.axes], rank)
        if extents[dim] % size:
            raise _Unfit
        extents[dim] //= size
        steps.append(Step("slice", (dim, place * extents[dim], (place + 1) * extents[dim])))
    return Layout(layout.source, tuple(steps))


def _place(mesh: Mesh, names: list[str], rank: int) -> tuple[int, int]:
    """How many places the axes have together, and that of the rank."""
    sizes = dict(mesh.axes)
    at, digits = rank, {}
    for name, size in reversed(mesh.axes):
        digits[name] = at % size
        at //= size
    place = 0
    for name in names:
        place = place * sizes[name] + digits[name]
    return prod(sizes[n] for n in names), place
