"""What docs/cross-framework.md shows is what happens."""

from __future__ import annotations

import os
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from tests.pages import blocks, check_commands, page, words, write_files

os.environ.setdefault("JAX_PLATFORMS", "cpu")

TEXT = page("cross-framework.md")
MODULES = ("gated_torch", "gated_jax")


def test_scripts_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for framework in ("torch", "jax"):
        pytest.importorskip(framework, reason=f"{framework} is not installed")
    names = write_files(TEXT, tmp_path)
    assert len(names) == TEXT.count("```python") + 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in MODULES:
        monkeypatch.delitem(sys.modules, module, raising=False)
    (shown,) = blocks(TEXT, "text")
    runpy.run_path("check.py")
    assert words(capsys.readouterr().out) == words(shown)
    runpy.run_path("save.py")
    assert check_commands(TEXT, capsys) == 2
    for module in MODULES:
        sys.modules.pop(module, None)


def test_relations_are_those_of_the_example() -> None:
    _, lines = blocks(TEXT, "toml")
    folder = Path(__file__).resolve().parents[1] / "examples" / "cross_framework" / "relations"
    stated = [
        (key, layout)
        for file in folder.glob("*.toml")
        for key, layout in tomllib.loads(file.read_text(encoding="utf-8")).get("inputs", {}).items()
    ]
    for key, layout in tomllib.loads(lines)["inputs"].items():
        assert any(k == key and told.startswith(layout) for k, told in stated), key
