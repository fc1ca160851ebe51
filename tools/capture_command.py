"""`shardproof capture`: a PyTorch program, captured rank by rank and saved to a folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import Annotated, Any, TypeVar

import typer

from shardproof.tools.failure import UsageProblem, guarded
from shardproof.tools.options import VerboseOption
from shardproof.tools.report import write_stdout

Result = TypeVar("Result")


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
        function = of_user(make, lambda: found(make))
        from shardproof.solver.capture import capture_torch

        captured = of_user(make, lambda: capture_torch(function, mesh=axes, backward=backward))
        paths = captured.save(output)
        for path, graph in zip(paths, captured.graphs, strict=True):
            write_stdout(f"{path}: {len(graph.nodes)} nodes, {len(graph.placeholders)} inputs\n")
        return 0

    return guarded(run, json=False, verbose=verbose)


def of_user(make: str, step: Callable[[], Result]) -> Result:
    """What a step gives that runs the user's code, whose errors are bad input.

    Raises ModuleError for what that code raises; errors of this package pass.
    """
    from shardproof.frontends.locate import innermost
    from shardproof.ir.module import ModuleError
    from shardproof.ir.types import Frame

    try:
        return step()
    except (ModuleError, UsageProblem):
        raise
    except Exception as error:
        frames = [Frame(f.filename, f.lineno or 0, f.name) for f in extract_tb(error.__traceback__)]
        own = Path(__file__).parents[1]
        theirs = [f for f in frames if not Path(f.file).is_relative_to(own)]
        if frames and frames[-1] not in theirs:
            raise
        place = innermost(theirs)
        at = "" if place is None else f" at {place.file}:{place.line}"
        text = " ".join(str(error).split())
        raise ModuleError(f"{make} raised {type(error).__name__}{at}: {text}") from error


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
