"""The programs of examples/neuron_vs_torch: reproducible, and judged as stated."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shardproof
from shardproof.frontends.load import load
from shardproof.tools.command_line import app

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "neuron_vs_torch"
PROGRAMS = EXAMPLE / "programs"
CAPTURED = ROOT.parent / "shared" / "real" / "hlo"
KINDS = {"mask_value", "row_not_fully_masked", "ids_in_range", "constant_tolerance"}

RIGHT = ("tp1_layer1", "tp2_layer1", "tp4_layer1", "tp1_layer2", "tp4_layer2", "tp4_layer1.tiled_heads")
WRONG = {
    "tp4_layer1.key_columns": ("mistakes.py", "key = b.slice(qkv, 1, 0, kv)"),
    "tp4_layer1.value_columns": ("variants.py", "value = b.slice(qkv, 1, q, q + kv)"),
    "tp4_layer1.missing_all_reduce": None,
    "tp4_layer1.residual_on_each_rank": ("mistakes.py", 'return self.join(b.binary("add", partial, x))'),
    "tp4_layer1.other_projection": ("mistakes.py", "up = hlo.silu("),
    "tp4_layer1.unnormalised": None,
    "tp4_layer1.other_epsilon": ("mistakes.py", "eps=1e-6"),
    "tp4_layer1.swapped_tables": None,
    "tp2_layer1.tiled_heads": None,
}
FAST = ("tp4_layer1", "tp4_layer1.key_columns", "tp4_layer1.missing_all_reduce")


def some_slow(stems: object) -> list[object]:
    return [pytest.param(s, marks=() if s in FAST else pytest.mark.slow) for s in stems]  # type: ignore[attr-defined]


def reference(stem: str) -> Path:
    return PROGRAMS / f"small_layer{stem.partition('.')[0][-1]}.pt2"


def verify(stem: str) -> shardproof.Result:
    dump = PROGRAMS / f"{stem}.hlo.pb.gz"
    relation = EXAMPLE / "relations" / "traced.toml"
    return shardproof.verify(reference(stem), dump, relation=relation)


def test_dumps_are_what_the_script_writes(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLE / "trace_dumps.py"), "-o", str(tmp_path)]
    subprocess.run(script, check=True, stdout=subprocess.DEVNULL)
    written = sorted(p.name for p in tmp_path.iterdir())
    assert written == sorted(p.name for p in PROGRAMS.glob("*.hlo.pb.gz"))
    assert {n.removesuffix(".hlo.pb.gz") for n in written} == {*RIGHT, *WRONG}
    for name in written:
        assert (tmp_path / name).read_bytes() == (PROGRAMS / name).read_bytes(), name


def test_the_frequencies_are_constants_and_the_weights_inputs() -> None:
    module = load(PROGRAMS / "small_layer1.pt2")
    names = {i.name for i in module.inputs}
    assert "model.model.layers.0.self_attn.q_proj.weight" in names
    assert not any("inv_freq" in name for name in names)
    constants = [op for op in module.ops if op.opcode == "constant"]
    tables = [op.attrs["value"] for op in constants if op.result.type.shape == (3,)]
    assert [round(float(x), 6) for x in tables[0]] == [1.0, 0.046416, 0.002154]
    assert not [op for op in module.ops if op.opcode in ("opaque", "custom_call")]


@pytest.mark.parametrize("stem", some_slow(RIGHT))
def test_right_programs(stem: str) -> None:
    result = verify(stem)
    assert result.verdict.value == "verified", result.text()
    assert not result.unchecked_outputs and not result.inferred_relation
    assert len(result.outputs) == 1 + 2 * int(reference(stem).stem[-1])
    assert {a.kind for a in result.assumptions} <= {*KINDS, "literal_rounding"}


@pytest.mark.parametrize("stem", some_slow(WRONG))
def test_wrong_programs(stem: str) -> None:
    result = verify(stem)
    assert result.verdict.value == "refuted", result.text()
    assert result.counterexample is not None and result.location is not None
    place = WRONG[stem]
    if place is None:
        return
    file, line = place
    stack = [(f.file, f.line) for f in result.location.stack]
    assert stack, result.text()
    source = next((ROOT / "examples").glob(f"*/{file}"))
    wanted = next(n for n, text in enumerate(source.read_text().splitlines(), 1) if line in text)
    assert any(f.endswith(file) and abs(n - wanted) <= 1 for f, n in stack), result.text()


def test_the_command_line_writes_a_certificate_that_holds(tmp_path: Path) -> None:
    files = [str(reference("tp4_layer1")), str(PROGRAMS / "tp4_layer1.hlo.pb.gz")]
    relation = ["--relation", str(EXAMPLE / "relations" / "traced.toml")]
    proof = str(tmp_path / "proof.json")
    found = CliRunner().invoke(app, ["verify", *files, *relation, "--certificate", proof])
    assert found.exit_code == 0, found.output
    strict = CliRunner().invoke(app, ["verify", *files, *relation, "--strict"])
    assert "U08" in strict.output, "two tables of constants are not one under --strict"
    found = CliRunner().invoke(app, ["cert", "check", proof, *files, *relation])
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("name", ["captured", "traced"])
def test_relations_are_short(name: str) -> None:
    text = (EXAMPLE / "relations" / f"{name}.toml").read_text()
    assert len(text.splitlines()) <= 25
    assert "custom-call" not in text and "slice" not in text


@pytest.mark.skipif(not CAPTURED.is_dir(), reason="the captured dumps (../shared/real/hlo) are not here")
@pytest.mark.parametrize(
    ("degree", "layers"),
    [
        pytest.param(d, n, marks=() if (d, n) in ((1, 1), (8, 2)) else pytest.mark.slow)
        for d in (1, 2, 4, 8)
        for n in (1, 2, 4, 8)
    ],
)
def test_captured_dumps(degree: int, layers: int) -> None:
    dump = CAPTURED / f"tp{degree}_layer{layers}.hlo.pb.gz"
    relation = EXAMPLE / "relations" / "captured.toml"
    result = shardproof.verify(PROGRAMS / f"full_layer{layers}.pt2", dump, relation=relation)
    assert result.verdict.value == "verified", result.text()
    assert {a.kind for a in result.assumptions} <= KINDS
    assert len(result.outputs) == 1 + 2 * layers and not result.unchecked_outputs


@pytest.mark.skipif(not CAPTURED.is_dir(), reason="the captured dumps (../shared/real/hlo) are not here")
def test_the_captured_broken_dump() -> None:
    relation = EXAMPLE / "relations" / "captured.toml"
    broken = CAPTURED / "tp2_layer1.broken.hlo.pb.gz"
    result = shardproof.verify(PROGRAMS / "full_layer1.pt2", broken, relation=relation)
    assert result.verdict.value == "refuted", result.text()
    assert result.location is not None and result.location.value == "slice.54"
    assert "1024:1280" in (result.expected or "")


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torch", "transformers"))), reason="needs torch and transformers"
)
def test_a_new_export_is_verified_too(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLE / "reference.py"), "--only", "small", "-o", str(tmp_path)]
    subprocess.run([*script, "--layers", "1"], check=True, capture_output=True)
    dump = PROGRAMS / "tp4_layer1.hlo.pb.gz"
    relation = EXAMPLE / "relations" / "traced.toml"
    result = shardproof.verify(tmp_path / "small_layer1.pt2", dump, relation=relation)
    assert result.verdict.value == "verified", result.text()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_only_buffers_that_nothing_else_sets_are_constants(tmp_path: Path) -> None:
    import torch

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, kept in (("loaded", True), ("computed", False), ("counted", False)):
                self.register_buffer(name, torch.arange(3.0), persistent=kept)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.counted.add_(1)
            low, high = x > 0, x < 2
            return torch.where(low & high, x * self.loaded * self.computed, self.counted)

    program = torch.export.export(Layer(), (torch.ones(3),)).run_decompositions({})
    torch.export.save(program, tmp_path / "layer.pt2")
    result = shardproof.verify(program, tmp_path / "layer.pt2")
    assert result.verdict.value == "verified", result.text()
    inputs = [i.name for i in load(tmp_path / "layer.pt2").inputs]
    assert sorted(inputs) == ["counted", "loaded", "x"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize(
    ("device", "given", "verdict"),
    [
        ("meta", "[1.0, 0.5, 0.25]", "verified"),
        ("meta", "[1.0, 0.5, 0.125]", "refuted"),
        ("cpu", "[9.0, 9.0, 9.0]", "verified"),
        ("meta", "[1.0, 0.5]", None),
    ],
)
def test_constants_give_elements_where_there_are_none(
    device: str, given: str, verdict: str | None, tmp_path: Path
) -> None:
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self, device: str) -> None:
            super().__init__()
            table = torch.tensor([1.0, 0.5, 0.25]).to(device)
            self.register_buffer("table", table, persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table

    programs = [torch.export.export(Scaled(d), (torch.ones(3, device=d),)) for d in (device, "cpu")]
    relation = tmp_path / "relation.toml"
    relation.write_text(f'[inputs]\nx = "x"\n[constants]\ntable = {given}\n')
    if verdict is None:
        with pytest.raises(ValueError, match="given as 2 numbers"):
            shardproof.verify(*programs, relation=relation)
        return
    result = shardproof.verify(*programs, relation=relation)
    assert result.verdict.value == verdict, result.text()
