"""Pages whose commands need no framework show what happens."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from tests.pages import ROOT, blocks, check_commands, page, write_files


def test_hlo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert check_commands(page("hlo.md"), capsys) == 5


def test_the_lines_of_a_relation_file_in_the_page_on_hlo_are_those_of_the_example() -> None:
    (lines,) = blocks(page("hlo.md"), "toml")
    example = (ROOT / "examples/neuron_llama/relations/tp3_few_heads.toml").read_text(encoding="utf-8")
    for line in lines.splitlines():
        assert line in example


def test_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "test_parallel.py" in write_files(page("ci.md"), tmp_path)
    check = runpy.run_path("test_parallel.py")["test_the_divided_program_is_right"]
    check()
    broken = (tmp_path / "divided.spf").read_text(encoding="utf-8").replace('kind="sum"', 'kind="max"')
    (tmp_path / "divided.spf").write_text(broken, encoding="utf-8")
    with pytest.raises(AssertionError, match="refuted"):
        check()
