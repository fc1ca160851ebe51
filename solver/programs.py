"""The programs of a run: reading them, their mesh, and the names to call them by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardproof.frontends.load import load, torch_graphs
from shardproof.frontends.locate import configured_wrapper_files
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Mesh
from shardproof.ir.verify import verify as verify_module
from shardproof.passes.fold_ranks import fold_ranks, order_ranks
from shardproof.solver.verdict import Assumption

Program = str | Path | Module
Groups = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Gaps:
    """What PyTorch dumps leave open: `groups` and `constants` as told, and what was `assumed` of the rest.

    `read` tells whether a program was read that may leave something open.
    """

    groups: Mapping[str, Groups] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    assumed: list[Assumption] = field(default_factory=list)
    read: bool = False


def called(program: Program | Sequence[Program], module: Module) -> str:
    """The file's name, else the module's."""
    if isinstance(program, str | Path):
        return Path(program).name
    if not isinstance(program, Module) and program and isinstance(program[0], str | Path):
        return f"{Path(program[0]).name}, ..." if len(program) > 1 else Path(program[0]).name
    return module.name


def mesh_of(mesh: str | Mapping[str, int] | None) -> Mesh | None:
    """A mesh from a mapping or from text such as `dp=2,tp=4`."""
    if mesh is None:
        return None
    if isinstance(mesh, str):
        pairs = [part.partition("=") for part in mesh.split(",")]
        if not all(name.strip() and size.strip().isdecimal() for name, _, size in pairs):
            raise ModuleError(f"mesh `{mesh}`: write axes and sizes, as in dp=2,tp=4")
        mesh = {name.strip(): int(size) for name, _, size in pairs}
    if any(n < 1 for n in mesh.values()):
        raise ModuleError(f"mesh {dict(mesh)}: every axis has at least one rank")
    return Mesh(tuple(mesh.items()))


def sized(mesh: Mesh | None, module: Module, role: str) -> Mesh | None:
    if mesh is not None and mesh.size != module.mesh.size:
        raise ModuleError(f"the {role} runs on {module.mesh.size} ranks, the mesh {mesh} has {mesh.size}")
    return mesh


def read_program(program: Program, ranks: int | None, gaps: Gaps | None = None) -> Module:
    """The verified program; `gaps` says what its file leaves open, and takes what is assumed."""
    if isinstance(program, Module):
        verify_module(program)
        return program
    found = _torch([program], ranks, gaps or Gaps())
    if found is not None:
        return found[0]
    return load(program, ranks=ranks, wrapper_files=configured_wrapper_files(Path.cwd()))


def checked_only(reference: Module, names: Collection[str]) -> Module:
    """A PyTorch program without its outputs of other names, if it has any of these.

    A dump also returns what its backward pass will need.
    """
    outputs = tuple(o for o in reference.outputs if o.name in names)
    return replace(reference, outputs=outputs) if outputs else reference


def read_implementation(
    given: Program | Sequence[Program], mesh: Mesh | None, gaps: Gaps | None = None
) -> Module:
    """As `read_program`, of one program for all ranks or one per rank. Raises Divergent (`fold_ranks`)."""
    ranks = mesh.size if mesh is not None else None
    if isinstance(given, str | Path | Module):
        return read_program(given, ranks, gaps)
    if not given:
        raise ModuleError("no implementation is given")
    if len(given) == 1:
        return read_program(given[0], ranks, gaps)
    modules = _torch(given, None, gaps or Gaps())
    if modules is None:
        modules = [read_program(g, len(given)) for g in given]
    folded = fold_ranks(modules)
    verify_module(folded)
    return folded


def _torch(given: Sequence[Program], ranks: int | None, gaps: Gaps) -> list[Module] | None:
    """The programs of PyTorch dumps, one per rank; None when they are something else."""
    paths = [g for g in given if not isinstance(g, Module)]
    if len(paths) != len(given):
        return None
    graphs = torch_graphs(paths, configured_wrapper_files(Path.cwd()))
    if graphs is None:
        return None
    from shardproof.frontends.fx.lowering import lower, lower_ranks

    count = len(graphs) if len(graphs) > 1 else ranks or 1
    groups = {
        name: own for name, own in gaps.groups.items() if all(r < count for group in own for r in group)
    }
    try:
        if len(graphs) == 1:
            lowered = [lower(graphs[0], ranks=count, groups=groups, constants=gaps.constants)]
        else:
            lowered = lower_ranks(order_ranks(graphs), groups=groups, constants=gaps.constants)
    except ModuleError as error:
        line = " ".join(str(error).split())
        raise ModuleError(f"{paths[0]}: {line}") from None
    gaps.read = True
    for one in lowered:
        verify_module(one.module)
        for guess in one.guesses:
            found = Assumption(guess.kind, guess.text, guess.value)
            if found not in gaps.assumed:
                gaps.assumed.append(found)
    return [one.module for one in lowered]
