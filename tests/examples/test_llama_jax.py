"""examples/llama_jax: the divided decoder computes what the whole one does, and is judged as it should be."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardproof

pytest.importorskip("jax", reason="jax is not installed")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llama_jax"
BUGS = (
    "norm_gradient_not_summed",
    "attention_not_summed",
    "wrong_kv_head",
    "no_vocabulary_offset",
    "no_label_offset",
    "no_rotary_offset",
    "loss_divided_twice",
)
NEAR = {
    "wrong_kv_head": ("parallel.py", "rank % heads if"),
    "norm_gradient_not_summed": ("model.py", "(wide * scale * weight)"),
}
"""Where the first departure is, of bugs whose place is certain: the file, and the line's text."""


@pytest.fixture(scope="module")
def example() -> Any:
    """The module `demo`, and by it the others of its folder, whose names other examples have too."""
    names = ("model", "parallel", "pairs", "demo")
    kept = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(EXAMPLE))
    try:
        return importlib.import_module("demo")
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(kept)


def judged(pair: Any) -> shardproof.Result:
    return shardproof.verify_jax(pair.reference, pair.implementation, inputs=pair.inputs, ranges=pair.ranges)


def test_numbers_agree_on_fake_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "numerics.py"], capture_output=True, text=True, cwd=EXAMPLE
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert {name for name in found if name.startswith("wrong")} == {f"wrong: {bug}" for bug in BUGS}


@pytest.mark.parametrize("form", ["list", "stacked", "scanned"])
@pytest.mark.parametrize("check", [False, True])
def test_outer_gradients_are_verified(example: Any, form: str, check: bool) -> None:
    config = replace(example.STEP.config, form=form)
    result = judged(example.pairs.outer_gradients(replace(example.STEP, config=config), check=check))
    assert result.verdict is shardproof.Verdict.VERIFIED, result.text()
    assert not result.assumptions


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("remat", [False, True])
def test_inner_gradients_are_verified(example: Any, kv_heads: int, remat: bool) -> None:
    config = replace(example.STEP.config, kv_heads=kv_heads, remat=remat)
    plan = replace(example.STEP, config=config, mesh={"tp": 4})
    result = judged(example.pairs.inner_gradients(plan))
    assert result.verdict is shardproof.Verdict.VERIFIED, result.text()
    assert not result.assumptions


def test_forward_and_loss_are_verified(example: Any) -> None:
    for make in (example.pairs.forward, example.pairs.loss):
        for plan in (example.STEP, example.DEEP, example.SHARED):
            result = judged(make(plan))
            assert result.verdict is shardproof.Verdict.VERIFIED, result.text()


def test_the_body_of_one_rank_is_taken_with_its_specs(example: Any) -> None:
    plan, pair = example.STEP, example.pairs.inner_gradients(example.STEP)
    parallel = example.pairs.parallel
    specs, ids = parallel.parameter_specs(plan), parallel.token_spec(plan)
    result = shardproof.verify_jax(
        pair.reference,
        lambda parameters, tokens, labels: parallel.gradients(parameters, tokens, labels, plan),
        inputs=pair.inputs,
        mesh=plan.mesh,
        in_specs={"parameters": specs, "tokens": ids, "labels": ids},
        out_specs=specs,
        ranges=pair.ranges,
    )
    assert result.verdict is shardproof.Verdict.VERIFIED, result.text()


@pytest.mark.parametrize("bug", BUGS)
def test_mistakes_are_refuted(example: Any, bug: str) -> None:
    assert bug in example.BUGS
    result = judged(example.wrong(bug))
    assert result.verdict is shardproof.Verdict.REFUTED, result.text()
    assert result.counterexample is not None and result.location is not None
    assert result.location.file is not None and "llama_jax" in result.location.file
    if bug in NEAR:
        file, text = NEAR[bug]
        lines = (EXAMPLE / file).read_text().splitlines()
        assert Path(result.location.file).name == file
        assert text in lines[(result.location.line or 0) - 1]


@pytest.mark.slow
def test_demo_has_no_surprise() -> None:
    done = subprocess.run([sys.executable, "demo.py"], capture_output=True, text=True, cwd=EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
