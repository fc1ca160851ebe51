"""Natural placements by shape: how a whole dim is divided over mesh axes (soundness R4)."""

from __future__ import annotations

from math import prod

from shardproof.ir.types import Mesh
from shardproof.solver.relations.relation import REPLICATE, Segments
from shardproof.solver.relations.steps import Layout, Step


class Ambiguous(Exception):
    """Several mesh axes fit; the message says which."""


class Unfit(Exception):
    """No division by mesh axes makes the one shape of the other; the message says why."""


def runs(mesh: Mesh) -> list[tuple[tuple[str, ...], int]]:
    """Every run of adjacent axes, and its number of parts."""
    axes = [(name, size) for name, size in mesh.axes if size > 1]
    found = []
    for a in range(len(axes)):
        for b in range(a + 1, len(axes) + 1):
            found.append((tuple(name for name, _ in axes[a:b]), prod(size for _, size in axes[a:b])))
    return found


def natural(whole: tuple[int, ...], own: tuple[int, ...], mesh: Mesh) -> Layout:
    """The contiguous in-order shards that make `own` of `whole`, distinct axes for distinct dims.

    Raises Ambiguous when more than one assignment of axes fits, Unfit when none does.
    """
    if len(whole) != len(own):
        raise Unfit(f"{list(whole)} and {list(own)} differ in their number of dims")
    divided = [d for d, (n, m) in enumerate(zip(whole, own, strict=True)) if n != m]
    if not divided:
        return REPLICATE
    for d in divided:
        if own[d] == 0 or whole[d] % own[d]:
            raise Unfit(f"dim {d} of extent {whole[d]} does not divide into shards of {own[d]}")
    found: list[list[tuple[str, ...]]] = [[]]
    for d in divided:
        parts = whole[d] // own[d]
        found = [
            [*chosen, names]
            for chosen in found
            for names, size in runs(mesh)
            if size == parts and not any(set(names) & set(other) for other in chosen)
        ]
    if not found:
        d = divided[0]
        raise Unfit(f"dim {d} is cut into {whole[d] // own[d]} parts, which no axis of the mesh {mesh} has")
    if len(found) > 1:
        options = " or ".join(sorted({"+".join(c[0]) for c in found}))
        raise Ambiguous(f"dim {divided[0]} may be divided over {options}")
    names_only = len([1 for _, size in mesh.axes if size > 1]) == 1
    return Layout(
        None,
        tuple(
            Step("shard", (d,) if names_only else (d, *names))
            for d, names in zip(divided, found[0], strict=True)
        ),
    )


def describe(layout: object, mesh: Mesh) -> str:
    """A placement in words."""
    if not isinstance(layout, Layout):
        return _side_by_side(layout, mesh) or str(layout)
    if not layout.steps:
        return "replicated" if mesh.size > 1 else "equal"
    words = []
    for step in layout.steps:
        if isinstance(step, Step) and step.name == "shard":
            axes = "+".join(step.args[1:]) or "+".join(name for name, _ in mesh.axes)
            words.append(f"shards of dim {step.args[0]} over {axes}")
        else:
            return str(layout)
    return ", ".join(words)


def _side_by_side(layout: object, mesh: Mesh) -> str | None:
    """Segments that are all divided alike along their own dim, in words; None for others."""
    if not isinstance(layout, Segments) or layout.source is not None:
        return None
    steps = {part.steps for size, part in layout.parts if size is not None and part.source is None}
    if len(steps) != 1 or any(size is None or part.source is not None for size, part in layout.parts):
        return None
    (common,) = steps
    if len(common) != 1 or not isinstance(common[0], Step) or common[0].name != "shard":
        return None
    dim, *axes = common[0].args
    if dim != layout.dim:
        return None
    over = "+".join(axes) or "+".join(name for name, _ in mesh.axes)
    return f"[{' | '.join(str(size) for size, _ in layout.parts)}] each sharded over {over} on dim {dim}"
