"""What README.md shows is true of the program."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from tests.pages import words

from shardproof.solver.codes import CODES
from shardproof.tools.command_line import run
from shardproof.tools.failure import BAD_INPUT, INTERNAL, INTERRUPTED
from shardproof.tools.options import EXIT_CODES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_exit_codes() -> None:
    for verdict, status in EXIT_CODES.items():
        assert re.search(rf"\| `{verdict}` +\| {status} \|", README)
    for status in (BAD_INPUT, INTERNAL, INTERRUPTED):
        assert re.search(rf"\| +\| {status} \|", README)


def test_python_examples_parse() -> None:
    assert blocks("python")
    for block in blocks("python"):
        ast.parse(block)


def test_relation_file_is_toml() -> None:
    (relation,) = blocks("toml")
    assert set(tomllib.loads(relation)) == {"mesh", "inputs", "outputs"}


def test_what_the_terminal_shows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    shown = blocks("console")
    assert len(shown) == 3
    for block, verdict in zip(shown, EXIT_CODES, strict=True):
        command, _, output = block.removeprefix("$ shardproof ").partition("\n")
        assert run(command.split()) == EXIT_CODES[verdict]
        printed = capsys.readouterr().out
        assert [words(line) for line in printed.splitlines()] == [words(line) for line in output.splitlines()]


def test_commands_exist() -> None:
    for command in re.findall(r"^    shardproof (\w+)", README, flags=re.MULTILINE):
        assert run([command, "--help"]) == 0
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake (\w+)", README)
    assert {"demo", "test", "check"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_codes_that_are_named_exist() -> None:
    for code in re.findall(r"\b[VRUE]\d\d\b", README):
        assert code in CODES
