"""The commands `shardproof lemma check`, `list`, `show` and `try`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shardproof.tools.failure import UsageProblem, guarded
from shardproof.tools.options import (
    Format,
    FormatOption,
    ImplementationArgument,
    LemmasOption,
    OutputOption,
    ReferenceArgument,
    VerboseOption,
    check_writable,
    emit,
    group,
)
from shardproof.tools.report import wants_color

if TYPE_CHECKING:
    from shardproof.lemmas.check import Checked
    from shardproof.lemmas.terms import Statement

WRONG: Final = 1
"""Exit code of `lemma check` when a lemma is false or invalid."""
STYLES: Final = {
    "proved": "green",
    "tested": "yellow",
    "assumed": "yellow",
    "false": "bold red",
    "invalid": "bold red",
}

app = group("lemma", "Check, list and explain lemmas and definitions.")

ThemeOption = Annotated[str | None, typer.Option(metavar="THEME", help="Only this theme (a file's stem).")]


@app.command(short_help="Check lemmas by machine.")
def check(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE...]", help="Lemma files; the library without any.")
    ] = None,
    theme: ThemeOption = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random samples.")] = 0,
    no_proof: Annotated[
        bool, typer.Option("--no-proof", help="Test on samples only, ask no prover.")
    ] = False,
    format: FormatOption = Format.TEXT,
    output: OutputOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Check that each lemma is well formed, needs its conditions, has no counterexample and can be proved.

    Exit codes: 0 all hold, 1 a lemma is false or invalid, 3 a file does not parse or breaks a rule.
    """

    def run() -> int:
        check_writable(output, files or [])
        statements = [s for s in _statements(files or []) if theme is None or s.theme == theme]
        if theme is not None and not statements:
            raise UsageProblem(f"no statement is of the theme `{theme}`; `shardproof lemma list` shows all")
        found = _checked(statements, seed, not no_proof)
        if format is Format.JSON:
            emit(_json([c.to_json() for c in found]), output)
        else:
            emit(_checked_text(found, color=output is None and wants_color(sys.stdout)), output)
        return WRONG if any(c.status in ("false", "invalid") for c in found) else 0

    return guarded(run, json=format is Format.JSON, verbose=verbose)


@app.command("list", short_help="List lemmas and definitions.")
def list_(
    theme: ThemeOption = None,
    lemmas: LemmasOption = None,
    format: FormatOption = Format.TEXT,
    output: OutputOption = None,
    verbose: VerboseOption = False,
) -> int:
    """List lemmas and definitions with theme, status and direction."""

    def run() -> int:
        check_writable(output, lemmas or [])
        rows = [_row(s) for s in _loaded(lemmas or []) if theme is None or s.theme == theme]
        if theme is not None and not rows:
            raise UsageProblem(f"no statement is of the theme `{theme}`; `shardproof lemma list` shows all")
        if format is Format.JSON:
            emit(_json(rows), output)
        else:
            columns = ["name", "theme", "status", "direction", "doc"]
            texts = [[str(row[c]) for c in columns] for row in rows]
            emit(_table(columns, texts, output is None and wants_color(sys.stdout)), output)
        return 0

    return guarded(run, json=format is Format.JSON, verbose=verbose)


@app.command(short_help="Show one lemma or definition.")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a lemma or definition.")],
    lemmas: LemmasOption = None,
    format: FormatOption = Format.TEXT,
    output: OutputOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Show a statement as it is read, its status, and where the proof uses it."""

    def run() -> int:
        check_writable(output, lemmas or [])
        found = [s for s in _loaded(lemmas or []) if s.name == name]
        if not found:
            raise UsageProblem(_no_such(name, _loaded(lemmas or [])))
        from shardproof.lemmas.printer import show as printed

        rows = []
        for statement in found:
            place = statement.span
            rows.append(
                {
                    **_row(statement),
                    "statement": printed(statement),
                    "place": None if place is None else f"{place.file}:{place.line}",
                    "use": _use(statement, lemmas or []),
                }
            )
        emit(_json(rows) if format is Format.JSON else "\n".join(map(_shown, rows)), output)
        return 0

    return guarded(run, json=format is Format.JSON, verbose=verbose)


@app.command("try", short_help="Explain why a lemma did not fire.")
def try_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a lemma.")],
    reference: ReferenceArgument,
    implementation: ImplementationArgument,
    relation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Relation file: how the inputs are laid out.")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option(metavar="TEXT", help='Mesh axes and sizes, such as "dp=2,tp=4".')
    ] = None,
    lemmas: LemmasOption = None,
    format: FormatOption = Format.TEXT,
    output: OutputOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Show where a lemma fires on a pair of programs, else the closest match and the condition that fails."""

    def run() -> int:
        inputs = [reference, *implementation, *(lemmas or []), *([relation] if relation is not None else [])]
        check_writable(output, inputs)
        known = _loaded(lemmas or [])
        if name not in {s.name for s in known}:
            raise UsageProblem(_no_such(name, known))
        from shardproof.solver.search.trial import attempt

        programs = implementation[0] if len(implementation) == 1 else implementation
        tried = attempt(name, reference, programs, relation=relation, mesh=mesh, lemmas=lemmas or [])
        emit(json.dumps(tried.to_json(), indent=2) + "\n" if format is Format.JSON else tried.text(), output)
        return 0

    return guarded(run, json=format is Format.JSON, verbose=verbose)


