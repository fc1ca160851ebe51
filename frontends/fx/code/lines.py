"""The frame of a dump: what may stand before the class, the signature, the body, what may stand behind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from shardproof.frontends.fx.code.meta import shown
from shardproof.ir.module import ModuleError

MAX_TEXT: Final = 64 << 20
MAX_LINE: Final = 1 << 20
MAX_LINES: Final = 2_000_000
MAX_BRACKETS: Final = 24
MAX_COMMAS: Final = 50_000
MAX_BRACES: Final = 64
"""Formatted strings with many fields take Python's parser quadratic time."""
MAX_HEAD: Final = 512

_LOG: Final = re.compile(r"[VIWE]\d{4} [\d:.]+ \d+ \S+:\d+\] (?:\[[^\]\s]+\] ?)*")
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")
_CLASS: Final = re.compile(r"\s*(?:\S+ )?class ([^\s(]+)\((?:torch\.)?(?:nn|fx)\.(?:Graph)?Module\):\s*")
_RANK: Final = re.compile(r"#.*\brank[=:]\s?(\d{1,6})\b")
_STUB: Final = re.compile(
    r"import (?:torch|math|operator)(?:\.\w+)*"
    r"|from (?:torch|math)(?:\.\w+)* import \w+(?:, \w+)*"
    r"|[A-Za-z_]\w*: type"
    r"|TRACED GRAPH|=====.*=====|ExportedProgram:"
)
_OPEN: Final = frozenset("([{")
_CLOSED: Final = frozenset(")]}")
_QUOTED: Final = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|#[^\n]*|[\[\](){}]""")


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the parts of a dump are, in indices of its lines; `rank` is what `rank_line` says."""

    name: str
    rank: int | None
    rank_line: int | None
    class_line: int
    def_line: int


def split_lines(text: str) -> list[str]:
    """The lines of a dump, without the prefixes and colours of a log.

    Raises `ModuleError` when the text, a line, or their number is beyond the limits.
    """
    if len(text) > MAX_TEXT:
        raise ModuleError(f"holds {len(text)} characters, at most {MAX_TEXT} are read as a code dump")
    if text.count("\n") > MAX_LINES:
        raise ModuleError(f"holds more than {MAX_LINES} lines")
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    lines = text.replace("\r\n", "\n").split("\n")
    if max(map(len, lines)) > MAX_LINE:
        number = next(n for n, line in enumerate(lines, 1) if len(line) > MAX_LINE)
        raise ModuleError(f"line {number} has more than {MAX_LINE} characters")
    if _LOG.match(next((line for line in lines if line.strip()), "")):
        return _graphs_of_log([_LOG.sub("", line, count=1) for line in lines])
    return lines


def _graphs_of_log(lines: list[str]) -> list[str]:
    """The lines of a log with all but its graphs blanked, so that line numbers stay."""
    kept, is_inside = [], False
    for line in lines:
        is_inside = is_inside or (len(line) < MAX_HEAD and _CLASS.fullmatch(line.rstrip()) is not None)
        kept.append(line if is_inside else "")
        if line.lstrip().startswith("return"):
            is_inside = False
    return kept


def starts_like_code(text: str) -> bool:
    """Whether the first lines of `text` are those of a dump: a class, after comments and stubs."""
    lines = _COLOUR.sub("", text[: 1 << 16]).split("\n")
    if _LOG.match(next((line for line in lines if line.strip()), "")):
        lines = [_LOG.sub("", line, count=1) for line in lines]
        return any(_CLASS.fullmatch(line.rstrip()) for line in lines if len(line) < MAX_HEAD)
    has_class = any(_CLASS.fullmatch(line.rstrip()) for line in lines if len(line) < MAX_HEAD)
    first = next((line.strip() for line in lines if not _is_preamble(line.strip())), "")
    return has_class and ("class " in first or first.startswith(("def ", "import ", "from ")))


def _is_preamble(stripped: str) -> bool:
    return not stripped or stripped.startswith("#") or _STUB.fullmatch(stripped[:MAX_HEAD]) is not None


def frame(lines: Sequence[str]) -> Frame:
    """Checks what stands before the body. Raises `ModuleError` with the line number in front."""
    rank = rank_line = None
    for index, line in enumerate(lines):
        match = _CLASS.fullmatch(line.rstrip()) if len(line) < MAX_HEAD else None
        if match is not None:
            return Frame(match[1], rank, rank_line, index, _definition_line(lines, index))
        stripped = line.strip()
        if not _is_preamble(stripped):
            raise ModuleError(f"{index + 1}: found {shown(stripped)} before the class of a graph, remove it")
        found = rank_of(stripped)
        if found is not None:
            rank, rank_line = found, index
    raise ModuleError("holds no class of a graph, dump one with print_readable or TORCH_LOGS=aot_graphs")


def rank_of(line: str) -> int | None:
    """The rank that a comment such as `# Graph[rank=3](fw, gid=0)` names."""
    match = _RANK.match(line[:MAX_HEAD])
    return None if match is None else int(match[1])


def _definition_line(lines: Sequence[str], class_line: int) -> int:
    for index in range(class_line + 1, len(lines)):
        stripped = lines[index].strip()
        if stripped.startswith("def forward("):
            return index
        if stripped and not stripped.startswith("#"):
            raise ModuleError(f"{index + 1}: found {shown(stripped)} in the class, only forward is read")
    raise ModuleError(f"{class_line + 1}: found a class without forward")


def logical(lines: Sequence[str], start: int) -> Iterator[tuple[int, int, str]]:
    """From line `start` on: index of the first and after the last line, and the joined text.

    Lines are joined as long as brackets are open. Raises `ModuleError` with the line number in front when
    they nest too deeply or the statement is too long.
    """
    index = start
    while index < len(lines):
        text, end = lines[index], index + 1
        if not text.lstrip().startswith("#") and not is_single(text):
            end = _end(lines, index)
            text = "\n".join(lines[index:end])
        yield index, end, text
        index = end


def is_single(text: str) -> bool:
    """Whether a glance is enough to see that all brackets close on the line and none nests too deeply."""
    opened = text.count("(") + text.count("[") + text.count("{")
    closed = text.count(")") + text.count("]") + text.count("}")
    return opened == closed and opened <= MAX_BRACKETS and text.count(",") <= MAX_COMMAS


def _end(lines: Sequence[str], index: int) -> int:
    """The index after the last line of the statement that starts at `index`."""
    depth = size = commas = 0
    for end in range(index, len(lines)):
        size += len(lines[end])
        commas += lines[end].count(",")
        if lines[end].count("{") > MAX_BRACES:
            raise ModuleError(f"{end + 1}: found more than {MAX_BRACES} braces on a line")
        if size > MAX_LINE or commas > MAX_COMMAS:
            raise ModuleError(
                f"{index + 1}: found a statement of {size} characters and {commas} commas, "
                f"at most {MAX_LINE} and {MAX_COMMAS} are read"
            )
        for match in _QUOTED.finditer(lines[end]):
            if match[0] in _OPEN:
                depth += 1
                if depth > MAX_BRACKETS:
                    raise ModuleError(f"{end + 1}: found brackets nested more than {MAX_BRACKETS} deep")
            elif match[0] in _CLOSED:
                depth -= 1
        if depth <= 0:
            return end + 1
    return len(lines)


def after_return(lines: Sequence[str], start: int) -> None:
    """Checks that nothing but comments and an export signature follow. Raises `ModuleError` with the line."""
    for index in range(start, len(lines)):
        stripped = lines[index].strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped == "Graph signature:":
            return
        match = _CLASS.fullmatch(lines[index].rstrip()) if len(lines[index]) < MAX_HEAD else None
        if match is not None:
            raise ModuleError(
                f"{index + 1}: found another graph {shown(match[1])}, keep one without subgraphs per file"
            )
        raise ModuleError(f"{index + 1}: found {shown(stripped)} after the graph's return, remove it")
