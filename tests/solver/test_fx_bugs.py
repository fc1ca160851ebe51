"""Captured programs with gradients: bugs are refuted where they are, repaired twins verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import fx_edits
import pytest
from fx_edits import BOTH_NORMS, EDITS, FAULTS, LAYER_NORM, NORMS, WRONG_CONFIG, edited

from shardproof.solver.verdict import Result, Verdict
from shardproof.solver.verify import verify

DUMPS = Path(__file__).resolve().parents[3] / "shared" / "real" / "py"
RELATIONS = Path(__file__).parent / "fx_relations"
pytestmark = pytest.mark.skipif(not DUMPS.is_dir(), reason="needs the captured dumps")


def ranks(folder: str) -> list[Path]:
    return sorted((DUMPS / folder / "tp2.bug").glob("both.g0.r*.py.gz"))


def judged(folder: str, implementation: Sequence[Path]) -> Result:
    reference = DUMPS / folder / "tp1" / "both.g0.r0.py.gz"
    return verify(reference, implementation, relation=RELATIONS / "joint.toml", timeout=120)


def repaired(folder: str, values: Sequence[str], to: Path) -> list[Path]:
    return fx_edits.repaired(ranks(folder), values, to)


@pytest.mark.parametrize("folder", FAULTS)
def test_a_missing_collective_is_refuted_where_it_is_missing(folder: str) -> None:
    result = judged(folder, ranks(folder))
    assert result.verdict is Verdict.REFUTED, result.text()
    assert result.location is not None and result.location.value in FAULTS[folder], result.text()


def test_gradients_summed_where_they_were_not_are_verified(tmp_path: Path) -> None:
    result = judged(LAYER_NORM, repaired(LAYER_NORM, [*NORMS, *BOTH_NORMS], tmp_path))
    assert result.verdict is Verdict.VERIFIED, result.text()
    assert len(result.outputs) == 44
    assert {a.kind for a in result.assumptions} <= {"inferred_relation", "ids_in_range", "group_guess"}


@pytest.mark.parametrize("left_out", ["view_42", "getitem_65"])
def test_each_gradient_has_to_be_summed(left_out: str, tmp_path: Path) -> None:
    values = [v for v in (*NORMS, *BOTH_NORMS) if v != left_out]
    result = judged(LAYER_NORM, repaired(LAYER_NORM, values, tmp_path))
    assert result.verdict is not Verdict.VERIFIED, result.text()


def test_a_sum_too_many_is_found(tmp_path: Path) -> None:
    values = [*NORMS, *BOTH_NORMS, "add_27"]
    result = judged(LAYER_NORM, repaired(LAYER_NORM, values, tmp_path))
    assert result.verdict is Verdict.REFUTED and result.location is not None, result.text()
    assert result.location.value in ("add_27_sum", "add_27_whole")


def test_all_but_the_norms_within_attention_follow_from_one_repair(tmp_path: Path) -> None:
    """The norms of queries and keys see the heads of one rank and are not summed in this program either."""
    result = judged(WRONG_CONFIG, repaired(WRONG_CONFIG, ["mm_5"], tmp_path))
    wrong = {o.name for o in result.outputs if o.verdict is not Verdict.VERIFIED}
    assert wrong == {"add_17", "add_18", "add_19", "add_20"}, result.text()
    values = ["mm_5", "getitem_61", "getitem_62", "getitem_64", "getitem_65"]
    result = judged(WRONG_CONFIG, repaired(WRONG_CONFIG, values, tmp_path))
    assert result.verdict is Verdict.VERIFIED, result.text()


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_refuted_at_the_edited_operator(name: str, tmp_path: Path) -> None:
    old, new, wrong = EDITS[name]
    paths = edited(sorted((DUMPS / "gpt" / "paral2_layer1").glob("fw.g0.r*.py.gz")), old, new, tmp_path)
    reference = DUMPS / "gpt" / "paral1_layer1" / "fw.g0.r0.py.gz"
    result = verify(reference, paths, relation=RELATIONS / "gpt.toml", timeout=60)
    assert result.verdict is Verdict.REFUTED, result.text()
    assert result.location is not None and result.location.value == wrong, result.text()
