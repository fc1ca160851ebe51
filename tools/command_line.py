"""The command line: `shardproof verify`, `inspect`, `explain`, `lemma` and `cert`.

Exit codes: 0 verified, 1 refuted, 2 unknown, 3 bad input or usage, 4 internal error, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from shardproof import __version__
from shardproof.tools import capture_command, cert_command, lemma_command, relation_command, xla_command
from shardproof.tools.failure import BAD_INPUT, INTERRUPTED, UsageProblem, fail, guarded
from shardproof.tools.options import (
    CertificateOption,
    Format,
    FormatOption,
    GoalsOption,
    ImplementationArgument,
    InitializersOption,
    LemmasOption,
    OutputOption,
    ReferenceArgument,
    TimeoutOption,
    VerboseOption,
    answered,
    check_writable,
    emit,
)
from shardproof.tools.report import tolerate_any_character, write_stdout

app = typer.Typer(
    name="shardproof",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lemma_command.app)
app.add_typer(cert_command.app)
app.add_typer(relation_command.app)
app.command(short_help="Capture a PyTorch program.")(capture_command.capture)
app.command("verify-xla", short_help="Check what XLA makes of a JAX function.")(xla_command.verify_xla)


class Placement(StrEnum):
    """What an output without a declared placement must be."""

    NATURAL = "natural"
    ANY = "any"


def _show_version(wanted: bool) -> None:
    if wanted:
        write_stdout(f"shardproof {__version__}\n")
        raise typer.Exit(0)


@app.callback()
def shardproof(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Proves that a distributed deep-learning program computes the same as its reference."""


@app.command(short_help="Prove or refute that a program is right.")
def verify(
    reference: ReferenceArgument,
    implementation: ImplementationArgument,
    mesh: Annotated[
        str | None, typer.Option(metavar="TEXT", help='Mesh axes and sizes, such as "dp=2,tp=4".')
    ] = None,
    relation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Relation file: how the inputs are laid out.")
    ] = None,
    save_relation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the relation that was used to FILE.")
    ] = None,
    outputs: Annotated[
        Placement, typer.Option(help="Placement that an output must have when none is declared.")
    ] = Placement.NATURAL,
    strict: Annotated[
        bool, typer.Option("--strict", help="Accept no inferred layout, guess or merely tested lemma.")
    ] = False,
    assume: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="Take this value as right and list it (repeatable)."),
    ] = None,
    lemmas: LemmasOption = None,
    certificate: CertificateOption = None,
    goals: GoalsOption = None,
    initializers: InitializersOption = None,
    format: FormatOption = Format.TEXT,
    output: OutputOption = None,
    timeout: TimeoutOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Prove or refute that IMPLEMENTATION computes the same as REFERENCE.

    Exit codes: 0 verified, 1 refuted, 2 unknown, 3 bad input or usage, 4 internal error.
    """

    def run() -> int:
        inputs = [reference, *implementation, *([relation] if relation is not None else []), *(lemmas or [])]
        check_writable(output, inputs)
        check_writable(save_relation, inputs)
        check_writable(certificate, inputs)
        if goals is not None and goals.exists() and not goals.is_dir():
            raise UsageProblem(f"cannot write to {goals}: it is no folder")
        if timeout is not None and not 0 < timeout < float("inf"):
            raise UsageProblem(f"--timeout needs a positive number of seconds, found {timeout:g}")
        axes = None if mesh is None else parse_mesh(mesh)
        from shardproof.solver.verify import verify as prove
        from shardproof.tools.progress import PhaseBar

        with PhaseBar() as bar:
            result = prove(
                reference,
                implementation[0] if len(implementation) == 1 else implementation,
                relation=relation,
                mesh=axes,
                outputs=outputs.value,
                timeout=timeout,
                strict=strict,
                assume=tuple(assume or ()),
                save_relation=save_relation,
                lemmas=tuple(lemmas or ()),
                certificate=certificate,
                goals=goals,
                initializers=None if initializers is None else initializers.value,
                progress=bar.report,
            )
        return answered(result, format, output, verbose=verbose)

    return guarded(run, json=format is Format.JSON, verbose=verbose)


@app.command(short_help="Show a program's mesh and IR.")
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The program, or the folder of a capture.")],
    output: OutputOption = None,
    format: FormatOption = Format.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Show a program's mesh, inputs, outputs, collectives and IR text."""

    def run() -> int:
        check_writable(output, [file])
        from shardproof.frontends.load import load
        from shardproof.solver.captured import Captured
        from shardproof.solver.programs import opened
        from shardproof.tools.inspection import inspection_json, inspection_text

        found = opened(file)
        module = found.module() if isinstance(found, Captured) else load(file)
        text = inspection_json(module) + "\n" if format is Format.JSON else inspection_text(module)
        emit(text, output)
        return 0

    return guarded(run, json=format is Format.JSON, verbose=verbose)


@app.command(short_help="Explain a code of a verdict or error.")
def explain(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="A code such as U02, or a kind of assumption.")
    ] = None,
) -> int:
    """Explain a code or a kind of assumption; without one, list them all."""
    from shardproof.solver.codes import CODES
    from shardproof.solver.codes import explain as explained
    from shardproof.solver.verdict import ASSUMPTION_KINDS

    if code is None:
        rows = [f"{name}  {entry.title}" for name, entry in CODES.items()]
        kinds = [f"{kind.ljust(18)} {claim}" for kind, claim in ASSUMPTION_KINDS.items()]
        write_stdout("\n".join([*rows, "", "kinds of assumption:", *kinds]) + "\n")
        return 0
    if code in ASSUMPTION_KINDS:
        write_stdout(f"{code}: {ASSUMPTION_KINDS[code]}\n")
        return 0
    text = explained(code)
    if text is None:
        return fail("E03", f"unknown code `{code}`; `shardproof explain` lists all codes", False)
    write_stdout(text)
    return 0


def parse_mesh(text: str) -> dict[str, int]:
    """The axes of "dp=2,tp=4", outermost first; raises UsageProblem on anything else."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not (equals and name.isidentifier() and size.isascii() and size.isdecimal() and int(size) > 0):
            raise UsageProblem(f'--mesh needs axes and sizes such as "dp=2,tp=4", found `{part.strip()}`')
        if name in axes:
            raise UsageProblem(f"--mesh names the axis `{name}` twice")
        axes[name] = int(size)
    return axes


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line that does not parse asked for JSON."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return any(first == "--format=json" or (first, second) == ("--format", "json") for first, second in pairs)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing but SystemExit escapes."""
    tolerate_any_character(sys.stdout, sys.stderr)
    usage_error: Any = typer.BadParameter.__mro__[2]
    try:
        command = typer.main.get_command(app)
        status = command.main(list(arguments), prog_name="shardproof", standalone_mode=False)
    except usage_error as error:
        if not arguments or error.__class__.__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return BAD_INPUT
        message = error.format_message().rstrip(".")
        return fail("E03", message[:1].lower() + message[1:], _wants_json(arguments))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def main() -> NoReturn:
    """The `shardproof` program."""
    sys.exit(run(sys.argv[1:]))
