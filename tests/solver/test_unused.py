"""Inputs that no output depends on, and sections of a relation that nothing needs."""

from __future__ import annotations

from pathlib import Path

import shardproof
from shardproof.ir.module import Module
from shardproof.ir.text import parse


def program(cache: str, read: bool = False) -> Module:
    """`2 x`, and a cache of some type that is read or not."""
    extra = f'%c = negate(%cache) : {cache}\noutput "c" = %c\n' if read else ""
    return parse(
        f'module "m" mesh() {{\n%x = input(0) : f32[3]\n%cache = input(1) : {cache}\n'
        f'%y = add(%x, %x) : f32[3]\noutput "y" = %y\n{extra}}}\n',
        source="test",
    )


def test_an_input_that_is_not_read_needs_no_layout() -> None:
    result = shardproof.verify(program("f32[4,5]"), program("f32[7]"))
    assert result.verdict == "verified", result.text()
    assert shardproof.verify(program("f32[4,5]", read=True), program("f32[7]", read=True)).code == "U01"


def test_idle_sections_are_named(tmp_path: Path) -> None:
    file = tmp_path / "relation.toml"
    file.write_text('[inputs]\nx = "replicate"\n[groups]\n"12" = [0]\n[constants]\nk = 0\n')
    result = shardproof.verify(program("f32[4]"), program("f32[4]"), relation=file)
    assert result.verdict == "verified"
    assert result.findings is not None and "groups, constants" in result.findings[0]
