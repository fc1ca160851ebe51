"""`shardproof lemma`: what is printed, exit codes, and where errors point to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardproof.tools.command_line import run

Capture = pytest.CaptureFixture[str]
PAIRS = Path(__file__).resolve().parents[1] / "solver" / "lemma_pairs"
LEMMAS = """
lemma own_negate
  "The sine is odd."
  sin(-x)*y => -sin(x)*y
  when x finite, y finite

lemma own_double
  "False: the sine of twice the argument."
  sin(2*x) => 2*sin(x)
  when x finite

define own::twice(x[k]) -> y[k] "Twice." y = 2*x
"""
TRUE = """
lemma own_negate
  "The sine is odd."
  sin(-x) => -sin(x)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.lemma"
    path.write_text(LEMMAS, encoding="utf-8")
    return path


def rows(capsys: Capture) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["lemmas"]
    return found


def test_a_false_lemma_fails_with_its_counterexample(file: Path, capsys: Capture) -> None:
    assert run(["lemma", "check", str(file), "--no-proof", "--format", "json"]) == 1
    by_name = {r["name"]: r for r in rows(capsys)}
    assert list(by_name) == ["own_negate", "own_double", "own::twice"]
    wrong = by_name["own_double"]
    assert wrong["status"] == "false" and wrong["theme"] == "own" and "x = " in wrong["counterexample"]
    assert by_name["own::twice"]["status"] == "defined"
    assert set(wrong) == {"name", "theme", "status", "detail", "counterexample", "seconds"}


def test_the_table_names_every_lemma_and_counts(file: Path, capsys: Capture) -> None:
    assert run(["lemma", "check", str(file), "--no-proof"]) == 1
    out = capsys.readouterr().out
    assert "own_double is false: " in out and out.endswith("defined\n")
    assert "3 statements: " in out and "\x1b" not in out


def test_samples_only_prove_nothing(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "true.lemma"
    path.write_text(TRUE, encoding="utf-8")
    assert run(["lemma", "check", str(path), "--no-proof", "--seed", "3", "--format", "json"]) == 0
    (row,) = rows(capsys)
    assert row["status"] == "tested"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('lemma a\n  "Doc."\n  x + => x\n', "3:7"),
        ('lemma a\n  "Doc."\n  sum[k](x) => y\n', "1:1"),
    ],
)
def test_bad_input_names_the_place(tmp_path: Path, capsys: Capture, text: str, place: str) -> None:
    path = tmp_path / "bad.lemma"
    path.write_text(text, encoding="utf-8")
    for command in (["check", str(path)], ["list", "--lemmas", str(path)]):
        assert run(["lemma", *command]) == 3
        out, err = capsys.readouterr()
        assert not out and err.startswith(f"error[E06]: {path}:{place}: ")


def test_a_missing_file_is_bad_input(tmp_path: Path, capsys: Capture) -> None:
    assert run(["lemma", "check", str(tmp_path / "none.lemma")]) == 3
    assert "none.lemma" in capsys.readouterr().err


def test_list_by_theme(file: Path, capsys: Capture) -> None:
    assert run(["lemma", "list", "--theme", "softmax", "--format", "json"]) == 0
    found = rows(capsys)
    assert found and {r["theme"] for r in found} == {"softmax"}
    shift = next(r for r in found if r["name"] == "softmax_shift")
    assert shift["direction"] == "=>" and shift["status"] == "proved"
    assert run(["lemma", "list", "--lemmas", str(file), "--theme", "own", "--format", "json"]) == 0
    assert [(r["name"], r["direction"], r["status"]) for r in rows(capsys)] == [
        ("own_negate", "=>", "not checked"),
        ("own_double", "=>", "not checked"),
        ("own::twice", "define", "defined"),
    ]
    assert run(["lemma", "list", "--theme", "nonsense"]) == 3


def test_a_check_is_remembered(file: Path, capsys: Capture) -> None:
    run(["lemma", "check", str(file), "--no-proof"])
    capsys.readouterr()
    run(["lemma", "list", "--lemmas", str(file), "--theme", "own", "--format", "json"])
    assert [r["status"] for r in rows(capsys)][1:] == ["false", "defined"]


def test_show(capsys: Capture) -> None:
    assert run(["lemma", "show", "softmax_shift"]) == 0
    out = capsys.readouterr().out
    assert "exp(x - c)/sum[k](exp(x - c)) => exp(x)/sum[k](exp(x))" in out
    assert "  status   proved\n" in out and "softmax.lemma:" in out
    assert run(["lemma", "show", "softmax_shif"]) == 3
    assert "did you mean softmax_shift" in capsys.readouterr().err


def test_every_define_of_a_name_is_shown(capsys: Capture) -> None:
    assert run(["lemma", "show", "AwsNeuronRmsNorm", "--format", "json"]) == 0
    assert len(rows(capsys)) == 3


def tried(capsys: Capture, *words: str) -> dict[str, Any]:
    assert run(["lemma", "try", *words, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_try_names_the_condition_that_fails(capsys: Capture) -> None:
    folder = PAIRS / "softmax"
    wrong = str(folder / "wrong_shift_varies.spf")
    found = tried(capsys, "softmax_shift", str(folder / "reference.spf"), wrong)
    assert found["fired"] == 0 and found["reason"] == "needs `k not in c`, but c varies over k"
    assert found["closest"]["program"] == "implementation" and found["matched"] == found["total"]


def test_try_says_where_a_lemma_fires(capsys: Capture) -> None:
    folder = PAIRS / "softmax"
    right = str(folder / "shifted_by_max.spf")
    assert run(["lemma", "try", "exp_add", str(folder / "reference.spf"), right]) == 0
    out = capsys.readouterr().out
    assert out.startswith("exp_add fires ") and "at       implementation: `" in out


def test_try_a_define(capsys: Capture) -> None:
    folder = PAIRS / "rms_norm"
    pair = (str(folder / "reference.spf"), str(folder / "custom_call.spf"))
    assert tried(capsys, "AwsNeuronRmsNorm", *pair)["fired"] == 1
    assert "neither program" in tried(capsys, "_C::rms_norm.default", *pair)["reason"]


def test_try_needs_a_known_name(capsys: Capture) -> None:
    pair = str(PAIRS / "softmax" / "reference.spf")
    assert run(["lemma", "try", "nonsense", pair, pair]) == 3
    assert "no lemma or definition is called `nonsense`" in capsys.readouterr().err
