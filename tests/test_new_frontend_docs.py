"""What docs/new-frontend.md shows is what happens, with its package installed as far as its metadata go."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import check_commands, page, write_files

from shardproof.tools.conformance_checks import CHECKS

TEXT = page("new-frontend.md")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with every file of the page, on the path like an installed package."""
    names = write_files(TEXT, tmp_path)
    assert {"tally_frontend.py", "pyproject.toml", "tp.tally", "test_tally.py"} < set(names)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (group,) = project["entry-points"].items()
    info = tmp_path / "tally_shardproof-1.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = [f"{name} = {value}" for name, value in group[1].items()]
    info.joinpath("entry_points.txt").write_text("\n".join([f"[{group[0]}]", *points, ""]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("tally_frontend", None)


def test_commands_print_what_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_commands(TEXT, capsys) == 3


def test_its_own_test_passes_and_finds_a_wrong_rule(folder: Path) -> None:
    runpy.run_path("test_tally.py")["test_conformance"]()
    sys.modules.pop("tally_frontend")
    path = folder / "tally_frontend.py"
    path.write_text(path.read_text(encoding="utf-8").replace('"maximum", x, 0.0', '"maximum", x, 1.0'))
    with pytest.raises(AssertionError, match=r"values: seq\.tally, output y"):
        runpy.run_path("test_tally.py")["test_conformance"]()


def test_the_table_of_checks_is_that_of_the_kit() -> None:
    assert re.findall(r"^\| ([a-z ]+) \| (?!what)", TEXT, flags=re.MULTILINE) == list(CHECKS)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("y = cumsum x", "there is no operator `cumsum` of 1 operands"),
        ("y = matmul x", "there is no operator `matmul` of 1 operands"),
        ("y = relu z", "nothing before this line gives `z`"),
        ("input w 4 -1", "`-1` is no number"),
        ("what is this", "this is no line of Tally"),
        ("y = matmul x x", "at bad.tally:3: "),
    ],
)
def test_a_wrong_line_is_refused(
    folder: Path, line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from shardproof.tools.command_line import run

    (folder / "bad.tally").write_text(f"tally 1\ninput x 4 8\n{line}\n", encoding="utf-8")
    assert run(["inspect", "bad.tally"]) == 3
    captured = capsys.readouterr()
    assert told in captured.err and "bad.tally" in captured.err
