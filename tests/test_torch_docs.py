"""What docs/pytorch.md shows is what happens."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import check_commands, page, write_files

from shardproof.solver.proved import STRICT
from shardproof.solver.relations import relation_file
from shardproof.solver.verdict import ASSUMPTION_KINDS

TEXT = page("pytorch.md")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with every file of the page, the current directory of the test."""
    found = write_files(TEXT, tmp_path)
    assert len(found) >= 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in found:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_commands_print_what_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert check_commands(TEXT, capsys, exits=(0, 1)) >= 10


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
