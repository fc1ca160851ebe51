"""The report of a result in words: lines of styled spans, and their rendering as plain or ANSI text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from shardproof.solver.verdict import Assumption, LemmaUse, OutputVerdict, Place, Result, Verdict

Span = tuple[str, str]
"""Text without line breaks, and its style in Rich's words ("" for plain)."""
Line = tuple[Span, ...]
Excerpt = Callable[[str, int], str | None]
"""The source line at file and 1-based line number, or None where it is not at hand."""

_STYLE: Final = {Verdict.VERIFIED: "bold green", Verdict.REFUTED: "bold red", Verdict.UNKNOWN: "bold yellow"}
_SHORT_LIST: Final = 4
_VERIFIED_LABEL: Final = 13
_NOTE_LABEL: Final = 16


def wording(result: Result, *, verbose: bool = False, excerpt: Excerpt | None = None) -> list[Line]:
    """The lines of the report. `verbose` lists everything that is otherwise counted or grouped."""
    if result.verdict is Verdict.VERIFIED:
        body = _verified(result, verbose)
    else:
        body = [*_where(result, verbose, excerpt), *_failed(result, verbose)]
    return [_headline(result), *body]


def render(lines: Iterable[Line], color: bool) -> str:
    """The lines as text; control characters that a file may have smuggled into a name are escaped."""
    paint = _ansi if color else _plain
    return "".join("".join(paint(escaped(text), style) for text, style in line) + "\n" for line in lines)


def _plain(text: str, style: str) -> str:
    return text


