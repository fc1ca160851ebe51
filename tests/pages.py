"""Pages of docs/: the files that they show, and whether their commands print what is shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from shardproof.tools.command_line import run

ROOT = Path(__file__).resolve().parents[1]


def page(name: str) -> str:
    """The text of docs/NAME."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(text: str, kind: str) -> list[str]:
    """The contents of the code blocks whose first line matches `kind`."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def write_files(text: str, folder: Path) -> list[str]:
    """Write every file of the page, a code block after a line with its name alone; the names."""
    found = re.findall(r"^`([\w./-]+)`:\n\n```[\w ]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    for name, content in found:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return [name for name, _ in found]


def words(text: str) -> str:
    """The line without what differs between runs: spaces and seconds."""
    return " ".join(re.sub(r"\d+(\.\d+)? s\b", "... s", text).split())


def check_commands(text: str, capsys: pytest.CaptureFixture[str], exits: tuple[int, ...] = (0, 1, 2)) -> int:
    """Run every `$ shardproof ...` of the console blocks; each line that is shown must be printed.

    A shown line may be the beginning of a printed one. Gives the number of commands.
    """
    count = 0
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ shardproof ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            assert run(shlex.split(command)) in exits, command
            captured = capsys.readouterr()
            printed = [words(line) for line in (captured.out + captured.err).splitlines()]
            for line in shown.splitlines():
                assert any(p.startswith(words(line)) for p in printed), (command, line, printed)
            count += 1
    return count
