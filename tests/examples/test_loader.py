"""The weight loader of examples/neuron_llama obeys the relation that `verify` inferred for its dumps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardproof
from shardproof.solver.relations.relation_check import check
from shardproof.solver.verify import verify

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "neuron_llama"
sys.path.insert(0, str(EXAMPLE))

import make_dumps  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import weights  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

PAIRS = (
    ("tp1_layer2", "tp4_layer2", None),
    ("tp1_layer1.few_heads", "tp3_layer1.few_heads", "tp3_few_heads"),
    ("tp1_layer1", "tp4_layer1.interleaved_qkv", "interleaved_qkv"),
)


@pytest.mark.parametrize(("reference", "implementation", "relation"), PAIRS)
def test_the_loader_obeys(reference: str, implementation: str, relation: str | None, tmp_path: Path) -> None:
    dumps = [EXAMPLE / "dumps" / f"{stem}.hlo.pb.gz" for stem in (reference, implementation)]
    declared = None if relation is None else EXAMPLE / "relations" / f"{relation}.toml"
    saved = tmp_path / "relation.toml"
    result = verify(*dumps, relation=declared, save_relation=saved)
    assert result.verdict is shardproof.Verdict.VERIFIED

    decoders = make_dumps.programs()
    decoder, config = decoders[implementation], decoders[reference].config
    whole = weights.whole_inputs(config, seed=4)
    parts = weights.rank_inputs(decoder, whole, config)
    ranks = [{f"p{n}": own[r] for n, own in enumerate(parts)} for r in range(decoder.config.tp)]
    reference_file = saved_as(tmp_path / "whole.npz", {f"p{n}": array for n, array in enumerate(whole)})
    reports = []
    for _ in range(2):
        files = [saved_as(tmp_path / f"rank{r}.npz", own) for r, own in enumerate(ranks)]
        reports.append(check(saved, [reference_file], files))
        norm = next(n for n, own in ranks[1].items() if own.ndim == 1 and own.dtype.kind == "f")
        ranks[1][norm] = ranks[1][norm] * 0.5
    assert reports[0].obeys and reports[0].tensors == len(whole) and not reports[0].unchecked
    (failure,) = reports[1].failures
    assert failure.rank == 1 and failure.cause == "it is 0.5 times what is expected"


def saved_as(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path
