"""The checker: false lemmas with counterexamples, needed conditions, and the shipped library."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from shardproof.lemmas.check import STATUS_FILE, Checked, check, status_of, write_status
from shardproof.lemmas.check_samples import search
from shardproof.lemmas.parse import parse
from shardproof.lemmas.printer import fingerprint
from shardproof.lemmas.sources import shipped
from shardproof.lemmas.terms import Define, Lemma, Statement
from shardproof.lemmas.typing import check as check_typing

FALSE = Path(__file__).parent / "false.lemma"
LIBRARY = shipped()[0].parent


def statements(path: Path) -> list[Statement]:
    return [check_typing(s) for s in parse(path.read_text(encoding="utf-8"), path.name)]


def library() -> list[Statement]:
    return [s for path in shipped() for s in statements(path)]


def written(directory: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((directory / STATUS_FILE).read_text(encoding="utf-8"))
    return found


def one(text: str, **options: bool) -> Checked:
    (result,) = check(parse(text, "test.lemma"), **options)
    return result


def test_false_lemmas_are_rejected_with_counterexamples() -> None:
    results = check(parse(FALSE.read_text(encoding="utf-8"), FALSE.name))
    assert len(results) == 20
    for result in results:
        assert result.status == "false", result
        assert result.counterexample is not None and "left" in result.counterexample
        assert result.seconds < 5


@pytest.mark.parametrize("seed", range(1, 6))
def test_false_lemmas_are_rejected_for_any_seed(seed: int) -> None:
    results = check(statements(FALSE), seed=seed, prove=False)
    assert [r.name for r in results if r.status != "false"] == []


def test_a_counterexample_satisfies_the_conditions() -> None:
    for lemma in statements(FALSE):
        assert isinstance(lemma, Lemma)
        found = search(lemma, lemma.conditions, 80).counterexample
        assert found is not None
        for name, table in found.sample.tables.items():
            for c in lemma.conditions:
                text = str(c)
                if f"variable='{name}'" in text:
                    assert found.sample.reads[name] == lemma.reads(name)
            assert len(table) >= 1


def test_the_counterexample_names_extents_values_and_both_sides() -> None:
    text = one('lemma a "b" sum[k](c*x) => c*sum[k](x)').counterexample
    assert text == "|k| = 2; c = [1, 0]; x = [1, 0]; at k = 1: left 1, right 0"


def test_the_result_depends_on_the_seed_only() -> None:
    def told(seed: int) -> list[Checked]:
        return [replace(r, seconds=0.0) for r in check(statements(FALSE), seed=seed)]

    assert told(3) == told(3)


def test_an_idle_condition_is_an_error() -> None:
    result = one('lemma a "b" x + c - c => x when c finite, x > 0')
    assert result.status == "invalid"
    assert result.detail == "condition `x > 0` is not needed"


def test_an_idle_exclusion_is_an_error() -> None:
    result = one('lemma a "b" sum[k](x)*c => c*sum[k](x) when k not in c')
    assert (result.status, result.detail) == ("invalid", "condition `k not in c` is not needed")


def test_conditions_that_cannot_hold_are_an_error() -> None:
    result = one('lemma a "b" x + y => y - x when x > 1, x < 0')
    assert result.status == "invalid"
    assert "found no functions for which the conditions hold" in result.detail


def test_a_missing_finite_is_found() -> None:
    result = one('lemma a "b" x - x + y => y')
    assert result.status == "false"
    assert "add `finite`" in result.detail
    assert one('lemma a "b" x - x + y => y when x finite').status == "proved"


def test_an_ill_formed_lemma_is_invalid() -> None:
    assert one('lemma a "b" x => x').status == "invalid"


def test_without_a_proof_a_lemma_is_tested() -> None:
    result = one('lemma a "b" x*(y + z) => x*y + x*z when x finite', prove=False)
    assert result.status == "tested"
    assert one('lemma a "b" sin(x)*sin(x) + cos(x)*cos(x) => 1 when x finite').status == "tested"


def test_values_that_functions_leave_open_are_no_values_of_a_machine() -> None:
    assert one('lemma a "b" x/y => 0*x when y == 0').status == "false"
    assert one('lemma a "b" take[k](x, |k|) => 0*x').status == "false"


def test_a_define_without_a_value_is_invalid() -> None:
    assert one('define f(x[k]) -> y[k] "d" y = atan2(x, -1)').status == "invalid"
    assert one('define f(x[k]) -> y[k] "d" y = x/sum[k](x)').status == "defined"


def test_json_holds_name_theme_and_status() -> None:
    data = one('lemma a "b" x*y => y*x + 0*x when x finite').to_json()
    assert (data["name"], data["theme"], data["status"]) == ("a", "test", "proved")


def test_the_status_file_is_up_to_date() -> None:
    """Run `python -m shardproof.tools.lemma_page` after a change of the library."""
    kept = written(LIBRARY)
    now = status_of(library(), [Checked(s.name, s.theme, "tested") for s in library()])
    assert {n: e["sha256"] for n, e in kept.items()} == {n: e["sha256"] for n, e in now.items()}


def test_the_library_is_mostly_proved() -> None:
    kept = written(LIBRARY)
    per_theme: dict[str, Counter[str]] = {}
    for s in library():
        if isinstance(s, Lemma) and not s.assumed:
            per_theme.setdefault(s.theme, Counter())[kept[s.name]["status"]] += 1
    total = sum(per_theme.values(), Counter())
    assert set(total) <= {"proved", "tested"}
    assert total["proved"] >= 0.6 * total.total()
    assert all(c["proved"] * 3 >= c.total() for c in per_theme.values()), per_theme
    for name in (
        "softmax_shift",
        "online_softmax_merge",
        "two_block_softmax_merge",
        "vocab_parallel_take",
        "mean_of_equal_blocks",
        "scatter_add_as_sum",
    ):
        assert kept[name]["status"] == "proved"


def test_a_fingerprint_changes_with_the_statement() -> None:
    first, second = library()[:2]
    assert fingerprint(first) != fingerprint(second)
    assert isinstance(first, Lemma)
    assert fingerprint(first) != fingerprint(
        replace(first, conditions=first.conditions[1:], right=first.left)
    )


def test_the_status_file_round_trips(tmp_path: Path) -> None:
    some = statements(FALSE)[:3]
    results = check(some, prove=False)
    write_status(tmp_path, some, results)
    assert written(tmp_path) == status_of(some, results)
    assert {e["status"] for e in written(tmp_path).values()} == {"false"}


@pytest.mark.slow
def test_the_library_checks() -> None:
    everything = library()
    results = check(everything)
    assert [r for r in results if r.status in ("false", "invalid")] == []
    kept = written(LIBRARY)
    assert status_of(everything, results) == kept


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_the_library_holds_for_other_seeds(seed: int) -> None:
    results = check(library(), seed=seed, prove=False)
    assert [r for r in results if r.status in ("false", "invalid")] == []


def test_defines_name_every_attribute_once() -> None:
    for s in library():
        if isinstance(s, Define):
            assert all(isinstance(a.value, Fraction | str | bool | None) for a in s.attributes)
