"""Replay of captured graphs of Megatron-LM at their own shapes, where the dumps are."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import pytest

import shardproof.solver.decide
import shardproof.solver.verify
from shardproof.solver.prove import Clock
from shardproof.solver.relations.relation import Composed
from shardproof.solver.replay.refute import BUDGET, replay
from shardproof.solver.replay.replay import Replay
from shardproof.solver.replay.structured import compare_folded

DUMPS = Path(__file__).resolve().parents[3] / "shared" / "real" / "py"
RELATIONS = Path(__file__).parent / "fx_relations"
pytestmark = pytest.mark.skipif(not DUMPS.is_dir(), reason="needs the captured dumps")

SECONDS = 20.0
"""Far above what a replay takes; evaluating one score matrix as a whole takes longer."""


class _Composed(Exception):
    def __init__(self, composed: Composed) -> None:
        self.composed = composed


def composed(
    monkeypatch: pytest.MonkeyPatch, reference: Path, implementation: Sequence[Path], relation: str
) -> Composed:
    """What `verify` is about to prove."""

    def stop(modules: Composed, *rest: object) -> None:
        raise _Composed(modules)

    with monkeypatch.context() as patch:
        patch.setattr(shardproof.solver.decide, "without_lemmas", stop)
        with pytest.raises(_Composed) as found:
            shardproof.solver.verify.verify(reference, implementation, relation=RELATIONS / relation)
    return found.value.composed


def compared(modules: Composed, trials: int = 1) -> Replay:
    three = modules.reference, modules.implementation, modules.expected
    outcome = compare_folded(*three, seed=7, ranges=modules.ranges, trials=trials, budget=BUDGET // 2)
    assert isinstance(outcome, Replay), outcome
    return outcome


@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
def test_correct_programs_agree(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    (reference,) = (DUMPS / "gpt" / "paral1_layer1").glob("*.gz")
    own = sorted((DUMPS / "gpt" / f"paral{ranks}_layer1").glob("*.gz"))
    assert compared(composed(monkeypatch, reference, own, "gpt.toml"), 3) == Replay((), 3, 0, 0)


LOST_SUMS = {
    "bug_missing_layernorm_allreduce": "8 13 14 15 17 19 20 24 25",
    "bug_missing_allreduce_under_wrong_config": "8 9 10 11 13 14 15 16 17 19 20 21 22 24 25 26 27",
    "bug_missing_switchmlp_allreduce": "42 43 47 48 49 50 52 53 54 56 57 58 59",
}
"""The gradients that are wrong. The bias of the keys' norm is not among them: it has no effect."""


@pytest.mark.parametrize("name", LOST_SUMS)
def test_exactly_the_wrong_gradients_differ(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    reference = DUMPS / name / "tp1" / "both.g0.r0.py.gz"
    own = [DUMPS / name / "tp2.bug" / f"both.g0.r{rank}.py.gz" for rank in (0, 1)]
    modules = composed(monkeypatch, reference, own, "joint.toml")
    start = process_time()
    wrong = {f"add_{n}" for n in LOST_SUMS[name].split()}
    differing = {d.output for d in compared(modules).differences}
    assert differing and differing <= wrong
    if name != "bug_missing_switchmlp_allreduce":
        assert differing == wrong
    found = replay(modules, Clock(SECONDS))
    assert found.difference is not None and found.difference.output in wrong
    assert process_time() - start < SECONDS


EDITS = {
    "beta": ("beta = 0.0", "beta = 1.0"),
    "alpha": ("alpha = 0.17677669529663687", "alpha = 0.25"),
    "dropout of the scores": (
        "native_dropout.default(_softmax, 0.1, True)",
        "native_dropout.default(_softmax, 0.2, True)",
    ),
    "dropout of the rows": (
        "native_dropout.default(add_2, 0.1, True)",
        "native_dropout.default(add_2, 0.15, True)",
    ),
    "eps": ("[768], 1e-05)", "[768], 1e-06)"),
    "gelu": ("gelu.default(add_4)", "gelu.default(add_4, approximate = 'tanh')"),
    "group": ("all_reduce.default(sum_1, 'sum', '12')", "all_reduce.default(sum_1, 'sum', '7')"),
    "mask": ("_to_copy_1, -10000.0)", "_to_copy_1, -1000.0)"),
    "first word": ("aten.lt.Scalar(_to_copy, 49152)", "aten.lt.Scalar(_to_copy, 49153)"),
    "word": ("aten.sub.Tensor(clone, 49152)", "aten.sub.Tensor(clone, 49153)"),
    "order of ranks": ("Graph[rank=0]", "Graph[rank=1]"),
}


def edited(folder: Path, path: Path, old: str, new: str) -> Path:
    text = gzip.decompress(path.read_bytes()).decode()
    (folder / path.stem).write_text(text.replace(old, new, 1))
    return folder / path.stem


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (reference,) = (DUMPS / "gpt" / "paral1_layer1").glob("*.gz")
    own = sorted((DUMPS / "gpt" / "paral2_layer1").glob("*.gz"))
    changed = [edited(tmp_path, path, *EDITS[name]) for path in own]
    if name == "order of ranks":
        changed[1] = edited(tmp_path, own[1], *EDITS[name][::-1])
    modules = composed(monkeypatch, reference, changed, "gpt.toml")
    found = replay(modules, Clock(SECONDS))
    assert found.difference is not None and found.difference.output == "div_2"
