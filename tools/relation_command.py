"""The command `shardproof relation check`: the shards that a loader made against a relation file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shardproof import __version__
from shardproof.tools.failure import guarded
from shardproof.tools.options import Format, FormatOption, OutputOption, VerboseOption, check_writable, emit

if TYPE_CHECKING:
    from shardproof.solver.relations.relation_check import Failure, Report

DISOBEYED: Final = 1
"""Exit code of shards that do not obey."""
SHOWN: Final = 8
"""How many further names a line lists without --verbose."""

app = typer.Typer(
    name="relation",
    help="Check weights against relation files.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def relation() -> None:
    """Check weights against relation files."""


@app.command(short_help="Check the shards that a loader made.")
def check(
    path: Annotated[Path, typer.Argument(metavar="RELATION", help="The file that says how shards are made.")],
    reference: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="Whole tensors: .safetensors, .npz, .pt2 or .onnx (repeatable)."),
    ],
    rank: Annotated[
        list[Path], typer.Option(metavar="FILE", help="The tensors of one rank; repeat it, in rank order.")
    ],
    mesh: Annotated[
        str | None, typer.Option(metavar="TEXT", help='Mesh axes and sizes, such as "dp=2,tp=4".')
    ] = None,
    format: FormatOption = Format.TEXT,
    output: OutputOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Check, bit by bit, that every rank's tensors are made of the reference's as RELATION says.

    Exit codes: 0 all obey, 1 some do not, 3 bad input or usage, 4 internal error.
    """

    def run() -> int:
        check_writable(output, [path, *reference, *rank])
        from shardproof.solver.relations.relation_check import check as checked
        from shardproof.solver.wording import escaped

        report = checked(path, reference, rank, mesh)
        if format is Format.JSON:
            emit(json.dumps(_plain(report, rank), indent=2) + "\n", output)
        else:
            emit("\n".join(map(escaped, _lines(report, path, rank, verbose))) + "\n", output)
        return 0 if report.obeys else DISOBEYED

    return guarded(run, json=format is Format.JSON, verbose=verbose)


def _lines(report: Report, path: Path, ranks: Sequence[Path], verbose: bool) -> Iterator[str]:
    where = f"(mesh {report.mesh})"
    if report.obeys:
        yield f"obeys: all {report.shards} tensors of {len(ranks)} ranks are as {path.name} says {where}"
    else:
        wrong = len(report.failures)
        yield f"differs: {wrong} of the ranks' tensors are not as {path.name} says {where}"
        yield from _failure(report.failures[0], ranks)
        rest = report.failures[1:]
        for failure in rest if verbose else rest[:SHOWN]:
            yield _row("also", f"rank {failure.rank}, `{failure.name}`: {_short(failure)}")
        if not verbose and len(rest) > SHOWN:
            yield _row("", f"and {len(rest) - SHOWN} more (--verbose)")
    for (source, target), names in report.casts.items():
        yield _row("cast", f"{source} -> {target}: {_names(names, verbose)}")
    reasons: dict[str, list[str]] = {}
    for name, reason in report.unchecked.items():
        reasons.setdefault(reason, []).append(name)
    for reason, of in reasons.items():
        yield _row("unchecked", f"{_names(of, verbose)}: {reason}")
    if report.absent:
        yield _row("absent", f"{_names(report.absent, verbose)}: in no file")
    if report.unread:
        yield _row("unread", f"{_names(report.unread, verbose)}: no entry reads these of the reference")


def _failure(failure: Failure, ranks: Sequence[Path]) -> Iterator[str]:
    yield _row("first", f"rank {failure.rank}, `{failure.name}` ({ranks[failure.rank].name})")
    yield _row("expected", failure.expected)
    yield _row("found", failure.found)
    if failure.element is not None and failure.values is not None:
        at = ",".join(map(str, failure.element))
        want, have = failure.values
        more = f", {failure.differing} elements differ" if failure.differing > 1 else ""
        yield _row("element", f"[{at}]: expected {want}, found {have}{more}")
    if failure.cause is not None:
        yield _row("cause", failure.cause)


def _short(failure: Failure) -> str:
    if failure.cause is not None:
        return failure.cause
    if failure.kind == "values":
        return f"{failure.differing} elements differ"
    return f"found {failure.found}, expected {failure.expected}"


def _row(title: str, text: str) -> str:
    return f"  {title.ljust(11)}  {text}"


def _names(names: Sequence[str], verbose: bool) -> str:
    shown = names if verbose else names[:SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(f"`{name}`" for name in shown) + more


def _plain(report: Report, ranks: Sequence[Path]) -> dict[str, Any]:
    return {
        "version": __version__,
        "obeys": report.obeys,
        "mesh": dict(report.mesh.axes),
        "tensors": report.tensors,
        "shards": report.shards,
        "failures": [
            {
                "rank": f.rank,
                "file": ranks[f.rank].name,
                "tensor": f.name,
                "kind": f.kind,
                "expected": f.expected,
                "found": f.found,
                "element": None if f.element is None else list(f.element),
                "values": None if f.values is None else list(f.values),
                "differing": f.differing,
                "cause": f.cause,
            }
            for f in report.failures
        ],
        "casts": [
            {"from": source, "to": target, "tensors": list(names)}
            for (source, target), names in report.casts.items()
        ],
        "unchecked": dict(report.unchecked),
        "absent": list(report.absent),
        "unread": list(report.unread),
    }
