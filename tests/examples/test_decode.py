"""The dumps of examples/decode: reproducible, a step of the prefill decoder, and judged as stated."""

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
EXAMPLE = ROOT / "examples" / "decode"
DUMPS = EXAMPLE / "dumps"
sys.path[:0] = [str(EXAMPLE), str(ROOT / "examples" / "neuron_llama")]

import make_decode_dumps  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import model  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

RIGHT = (
    ("tp1.slice", "tp4.slice", "decode"),
    ("tp1_layer2.slice", "tp4_layer2.slice", "decode"),
    ("tp1.scatter", "tp4.scatter", "decode"),
    ("tp1.slice", "tp4.scatter", "decode"),
    ("tp1.scatter", "tp4.slice", "decode"),
    ("tp1.slice", "tp1.scatter", "decode"),
    ("tp1.own_positions", "tp4.own_positions", "decode"),
    ("tp1.one_cache", "tp4.one_cache", "one_cache"),
)
ADD = 'return b.binary("add", b.reshape(self.position), b.constant("s32", 1))'
WRONG = (
    ("tp1.slice", "tp4.next_row", "decode", "class NextRow(", ADD),
    ("tp1.scatter", "tp4.next_row_scattered", "decode", "class NextRowScattered(", ADD),
    (
        *("tp1.one_cache", "tp4.wrong_half", "one_cache"),
        *("class OneCache(", "cache = b.dynamic_update_slice(cache, block, starts)"),
    ),
    ("tp1.slice", "tp4.unseen_token", "decode", "class UnseenToken(", 'past = b.compare("LT"'),
)


def dump(stem: str) -> Path:
    return DUMPS / f"{stem}.hlo.pb.gz"


def verify(reference: str, implementation: str, relation: str | None) -> shardproof.Result:
    file = None if relation is None else EXAMPLE / "relations" / f"{relation}.toml"
    return shardproof.verify(dump(reference), dump(implementation), relation=file)


def test_dumps_are_what_the_script_writes(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLE / "make_decode_dumps.py"), "-o", str(tmp_path)]
    subprocess.run(script, check=True, stdout=subprocess.DEVNULL)
    written = sorted(p.name for p in tmp_path.iterdir())
    assert written == sorted(p.name for p in DUMPS.iterdir())
    for name in written:
        assert gzip.decompress((tmp_path / name).read_bytes()) == gzip.decompress((DUMPS / name).read_bytes())


def outputs(path: Path, parameters: list[Any]) -> list[Any]:
    module = load(path)
    found = run(module, {i.name: parameters[i.number] for i in module.inputs})
    return [found[o.name][0] for o in module.outputs]


@pytest.mark.parametrize("stem", ["tp1.slice", "tp1.scatter", "tp1.own_positions", "tp1.one_cache"])
def test_a_step_continues_the_prefill(stem: str, tmp_path: Path) -> None:
    c = make_decode_dumps.ONE
    prefill = tmp_path / "prefill.pb"
    prefill.write_bytes(model.Decoder(c).trace())
    draw = np.random.default_rng(5)
    position = 9

    def real(*shape: int) -> Any:
        return draw.uniform(-1, 1, shape)

    x, start = real(c.sequence, c.batch, c.hidden), draw.integers(0, 3, c.batch).astype(np.int32)
    columns = (c.heads + 2 * c.kv_heads) * c.head_dim
    weights = [real(c.hidden), real(c.hidden, columns), real(c.heads * c.head_dim, c.hidden), real(c.hidden)]
    weights += [real(c.hidden, c.mlp), real(c.hidden, c.mlp), real(c.mlp, c.hidden)]
    weights += [real(c.hidden), real(c.hidden, c.vocab)]
    unused = np.zeros((c.sequence, c.batch, c.kv_heads, c.head_dim))
    order = np.arange(c.sequence, dtype=np.int32)
    at = np.array([position], np.int32)
    scores, keys, values = outputs(prefill, [x, order, start, at, unused, unused, *weights])

    rows = order[:, None, None, None]
    after = [np.where(rows <= position, state, 7.0) for state in (keys, values)]
    before = [np.where(rows < position, state, 7.0) for state in (keys, values)]
    if stem == "tp1.own_positions":
        at = np.repeat(at, c.batch)
        before, after = ([s.swapaxes(0, 1) for s in states] for states in (before, after))
    if stem == "tp1.one_cache":
        before, after = [np.stack(before)], [np.stack(after)]
    found = outputs(dump(stem), [x[position : position + 1], at, start, *before, *weights])
    for wanted, own in zip([scores, *after], found, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-9, atol=1e-11)


def test_caches_are_state() -> None:
    module = load(dump("tp4.scatter"))
    names = {i.number: i.name for i in module.inputs}
    assert [o.updates for o in module.outputs] == [None, names[3], names[4]]


@pytest.mark.parametrize(("reference", "implementation", "relation"), RIGHT)
def test_right_steps_are_verified(reference: str, implementation: str, relation: str) -> None:
    result = verify(reference, implementation, relation)
    assert result.verdict is shardproof.Verdict.VERIFIED, result.text()
    assert all(o.verdict is shardproof.Verdict.VERIFIED for o in result.outputs)
    kinds = {a.kind for a in result.assumptions}
    own = {"distinct_indices"} if "own_positions" in reference else set()
    assert kinds <= {"inferred_relation", *own}


def test_a_slice_and_a_scatter_differ_out_of_range() -> None:
    """One clamps a position beyond the cache, the other drops the row: without a range one is assumed."""
    result = verify("tp1.slice", "tp4.scatter", None)
    assert result.verdict is shardproof.Verdict.VERIFIED, result.text()
    assert "ids_in_range" in {a.kind for a in result.assumptions}


@pytest.mark.parametrize(("reference", "implementation", "relation", "place", "text"), WRONG)
def test_wrong_steps_are_refuted_where_they_are_written(
    reference: str, implementation: str, relation: str, place: str, text: str
) -> None:
    result = verify(reference, implementation, relation)
    assert result.verdict is shardproof.Verdict.REFUTED, result.text()
    assert result.location is not None and result.counterexample is not None
    lines = (EXAMPLE / "cache_variants.py").read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(place))
    line = next(n for n in range(start, len(lines)) if text in lines[n]) + 1
    assert (result.location.file, result.location.line) == ("examples/decode/cache_variants.py", line)
    verdicts = [o.verdict for o in result.outputs]
    if "unseen" in implementation:
        assert verdicts[1:] == [shardproof.Verdict.VERIFIED] * 2
    assert verdicts[0] is not shardproof.Verdict.VERIFIED


def test_the_step_in_torch() -> None:
    pytest.importorskip("torch")
    import torch_decoder  # type: ignore[import-not-found,unused-ignore]

    right = shardproof.verify_torch(torch_decoder.alone, torch_decoder.sharded, mesh={"tp": 4})
    assert right.verdict is shardproof.Verdict.VERIFIED, right.text()
    assert [o.name for o in right.outputs] == ["output", "keys", "values"]
    wrong = shardproof.verify_torch(torch_decoder.alone, torch_decoder.next_row, mesh={"tp": 4})
    assert wrong.verdict is shardproof.Verdict.REFUTED, wrong.text()
    lines = (EXAMPLE / "torch_decoder.py").read_text().splitlines()
    assert wrong.location is not None and "self.ahead" in lines[wrong.location.line - 1]
