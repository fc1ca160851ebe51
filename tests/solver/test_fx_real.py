"""Captured graphs of Megatron-LM, vLLM and a trainer against their sequential ones, where the dumps are."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardproof.solver.verdict import Result
from shardproof.solver.verify import verify
from shardproof.tools.command_line import app

DUMPS = Path(__file__).resolve().parents[3] / "shared" / "real" / "py"
RELATIONS = Path(__file__).parent / "fx_relations"
LISTED = {
    "inferred_relation",
    "rng_aligned",
    "ids_in_range",
    "group_guess",
    "constant_guess",
    "opaque_batched",
    "cast_exact",
    "mask_value",
}
"""Kinds of assumptions that a proof of these programs may rest on."""
pytestmark = pytest.mark.skipif(not DUMPS.is_dir(), reason="needs the captured dumps")


def dumps(folder: str) -> list[Path]:
    return sorted((DUMPS / folder).glob("fw.g0.r*.py.gz"))


def gpt(ranks: int, layers: int, implementation: Sequence[Path] | None = None, timeout: float = 60) -> Result:
    (reference,) = dumps(f"gpt/paral1_layer{layers}")
    own = implementation or dumps(f"gpt/paral{ranks}_layer{layers}")
    return verify(reference, own, relation=RELATIONS / "gpt.toml", timeout=timeout)


def kinds(result: Result) -> set[str]:
    return {a.kind for a in result.assumptions}


def test_the_relation_files_are_short() -> None:
    for path in RELATIONS.glob("*.toml"):
        assert len(path.read_text().splitlines()) <= 15, path.name


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
def test_gpt_with_tensor_and_sequence_parallelism(ranks: int, layers: int) -> None:
    result = gpt(ranks, layers)
    assert result.verdict == "verified", result.text()
    assert kinds(result) <= LISTED
    assert [o.name for o in result.outputs] == ["div_2"]
    assert result.inferred_relation is not None and len(result.inferred_relation) == 10 + 12 * layers
    assert sum(a.kind == "rng_aligned" for a in result.assumptions) == 1 + 3 * layers
    assert "getitem" in result.unchecked_outputs


@pytest.mark.slow
@pytest.mark.parametrize("layers", [4, 8])
@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
def test_deep_gpt(ranks: int, layers: int) -> None:
    result = gpt(ranks, layers)
    assert result.verdict == "verified" and kinds(result) <= LISTED, result.text()


@pytest.mark.parametrize("ranks", [2, 4])
def test_qwen2_whose_key_heads_are_shared_or_repeated(ranks: int) -> None:
    (reference,) = dumps("qwen2/paral1_layer1")
    relation = RELATIONS / f"qwen2_tp{ranks}.toml"
    result = verify(reference, dumps(f"qwen2/paral{ranks}_layer1"), relation=relation)
    assert result.verdict == "verified", result.text()
    assert kinds(result) <= LISTED and "opaque_batched" in kinds(result)


def test_without_groups_and_constants_each_guess_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "outputs.toml"
    path.write_text('[outputs]\ndiv_2 = "replicate"\n')
    (reference,) = dumps("gpt/paral1_layer1")
    result = verify(reference, dumps("gpt/paral2_layer1"), relation=path, timeout=5)
    assert result.verdict == "unknown"
    path.write_text('[outputs]\ndiv_2 = "replicate"\n[constants]\n"_tensor_constant*" = 0\n')
    result = verify(reference, dumps("gpt/paral2_layer1"), relation=path)
    assert result.verdict == "verified"
    guesses = [a.value for a in result.assumptions if a.kind == "group_guess"]
    assert guesses == ["7", "12"]
    strict = verify(reference, dumps("gpt/paral2_layer1"), relation=path, strict=True)
    assert strict.code == "U08"


def test_a_certificate_of_dumps_is_checked_again(tmp_path: Path) -> None:
    path, relation = tmp_path / "c.json", RELATIONS / "gpt.toml"
    (reference,), own = dumps("gpt/paral1_layer1"), dumps("gpt/paral2_layer1")
    assert verify(reference, own, relation=relation, certificate=path).verdict == "verified"
    files = [str(path), str(reference), *map(str, own)]
    done = CliRunner().invoke(app, ["cert", "check", *files, "--relation", str(relation)])
    assert done.output.startswith("valid: ") and "(rng_aligned)" in done.output, done.output
    edited = [_edited(tmp_path, one, "[768], 1e-05)", "[768], 1e-06)") for one in own]
    files = [str(path), str(reference), *map(str, edited)]
    done = CliRunner().invoke(app, ["cert", "check", *files, "--relation", str(relation)])
    assert done.output.startswith("rejected: the implementation is another program"), done.output


def _edited(folder: Path, path: Path, old: str, new: str, count: int = 1) -> Path:
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    found = folder / path.name.removesuffix(".gz")
    found.write_text(text.replace(old, new, count))
    return found


@pytest.mark.slow
def test_a_sum_in_place_of_the_maximum_is_not_verified_although_equal_over_the_reals(tmp_path: Path) -> None:
    edit = "(getitem_20, 'max', '12')", "(getitem_20, 'sum', '12')"
    result = gpt(2, 1, [_edited(tmp_path, path, *edit) for path in dumps("gpt/paral2_layer1")])
    assert (result.verdict, result.code) == ("unknown", "U14"), result.text()
    assert result.location is not None and result.location.value == "all_reduce_1"


@pytest.mark.slow
def test_a_shifted_vocabulary_range_and_swapped_ranks_are_never_verified(tmp_path: Path) -> None:
    first, second = dumps("gpt/paral2_layer1")
    for old in ("aten.ge.Scalar(_to_copy, 98304)", "aten.sub.Tensor(clone, 49152)"):
        number = int(old.split(", ")[1].rstrip(")"))
        shifted = _edited(tmp_path, second, old, old.replace(str(number), str(number + 1)))
        assert gpt(2, 1, [first, shifted], timeout=20).verdict != "verified"
    one = _edited(tmp_path, first, "Graph[rank=0]", "Graph[rank=1]")
    other = _edited(tmp_path, second, "Graph[rank=1]", "Graph[rank=0]")
    assert gpt(2, 1, [one, other], timeout=20).verdict != "verified"


def accumulated(implementation: Path) -> Result:
    reference = DUMPS / "bug_grad_accumulation" / "1step" / "fw.g0.r0.py.gz"
    return verify(reference, implementation, relation=RELATIONS / "accumulation.toml")


def test_accumulated_means_are_refuted_at_the_mean() -> None:
    result = accumulated(DUMPS / "bug_grad_accumulation" / "2step.bug" / "fw.g0.r0.py.gz")
    assert result.verdict == "refuted" and result.location is not None, result.text()
    assert result.location.value in ("mean", "mean_1")
    assert result.location.line == 100


MEAN = 'mean{k}: "f32[]" = torch.ops.aten.mean.default(pow_{n})'
REPAIRS = {
    "sum over the whole count": (
        's{k}: "f32[]" = torch.ops.aten.sum.default(pow_{n}); '
        'mean{k}: "f32[]" = torch.ops.aten.div.Tensor(s{k}, 8)'
    ),
    "mean over the steps": (
        's{k}: "f32[]" = torch.ops.aten.mean.default(pow_{n}); '
        'mean{k}: "f32[]" = torch.ops.aten.div.Tensor(s{k}, 2)'
    ),
}


@pytest.mark.parametrize("name", REPAIRS)
def test_both_repairs_of_the_accumulation_are_verified(tmp_path: Path, name: str) -> None:
    path = DUMPS / "bug_grad_accumulation" / "2step.bug" / "fw.g0.r0.py.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    for k, n in (("", 1), ("_1", 2)):
        assert MEAN.format(k=k, n=n) in text
        text = text.replace(MEAN.format(k=k, n=n), REPAIRS[name].format(k=k, n=n))
    (tmp_path / "fixed.py").write_text(text)
    result = accumulated(tmp_path / "fixed.py")
    assert result.verdict == "verified", result.text()
