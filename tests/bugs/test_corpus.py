"""Mistakes of distributed training programs: the repair is verified, the mistake refuted where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jax", reason="jax is not installed")

from bug_corpus import OWN, SHARED, Unavailable, judge, load

CASES = sorted(OWN.glob("*.py"))
PUBLIC = sorted(SHARED.glob("*.py"))


def check(path: Path) -> None:
    try:
        expected = load(path).META["expect_buggy"]
        found = judge(path)
    except Unavailable as lacking:
        pytest.skip(str(lacking))
    assert found.fixed.verdict == "verified", found.fixed.text()
    if expected == "precision":
        assert found.buggy.verdict != "refuted", found.buggy.text()
        return
    if expected is None:
        assert found.buggy.verdict == "verified", found.buggy.text()
        return
    assert found.buggy.verdict == "refuted", found.buggy.text()
    assert found.buggy.counterexample is not None
    assert found.frame, found.buggy.text()
    assert found.operator, found.buggy.text()


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_own_case(path: Path) -> None:
    check(path)


@pytest.mark.skipif(not PUBLIC, reason="../shared/bugs/public is not there")
@pytest.mark.parametrize("path", PUBLIC, ids=lambda p: p.stem)
def test_public_bug(path: Path) -> None:
    check(path)


def test_there_are_cases_of_many_kinds() -> None:
    kinds = {load(path).META["kind"] for path in CASES}
    assert len(CASES) >= 25 and len(kinds) >= 20
