"""`verify --certificate` and `cert check` on files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardproof.ir.text import parse, to_text
from shardproof.solver.certificates import certify
from shardproof.solver.certificates.certificate import CertificateError
from shardproof.solver.certificates.certificate_file import read
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify
from shardproof.tools.command_line import run

ROOT = Path(__file__).resolve().parents[2]
PAIRS = ROOT / "tests" / "solver" / "lemma_pairs"
DUMPS = ROOT / "examples" / "neuron_llama" / "dumps"
RING = PAIRS / "ring_attention"
ONE, FOUR = DUMPS / "tp1_layer1.hlo.pb.gz", DUMPS / "tp4_layer1.hlo.pb.gz"

Capture = pytest.CaptureFixture[str]


def certificate(tmp_path: Path, *line: str | Path) -> Path:
    path = tmp_path / "proof.cert"
    assert run(["verify", *map(str, line), "--certificate", str(path)]) == 0
    return path


def checked(capsys: Capture, *line: str | Path, status: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["cert", "check", *map(str, line), "--format", "json"]) == status
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_certificate_is_written_and_holds(tmp_path: Path, capsys: Capture) -> None:
    programs = RING / "reference.spf", RING / "cp4.spf"
    path = certificate(tmp_path, *programs, "--relation", RING / "relation.toml")
    assert str(path) in capsys.readouterr().out.replace("\n", "")
    found = checked(capsys, path, *programs)
    assert found["valid"] is True and found["reason"] is None
    assert found["claim"] == read(path).stated
    assert found["outputs"] == [
        {"reference": "y", "implementation": "y", "placement": "shards of dim 2 over tp"}
    ]
    assert [use["name"] for use in found["lemmas"]] == ["exp_add"]
    assert found["implementation"]["mesh"] == {"tp": 4} and found["implementation"]["files"] == ["cp4.spf"]
    assert [parse(t, source="relation").outputs[0].name for t in found["relation"]] == ["q", "q", "y", "y"]
    assert run(["cert", "check", str(path), *map(str, programs)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("valid: cp4.spf refines reference.spf\n")
    assert found["claim"] in text and "assumes        nothing" in text and "dynamic_slice" in text
    assert checked(capsys, path, *programs, "--claim", found["claim"])["valid"] is True
    other = checked(capsys, path, *programs, "--claim", "0" * 64, status=1)
    assert other["reason"] == f"the certificate is for the claim {found['claim']}"


def test_it_holds_in_another_process_with_other_hashes(tmp_path: Path) -> None:
    programs = RING / "reference.spf", RING / "cp4.spf"
    path = certificate(tmp_path, *programs, "--relation", RING / "relation.toml")
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "shardproof", "cert", "check", str(path), *map(str, programs)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_other_programs_are_rejected(tmp_path: Path, capsys: Capture) -> None:
    path = certificate(
        tmp_path, RING / "reference.spf", RING / "cp4.spf", "--relation", RING / "relation.toml"
    )
    for stem in ("wrong_not_rescaled", "wrong_three_steps", "wrong_value_stays"):
        found = checked(capsys, path, RING / "reference.spf", RING / f"{stem}.spf", status=1)
        assert (found["valid"], found["reason"]) == (
            False,
            "the implementation is another program than the certificate's",
        )
    assert run(["cert", "check", str(path), str(RING / "cp4.spf"), str(RING / "cp4.spf")]) == 3


def test_bad_files_are_no_internal_error(tmp_path: Path, capsys: Capture) -> None:
    programs = RING / "reference.spf", RING / "cp4.spf"
    path = certificate(tmp_path, *programs, "--relation", RING / "relation.toml")
    content = path.read_bytes()
    for bad in (b"", b"{}", content[:-3], content[::-1], b"{" + content):
        path.write_bytes(bad)
        assert checked(capsys, path, *programs, status=1)["valid"] is False
    assert run(["cert", "check", str(tmp_path / "none"), *map(str, programs)]) == 3
    assert "cannot read" in capsys.readouterr().err
    path.write_bytes(content)
    assert run(["cert", "check", str(path), str(path), str(programs[1])]) == 3


def test_inferred_layouts_stay_listed(tmp_path: Path, capsys: Capture) -> None:
    found = checked(capsys, certificate(tmp_path, ONE, FOUR), ONE, FOUR)
    assert {a["kind"] for a in found["assumptions"]} >= {"inferred_relation"}
    assert found["lemmas"] == []


def test_outputs_that_were_read_otherwise(tmp_path: Path, capsys: Capture) -> None:
    """Partial sums and an order of dims are part of the claim."""
    folder = tmp_path
    reference, partial, turned = folder / "r.spf", folder / "p.spf", folder / "t.spf"
    reference.write_text(
        'module "r" mesh() {\n  %x = input(0) : f32[8,6]\n  %z = constant() {value=f32[](0.0)} : f32[]\n'
        '  %y = reduce(%x, %z) {dims=(0,), kind="sum"} : f32[6]\n  output "o" = %y\n}\n'
    )
    partial.write_text(
        'module "p" mesh(tp=2) {\n  %x = input(0) : f32[4,6]\n  %z = constant() {value=f32[](0.0)} : f32[]\n'
        '  %y = reduce(%x, %z) {dims=(0,), kind="sum"} : f32[6]\n  output "o" = %y\n}\n'
    )
    path = certificate(tmp_path, reference, partial, "--outputs", "any")
    found = checked(capsys, path, reference, partial)
    assert found["outputs"][0]["placement"] == "partial sums over tp"
    assert "all_reduce" in found["relation"][2]
    square = (
        'module "{name}" mesh() {{\n  %x = input(0) : f32[3,3]\n'
        '  %y = {op} : f32[3,3]\n  output "o" = %y\n}}\n'
    )
    reference.write_text(square.format(name="r", op="exponential(%x)"))
    turned.write_text(
        square.format(name="t", op="exponential(%u)").replace(
            "  %y", "  %u = transpose(%x) {permutation=(1, 0)} : f32[3,3]\n  %y"
        )
    )
    path = certificate(tmp_path, reference, turned, "--outputs", "any")
    found = checked(capsys, path, reference, turned)
    assert found["outputs"][0]["placement"] == "dims in the order [1, 0]"
    assert "transpose" in found["relation"][2]


def test_values_that_are_assumed(tmp_path: Path, capsys: Capture) -> None:
    wrong = DUMPS / "tp4_layer1.wrong_slice.hlo.pb.gz"
    path = certificate(tmp_path, ONE, wrong, "--assume", "slice.46")
    found = checked(capsys, path, ONE, wrong)
    assumed = [a["text"] for a in found["assumptions"] if a["kind"] == "user_assumed"]
    assert len(assumed) == 1 and assumed[0].startswith("`slice.46` is `")
    assert len(found["relation"]) == 5
    capsys.readouterr()
    own = read(path)
    assert own.claim.assumed is not None
    assert own.claim.assumed.outputs[0].name == "slice.46"


def test_a_distributed_reference(tmp_path: Path, capsys: Capture) -> None:
    """Its ranks must agree on an output that is read as one rank has it."""
    text = (
        'module "{name}" mesh(tp={ranks}) {{\n  %x = input(0) : f32[{size},6]\n'
        "  %z = constant() {{value=f32[](0.0)}} : f32[]\n"
        '  %y = reduce(%x, %z) {{dims=(0,), kind="sum"}} : f32[6]\n'
        '  %t = all_reduce(%y) {{kind="sum", groups=({group},)}} : f32[6]\n  output "o" = %t\n}}\n'
    )
    two, four = tmp_path / "two.spf", tmp_path / "four.spf"
    two.write_text(text.format(name="two", ranks=2, size=4, group=(0, 1)))
    four.write_text(text.format(name="four", ranks=4, size=2, group=(0, 1, 2, 3)))
    relation = tmp_path / "relation.toml"
    relation.write_text(
        '[reference]\nx = "shard(0)"\n[reference_outputs]\no = "replicate"\n'
        '[inputs]\nx = "shard(0)"\n[outputs]\no = "replicate"\n'
    )
    found = checked(capsys, certificate(tmp_path, two, four, "--relation", relation), two, four)
    assert found["reference"]["mesh"] == {"tp": 2} and found["even"] == ["o"]


def test_lemma_files_are_needed_again(tmp_path: Path, capsys: Capture) -> None:
    own = tmp_path / "own.lemma"
    own.write_text('lemma own_rule\n  "Sines and cosines."\n  sin(x)^2 => 1 - cos(x)^2\n')
    first, second = tmp_path / "a.spf", tmp_path / "b.spf"
    first.write_text(
        'module "m" mesh() {\n  %x = input(0) : f32[4]\n  %t = sine(%x) : f32[4]\n'
        '  %y = multiply(%t, %t) : f32[4]\n  output "o" = %y\n}\n'
    )
    second.write_text(
        'module "m" mesh() {\n  %x = input(0) : f32[4]\n  %t = cosine(%x) : f32[4]\n'
        "  %s = multiply(%t, %t) : f32[4]\n  %c = constant() {value=f32[4] splat (1.0)} : f32[4]\n"
        '  %y = subtract(%c, %s) : f32[4]\n  output "o" = %y\n}\n'
    )
    path = certificate(tmp_path, first, second, "--lemmas", own)
    found = checked(capsys, path, first, second, "--lemmas", own)
    assert [use["name"] for use in found["lemmas"]] == ["own_rule"]
    assert [a["kind"] for a in found["assumptions"]].count("tested_lemma") == 1
    reason = checked(capsys, path, first, second, status=1)["reason"]
    assert reason.startswith("there is no lemma `own_rule`")
    own.write_text('lemma own_rule\n  "Sines and cosines."\n  sin(x)^2 => 1 - cos(x)^4\n')
    reason = checked(capsys, path, first, second, "--lemmas", own, status=1)["reason"]
    assert "says something else" in reason


def test_no_verdict_without_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CertificateError("a reason")

    monkeypatch.setattr(certify, "check", refuse)
    result = verify(PAIRS / "mean" / "reference.spf", PAIRS / "mean" / "two_parts.spf")
    assert (result.verdict, result.code) == (Verdict.UNKNOWN, "U11")
    assert result.message.endswith("checked again: a reason")


def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: Capture) -> None:
    programs = [str(RING / "reference.spf"), str(RING / "cp4.spf")]
    assert run(["verify", *programs, "--certificate", str(tmp_path / "no" / "x")]) == 3
    assert run(["verify", *programs, "--certificate", str(RING / "cp4.spf")]) == 3
    assert capsys.readouterr().err.count("cannot write") == 2
    assert to_text(parse((RING / "cp4.spf").read_text(), source="x"))
