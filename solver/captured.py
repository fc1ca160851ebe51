"""What a capture found: a graph per rank, the names of its results, and placements that DTensors state.

Nothing here needs torch: a capture is saved to a folder, one file per rank, and read back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Final

from shardproof.frontends.fx.graph import Graph
from shardproof.frontends.fx.traced import Placed, Traced
from shardproof.ir.module import Guess, Module, ModuleError, Op
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Mesh

_ALLOCATES: Final = re.compile(r"aten\.(new_)?empty(_like|_strided)?\.\w+")


@dataclass(frozen=True)
class Captured:
    """A program captured from PyTorch, rank by rank, over the axes of `mesh`."""

    mesh: Mesh
    ranks: tuple[Traced, ...]

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of every rank, in rank order."""
        return tuple(traced.graph for traced in self.ranks)

    @cached_property
    def program(self) -> tuple[Module, tuple[Guess, ...]]:
        """One module for all ranks, and what was guessed.

        Ranks that run the same operators become one module over the mesh. Ranks that differ, or send to each
        other, are put one beside the other in a program of one rank (`joined`): every name that several
        ranks use ends in `@RANK` there.
        """
        from shardproof.frontends.fx.joined import exchanges
        from shardproof.frontends.fx.lowering.lower import lower_ranks
        from shardproof.passes.fold_ranks import Divergent, fold_ranks

        if not any(exchanges(g) for g in self.graphs):
            lowered = lower_ranks(self.graphs)
            modules = [
                _named(low.module, traced.outputs) for low, traced in zip(lowered, self.ranks, strict=True)
            ]
            guesses = dict.fromkeys(g for low in lowered for g in low.guesses)
            if len(modules) == 1:
                return _pruned(replace(modules[0], rank=None), self.graphs[0]), tuple(guesses)
            try:
                folded = fold_ranks(modules)
            except Divergent:
                pass
            else:
                return _pruned(replace(folded, mesh=self.mesh), self.graphs[0]), tuple(guesses)
        return self.apart

    @cached_property
    def apart(self) -> tuple[Module, tuple[Guess, ...]]:
        """As `program`, with the ranks side by side whether they differ or not."""
        from shardproof.frontends.fx.joined import joined
        from shardproof.frontends.fx.lowering.lower import lower

        whole = joined(self.graphs, [t.outputs for t in self.ranks])
        alone = lower(whole.graph, groups={whole.group: ((0,),)})
        module = _pruned(_named(alone.module, whole.outputs), whole.graph)
        return module, alone.guesses

    def module(self) -> Module:
        """The program, with what was guessed."""
        module, guesses = self.program
        return replace(module, guesses=guesses)

    @property
    def is_joined(self) -> bool:
        """Whether `program` has the ranks side by side, on one rank."""
        return self.program[0].mesh.size != self.mesh.size

    def inputs(self) -> dict[str, str]:
        """Layouts of inputs, in the words of relation files, that placements state for all ranks."""
        return self._placements(lambda t: t.inputs_placed)

    def outputs(self) -> dict[str, str]:
        """Placements of results, in the same words."""
        return self._placements(lambda t: t.outputs_placed)

    def _placements(self, side: Callable[[Traced], Mapping[str, Placed]]) -> dict[str, str]:
        if self.mesh.size == 1 or self.is_joined:
            return {}
        placed: list[Mapping[str, Placed]] = [side(t) for t in self.ranks]
        found = {}
        for name in placed[0]:
            layouts = {
                None if name not in own else layout_of(own[name], self.mesh, rank)
                for rank, own in enumerate(placed)
            }
            layout = layouts.pop()
            if layout is not None and not layouts:
                found[name] = layout
        return found

    @property
    def data(self) -> frozenset[str]:
        """The inputs of `program` that are example inputs, not parameters or buffers."""
        own = {name for traced in self.ranks for name in traced.data}
        return frozenset(own | {f"{name}@{rank}" for name in own for rank in range(self.mesh.size)})

    def partly(self) -> frozenset[str]:
        """The inputs whose placements are over some axes of the mesh only, and say nothing of the others."""
        axes = sum(size > 1 for _, size in self.mesh.axes)
        return frozenset(n for n, p in self.ranks[0].inputs_placed.items() if len(p.dims) < axes)

    def save(self, directory: str | Path) -> tuple[Path, ...]:
        """Write `rank0.json`, `rank1.json`, ... into the folder, which is made if need be; their paths.

        The files hold no weights but the constants of the graphs. Raises OSError.
        """
        from shardproof.frontends.fx.saved import written

        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for rank, traced in enumerate(self.ranks):
            paths.append(folder / f"rank{rank}.json")
            paths[-1].write_text(written(traced, self.mesh), encoding="utf-8")
        return tuple(paths)


