"""What docs/jax.md shows is what happens."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest
from tests.pages import page, words

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

TEXT = page("jax.md")
SCRIPTS = {
    name: (code, shown)
    for name, code, shown in re.findall(
        r"^`(\w+\.py)`:\n\n```python\n(.*?)^```\n\nprints\n\n```text\n(.*?)^```",
        TEXT,
        flags=re.MULTILINE | re.DOTALL,
    )
}


def test_every_script_is_run() -> None:
    assert len(SCRIPTS) == TEXT.count("```python") == TEXT.count("```text") >= 4


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_prints_what_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    code, shown = SCRIPTS[name]
    (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(tmp_path / name), run_name="__main__")
    printed = [words(line) for line in capsys.readouterr().out.splitlines()]
    for line in shown.splitlines():
        wanted = words(line.replace(name, str(tmp_path / name)))
        assert any(p.startswith(wanted) for p in printed), (wanted, printed)
