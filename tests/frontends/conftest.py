"""Gives tests a way to load a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardproof.frontends.load import load
from shardproof.ir.module import Module


@pytest.fixture
def load_text(tmp_path: Path) -> Callable[..., Module]:
    """Load a program from its text, or from bytes."""

    def loaded(content: str | bytes, *, ranks: int | None = None) -> Module:
        path = tmp_path / "program"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load(path, ranks=ranks)

    return loaded
