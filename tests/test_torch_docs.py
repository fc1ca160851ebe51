"""What docs/pytorch.md shows is what happens."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardproof.solver import relation_file
from shardproof.solver.verdict import ASSUMPTION_KINDS
from shardproof.solver.verify import STRICT
from shardproof.tools.command_line import run

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "pytorch.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with every file of the page, the current directory of the test."""
    found = re.findall(r"^`(\w+)\.py`:\n\n```python\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert len(found) >= 3
    for name, text in found:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name, _ in found:
        sys.modules.pop(name, None)


def words(text: str) -> str:
    return " ".join(text.split())


def test_commands_print_what_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    commands = 0
    for block in re.findall(r"^```console\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL):
        for part in block.split("$ shardproof ")[1:]:
            command, _, shown = part.partition("\n")
            assert run(command.split()) in (0, 1), command
            printed = [words(line) for line in capsys.readouterr().out.splitlines()]
            for line in shown.splitlines():
                assert any(p.startswith(words(line)) for p in printed), (command, line, printed)
            commands += 1
    assert commands >= 10


def test_script_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    import runpy

    runpy.run_path(str(folder / "check.py"))
    assert "mlp.py 14 `mm_1` is a partial sum" in capsys.readouterr().out


def test_relation_file_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    path = tmp_path / "relation.toml"
    path.write_text(text, encoding="utf-8")
    declared = relation_file.read(path)
    assert declared.groups == {"12": ((0, 1),)} and declared.constants and declared.outputs


def test_kinds_of_assumption_exist_and_strict_is_told() -> None:
    rows = re.findall(r"^\| `(\w+_\w+)` \| (.+) \|$", TEXT, flags=re.MULTILINE)
    assert {kind for kind, _ in rows} <= set(ASSUMPTION_KINDS)
    assert {kind for kind, text in rows if "--strict" in text} == {kind for kind, _ in rows} & STRICT
