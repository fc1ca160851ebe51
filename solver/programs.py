"""The programs of a run: reading them, their mesh, and the names to call them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shardproof.frontends.load import load
from shardproof.frontends.locate import configured_wrapper_files
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Mesh
from shardproof.ir.verify import verify as verify_module
from shardproof.passes.fold_ranks import fold_ranks

Program = str | Path | Module


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


def read_program(program: Program, ranks: int | None) -> Module:
    if isinstance(program, Module):
        verify_module(program)
        return program
    return load(program, ranks=ranks, wrapper_files=configured_wrapper_files(Path.cwd()))


def read_implementation(given: Program | Sequence[Program], mesh: Mesh | None) -> Module:
    ranks = mesh.size if mesh is not None else None
    if isinstance(given, str | Path | Module):
        return read_program(given, ranks)
    if not given:
        raise ModuleError("no implementation is given")
    if len(given) == 1:
        return read_program(given[0], ranks)
    modules = [read_program(g, len(given)) for g in given]
    folded = fold_ranks(modules)
    verify_module(folded)
    return folded
