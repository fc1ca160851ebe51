"""Mesh axes from replica groups: the coarsest row-major factorisation in which groups are whole axes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from shardproof.ir.module import Module
from shardproof.ir.types import Mesh
from shardproof.passes.unroll import every_op


def mesh_axes(module: Module, declared: Mesh | None = None) -> Module:
    """The module on a mesh with named axes: the declared one, else what its groups show.

    One axis is called `tp`, several `axis0`, `axis1`, ... A declared mesh must have the module's size.
    """
    if declared is not None:
        return replace(module, mesh=declared)
    if len(module.mesh.axes) > 1:
        return module
    sizes = _digits(module, {1, module.mesh.size})
    if len(sizes) < 2:
        return replace(module, mesh=Mesh(tuple(("tp", n) for n in sizes)))
    return replace(module, mesh=Mesh(tuple((f"axis{k}", n) for k, n in enumerate(sizes))))


def refined(module: Module) -> Mesh:
    """The module's axes, cut further where its groups are runs of parts of them.

    Groups that are no run of whole digits leave it alone: they are read through tables.
    """
    edges, stride = {1}, 1
    for _, n in reversed(module.mesh.axes):
        stride *= n
        edges.add(stride)
    return Mesh(tuple((f"digit{k}", n) for k, n in enumerate(_digits(module, edges))))


def _digits(module: Module, edges: set[int]) -> list[int]:
    """Sizes of the coarsest mixed-radix factorisation, highest digit first."""
    for groups in dict.fromkeys(op.attrs["groups"] for op in every_op(module.ops) if "groups" in op.attrs):
        found = set(edges)
        for group in groups:
            found |= _edges(group) or {0}
        if 0 not in found and _chain(found):
            edges = found
    chain = sorted(edges)
    return [b // a for a, b in pairwise(chain)][::-1]


def _chain(edges: set[int]) -> bool:
    chain = sorted(edges)
    return all(b % a == 0 for a, b in pairwise(chain))


def _edges(group: tuple[int, ...]) -> set[int] | None:
    """The strides at which the members of a group start and stop being consecutive digits."""
    if len(group) == 1:
        return {1}
    members = sorted(group)
    base = members[0]
    offsets = [m - base for m in members]
    edges: set[int] = set()
    covered = [0]
    while len(covered) < len(offsets):
        stride = offsets[len(covered)]
        count = 1
        while len(covered) * (count + 1) <= len(offsets) and offsets[len(covered) * count] == stride * count:
            count += 1
        covered = sorted(c + stride * k for k in range(count) for c in covered)
        if covered != offsets[: len(covered)] or count == 1:
            return None
        edges |= {stride, stride * count}
    return edges
