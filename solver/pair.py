"""The two programs of a run, read, and what is known of their layouts before anything is inferred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Mesh
from shardproof.passes.mesh_axes import mesh_axes
from shardproof.solver.captured import Captured
from shardproof.solver.certificates.claims import unique
from shardproof.solver.programs import (
    Gaps,
    Program,
    Told,
    called,
    opened,
    read_implementation,
    read_program,
    sized,
)
from shardproof.solver.relations.capture_relation import aligned, with_placements
from shardproof.solver.relations.relation_file import Declared, mentioned
from shardproof.solver.relations.stored_values import Stored, read_stored, related
from shardproof.solver.verdict import Assumption


@dataclass(frozen=True, slots=True)
class Pair:
    """Both programs on their meshes, by what names to call them, and a relation with all that captures state.

    `assumed` is what reading took for granted. `dumps` counts the PyTorch graphs of unknown origin, which
    leave groups and constants open and may return more than their user asked for; `torch` tells which
    programs are of PyTorch at all, `side_by_side` whether the implementation holds several ranks on one;
    `captured` is the capture that it is of, `stored` what both files store, if they do, and `told` how that
    relates them, `certain` whether that could be no other way. `constants_used` tells whether a program
    needed one of the declared constants.
    """

    reference: Module
    implementation: Module
    names: tuple[str, str]
    declared: Declared
    assumed: tuple[Assumption, ...] = ()
    dumps: int = 0
    torch: tuple[bool, bool] = (False, False)
    side_by_side: bool = False
    captured: Captured | None = None
    stored: Stored | None = None
    told: tuple[str, ...] = ()
    constants_used: bool = False
    certain: bool = True


def read_pair(
    reference: Program | Sequence[Program],
    implementation: Program | Sequence[Program],
    declared: Declared,
    meshes: tuple[Mesh | None, Mesh | None],
) -> Pair:
    """Both programs, each on the mesh given or its own.

    On a mesh without axes, as certificates have it, the ranks of a captured implementation are side by side.
    Raises ModuleError, and Divergent when the ranks of the implementation are not one program.
    """
    names: list[str] = []
    own, other = opened(reference), opened(implementation)
    gaps = (
        Gaps(declared.reference_groups or declared.groups, Told(declared.constants), declared.initializers),
        Gaps(declared.groups, Told(declared.constants), declared.initializers),
    )
    if isinstance(own, list):
        raise ModuleError("the reference is one program: several files can only be an implementation")
    first = read_program(own, None if meshes[0] is None else meshes[0].size, gaps[0])
    names.append(called(reference, first))
    first = _on_mesh(first, own, meshes[0], "reference")
    wanted = None if isinstance(other, Captured) else meshes[1]
    if isinstance(other, Captured) and meshes[1] == Mesh():
        second = other.apart[0]
    else:
        second = read_implementation(other, wanted, gaps[1])
    names.append(called(implementation, second))
    ranks = other.mesh.size if isinstance(other, Captured) else len(other) if isinstance(other, list) else 1
    side_by_side = second.mesh.size == 1 < ranks
    if not side_by_side or isinstance(other, Captured):
        second = _on_mesh(second, other, meshes[1], "implementation")
    if side_by_side or isinstance(other, Captured):
        second = aligned(first, second)
    stored = read_stored(own, other) if declared.initializers == "auto" else None
    told: tuple[str, ...] = ()
    certain = True
    if stored is not None and first.mesh.size == second.mesh.size == 1 == len(stored.ranks):
        named = mentioned(declared.inputs, second)
        found = related(first, second, stored.whole, stored.ranks[0], named)
        first, second, told, certain = found.reference, found.implementation, found.told, found.certain
        stored = stored.only(named)
    return Pair(
        first,
        second,
        (names[0], names[1]),
        with_placements(declared, (first, own), (second, other)),
        unique(a for g in gaps for a in g.assumed),
        sum(g.read for g in gaps),
        (gaps[0].read or isinstance(own, Captured), gaps[1].read or isinstance(other, Captured)),
        side_by_side,
        other if isinstance(other, Captured) else None,
        stored,
        told,
        any(g.constants.used for g in gaps),
        certain,
    )


def _on_mesh(module: Module, given: object, mesh: Mesh | None, role: str) -> Module:
    if not isinstance(given, Captured):
        return mesh_axes(module, sized(mesh, module, role))
    if mesh is not None and mesh not in (given.mesh, module.mesh):
        raise ModuleError(f"the {role} was captured over {given.mesh}, the mesh given is {mesh}")
    return module