def _statements(files: Sequence[Path]) -> list[Statement]:
    """The statements of the files in their order, or of the library; raises LemmaError."""
    from shardproof.lemmas.load import load_files, statements_of
    from shardproof.lemmas.sources import shipped

    paths = list(files) or shipped()
    load_files(paths)
    return [s for path in paths for s in statements_of(path)]


def _loaded(files: Sequence[Path]) -> list[Statement]:
    """The statements of a run: the library, the project's, the packages' and the files'."""
    from shardproof.lemmas.load import load

    library = load(files)
    defines = [d for group in library.defines.values() for d in group]
    found: list[Statement] = [*library.lemmas.values(), *defines, *library.opaques.values()]
    places = {path: n for n, path in enumerate(library.files)}

    def place(statement: Statement) -> tuple[int, int]:
        span = statement.span
        return (0, 0) if span is None else (places.get(span.file, len(places)), span.line)

    return sorted(found, key=place)


def _checked(statements: Sequence[Statement], seed: int, prove: bool) -> list[Checked]:
    from shardproof.lemmas.check import check as check_all
    from shardproof.solver.search.statuses import remember
    from shardproof.tools.progress import PhaseBar

    found = []
    with PhaseBar() as bar:
        for n, statement in enumerate(statements):
            bar.report(statement.name, n / len(statements))
            (result,) = check_all([statement], seed=seed, prove=prove)
            remember(statement, result.status, result.counterexample or result.detail)
            found.append(result)
    return found


def _checked_text(found: Sequence[Checked], color: bool) -> str:
    columns = ["name", "theme", "status", "seconds", "detail"]
    rows = [[c.name, c.theme, c.status, f"{c.seconds:.2f}", c.detail] for c in found]
    lines = [_table(columns, rows, color)]
    for c in found:
        if c.counterexample is not None:
            lines.append(f"{c.name} is false: {c.counterexample}\n")
    counts: Counter[str] = Counter(c.status for c in found)
    told = ", ".join(f"{counts[s]} {s}" for s in (*STYLES, "defined") if counts[s]) or "nothing to check"
    lines.append(f"{len(found)} statements: {told}\n")
    return "".join(lines)


def _row(statement: Statement) -> dict[str, Any]:
    from shardproof.lemmas.terms import Lemma, OpaqueDefine
    from shardproof.solver.search.statuses import known_status

    known = known_status(statement)
    if isinstance(statement, Lemma):
        direction = "<=>" if statement.both else "=>"
    else:
        direction = "opaque" if isinstance(statement, OpaqueDefine) else "define"
    return {
        "name": statement.name,
        "theme": statement.theme,
        "status": "not checked" if known is None else known.status,
        "direction": direction,
        "doc": statement.doc,
    }


def _use(statement: Statement, files: Sequence[Path]) -> str:
    """Where a statement is used, in words."""
    from shardproof.lemmas.terms import Lemma

    if not isinstance(statement, Lemma):
        return "replaces the operator of its name before anything else"
    from shardproof.solver.attempts import theory_of
    from shardproof.solver.search.closest import where_used

    return where_used(theory_of(files), statement)


def _shown(row: dict[str, Any]) -> str:
    return (
        f"{row['statement']}\n\n"
        f"  theme    {row['theme']}\n"
        f"  status   {row['status']}\n"
        f"  use      {row['use']}\n"
        f"  place    {row['place']}\n"
    )


def _no_such(name: str, known: Iterable[Statement]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, [s.name for s in known], 3)
    hint = f"; did you mean {' or '.join(close)}" if close else "; `shardproof lemma list` shows all"
    return f"no lemma or definition is called `{name}`{hint}"


def _json(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"lemmas": rows}, indent=2) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], color: bool) -> str:
    """The rows under a heading, the last column cut where the terminal ends."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True, justify="right" if column == "seconds" else "left")
    table.add_column(columns[-1], overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(x, STYLES.get(x, "") if c == "status" else "") for c, x in zip(columns, row, strict=True))
        )
    width = Console().width if sys.stdout.isatty() else 140
    text = StringIO()
    console = Console(
        file=text, width=width, force_terminal=color, color_system="standard" if color else None
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
