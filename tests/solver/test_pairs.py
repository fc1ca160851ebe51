"""Every pair of `pair_programs`: what must never be verified, and what is proved today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pair_programs import PAIRS, Pair

from shardproof.solver.verdict import Result
from shardproof.solver.verify import verify

SHARED = Path(__file__).parents[2] / "../shared/pairs.json"


def run(pair: Pair, path: Path, *, inferred: bool = False) -> Result:
    file = path / "relation.toml"
    file.write_text(pair.relation, encoding="utf-8")
    return verify(*pair.build(), relation=None if inferred else file)


@pytest.mark.parametrize("name", PAIRS)
def test_pair(name: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    result = run(pair, tmp_path)
    kinds = {a.kind for a in result.assumptions}
    if pair.expect == "equal":
        assert result.verdict == "verified", result.message
        assert not kinds
    elif pair.expect == "not_equal":
        assert result.verdict != "verified"
    else:
        assert result.verdict != "refuted"
        assert result.verdict == "unknown" or pair.under in kinds
    assert result.verdict == pair.answer, (result.code, result.message)


@pytest.mark.parametrize("name", [n for n, p in PAIRS.items() if p.expect == "not_equal"])
def test_inference_verifies_no_wrong_pair(name: str, tmp_path: Path) -> None:
    assert run(PAIRS[name], tmp_path, inferred=True).verdict != "verified"


@pytest.mark.parametrize("name", [n for n, p in PAIRS.items() if p.witness is not None])
def test_witness_is_not_verified(name: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    assert pair.witness is not None
    file = tmp_path / "relation.toml"
    file.write_text(pair.relation, encoding="utf-8")
    result = verify(*pair.witness(), relation=file)
    assert result.verdict != "verified", result.assumptions


def test_covers_the_list_of_pairs() -> None:
    if not SHARED.exists():
        pytest.skip("the shared list of pairs is not here")
    listed = {row["id"]: row["expect"] for row in json.loads(SHARED.read_text(encoding="utf-8"))}
    assert {name: PAIRS[name].expect for name in listed if name in PAIRS} == listed
