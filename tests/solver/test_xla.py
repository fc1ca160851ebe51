"""What XLA's SPMD partitioner makes of functions: verified, and refuted when one instruction is another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.solver.verdict import Verdict
from shardproof.tools.command_line import run

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402

from shardproof.solver.xla import partition  # noqa: E402

P = jax.sharding.PartitionSpec
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import xla_mutants  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import xla_programs  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

PROGRAMS = xla_programs.PROGRAMS
FAST = (
    "megatron_mlp_gradient",
    "sequence_parallel_block",
    "attention_rotary",
    "vocabulary_loss",
    "expert_dispatch",
    "convolution_halo",
    "cumulative_sum",
    "optimizer_step",
    "cache_update_over_shards",
    "roll",
    "layers_by_scan",
    "pad_shards",
)


CONSTRAINED = frozenset({"sequence_parallel_block", "attention_context_parallel", "experts_all_to_all"})
"""Programs that name axes of the mesh inside, which old versions of jax only know with devices."""
SUPPORTED = [n for n in PROGRAMS if n not in CONSTRAINED or hasattr(jax.sharding, "use_abstract_mesh")]


def programs(name: str, partitioner: str | None = None) -> Any:
    if name not in SUPPORTED:
        pytest.skip("this jax has no meshes without devices in context")
    function, inputs, mesh, in_shardings, out_shardings, ranges = PROGRAMS[name]()
    return partition(
        function, inputs, mesh, in_shardings, out_shardings, ranges=ranges, partitioner=partitioner
    )


def real(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize("name", FAST)
def test_what_xla_makes_is_verified(name: str) -> None:
    result = programs(name).verify()
    assert result.verdict is Verdict.VERIFIED, result.message
    assert result.inferred_relation is None


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_both_partitioners(partitioner: str) -> None:
    result = programs("reshape_splits_dims", partitioner).verify()
    assert result.verdict is Verdict.VERIFIED


def judged(name: str, count: int) -> Counter[tuple[bool, Verdict]]:
    """Mutants of what XLA makes by (whether it computes something else, verdict)."""
    right = programs(name)
    judge, found = xla_mutants.Judge(right), Counter[tuple[bool, Verdict]]()
    for mutant in xla_mutants.chosen(right.implementation, count):
        verdict = replace(right, implementation=mutant.module).verify(timeout=60).verdict
        found[judge.differs(mutant.module), verdict] += 1
    return found


@pytest.mark.parametrize("name", ["megatron_mlp_gradient", "vocabulary_embedding", "convolution_halo"])
def test_a_changed_instruction_is_refuted(name: str) -> None:
    found = judged(name, 5)
    assert found[True, Verdict.REFUTED] >= 3
    assert not found[True, Verdict.VERIFIED] and not found[False, Verdict.REFUTED]


def test_another_function_is_refuted_at_its_operator() -> None:
    def scaled(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w) * 2

    def unscaled(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    case = (real(8, 16), real(16, 32)), {"dp": 2, "tp": 4}, (P("dp"), P(None, "tp")), P("dp", "tp")
    first, second = partition(scaled, *case), partition(unscaled, *case)
    result = replace(first, implementation=second.implementation).verify()
    assert result.verdict is Verdict.REFUTED
    assert result.location is not None and result.location.file == __file__


def test_an_unknown_names_the_operator_and_the_line() -> None:
    result = programs("argmax_over_shards").verify()
    assert result.verdict is Verdict.UNKNOWN
    assert result.location is not None and "argmax" in _line(result.location)
    assert "reduce" in result.location.value


def test_what_is_not_supported_is_unknown_and_named() -> None:
    def chosen(p: Any, x: Any) -> Any:
        return jax.lax.cond(p > 0, lambda y: y.sum(0), lambda y: y.max(0), x)

    result = shardproof.verify_xla(
        chosen, (jax.ShapeDtypeStruct((), jnp.int32), real(16, 8)), {"r": 4}, (None, P("r")), P()
    )
    assert (result.verdict, result.code) == (Verdict.UNKNOWN, "U15")
    assert "conditional" in result.message and "all-reduce" in result.message
    assert result.location is not None and "lax.cond" in _line(result.location)


def _line(place: Any) -> str:
    return Path(place.file).read_text().splitlines()[place.line - 1]


def test_a_live_function_and_shardings_that_xla_chooses() -> None:
    scale = 3.0
    result = shardproof.verify_xla(
        lambda x, w: {"y": (x @ w) * scale, "top": x[:1]},
        (real(8, 16), real(16, 32)),
        {"dp": 2, "tp": 4},
        (P("dp"), P(None, "tp")),
        None,
    )
    assert result.verdict is Verdict.VERIFIED
    assert {o.name: o.placement for o in result.outputs}["out.y"] == (
        "shards of dim 0 over dp, shards of dim 1 over tp"
    )


def test_large_shapes_need_no_memory() -> None:
    shapes = [
        jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((8192, 16384), (16384, 53248), (53248, 16384))
    ]
    specs = (P("dp"), P(None, "tp"), P("tp"))
    result = shardproof.verify_xla(xla_programs.mlp, tuple(shapes), {"dp": 4, "tp": 16}, specs, P("dp"))
    assert result.verdict is Verdict.VERIFIED


CASES = '''
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

X = jax.ShapeDtypeStruct((8, 4), jnp.float32)

def right():
    return (lambda x: x * 2), (X,), {"r": 4}, (P("r"),), P(None, "r")

def embedding():
    ids = jax.ShapeDtypeStruct((3,), jnp.int32)
    return (lambda w, ids: w[ids]), (X, ids), {"r": 4}, (P("r"), None), P(), {"ids": (0, 8)}

def uneven():
    return (lambda x: x * 2), (X,), {"r": 3}, (P("r"),), P()

def raises():
    def body(x):
        raise RuntimeError("no such layer")
    return body, (X,), {"r": 4}, (P("r"),), P()

def short():
    return (lambda x: x), (X,)

def range_of_nothing():
    return (lambda x: x), (X,), {"r": 4}, (P("r"),), P(), {"y": (0, 1)}
'''


def verify_xla(case: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "cases.py").write_text(CASES)
    command = [sys.executable, "-m", "shardproof", "verify-xla", f"cases:{case}", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_command_tells_the_verdict(tmp_path: Path) -> None:
    relation = tmp_path / "relation.toml"
    done = verify_xla("embedding", tmp_path, "--format", "json", "--strict", "--save-relation", str(relation))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "verified"
    assert '"w" = "shard(0, r)"' in relation.read_text()
    assert '"ids" = [0, 8]' in relation.read_text()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("uneven", "input `x`: dim 0 of [8, 4] is divided into 3 parts"),
        ("raises", "raised RuntimeError at"),
        ("short", "(function, inputs, mesh, in_shardings, out_shardings) is needed"),
        ("range_of_nothing", "`ranges` names 'y'; the inputs are x"),
        ("missing", "has no function `missing`"),
    ],
)
def test_the_command_tells_what_is_wrong(
    case: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cases_of_xla.py").write_text(CASES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    assert run(["verify-xla", f"cases_of_xla:{case}"]) == 3
    sys.modules.pop("cases_of_xla", None)
    assert message in capsys.readouterr().err


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (BENCHMARKS.parent / "docs" / "xla.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n# train\.py\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^    shardproof verify-xla train:case\n\n((?:    .*\n)+)", page, re.MULTILINE)
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    assert run(["verify-xla", "train:case"]) == 0
    sys.modules.pop("train", None)
    printed = capsys.readouterr().out
    assert _untimed(printed) == _untimed(shown)


def _untimed(text: str) -> list[str]:
    return re.sub(r"\d+\.\d+ s\)", "s)", text).split()


@pytest.mark.slow
@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_at_least_twenty_programs_are_verified_and_none_refuted(partitioner: str) -> None:
    results = {name: programs(name, partitioner).verify(timeout=120) for name in SUPPORTED}
    assert len(results) >= 25
    assert sum(r.verdict is Verdict.VERIFIED for r in results.values()) >= len(SUPPORTED) - 1
    for name, result in results.items():
        assert result.verdict is not Verdict.REFUTED, name
        assert result.verdict is Verdict.VERIFIED or result.location is not None, name


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_changed_instructions_are_refuted(name: str) -> None:
    found = judged(name, 16)
    different = sum(n for (bad, _), n in found.items() if bad)
    assert not found[True, Verdict.VERIFIED] and not found[False, Verdict.REFUTED]
    assert found[True, Verdict.REFUTED] >= 0.9 * different
