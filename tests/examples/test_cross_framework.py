"""examples/cross_framework: every program refines those of the other frameworks, and mistakes are refuted."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardproof

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "cross_framework"
FRAMEWORKS = ("torch", "jax", "onnx", "hlo")
ONE = [("torch", "jax"), ("jax", "hlo"), ("hlo", "onnx"), ("onnx", "torch")]
"""Pairs that are checked always, each framework on either side once."""
KINDS = {
    "ids_in_range",
    "inferred_relation",
    "literal_rounding",
    "no_overflow",
    "nonzero_divisor",
    "row_not_fully_masked",
}
"""What the verdicts assume, as the README says."""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The modules of the folder, whose names other examples have too, and the programs made so far."""
    for package in ("torch", "jax", "onnx", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    names = ("extents", "torch_decoder", "jax_decoder", "programs", "pairs", "optimisers")
    kept = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(EXAMPLE))
    try:
        pairs = importlib.import_module("pairs")
        pairs.optimisers = importlib.import_module("optimisers")
        pairs.decoders = {n: importlib.import_module(f"{n}_decoder") for n in ("torch", "jax")}
        pairs.made = pairs.Programs(tmp_path_factory.mktemp("programs"))
        yield pairs
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(kept)


def found(pair: Any) -> tuple[Any, Any]:
    return pair.reference, pair.implementation


def test_all_pairs_and_all_mistakes_are_there(example: Any) -> None:
    pairs = list(example.pairs())
    every = {(a, b) for a in FRAMEWORKS for b in FRAMEWORKS if a != b}
    for tp in (1, 2):
        own = [p for p in pairs if p.tp == tp]
        assert len(own) == 12 and {found(p) for p in own} == every
        assert {p.bug for p in own} == {b for b in example.BUGS if tp > 1 or b != "missing_all_reduce"}


def test_relation_files_are_short_and_used(example: Any) -> None:
    files = sorted(p.name for p in example.RELATIONS.glob("*.toml"))
    used = {p.relation.name for p in example.pairs() if p.relation is not None}
    assert files == sorted(used)
    for name in files:
        assert len((example.RELATIONS / name).read_text(encoding="utf-8").splitlines()) <= 15


@pytest.mark.parametrize(("reference", "implementation"), ONE)
@pytest.mark.parametrize("tp", [1, 2])
def test_a_pair_is_verified(example: Any, reference: str, implementation: str, tp: int) -> None:
    pair = next(p for p in example.pairs() if (*found(p), p.tp) == (reference, implementation, tp))
    result = example.made.verdict(pair)
    assert result.verdict is shardproof.Verdict.VERIFIED, result.text()
    assert {a.kind for a in result.assumptions} <= KINDS, result.text()


@pytest.mark.parametrize(
    ("reference", "implementation", "tp", "bug"),
    [("jax", "hlo", 1, "mask_off_by_one"), ("hlo", "torch", 2, "wrong_key_slice")],
)
def test_a_mistake_is_refuted(example: Any, reference: str, implementation: str, tp: int, bug: str) -> None:
    pair = next(p for p in example.pairs() if (*found(p), p.tp) == (reference, implementation, tp))
    result = example.made.verdict(replace(pair, bug=bug), wrong=True)
    assert result.verdict is shardproof.Verdict.REFUTED, result.text()
    assert result.counterexample is not None


def test_heads_that_are_not_permuted_are_refuted(example: Any, tmp_path: Path) -> None:
    text = (example.RELATIONS / "torch_to_jax.toml").read_text(encoding="utf-8")
    permuted, plain = "(n two k) h -> h n (k two), two=2, k=8", "(n d) h -> h n d, d=16"
    assert text.count(permuted) == 2
    (tmp_path / "relation.toml").write_text(text.replace(permuted, plain), encoding="utf-8")
    pair = next(p for p in example.pairs() if (*found(p), p.tp) == ("torch", "jax", 1))
    result = shardproof.verify(*example.made.ready(pair), relation=tmp_path / "relation.toml")
    assert result.verdict is shardproof.Verdict.REFUTED, result.text()


def weights_of_jax(own: dict[str, Any], config: Any) -> Any:
    """PyTorch's weights as JAX's program has them, by hand."""
    width, hidden = config.head_dim, config.hidden

    def heads(w: Any) -> Any:
        return w.T.reshape(hidden, -1, width)

    def woven(w: Any) -> Any:
        return w.T.reshape(hidden, -1, 2, width // 2).swapaxes(2, 3).reshape(hidden, -1, width)

    def layer(w: dict[str, Any]) -> Any:
        return {
            "attention_norm": w["attention_norm"],
            "query": woven(w["query"]),
            "key": woven(w["key"]),
            "value": heads(w["value"]),
            "output": w["output"].T.reshape(-1, width, hidden),
            "mlp_norm": w["mlp_norm"],
            "gate_up": np.stack([w["gate"].T, w["up"].T], axis=1),
            "down": w["down"].T,
        }

    layers = [
        layer({n.split(".")[2]: w for n, w in own.items() if n.startswith(f"layers.{i}.")})
        for i in range(config.layers)
    ]
    return {
        "embed": own["embed.weight"],
        "layers": layers,
        "norm": own["norm.weight"],
        "head": own["head.weight"].T,
    }


def test_numbers_agree_and_mistakes_show(example: Any) -> None:
    import torch

    config = example.CONFIG
    torch.manual_seed(3)
    decoder = example.decoders["torch"].Decoder(config)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    tokens = torch.randint(0, config.vocab, (config.batch, config.sequence))
    wanted = decoder(tokens).detach().numpy()
    weights = weights_of_jax({n: p.detach().numpy() for n, p in decoder.named_parameters()}, config)
    forward = example.decoders["jax"].forward
    scale = np.abs(wanted).max()
    right = forward(weights, tokens.numpy(), config)
    assert np.abs(right - wanted).max() < 1e-4 * scale
    for bug in example.BUGS:
        if bug in example.OF_SEVERAL_RANKS:
            continue
        other = forward(weights, tokens.numpy(), replace(config, bug=bug))
        limit = 1e-6 if bug == "epsilon" else 1e-2
        assert np.abs(other - right).max() > limit * scale, bug


def test_programs_before_and_after_rewriting(example: Any, tmp_path: Path) -> None:
    for cases in (example.optimisers.simplified(tmp_path), example.optimisers.decomposed()):
        for case in cases:
            if "decoder" not in case.name:
                right, wrong = (shardproof.verify(case.before, p) for p in (case.after, case.wrong))
                assert right.verdict is shardproof.Verdict.VERIFIED, (case.name, right.text())
                assert wrong.verdict is shardproof.Verdict.REFUTED, (case.name, wrong.text())


@pytest.mark.slow
def test_everything_is_judged_as_it_should_be(example: Any) -> None:
    script = ROOT / "benchmarks" / "cross_framework.py"
    done = subprocess.run([sys.executable, "-W", "ignore", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["ok"] and summary["pairs"] == 24 and summary["refuted"] == summary["verified"] == 37
