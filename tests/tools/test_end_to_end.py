"""`shardproof` on files, as a user runs it: verdicts, exit codes, options, and what is written where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arrays import Graph

from shardproof.ir.text import to_text
from shardproof.solver.verdict import JSON_FIELDS
from shardproof.tools.command_line import run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "neuron_llama"
HEAVY = ("torch", "jax", "onnx", "egglog", "z3")

Capture = pytest.CaptureFixture[str]


def dump(stem: str) -> str:
    return str(EXAMPLE / "dumps" / f"{stem}.hlo.pb.gz")


ONE, FOUR = dump("tp1_layer1"), dump("tp4_layer1")
WRONG, UNJOINED = dump("tp4_layer1.wrong_slice"), dump("tp4_layer1.missing_all_reduce")


def answer(capsys: Capture, *line: str | Path, status: int) -> dict[str, Any]:
    """The JSON of one run of `verify`; nothing else may be written."""
    assert run(["verify", *map(str, line), "--format", "json"]) == status
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    assert tuple(found) == JSON_FIELDS
    return found


def refusal(capsys: Capture, *line: str | Path) -> str:
    """The one line of a run that ends with exit code 3."""
    assert run(["verify", *map(str, line)]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("error[E")
    return err


def line_of(file: str, text: str) -> int:
    lines = (EXAMPLE / file).read_text().splitlines()
    return next(n for n, line in enumerate(lines, start=1) if text in line)


def command(*line: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shardproof", *line],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )


# verdicts


def test_verified_on_an_inferred_layout(capsys: Capture) -> None:
    found = answer(capsys, ONE, FOUR, status=0)
    assert (found["verdict"], found["code"]) == ("verified", "V02")
    assert {o["verdict"] for o in found["outputs"]} == {"verified"}
    assert {o["placement"] for o in found["outputs"]} == {"shards of dim 2 over tp"}
    assert found["inferred_relation"]["p7.10"] == "[336 | 112 | 112] each sharded over tp on dim 1"
    assert {a["kind"] for a in found["assumptions"]} == {"inferred_relation"}
    absent = ("location", "expected", "found", "counterexample", "blocked", "tested_equal", "repair")
    assert [found[f] for f in (*absent, "lemmas", "certificate", "cached", "findings")] == [None] * 11
    assert found["unchecked_outputs"] == []
    assert found["stats"]["instructions"] > 100 and found["stats"]["classes"] > 10
    assert sum(found["stats"]["seconds"].values()) < 10


def test_a_program_verifies_against_itself(capsys: Capture) -> None:
    found = answer(capsys, ONE, ONE, status=0)
    assert (found["code"], found["inferred_relation"]) == ("V01", None)


def test_wrong_slice_is_refuted_at_its_line(capsys: Capture) -> None:
    found = answer(capsys, ONE, WRONG, status=1)
    assert (found["verdict"], found["code"]) == ("refuted", "R03")
    place = found["location"]
    assert place["value"] == "slice.46" and place["op"] == "slice"
    assert place["file"] == "examples/neuron_llama/variants.py"
    assert place["line"] == line_of("variants.py", "value = b.slice(qkv, 1, q, q + kv)")
    assert {frame["file"] for frame in place["stack"]} >= {place["file"], "examples/neuron_llama/model.py"}
    assert (found["expected"], found["found"]) == ("columns 112:140", "reads columns 84:112")
    example = found["counterexample"]
    assert set(example) == {"seed", "rank", "output", "index", "reference", "implementation", "extents"}
    assert example["output"] == "reshape.49" and len(example["index"]) == 4 and 0 <= example["rank"] < 4
    assert abs(example["reference"] - example["implementation"]) > 1e-6
    assert "28" in found["repair"]
    assert [o["verdict"] for o in found["outputs"] if o["name"] == "reshape.49"] == ["refuted"]


def test_missing_all_reduce_is_refuted(capsys: Capture) -> None:
    found = answer(capsys, ONE, UNJOINED, status=1)
    assert found["code"] == "R02"
    assert found["location"]["file"].startswith("examples/neuron_llama/")
    assert "tp" in found["found"] and "all-reduce" in found["repair"]
    assert found["counterexample"]["output"] == "reshape.137"


@pytest.mark.parametrize(
    ("reference", "implementation", "relation"),
    [
        ("tp1_layer1", "tp4_layer1.interleaved_qkv", "interleaved_qkv"),
        ("tp1_layer1", "tp4_layer1.permuted_head", "permuted_head"),
        ("tp1_layer1.mean", "dp2_tp2_layer1.mean", "dp2_tp2"),
        ("tp1_layer1.few_heads", "tp3_layer1.few_heads", "tp3_few_heads"),
    ],
)
def test_unknown_until_the_layout_is_declared(
    capsys: Capture, reference: str, implementation: str, relation: str
) -> None:
    pair = dump(reference), dump(implementation)
    found = answer(capsys, *pair, status=2)
    assert found["verdict"] == "unknown" and found["counterexample"] is None and found["blocked"]
    found = answer(capsys, *pair, "--relation", EXAMPLE / "relations" / f"{relation}.toml", status=0)
    assert (found["code"], found["inferred_relation"]) == ("V01", None)


# options


def test_strict_accepts_no_inferred_layout(capsys: Capture) -> None:
    found = answer(capsys, ONE, FOUR, "--strict", status=2)
    assert (found["verdict"], found["code"]) == ("unknown", "U08")
    assert found["inferred_relation"]


def test_saved_relation_is_a_declaration(capsys: Capture, tmp_path: Path) -> None:
    saved = tmp_path / "saved.toml"
    answer(capsys, ONE, FOUR, "--save-relation", saved, status=0)
    found = answer(capsys, ONE, FOUR, "--relation", saved, "--strict", status=0)
    assert (found["code"], found["inferred_relation"], found["assumptions"]) == ("V01", None, [])
    text = saved.read_text().replace('"p8.11" = "shard(0)"', '"p8.11" = "shard(1)"')
    saved.write_text(text)
    assert "p8.11" in refusal(capsys, ONE, FOUR, "--relation", saved)


def test_assumed_value_is_listed(capsys: Capture) -> None:
    found = answer(capsys, ONE, WRONG, "--assume", "slice.46", status=0)
    assert ("user_assumed", "slice.46") in {(a["kind"], a["value"]) for a in found["assumptions"]}
    assert answer(capsys, ONE, WRONG, "--assume", "slice.46", "--strict", status=2)["code"] == "U08"
    assert answer(capsys, ONE, WRONG, "--assume", "slice.44", status=1)["code"] == "R03"
    assert "nosuch" in refusal(capsys, ONE, WRONG, "--assume", "nosuch")


def test_timeout(capsys: Capture) -> None:
    found = answer(capsys, ONE, FOUR, "--timeout", "0.000001", status=2)
    assert (found["verdict"], found["code"]) == ("unknown", "U04")


def test_mesh_names_the_axes(capsys: Capture) -> None:
    found = answer(capsys, ONE, FOUR, "--mesh", "heads=4", status=0)
    assert {o["placement"] for o in found["outputs"]} == {"shards of dim 2 over heads"}
    pair = dump("tp1_layer1.mean"), dump("dp2_tp4_layer1.mean")
    found = answer(capsys, *pair, "--mesh", "b=2,h=4", status=0)
    assert found["outputs"][1]["placement"] == "shards of dim 1 over b, shards of dim 2 over h"
    assert "names rank 3, but there are 3 ranks" in refusal(capsys, ONE, FOUR, "--mesh", "tp=3")


def test_answer_goes_to_the_file(capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "answer.txt"
    assert run(["verify", ONE, WRONG, "-o", str(target)]) == 1
    assert capsys.readouterr() == ("", "")
    assert target.read_text().startswith("refuted[R03]: `slice.46` reads columns 84:112")


def test_text_answer(capsys: Capture) -> None:
    assert run(["verify", ONE, FOUR]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("verified  ") and "on an inferred layout" in lines[0]
    assert lines[-1] == "  assumes      nothing else"
    assert "               p7.10 = [336 | 112 | 112] each sharded over tp on dim 1" in lines
    assert run(["verify", ONE, WRONG, "--verbose"]) == 1
    out = capsys.readouterr().out
    assert "  --> examples/neuron_llama/variants.py:" in out and "called at" in out
    assert "  = counterexample  seed " in out and "first value that departs from the reference" in out


# other kinds of files


def product(ranks: int, width: int, *, partial: bool = False) -> Graph:
    """tanh(x @ w), the columns or (`partial`) the rows of w divided."""
    g = Graph(ranks)
    if partial:
        y = g.input("x", 3, width) @ g.input("w", width, 8)
    else:
        y = (g.input("x", 3, 4) @ g.input("w", 4, width)).apply("tanh")
    g.output("y", y)
    return g


def written(path: Path, name: str, text: str) -> str:
    file = path / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_partial_sums_are_accepted_on_request_only(capsys: Capture, tmp_path: Path) -> None:
    one = written(tmp_path, "one.spf", to_text(product(1, 4, partial=True).module()))
    two = written(tmp_path, "two.spf", to_text(product(2, 2, partial=True).module()))
    assert answer(capsys, one, two, status=1)["counterexample"]["output"] == "y"
    found = answer(capsys, one, two, "--outputs", "any", status=0)
    assert found["outputs"][0]["placement"] == "partial sums over tp"


def test_inspected_text_is_an_input(capsys: Capture, tmp_path: Path) -> None:
    for name, file in (("one", ONE), ("wrong", WRONG)):
        assert run(["inspect", file, "-o", str(tmp_path / f"{name}.spf")]) == 0
    text = (tmp_path / "wrong.spf").read_text()
    assert "mesh(rank=4)" in text and "all_reduce" in text and "p7.10" in text
    found = answer(capsys, tmp_path / "one.spf", tmp_path / "wrong.spf", status=1)
    assert found["location"]["value"] == "slice.46" and found["location"]["line"] is not None


def test_explain_knows_the_code_of_every_verdict(capsys: Capture) -> None:
    for code in ("V01", "V02", "R02", "R03", "U04", "U08", "E01", "E05"):
        assert run(["explain", code]) == 0
        assert capsys.readouterr().out.startswith(f"{code}: ")


HLO = """HloModule m
ENTRY e {{
  x = f32[4,{part}] parameter(0)
  w = f32[{part},6] parameter(1)
  y = f32[4,6] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  {end}
}}
"""
SUM = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
JOINED = "ROOT z = f32[4,6] all-reduce(y), replica_groups={{0,1}}, to_apply=add"


def test_hlo_text(capsys: Capture, tmp_path: Path) -> None:
    one = written(tmp_path, "one.txt", HLO.format(part=8, end="ROOT z = f32[4,6] copy(y)"))
    two = written(
        tmp_path, "two.txt", HLO.format(part=4, end=JOINED).replace("ENTRY", SUM + "ENTRY")
    )
    assert answer(capsys, one, two, status=0)["code"] == "V02"
    bare = written(tmp_path, "bare.txt", HLO.format(part=4, end="ROOT z = f32[4,6] copy(y)"))
    assert answer(capsys, one, bare, "--mesh", "tp=2", status=1)["code"] == "R02"


def ranks_of_offsets(path: Path, starts: tuple[int, ...], numbers: tuple[int | None, ...]) -> list[str]:
    """Programs of single ranks: each takes its own two columns of a whole weight."""
    files = []
    for k, (start, number) in enumerate(zip(starts, numbers, strict=True)):
        g = Graph()
        x, w = g.input("x", 3, 4), g.input("w", 4, 6)
        g.output("y", x @ w[:, start : start + 2])
        files.append(written(path, f"r{k}.spf", to_text(replace(g.module(), rank=number))))
    return files


def test_files_of_all_ranks(capsys: Capture, tmp_path: Path) -> None:
    g = Graph()
    g.output("y", g.input("x", 3, 4) @ g.input("w", 4, 6))
    one = written(tmp_path, "one.spf", to_text(g.module()))
    relation = written(tmp_path, "r.toml", '[inputs]\n"*" = "replicate"\n[outputs]\ny = "shard(1)"\n')
    nameless = (None, None, None)
    for starts, numbers, status in (
        ((0, 2, 4), nameless, 0),
        ((2, 0, 4), nameless, 1),
        ((2, 0, 4), (1, 0, 2), 0),
        ((0, 2, 4), (1, 0, 2), 1),
        ((0, 2, 2), nameless, 1),
    ):
        files = ranks_of_offsets(tmp_path, starts, numbers)
        answer(capsys, one, *files, "--relation", relation, status=status)
    gap = ranks_of_offsets(tmp_path, (0, 2, 4), (0, 1, 3))
    assert "is of rank 3, the ranks of its mesh are 0 to 2" in refusal(capsys, one, *gap)
    twice = ranks_of_offsets(tmp_path, (0, 2, 4), (0, 1, 1))
    assert "two files say that they are rank 1" in refusal(capsys, one, *twice)


# separate processes


@pytest.mark.parametrize(("implementation", "status"), [(FOUR, 0), (WRONG, 1)])
def test_nothing_heavy_is_imported(implementation: str, status: int) -> None:
    code = (
        "import sys\nfrom shardproof.tools.command_line import run\n"
        "status = run(['verify', *sys.argv[1:]])\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])\nsys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, ONE, implementation], capture_output=True, text=True, check=False
    )
    assert done.returncode == status and done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "implementation", ["tp4_layer1", "tp4_layer1.missing_all_reduce", "tp4_layer1.permuted_head"]
)
def test_answers_do_not_depend_on_hash_seeds(implementation: str) -> None:
    line = ("verify", ONE, dump(implementation), "--format", "json")
    first, second = command(*line, seed="1"), command(*line, seed="4321")
    assert first.returncode == second.returncode in (0, 1, 2)
    assert first.stderr == second.stderr == ""
    one, two = json.loads(first.stdout), json.loads(second.stdout)
    for found in (one, two):
        assert set(found["stats"].pop("seconds")) >= {"read", "relation"}
    assert one == two


def test_missing_file_in_a_process() -> None:
    done = command("verify", ONE, "absent.pb")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "error[E01]: absent.pb: no such file\n"
