"""The dumps of examples/neuron_llama: reproducible, right or wrong as they claim, and judged as stated."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardproof
from shardproof.frontends.load import load
from shardproof.ir.interpret import run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "neuron_llama"
DUMPS = EXAMPLE / "dumps"
sys.path.insert(0, str(EXAMPLE))

import make_dumps  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import weights  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

WRONG = {"tp4_layer1.wrong_slice", "tp4_layer1.missing_all_reduce"}
INFERRED = (
    ("tp1_layer1", "tp4_layer1"),
    ("tp1_layer2", "tp4_layer2"),
    ("tp1_layer1", "tp4_layer1.sequence_parallel"),
    ("tp1_layer1.mean", "dp2_tp4_layer1.mean"),
    ("tp1_layer1.square", "tp4_layer1.square"),
)
DECLARED = (
    ("tp1_layer1", "tp4_layer1.interleaved_qkv", "interleaved_qkv"),
    ("tp1_layer1", "tp4_layer1.permuted_head", "permuted_head"),
    ("tp1_layer1.few_heads", "tp3_layer1.few_heads", "tp3_few_heads"),
    ("tp1_layer1.mean", "dp2_tp2_layer1.mean", "dp2_tp2"),
)
REFERENCE = {i: r for r, i, *_ in (*INFERRED, *DECLARED)} | dict.fromkeys(WRONG, "tp1_layer1")


def dump(stem: str) -> Path:
    return DUMPS / f"{stem}.hlo.pb.gz"


def line_of(file: str, text: str) -> int:
    lines = (EXAMPLE / file).read_text().splitlines()
    return next(n for n, line in enumerate(lines, start=1) if text in line)


def test_dumps_are_what_the_script_writes(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLE / "make_dumps.py"), "-o", str(tmp_path)]
    subprocess.run(script, check=True, stdout=subprocess.DEVNULL)
    written = sorted(p.name for p in tmp_path.iterdir())
    assert written == sorted(p.name for p in DUMPS.iterdir())
    for name in written:
        new, kept = tmp_path / name, DUMPS / name
        assert gzip.decompress(new.read_bytes()) == gzip.decompress(kept.read_bytes()), name
        assert kept.read_bytes()[4:8] == bytes(4), f"{name} holds a time"
        assert kept.stat().st_size < 20_000


def results(stem: str, parameters: list[list[Any]]) -> list[list[Any]]:
    """Per output, the array of every rank."""
    module = load(dump(stem))
    found = run(module, {i.name: parameters[i.number] for i in module.inputs})
    return [found[o.name] for o in module.outputs]


@pytest.mark.parametrize("implementation", sorted(REFERENCE))
def test_interpreter_agrees_with_the_claim(implementation: str) -> None:
    decoders = make_dumps.programs()
    decoder, reference = decoders[implementation], decoders[REFERENCE[implementation]].config
    whole = weights.whole_inputs(reference, seed=3)
    sequential = results(REFERENCE[implementation], [[x] for x in whole])
    expected = weights.rank_outputs(decoder, [ranks[0] for ranks in sequential], reference)
    found = results(implementation, weights.rank_inputs(decoder, whole, reference))
    assert len(found) == len(expected)
    equal = all(
        np.allclose(f, e, rtol=1e-9, atol=1e-11)
        for found_ranks, expected_ranks in zip(found, expected, strict=True)
        for f, e in zip(found_ranks, expected_ranks, strict=True)
    )
    assert equal == (implementation not in WRONG)


@pytest.mark.parametrize(("reference", "implementation"), INFERRED)
def test_inferred_layout_is_enough(reference: str, implementation: str) -> None:
    result = shardproof.verify(dump(reference), dump(implementation))
    assert result.verdict is shardproof.Verdict.VERIFIED, result.text()
    assert result.inferred_relation
    assert all(o.verdict is shardproof.Verdict.VERIFIED for o in result.outputs)


@pytest.mark.parametrize(("reference", "implementation", "relation"), DECLARED)
def test_declared_layout_is_needed(reference: str, implementation: str, relation: str) -> None:
    without = shardproof.verify(dump(reference), dump(implementation))
    assert without.verdict is shardproof.Verdict.UNKNOWN, without.text()
    assert without.message or without.help or without.notes
    file = EXAMPLE / "relations" / f"{relation}.toml"
    declared = shardproof.verify(dump(reference), dump(implementation), relation=file)
    assert declared.verdict is shardproof.Verdict.VERIFIED, declared.text()
    assert not declared.inferred_relation


def test_wrong_slice_is_refuted_where_it_was_written() -> None:
    result = shardproof.verify(dump("tp1_layer1"), dump("tp4_layer1.wrong_slice"))
    assert result.verdict is shardproof.Verdict.REFUTED, result.text()
    assert result.location is not None and result.counterexample is not None
    assert result.location.file == "examples/neuron_llama/variants.py"
    assert result.location.line == line_of("variants.py", "value = b.slice(qkv, 1, q, q + kv)")
    files = [frame.file for frame in result.location.stack]
    assert "transformers_neuronx/hlo.py" not in files[-1]
    assert "site-packages/torch_neuronx/pyhlo/scribe.py" in files


def test_missing_all_reduce_is_refuted_where_it_should_be() -> None:
    result = shardproof.verify(dump("tp1_layer1"), dump("tp4_layer1.missing_all_reduce"))
    assert result.verdict is shardproof.Verdict.REFUTED, result.text()
    assert result.location is not None and result.counterexample is not None
    add = ("examples/neuron_llama/model.py", line_of("model.py", 'b.binary("add", self.mlp('))
    unjoined = [
        ("examples/neuron_llama/variants.py", line_of("variants.py", text))
        for text in ("return self.unrows(partial)", "hlo.on_device(b, weights.down))")
    ]
    assert (result.location.file, result.location.line) in [add, *unjoined]


def test_demo_shows_what_it_expects() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "demo.py")], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("refuted") >= 2
