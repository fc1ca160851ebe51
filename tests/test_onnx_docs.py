"""What docs/onnx.md shows is what happens."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import pytest
from tests.pages import blocks, check_commands, page, write_files

from shardproof.lemmas.load import statements_of
from shardproof.solver.relations import relation_file

TEXT = page("onnx.md")


def test_scripts_run_and_commands_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("onnx", "torch", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    scripts = [name for name in write_files(TEXT, tmp_path) if name.endswith(".py")]
    assert len(scripts) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in scripts:
            runpy.run_path(name, run_name="__main__")
    capsys.readouterr()
    assert check_commands(TEXT, capsys, (0, 1, 2, 3)) == 8


def test_relation_file_and_definition_are_read(tmp_path: Path) -> None:
    write_files(TEXT, tmp_path)
    assert relation_file.read(tmp_path / "sizes.toml").constants == {"batch": 4}
    (lemma,) = blocks(TEXT, "lemma")
    (tmp_path / "acme.lemma").write_text(lemma, encoding="utf-8")
    assert [s.name for s in statements_of(tmp_path / "acme.lemma")] == ["acme::Scale"]
