"""What was found of a lemma is kept for exactly that lemma, and a proof outlives a later test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.lemmas.load import load_files, statements_of
from shardproof.lemmas.sources import shipped
from shardproof.lemmas.terms import Lemma, Number
from shardproof.solver.search.statuses import (
    Status,
    known_status,
    refuted_among,
    remember,
    shipped_status,
    status_now,
    statuses_of,
)

TEXT = """
lemma odd "The sine is odd." sin(-x) => -sin(x)
lemma double "False." sin(2*x) => 2*sin(x)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def lemmas(tmp_path: Path) -> dict[str, Lemma]:
    path = tmp_path / "own.lemma"
    path.write_text(TEXT, encoding="utf-8")
    return load_files([path]).lemmas


def test_every_shipped_statement_was_checked_as_it_stands() -> None:
    for path in shipped():
        for statement in statements_of(path):
            assert shipped_status(statement) in ("proved", "tested", "assumed", "defined"), statement.name


def test_a_changed_lemma_of_the_library_is_not_known() -> None:
    lemma = next(s for p in shipped() for s in statements_of(p) if isinstance(s, Lemma))
    assert known_status(lemma) == Status("proved")
    changed = replace(lemma, right=Number(lemma.right.value + 1 if isinstance(lemma.right, Number) else 1))  # type: ignore[arg-type]
    assert known_status(changed) is None and shipped_status(changed) == "not checked"


def test_a_lemma_is_checked_once(lemmas: dict[str, Lemma], monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_status(lemmas["double"]) is None
    assert status_now(lemmas["odd"]).status == "tested"
    found = refuted_among(lemmas.values())
    assert found is not None and found[0].name == "double" and "x = " in found[1].detail
    monkeypatch.setattr("shardproof.lemmas.check.check", None)
    assert refuted_among(lemmas.values()) == found
    assert {n: s["status"] for n, s in statuses_of(lemmas.values()).items()} == {
        "odd": "tested",
        "double": "false",
    }


def test_a_test_does_not_undo_a_proof(lemmas: dict[str, Lemma]) -> None:
    odd = lemmas["odd"]
    remember(odd, "proved")
    remember(odd, "tested")
    assert known_status(odd) == Status("proved")
    remember(odd, "false", "x = 1")
    assert known_status(odd) == Status("false", "x = 1")


def test_a_broken_entry_is_ignored(lemmas: dict[str, Lemma], own_cache: Path) -> None:
    remember(lemmas["odd"], "proved")
    (entry,) = own_cache.rglob("*.status.json")
    for text in ("", "[]", '{"sha256": "0", "status": "proved", "detail": ""}', '{"status": "proved"}'):
        entry.write_text(text, encoding="utf-8")
        assert known_status(lemmas["odd"]) is None


def test_a_cache_that_cannot_be_written_is_no_error(
    lemmas: dict[str, Lemma], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert status_now(lemmas["odd"]).status == "tested"
