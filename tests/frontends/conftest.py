"""Makes `hlo_writer.py` and `hlo_programs.py` importable, and gives tests a way to load a text."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardproof.frontends.load import load
from shardproof.ir.module import Module


def _load(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


_load("hlo_writer")
_load("hlo_programs")


@pytest.fixture
def load_text(tmp_path: Path) -> Callable[..., Module]:
    """Load a program from its text, or from bytes."""

    def loaded(content: str | bytes, *, ranks: int | None = None) -> Module:
        path = tmp_path / "program"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load(path, ranks=ranks)

    return loaded