def read_capture(directory: str | Path) -> Captured:
    """The capture that `Captured.save` wrote. Raises ModuleError: which file, what was found."""
    path = Path(directory) / "rank0.json"
    if not path.is_file():
        raise ModuleError(f"{directory}: is a folder without rank0.json, that of a saved capture is needed")
    first, mesh = _saved(path)
    others = (path.with_name(f"rank{rank}.json") for rank in range(1, mesh.size))
    return _together([(path, first, mesh), *((p, *_saved(p)) for p in others)])


def read_saved(paths: Sequence[str | Path]) -> Captured:
    """A capture from the files of all its ranks, in any order. Raises ModuleError."""
    return _together([(Path(p), *_saved(Path(p))) for p in paths])


def _saved(path: Path) -> tuple[Traced, Mesh]:
    from shardproof.frontends.fx.saved import parse
    from shardproof.frontends.source import contents

    try:
        text = contents(path).decode("utf-8")
    except (ModuleError, UnicodeDecodeError) as error:
        raise ModuleError(f"{path}: {error}") from None
    return parse(text, str(path))


def _together(saved: Sequence[tuple[Path, Traced, Mesh]]) -> Captured:
    from shardproof.passes.fold_ranks import order_ranks

    path, _, mesh = saved[0]
    for other, _, own in saved:
        if own != mesh:
            raise ModuleError(f"{other}: is of a run over {own}, {path} over {mesh}")
    if len(saved) != mesh.size:
        raise ModuleError(f"{path}: is of a run on {mesh.size} ranks, give the files of all, or their folder")
    return Captured(mesh, tuple(order_ranks([traced for _, traced, _ in saved])))


def _named(module: Module, names: tuple[str, ...]) -> Module:
    """The module, its results called by the paths in what the program returned.

    Inputs that the program overwrites come after those, and keep the input's name.
    """
    outputs = list(module.outputs)
    if len(outputs) < len(names):
        raise ModuleError(f"{module.name}: returns {len(names)} tensors, {len(outputs)} were lowered")
    fresh = [replace(o, name=n) for o, n in zip(outputs, names, strict=False)]
    return replace(module, outputs=(*fresh, *outputs[len(names) :]))


def _pruned(module: Module, graph: Graph) -> Module:
    """The module without what nothing reads, memory that was made and then overwritten as a whole included.

    Other draws of random values stay: they move the generator on.
    """
    fresh = {n.name for n in graph.nodes if _ALLOCATES.fullmatch(n.target)}
    read = {o.value.name for o in module.outputs}
    kept: list[Op] = []
    for op in reversed(module.ops):
        names = {v.name for v in op.results}
        keeps = TABLE[op.opcode].traits & {"random", "effect"}
        allocated = all(n in fresh or n.rpartition(".")[0] in fresh for n in names)
        if names & read or (keeps and not allocated):
            kept.append(op)
            read.update(v.name for v in op.operands)
    return replace(module, ops=tuple(reversed(kept)))


def layout_of(placed: Placed, mesh: Mesh, rank: int = 0) -> str | None:
    """The words of a relation file for a placement that a rank states; None where they have none.

    These are uneven or unknown parts, and meshes that are no axes of `mesh`.
    """
    axes = _axes(placed, mesh, rank)
    if axes is None or None in placed.placements:
        return None
    over: dict[int, list[str]] = {}
    partial: list[str] = []
    for placement, axis in zip(placed.placements, axes, strict=True):
        assert placement is not None
        if placement == "partial":
            partial.append(axis)
        elif placement.startswith("shard("):
            over.setdefault(int(placement[6:-1]), []).append(axis)
    sizes = dict(mesh.axes)
    words = []
    for dim, names in sorted(over.items()):
        if placed.shape[dim] % prod(sizes[n] for n in names):
            return None
        words.append(f"shard({dim}, {', '.join(names)})")
    if partial:
        words.append(f"partial({', '.join(partial)})")
    return " | ".join(words) or "replicate"


def _axes(placed: Placed, mesh: Mesh, rank: int) -> list[str] | None:
    """The axis of the mesh that each dim of the device mesh is; None when they are no axes.

    The device mesh has either as many dims, in the same order, or those of some axes by name, with all ranks
    that are where `rank` is along the others.
    """
    sizes = dict(mesh.axes)
    if placed.ranks == tuple(range(mesh.size)):
        same = tuple(size for _, size in placed.dims) == tuple(sizes.values())
        return list(sizes) if same else None
    names = [name for name, _ in placed.dims]
    if len(set(names)) < len(names) or any(sizes.get(name) != size for name, size in placed.dims):
        return None
    strides = {name: prod(list(sizes.values())[k + 1 :]) for k, name in enumerate(sizes)}
    base = rank - sum(rank // strides[n] % sizes[n] * strides[n] for n in names)
    places = product(*(range(sizes[n]) for n in names))
    own = tuple(base + sum(at * strides[n] for at, n in zip(p, names, strict=True)) for p in places)
    return names if placed.ranks == own else None
