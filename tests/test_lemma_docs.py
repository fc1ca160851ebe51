"""What docs/lemmas.md shows is what happens, and docs/lemma-library.md lists the library as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.pages import blocks, check_commands, page, write_files

from shardproof.lemmas.check import check as check_all
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.load import load_files
from shardproof.lemmas.parse import parse
from shardproof.lemmas.printer import show
from shardproof.lemmas.sources import shipped
from shardproof.lemmas.typing import check
from shardproof.tools.lemma_page import page as library_page

TEXT = page("lemmas.md")
LIBRARY = page("lemma-library.md")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every file of the page, the current directory of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    work = tmp_path / "work"
    assert len(write_files(TEXT, work)) >= 8
    monkeypatch.chdir(work)
    return work


def test_commands_print_what_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_commands(TEXT, capsys) >= 8


@pytest.mark.parametrize("text", blocks(TEXT, "lemma"))
def test_statements_are_accepted(text: str) -> None:
    for statement in parse(text, "a.lemma"):
        (found,) = check_all([check(statement)], prove=False)
        assert found.status in ("tested", "defined"), found


@pytest.mark.parametrize("text", blocks(TEXT, "lemma (?:rejected|false)"))
def test_statements_are_rejected(text: str) -> None:
    try:
        statements = [check(s) for s in parse(text, "a.lemma")]
    except LemmaError:
        return
    (found,) = check_all(statements, prove=False)
    assert found.status == "false" and found.counterexample, found


def test_every_rule_is_told() -> None:
    assert re.findall(r"^\*\*L(\d+)\.", TEXT, flags=re.MULTILINE) == [str(n) for n in range(1, 14)]


def test_the_page_of_the_library_is_up_to_date() -> None:
    assert library_page() == LIBRARY, "write it again with `python -m shardproof.tools.lemma_page`"


def test_the_page_has_every_statement() -> None:
    library = load_files(shipped())
    defines = [d for group in library.defines.values() for d in group]
    for statement in (*library.lemmas.values(), *defines, *library.opaques.values()):
        assert show(statement) in LIBRARY
