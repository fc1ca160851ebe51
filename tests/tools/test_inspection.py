"""What `shardproof inspect` shows of a module."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from shardproof import __version__
from shardproof.ir.module import Guess, Input, Module, Op, Output, Value
from shardproof.ir.text import parse, to_text
from shardproof.ir.types import DType, Location, Mesh, TensorType
from shardproof.tools.command_line import run
from shardproof.tools.inspection import COLLECTIVES, inspection_json, inspection_text

TYPE = TensorType(DType.F32, (4, 8))


def program() -> Module:
    x, y = Value("x", TYPE), Value("y", TYPE)
    total = Value("total", TYPE, Location("model.py", 12))
    groups = ((0, 1), (2, 3))
    return Module(
        "layer",
        Mesh((("dp", 2), ("tp", 2))),
        (Input(x, 0), Input(y, 1, (1, 2))),
        (
            Op("add", (x, y), (Value("sum", TYPE),)),
            Op("all_reduce", (x,), (total,), {"kind": "sum", "groups": groups}),
        ),
        (Output("out", total, "y"),),
        warnings=("custom call `Fast` is kept as an unknown function",),
        guesses=(Guess("group_guess", "group 3 is over tp", "3"),),
    )


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = ModuleType("shardproof.frontends.load")
    stub.load = lambda path, ranks=None: program()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stub.__name__, stub)


def test_text() -> None:
    head, _, rest = inspection_text(program()).partition("\n\n")
    assert head.splitlines() == [
        "# layer: 2 instructions, mesh dp=2, tp=2",
        "# inputs: 2",
        "#   p0 x: f32[4,8]",
        "#   p1 y: f32[4,8]",
        "# outputs: 1",
        "#   out: f32[4,8], updates y",
        "# collectives: 1",
        "#   1 x all_reduce sum over [0, 1], [2, 3]",
        "# warning: custom call `Fast` is kept as an unknown function",
        "# guess: group_guess: group 3 is over tp",
    ]
    assert rest == to_text(program())


def test_the_text_is_a_program_again() -> None:
    hostile = replace(program(), name="a\nmodule {", warnings=("x\n}",))
    for module in (program(), hostile):
        assert to_text(parse(inspection_text(module), source="layer.spf")) == to_text(module)


def test_json() -> None:
    form = json.loads(inspection_json(program()))
    assert form.pop("text") == to_text(program())
    assert form == {
        "version": __version__,
        "name": "layer",
        "mesh": {"dp": 2, "tp": 2},
        "ranks": 4,
        "inputs": [
            {"name": "x", "number": 0, "type": "f32[4,8]", "sharding": None},
            {"name": "y", "number": 1, "type": "f32[4,8]", "sharding": [1, 2]},
        ],
        "outputs": [{"name": "out", "type": "f32[4,8]", "updates": "y"}],
        "collectives": [
            {
                "value": "total",
                "op": "all_reduce",
                "kind": "sum",
                "groups": [[0, 1], [2, 3]],
                "file": "model.py",
                "line": 12,
            }
        ],
        "instructions": 2,
        "opcodes": {"add": 1, "all_reduce": 1},
        "warnings": ["custom call `Fast` is kept as an unknown function"],
        "guesses": ["group_guess: group 3 is over tp"],
    }


@pytest.mark.usefixtures("loaded")
def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["inspect", "layer.pb"]) == 0
    assert capsys.readouterr().out == inspection_text(program())
    target = tmp_path / "layer.json"
    assert run(["inspect", "layer.pb", "--format", "json", "-o", str(target)]) == 0
    assert target.read_text() == inspection_json(program()) + "\n"
    assert capsys.readouterr() == ("", "")


def test_the_collectives_are_those_of_the_operator_table() -> None:
    from shardproof.ir.ops import TABLE

    assert set(TABLE) >= COLLECTIVES
