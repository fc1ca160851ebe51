"""What the terminal shows: results with their source lines, errors, and where colour is wanted."""

from __future__ import annotations

import json
import linecache
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from shardproof import __version__

if TYPE_CHECKING:
    from shardproof.solver.verdict import Result

_SOURCE_SUFFIXES: Final = frozenset({".py"})
_MAX_SOURCE_BYTES: Final = 4 << 20


def report(result: Result, *, color: bool = False, verbose: bool = False) -> str:
    """The result in words, with the source line quoted when its file is on this machine."""
    from shardproof.solver.wording import render, wording

    return render(wording(result, verbose=verbose, excerpt=source_line), color)


def source_line(file: str, line: int) -> str | None:
    """Line `line` (from 1) of a Python file, or None: files of other kinds are never quoted."""
    path = Path(file)
    try:
        if path.suffix not in _SOURCE_SUFFIXES or not path.is_file():
            return None
        if path.stat().st_size > _MAX_SOURCE_BYTES:
            return None
        text = linecache.getline(str(path), line)
    except (OSError, ValueError):
        return None
    return text.rstrip("\n") if text.strip() else None


def wants_color(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that shows colour and the user did not refuse it (NO_COLOR)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def error_line(code: str, message: str) -> str:
    """`error[CODE]: message` in one line."""
    return f"error[{code}]: {one_line(message)}"


def error_json(code: str, message: str) -> str:
    """The one JSON object that replaces a result when there is none."""
    error = {"code": code, "message": one_line(message)}
    return json.dumps({"version": __version__, "error": error}, indent=2)


def one_line(message: str) -> str:
    """The message without line breaks and control characters."""
    from shardproof.solver.wording import escaped

    return escaped(" ".join(message.split()))


def tolerate_any_character(*streams: TextIO) -> None:
    """Make the streams escape a character that their encoding lacks instead of failing."""
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def write_stdout(text: str) -> None:
    """Write and flush; a reader that has gone away (`| head`) is not an error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