def _ansi(text: str, style: str) -> str:
    if not style:
        return text
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def escaped(text: str) -> str:
    """The text with control characters, line breaks among them, written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _headline(result: Result) -> Line:
    style = _STYLE[result.verdict]
    message = " ".join(result.message.split())
    if result.verdict is not Verdict.VERIFIED:
        return ((f"{result.verdict}[{result.code}]", style), (": " + (message or _default(result)), "bold"))
    if result.inferred_relation and "inferred layout" not in message:
        message = f"{message}, on an inferred layout" if message else "on an inferred layout"
    details = [f"mesh {result.mesh}"] if result.mesh else []
    if result.stats.seconds:
        total = result.stats.total
        details.append(f"{total:.2g} s" if total < 1 else f"{total:.1f} s")
    left = f"{result.verdict}  {message}".rstrip()
    if not details:
        return ((str(result.verdict), style), (left[len(str(result.verdict)) :], "bold"))
    gap = " " * max(3, 58 - len(left))
    return (
        (str(result.verdict), style),
        (left[len(str(result.verdict)) :], "bold"),
        (f"{gap}({', '.join(details)})", "dim"),
    )


def _default(result: Result) -> str:
    from shardproof.solver.codes import CODES

    return CODES[result.code].title


def _entry(label: str, text: str) -> Line:
    return (("  " + label.ljust(_VERIFIED_LABEL), "bold"), (text, ""))


def _entries(label: str, texts: Iterable[str]) -> list[Line]:
    return [_entry("" if i else label, text) for i, text in enumerate(texts)]


def _note(label: str, text: str) -> Line:
    return (("  = ", "cyan"), (label.ljust(_NOTE_LABEL), "bold"), (" ".join(text.split()), ""))


def _verified(result: Result, verbose: bool) -> list[Line]:
    lines = _entries("outputs", _outputs(result.outputs, verbose))
    lines.append(_entry("holds for", "all inputs over the reals, these shapes"))
    if result.inferred_relation:
        lines += _entries("inferred", _layouts(result.inferred_relation, verbose))
    if result.lemmas:
        total = "" if result.lemma_count is None else f" of {result.lemma_count}"
        shown = [_use(lemma) for lemma in result.lemmas]
        lines += _entries("used", shown if verbose else [f"{len(shown)}{total} lemmas (--verbose)"])
    assumed = _assumed(result, verbose) or ["nothing else" if result.inferred_relation else "nothing"]
    lines += _entries("assumes", assumed)
    if result.unchecked_outputs:
        lines.append(_entry("unchecked", _names(result.unchecked_outputs, verbose)))
    if result.certificate:
        lines.append(_entry("certificate", result.certificate))
    lines += [_entry("note", text) for text in (*(result.findings or ()), *result.notes)]
    lines += [_entry("help", text) for text in result.help]
    if verbose:
        lines.append(_entry("seconds", _seconds(result)))
    return lines


def _where(result: Result, verbose: bool, excerpt: Excerpt | None) -> list[Line]:
    lines: list[Line] = []
    place = result.location
    if place is not None and place.file is not None:
        lines.append((("  --> ", "cyan"), (_at(place), "")))
        source = excerpt(place.file, place.line) if excerpt is not None and place.line is not None else None
        if source is not None:
            lines += _quoted(place.line or 0, source, result.verdict)
    elif place is not None:
        lines.append((("  --> ", "cyan"), (f"{place.op} `{place.value}` (no source line recorded)", "")))
    if verbose and place is not None:
        for frame in reversed(place.stack):
            function = f" in {frame.function}" if frame.function else ""
            lines.append((("      ", ""), (f"called at {frame.file}:{frame.line}{function}", "dim")))
    other = result.reference_location
    if other is not None:
        where = f" ({_at(other)})" if other.file is not None else ""
        lines.append((("  ::: ", "cyan"), (f"reference value {other.value}{where}", "")))
    return lines


def _at(place: Place) -> str:
    return f"{place.file}:{place.line}" if place.line is not None else str(place.file)


def _quoted(number: int, source: str, verdict: Verdict) -> list[Line]:
    text = source.rstrip().expandtabs(4)
    start = len(text) - len(text.lstrip())
    departs = verdict is Verdict.REFUTED
    what = "first value that departs from the reference" if departs else "stops the proof here"
    gutter = f"{number} | "
    under = " " * (len(gutter) - 2) + "| " + " " * start
    return [((gutter, "cyan"), (text, "")), ((under, "cyan"), (f"^^^ {what}", _STYLE[verdict]))]


def _use(lemma: LemmaUse) -> str:
    """A lemma, how it is known, and how often it fired."""
    times = "once" if lemma.fired == 1 else f"{lemma.fired} times"
    return f"{lemma.name} ({lemma.status}), fired {times}, needed {lemma.needed}"


def _failed(result: Result, verbose: bool) -> list[Line]:
    lines: list[Line] = []
    if result.expected is not None:
        lines.append(_note("expected", result.expected))
    if result.found is not None:
        lines.append(_note("found", result.found))
    example = result.counterexample
    if example is not None:
        element = f"{example.output}[{','.join(map(str, example.index))}]"
        shrunk = ", ".join(f"{name}={size}" for name, size in example.extents.items())
        lines.append(
            _note(
                "counterexample",
                f"seed {example.seed}, rank {example.rank}, {element}: "
                f"reference {_number(example.reference)}, here {_number(example.implementation)}"
                + (f" ({shrunk})" if shrunk and verbose else ""),
            )
        )
    if result.repair is not None:
        lines.append(_note("repair", result.repair))
    open_outputs = [output.name for output in result.outputs if output.verdict is not Verdict.VERIFIED]
    if open_outputs and result.verdict is Verdict.UNKNOWN:
        names = _names(open_outputs, verbose)
        lines.append(_note("blocks", f"{len(open_outputs)} of {len(result.outputs)} outputs: {names}"))
    blocked = result.blocked or ()
    for item in blocked if verbose else blocked[:_SHORT_LIST]:
        reason = f": {item.failed_condition}" if item.failed_condition not in (None, result.found) else ""
        if item.closest_lemma is None:
            lines.append(_note("blocked", f"`{item.value}`{reason}"))
        else:
            lines.append(_note("blocked", f"`{item.value}`"))
            lines.append(_note("closest", item.closest_lemma + reason))
    if len(blocked) > _SHORT_LIST and not verbose:
        lines.append(_note("blocked", f"{len(blocked) - _SHORT_LIST} more (--verbose)"))
    if result.inferred_relation:
        lines += [_note("inferred", text) for text in _layouts(result.inferred_relation, verbose)]
    lines += [_note("assumes", text) for text in _assumed(result, verbose)]
    if result.unchecked_outputs:
        lines.append(_note("unchecked", _names(result.unchecked_outputs, verbose)))
    if result.tested_equal is not None:
        lines.append(_note("tested", f"{result.tested_equal} inputs, no difference (not a proof)"))
    lines += [_note("note", text) for text in (*(result.findings or ()), *result.notes)]
    lines += [_note("help", text) for text in result.help]
    if verbose:
        lines.append(_note("seconds", _seconds(result)))
    return lines


def _outputs(outputs: Sequence[OutputVerdict], verbose: bool) -> list[str]:
    by_placement: dict[str, list[str]] = {}
    for output in outputs:
        by_placement.setdefault(output.placement, []).append(output.name)
    return [f"{_names(names, verbose)}: {placement}" for placement, names in by_placement.items()] or ["none"]


def _names(names: Sequence[str], verbose: bool) -> str:
    if verbose or len(names) <= _SHORT_LIST + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_SHORT_LIST])} and {len(names) - _SHORT_LIST} more"


def _layouts(relation: Mapping[str, str], verbose: bool) -> list[str]:
    if verbose:
        return [f"{name} = {layout}" for name, layout in relation.items()]
    plain = {"replicated": 0, "sharded": 0}
    special: dict[str, list[str]] = {}
    for name, layout in relation.items():
        if layout.startswith("replicate"):
            plain["replicated"] += 1
        elif layout.startswith("shard"):
            plain["sharded"] += 1
        else:
            special.setdefault(layout, []).append(name)
    counts = [f"{count} {word}" for word, count in plain.items() if count]
    return [", ".join(counts)] * bool(counts) + [
        f"{_names(names, verbose)} = {layout}" for layout, names in special.items()
    ]


def _assumed(result: Result, verbose: bool) -> list[str]:
    """One line per assumption, grouped by kind; an inferred relation has its own lines already."""

    def kind(assumption: Assumption) -> str:
        return assumption.kind

    shown = [a for a in result.assumptions if kind(a) != "inferred_relation" or not result.inferred_relation]
    lines = []
    for name, group in groupby(sorted(shown, key=kind), key=kind):
        texts = list(dict.fromkeys(a.text for a in group))
        kept = texts if verbose else texts[: _SHORT_LIST - 1]
        lines += [f"{text} ({name})" for text in kept]
        if len(texts) > len(kept):
            lines.append(f"{len(texts) - len(kept)} more ({name}; --verbose)")
    return lines


def _number(value: complex) -> str:
    return f"{value:.6g}" if isinstance(value, float | complex) else str(value)


def _seconds(result: Result) -> str:
    phases = [f"{phase} {seconds:.3f}" for phase, seconds in result.stats.seconds.items()]
    return ", ".join(phases) or "not measured"
