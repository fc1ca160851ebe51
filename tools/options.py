"""Options that several commands share, and writing their answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shardproof.tools.failure import UsageProblem, reason
from shardproof.tools.report import write_stdout

if TYPE_CHECKING:
    from shardproof.solver.verdict import Result

EXIT_CODES: Final = {"verified": 0, "refuted": 1, "unknown": 2}


class Format(StrEnum):
    """How a command writes what it found."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="How to write the answer.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the answer to FILE.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="List everything; show the traceback of an internal error.")
]
LemmasOption = Annotated[
    list[Path] | None,
    typer.Option("--lemmas", metavar="FILE", help="Lemmas and definitions beyond the library (repeatable)."),
]


CertificateOption = Annotated[
    Path | None,
    typer.Option("--certificate", metavar="FILE", help="Write the certificate of a proof to FILE."),
]
GoalsOption = Annotated[
    Path | None,
    typer.Option("--goals", metavar="DIR", help="Write what an unknown lacks to DIR, as lemma files."),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", help="Answer unknown after this many seconds."),
]


class Initializers(StrEnum):
    """Which stored tensors of ONNX models are inputs."""

    AUTO = "auto"
    INPUTS = "inputs"
    CONSTANTS = "constants"


InitializersOption = Annotated[
    Initializers | None,
    typer.Option(
        "--initializers",
        help="Stored tensors of ONNX models that are inputs, so any values: weights (auto), all, or none.",
    ),
]


ReferenceArgument = Annotated[
    Path,
    typer.Argument(metavar="REFERENCE", help="The program that is right: a file, or a capture's folder."),
]
ImplementationArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="IMPLEMENTATION...",
        help="The program to check; several files are its ranks, in order. A capture's folder holds all.",
    ),
]


def group(name: str, help: str) -> typer.Typer:
    """Commands that share a first word."""
    return typer.Typer(
        name=name, help=help, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def answered(result: Result, format: Format, output: Path | None, *, verbose: bool) -> int:
    """Write a verdict as text or JSON; its exit code."""
    from shardproof.tools.report import report, wants_color

    if format is Format.JSON:
        emit(result.to_json() + "\n", output)
    else:
        color = output is None and wants_color(sys.stdout)
        emit(report(result, color=color, verbose=verbose), output)
    return EXIT_CODES[result.verdict.value]


def check_writable(target: Path | None, inputs: Sequence[Path]) -> None:
    """Raises UsageProblem when the answer cannot go to this file, or would replace an input."""
    if target is None:
        return
    if target.is_dir() or not target.absolute().parent.is_dir():
        why = "it is a folder" if target.is_dir() else "its folder does not exist"
        raise UsageProblem(f"cannot write {target}: {why}")
    if any(source.exists() and target.exists() and target.samefile(source) for source in inputs):
        raise UsageProblem(f"cannot write {target}: it is one of the inputs")


def emit(text: str, output: Path | None) -> None:
    """Write to the file, or to stdout."""
    if output is None:
        write_stdout(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageProblem(f"cannot write {output}: {reason(error)}") from error
