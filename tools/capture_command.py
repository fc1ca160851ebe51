"""`shardproof capture`: a PyTorch program, captured rank by rank and saved to a folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from shardproof.tools.failure import UsageProblem, guarded
from shardproof.tools.options import VerboseOption
from shardproof.tools.report import write_stdout


def capture(
    make: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Where `make` is, such as train.model:make.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write to.")],
    mesh: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help='Mesh axes and sizes, such as "dp=2,tp=4"; one rank without.'),
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="Capture the gradients of the results as well.")
    ] = False,
    verbose: VerboseOption = False,
) -> int:
    """Capture the PyTorch program that FUNCTION builds, on every rank, and save it.

    FUNCTION takes no arguments and returns (module or function, example inputs). It is imported and called in
    this process: capture only code that you would run. Exit codes: 0 saved, 3 bad input or usage, 4 internal
    error.
    """

    def run() -> int:
        from shardproof.tools.command_line import parse_mesh

        axes = {} if mesh is None else parse_mesh(mesh)
        if output.exists() and not output.is_dir():
            raise UsageProblem(f"cannot write {output}: it is a file, a folder is needed")
        function = found(make)
        from shardproof.solver.capture import capture_torch

        captured = capture_torch(function, mesh=axes, backward=backward)
        paths = captured.save(output)
        for path, graph in zip(paths, captured.graphs, strict=True):
            write_stdout(f"{path}: {len(graph.nodes)} nodes, {len(graph.placeholders)} inputs\n")
        return 0

    return guarded(run, json=False, verbose=verbose)


def found(spelled: str) -> Callable[[], Any]:
    """The function that `module.path:name` names; the current folder is searched first.

    Raises UsageProblem when there is none.
    """
    module, colon, name = spelled.partition(":")
    if not (module and colon and name):
        raise UsageProblem(f"MODULE:FUNCTION is needed, such as train.model:make, found `{spelled}`")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise UsageProblem(f"there is no module `{error.name}` here or on the path") from None
    finally:
        sys.path.remove(here)
    for part in name.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        raise UsageProblem(f"module `{module}` has no function `{name}`")
    function: Callable[[], Any] = value
    return function
