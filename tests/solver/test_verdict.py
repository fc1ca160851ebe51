"""Results: their JSON form, what they refuse, and the documented codes and kinds."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from shardproof import __version__
from shardproof.solver.codes import CODES, explain
from shardproof.solver.verdict import (
    JSON_FIELDS,
    Assumption,
    Blocked,
    Counterexample,
    OutputVerdict,
    Place,
    Result,
    Stats,
    Verdict,
)

FIELDS = [
    *("version", "verdict", "code", "outputs", "unchecked_outputs", "assumptions", "inferred_relation"),
    *("location", "expected", "found", "counterexample", "blocked", "tested_equal", "findings", "repair"),
    *("lemmas", "certificate", "cached", "stats"),
]


def test_json_of_a_bare_result() -> None:
    assert json.loads(Result(verdict=Verdict.VERIFIED, code="V01").to_json()) == {
        "version": __version__,
        "verdict": "verified",
        "code": "V01",
        "outputs": [],
        "unchecked_outputs": [],
        "assumptions": [],
        "inferred_relation": None,
        "location": None,
        "expected": None,
        "found": None,
        "counterexample": None,
        "blocked": None,
        "tested_equal": None,
        "findings": None,
        "repair": None,
        "lemmas": None,
        "certificate": None,
        "cached": None,
        "stats": {"seconds": {}, "instructions": 0, "classes": 0},
    }


def test_json_of_every_part() -> None:
    result = Result(
        verdict=Verdict.REFUTED,
        code="R02",
        outputs=(OutputVerdict("y", "equal on every rank", Verdict.REFUTED),),
        assumptions=(Assumption("ids_in_range", "ids in 0:32", "ids"),),
        inferred_relation={"p0": "replicate"},
        location=Place("add.7", "add", "m.py", 3),
        counterexample=Counterexample(
            1, np.int64(2), "y", (0, np.int64(3)), np.float32(0.5), float("nan"), {"s": 4}
        ),  # type: ignore[arg-type]
        blocked=(Blocked("add.7"),),
        stats=Stats({"load": 0.25}, 5, 3),
        message="not part of the JSON form",
    )
    form = json.loads(result.to_json())
    assert list(form) == FIELDS
    assert form["outputs"] == [{"name": "y", "placement": "equal on every rank", "verdict": "refuted"}]
    assert form["assumptions"] == [{"kind": "ids_in_range", "text": "ids in 0:32", "value": "ids"}]
    assert form["location"] == {"value": "add.7", "op": "add", "file": "m.py", "line": 3, "stack": []}
    assert form["counterexample"] == {
        "seed": 1,
        "rank": 2,
        "output": "y",
        "index": [0, 3],
        "reference": 0.5,
        "implementation": "nan",
        "extents": {"s": 4},
    }
    assert form["blocked"] == [{"value": "add.7", "closest_lemma": None, "failed_condition": None}]
    assert form["stats"] == {"seconds": {"load": 0.25}, "instructions": 5, "classes": 3}


def test_every_json_field_is_an_attribute() -> None:
    assert list(JSON_FIELDS) == FIELDS
    assert [item.name for item in fields(Result)][: len(FIELDS)] == FIELDS


def test_no_truth_value() -> None:
    with pytest.raises(TypeError, match=r"compare result\.verdict instead"):
        bool(Result(verdict=Verdict.UNKNOWN, code="U02"))


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Result(verdict=Verdict.UNKNOWN, code="U02").verdict = Verdict.VERIFIED  # type: ignore[misc]


@pytest.mark.parametrize(
    "parts",
    [
        {"verdict": Verdict.VERIFIED, "code": "U02"},
        {"verdict": Verdict.UNKNOWN, "code": "V01"},
        {"verdict": Verdict.REFUTED, "code": "R99"},
        {"verdict": Verdict.VERIFIED, "code": "V02"},
        {"verdict": Verdict.VERIFIED, "code": "V01", "inferred_relation": {"p0": "replicate"}},
        {"verdict": Verdict.VERIFIED, "code": "V01", "outputs": (OutputVerdict("y", "", Verdict.UNKNOWN),)},
        {"verdict": Verdict.VERIFIED, "code": "V01", "counterexample": Counterexample(0, 0, "y", (), 0, 1)},
        {"verdict": Verdict.VERIFIED, "code": "V01", "blocked": (Blocked("x"),)},
    ],
)
def test_contradictions_are_refused(parts: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Result(**parts)  # type: ignore[arg-type]


def test_an_assumption_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of assumption `hope`"):
        Assumption("hope", "it will do")


def test_verdict_is_a_string() -> None:
    assert Verdict("unknown") is Verdict.UNKNOWN
    assert Verdict.VERIFIED == "verified"
    assert f"{Verdict.REFUTED}" == "refuted"


def test_codes_are_documented() -> None:
    assert {code[0] for code in CODES} == set("VRUE")
    for code, entry in CODES.items():
        assert entry.title and not entry.title.endswith(".")
        assert len(entry.explanation) > 100
        assert entry.explanation in (explain(code) or "")
    assert explain("u02") == explain("U02")
    assert explain("U99") is None


def test_the_public_api_is_lazy_and_the_same() -> None:
    import shardproof

    assert shardproof.Result is Result
    assert shardproof.Verdict is Verdict
    assert callable(shardproof.verify) and shardproof.verify.__module__ == "shardproof"
    with pytest.raises(AttributeError, match="no attribute 'prove'"):
        _ = shardproof.prove
