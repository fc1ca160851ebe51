"""The programs of a run: reading them, their mesh, and the names to call them by."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shardproof.frontends.load import is_capture, load, torch_graphs
from shardproof.frontends.locate import configured_wrapper_files
from shardproof.frontends.source import Initializers
from shardproof.ir.module import Guess, Module, ModuleError
from shardproof.ir.types import Mesh
from shardproof.ir.verify import verify as verify_module
from shardproof.passes.fold_ranks import Divergent, fold_ranks, order_ranks
from shardproof.solver.captured import Captured, read_capture, read_saved
from shardproof.solver.verdict import Assumption

if TYPE_CHECKING:
    from shardproof.frontends.fx.graph import Graph


class Live(Protocol):
    """A `torch.export.ExportedProgram`, or a `torch.fx.GraphModule` of ATen calls."""

    @property
    def graph(self) -> Any: ...


Program = str | Path | Module | Captured | Live
"""A file, the folder of a saved capture, or an object in this process."""
Groups = tuple[tuple[int, ...], ...]


class Told(Mapping[str, float | tuple[float, ...]]):
    """Constants by name; `used` once one of them was read."""

    def __init__(self, values: Mapping[str, float | tuple[float, ...]]) -> None:
        self._values = values
        self.used = False

    def __getitem__(self, name: str) -> float | tuple[float, ...]:
        value = self._values[name]
        self.used = True
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(slots=True)
class Gaps:
    """What files leave open: `groups` and `constants` as told, and what was `assumed` of the rest.

    `read` tells whether a program was read that may leave something open.
    """

    groups: Mapping[str, Groups] = field(default_factory=dict)
    constants: Told = field(default_factory=lambda: Told({}))
    initializers: Initializers = "auto"
    assumed: list[Assumption] = field(default_factory=list)
    read: bool = False


def called(program: Program | Sequence[Program], module: Module) -> str:
    """The file's name, else the module's."""
    if isinstance(program, str | Path):
        return Path(program).name
    if isinstance(program, Sequence) and program and isinstance(program[0], str | Path):
        return f"{Path(program[0]).name}, ..." if len(program) > 1 else Path(program[0]).name
    return module.name


def opened(given: Program | Sequence[Program]) -> Program | list[Program]:
    """`given`, with a saved capture, its folder or the files in it, read. Raises ModuleError."""
    if isinstance(given, str | Path):
        if Path(given).is_dir():
            return read_capture(given)
        return read_saved([given]) if is_capture(Path(given)) else given
    if not isinstance(given, Sequence):
        return given
    if len(given) == 1:
        return opened(given[0])
    paths = [g for g in given if isinstance(g, str | Path)]
    if len(paths) == len(given) > 0 and all(is_capture(Path(p)) for p in paths):
        return read_saved(paths)
    for one in given:
        if isinstance(one, Captured):
            raise ModuleError("a capture holds the programs of all ranks: give nothing beside it")
        if isinstance(one, str | Path) and (Path(one).is_dir() or is_capture(Path(one))):
            raise ModuleError(f"{one}: is of a saved capture: give its folder alone, or all its files")
    return list(given)


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
    gaps = gaps or Gaps()
    if isinstance(program, Module):
        verify_module(program)
        _note(program.guesses, gaps)
        return program
    if isinstance(program, Captured):
        module, guesses = program.program
        verify_module(module)
        _note(guesses, gaps)
        return module
    found = _torch([program], ranks, gaps)
    if found is not None:
        return found[0]
    assert isinstance(program, str | Path)
    wrappers = configured_wrapper_files(Path.cwd())
    module = load(
        program,
        ranks=ranks,
        constants=gaps.constants,
        initializers=gaps.initializers,
        wrapper_files=wrappers,
    )
    _note(module.guesses, gaps)
    return module


def checked_only(reference: Module, names: Collection[str]) -> Module:
    """A PyTorch program without its outputs of other names, if it has any of these.

    A dump also returns what its backward pass will need.
    """
    outputs = tuple(o for o in reference.outputs if o.name in names)
    return replace(reference, outputs=outputs) if outputs else reference


def read_implementation(
    given: Program | Sequence[Program], mesh: Mesh | None, gaps: Gaps | None = None
) -> Module:
    """As `read_program`, of one program for all ranks or one per rank.

    PyTorch programs that differ are put side by side in one of one rank, where the members of their groups
    are known. Raises Divergent (`fold_ranks`) for others that differ.
    """
    ranks = mesh.size if mesh is not None else None
    if isinstance(given, str) or not isinstance(given, Sequence):
        return read_program(given, ranks, gaps)
    if not given:
        raise ModuleError("no implementation is given")
    if len(given) == 1:
        return read_program(given[0], ranks, gaps)
    modules = _torch(given, None, gaps or Gaps())
    if modules is None:
        modules = [read_program(g, len(given), gaps) for g in given]
    try:
        folded = fold_ranks(modules)
    except Divergent:
        graphs = _graphs(given)
        if graphs is None:
            raise
        folded = _side_by_side(order_ranks(graphs), gaps or Gaps())
    verify_module(folded)
    return folded


def _side_by_side(graphs: Sequence[Graph], gaps: Gaps) -> Module:
    """The programs of all ranks as one. Raises Divergent when a group has members that are not known."""
    from shardproof.frontends.fx.graph import references
    from shardproof.frontends.fx.traced import Traced

    ranks = []
    for rank, graph in enumerate(graphs):
        told = {n: group for n, own in gaps.groups.items() for group in own if rank in group}
        named = replace(graph, groups={**graph.groups, **told})
        ranks.append(Traced(named, tuple(references(graph.outputs))))
    try:
        return Captured(Mesh((("rank", len(graphs)),)), tuple(ranks)).apart[0]
    except ModuleError as error:
        raise Divergent(f"the ranks run different programs, which do not fit together: {error}") from None


def _torch(given: Sequence[Program], ranks: int | None, gaps: Gaps) -> list[Module] | None:
    """The programs of PyTorch dumps and graphs, one per rank; None when they are something else."""
    graphs = _graphs(given)
    if graphs is None:
        return None
    from shardproof.frontends.fx.lowering.lower import lower, lower_ranks

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
        raise ModuleError(f"{graphs[0].source}: {line}") from None
    gaps.read = True
    for one in lowered:
        verify_module(one.module)
        _note(one.guesses, gaps)
    return [one.module for one in lowered]


def _graphs(given: Sequence[Program]) -> list[Graph] | None:
    paths = [g for g in given if isinstance(g, str | Path)]
    wrappers = configured_wrapper_files(Path.cwd())
    if len(paths) == len(given):
        return torch_graphs(paths, wrappers)
    if paths or any(isinstance(g, Module) for g in given):
        return None
    from shardproof.frontends.fx.live import read_live

    return [read_live(g, wrappers) for g in given]


def _note(guesses: Sequence[Guess], gaps: Gaps) -> None:
    for guess in guesses:
        found = Assumption(guess.kind, guess.text, guess.value)
        if found not in gaps.assumed:
            gaps.assumed.append(found)
