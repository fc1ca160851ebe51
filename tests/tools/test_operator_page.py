"""docs/operators.md is current, and what it says of the tests is what they do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardproof.ir.module import Op, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, TensorType
from shardproof.tools import operator_page

ROOT = Path(__file__).resolve().parents[2]
STORED = json.loads(operator_page.EVIDENCE.read_text(encoding="utf-8"))


def test_it_is_current() -> None:
    written = operator_page.PAGE.read_text(encoding="utf-8")
    assert operator_page.page() == written, "write it again with `python -m shardproof.tools.operator_page`"


def test_it_needs_no_framework() -> None:
    code = (
        "import sys; from shardproof.tools.operator_page import page; page(); "
        "print([m for m in ('torch', 'jax', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_operator_and_rule_is_in_it() -> None:
    text = operator_page.page()
    head, *lists = text.split("\n## ")[1:]
    assert [line.split("`")[1] for line in head.splitlines() if line.startswith("| `")] == list(TABLE)
    for framework, listed in zip(operator_page.FRAMEWORKS, lists, strict=True):
        names = [line.split("`")[1] for line in listed.splitlines() if line.startswith("| `")]
        assert names == list(operator_page.read(framework)) and len(names) > 100


@pytest.mark.parametrize("file", STORED)
def test_evidence_is_of_rules_and_operators_that_exist(file: str) -> None:
    assert (ROOT / file).is_file()
    for framework, operators in STORED[file].items():
        known = set(operator_page._table(framework))
        for name, use in operators.items():
            assert framework == "onnx" or name in known, f"{name}: run `make operators`"
            assert set(use["alone"]) <= set(use["becomes"]) <= set(TABLE), name


@pytest.mark.parametrize("start", operator_page.COMPARED)
def test_tests_that_are_said_to_compare_exist(start: str) -> None:
    assert any(file.startswith(start) for file in STORED)


@pytest.mark.parametrize(
    ("framework", "name", "line"),
    [
        ("hlo", "add", "| `add` | `add` | values |"),
        ("hlo", "infeed", "| `infeed` | refused: reads from the host |  |"),
        ("hlo", "partition-id", "| `partition-id` | `constant`, `rank_id` | values |"),
        ("aten", "bernoulli", "| `bernoulli` |  | no |"),
        ("jax", "erf_inv", "| `erf_inv` | *opaque* | values |"),
        ("jax", "psum", "| `psum` | `all_reduce`, `reduce` | values |"),
        ("onnx", "Transpose", "| `Transpose` | `transpose` | values |"),
    ],
)
def test_rows_say_what_is_known(framework: str, name: str, line: str) -> None:
    assert operator_page.read(framework)[name].row(name) == line


def test_recorded_again_it_is_the_same(tmp_path: Path) -> None:
    file = "tests/frontends/test_hlo_programs.py"
    command = [sys.executable, "-m", "pytest", "-p", "tests.operator_evidence", "-p", "no:cacheprovider"]
    environment = os.environ | {"OPERATOR_EVIDENCE": str(tmp_path / "found.json")}
    subprocess.run([*command, file], check=True, capture_output=True, env=environment, cwd=ROOT)
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))[file] == STORED[file]


def test_a_test_that_fails_is_no_evidence(tmp_path: Path) -> None:
    from tests.operator_evidence import Recorder

    recorder = Recorder()
    for passed in (False, True):
        recorder.note("hlo", f"passed {passed}", [], lambda: None)
        recorder.end("tests/test_x.py", passed)
    assert set(recorder.kept["tests/test_x.py"]) == {("hlo", "passed True")}


def test_of_many_cases_in_one_test_those_count_that_agree() -> None:
    from tests.operator_evidence import Recorder

    recorder = Recorder()

    def disagreement(case: str) -> str | None:
        recorder.note("onnx", case, [], lambda: None)
        return "another value" if case == "wrong" else None

    assert [recorder.judged(disagreement)(c) for c in ("right", "wrong")] == [None, "another value"]
    assert set(recorder.now) == {("onnx", "right")}


def test_what_a_rule_inside_makes_is_not_of_the_outer_one() -> None:
    from tests.operator_evidence import Recorder, summary

    x = Value("x", TensorType(DType.F32, ()))
    recorder, ops = Recorder(), list[Op]()

    def outer() -> None:
        ops.append(Op("negate", (x,), (x,)))
        recorder.note("hlo", "inner", ops, lambda: ops.append(Op("abs", (x,), (x,))))

    recorder.note("hlo", "outer", ops, outer)
    found = summary(recorder.now)["hlo"]
    assert (found["outer"]["becomes"], found["inner"]["alone"]) == (["negate"], ["abs"])
