"""A user who knows docs/tutorial.md only: what it shows is what happens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.pages import check_commands, page, write_files

TEXT = page("tutorial.md")


def test_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    files = write_files(TEXT, tmp_path)
    assert files == ["filter.py", "fast.py", "double.lemma"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    try:
        assert check_commands(TEXT, capsys) == 10
        left = (tmp_path / "goals" / "output_output.lemma").read_text(encoding="utf-8")
        assert "2*sin(x)*cos(x) => sin(2*x)" in left
    finally:
        for name in files:
            sys.modules.pop(name.removesuffix(".py"), None)
