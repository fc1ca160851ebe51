"""Files that no program can be read from: exit code 3 and one clear line, in either place, in every form."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hlo_writer import pb, to_proto

from shardproof.tools.command_line import run

HLO = """HloModule m
ENTRY e {
  x = f32[4,6] parameter(0)
  y = f32[4,6] negate(x)
  z = f32[4,6] add(y, x)
  ROOT t = f32[6,4] transpose(z), dimensions={1,0}
}
"""
IR = """module "m" mesh() {
  %x = input(0) : f32[4,6]
  %y = negate(%x) : f32[4,6]
  %z = add(%y, %x) : f32[4,6]
  %t = transpose(%z) {permutation=(1, 0)} : f32[6,4]
  output "t" = %t
}
"""
MANY = "9" * 15


def proto(change: Callable[[Any, Any], object] = lambda m, ops: None) -> bytes:
    """The program serialised, after `change(module, instructions by name)`."""
    message = to_proto(HLO)
    change(message, {i.name: i for i in message.computations[0].instructions})
    data: bytes = message.SerializeToString()
    return data


def swapped(old: str, new: str, text: str = HLO) -> bytes:
    assert old in text
    return text.replace(old, new).encode()


def ir(old: str, new: str) -> bytes:
    return swapped(old, new, IR)


def copied_operand(m: Any, ops: Any) -> None:
    ops["y"].operand_ids[:] = [ops["t"].id]


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b"\n  \n", ""),
    "zipped empty": (gzip.compress(b""), "is empty"),
    "truncated gzip": (gzip.compress(proto())[:-9], "truncated gzip"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(40), "not a serialised HLO module"),
    "python": (b"import torch\nprint(1)\n", "is text that starts with"),
    "other proto": (pb.HloModuleProto(name="m").SerializeToString(), "no HLO computation"),
    "truncated proto": (proto()[:-10], "cut short"),
    "truncated text": (HLO.encode()[:-4], "line 6"),
    "truncated ir": (IR.encode()[:-30], ""),
    "gigantic proto": (
        proto(lambda m, ops: ops["x"].shape.dimensions.__setitem__(0, 10**15)),
        "2**48 elements",
    ),
    "overflowing proto": (proto(lambda m, ops: ops["x"].shape.dimensions.extend([1 << 40] * 9)), "2**48"),
    "gigantic text": (swapped("f32[4,6] parameter", f"f32[{MANY},6] parameter"), "2**48 elements"),
    "gigantic ir": (ir("f32[4,6]", f"f32[{MANY},6]"), ""),
    "wrong type proto": (proto(lambda m, ops: setattr(ops["y"].shape, "element_type", 4)), "s32[4,6]"),
    "wrong type text": (swapped("y = f32", "y = s32"), "s32[4,6]"),
    "wrong type ir": (ir("%y = negate(%x) : f32", "%y = negate(%x) : s32"), "s32[4,6]"),
    "wrong shape proto": (proto(lambda m, ops: ops["y"].shape.dimensions.__setitem__(0, 5)), "f32[5,6]"),
    "wrong shape text": (swapped("y = f32[4,6]", "y = f32[6,4]"), "f32[6,4]"),
    "wrong shape ir": (ir("%y = negate(%x) : f32[4,6]", "%y = negate(%x) : f32[6,4]"), "f32[6,4]"),
    "cyclic proto": (proto(copied_operand), "cycle"),
    "cyclic text": (swapped("negate(x)", "negate(t)"), "cycle"),
    "cyclic ir": (ir("negate(%x)", "negate(%t)"), "%t"),
    "missing operand proto": (
        proto(lambda m, ops: ops["y"].operand_ids.__setitem__(0, 99)),
        "that its computation doesn't have",
    ),
    "missing operand text": (swapped("negate(x)", "negate(q)"), "q"),
    "missing operand ir": (ir("negate(%x)", "negate(%q)"), "%q"),
    "too few operands proto": (proto(lambda m, ops: ops["z"].operand_ids.pop()), "operand"),
    "too few operands text": (swapped("add(y, x)", "add(y)"), "operand"),
    "too few operands ir": (ir("add(%y, %x)", "add(%y)"), "operand"),
    "duplicate name proto": (proto(lambda m, ops: setattr(ops["z"], "name", "y")), "`y`"),
    "duplicate id proto": (proto(lambda m, ops: setattr(ops["z"], "id", ops["y"].id)), "id"),
    "duplicate name text": (swapped("z = f32", "y = f32"), "`y`"),
    "duplicate name ir": (ir("%z = add(%y, %x)", "%y = add(%y, %x)"), "%y is defined twice"),
    "duplicate output ir": (ir('output "t" = %t\n', 'output "t" = %t\n  output "t" = %z\n'), "t"),
    "duplicate parameter text": (swapped("y = f32[4,6] negate(x)", "y = f32[4,6] parameter(0)"), "parameter"),
    "unknown operator proto": (proto(lambda m, ops: setattr(ops["y"], "opcode", "frobnicate")), "frobnicate"),
    "unknown operator text": (swapped("negate", "frobnicate"), "frobnicate"),
    "unknown operator ir": (ir("negate", "frobnicate"), "frobnicate"),
    "dim out of range text": (swapped("{1,0}", "{1,7}"), "transpose"),
    "dim out of range ir": (ir("(1, 0)", "(1, 7)"), "transpose"),
    "no root": (proto(lambda m, ops: setattr(m.computations[0], "root_id", 77)), "root"),
    "huge attribute ir": (ir("(1, 0)", "(1, " + "9" * 5000 + ")"), ""),
    "deep ir": (ir("(1, 0)", "(" * 3000 + ")" * 3000), ""),
}


@pytest.mark.parametrize("place", ["reference", "implementation"])
@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_one_line(
    name: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, expected = BAD[name]
    good, bad = tmp_path / "good.txt", tmp_path / "bad file"
    good.write_text(HLO)
    bad.write_bytes(content)
    pair = (bad, good) if place == "reference" else (good, bad)
    assert run(["verify", *map(str, pair)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith(f"error[E01]: {bad}:"), err
    assert expected in err
    assert len(err) < 500
    assert "Traceback" not in err and "without its own message" not in err


def test_the_good_file_is_good(tmp_path: Path) -> None:
    for name, content in (("a", HLO.encode()), ("b", IR.encode()), ("c", proto())):
        (tmp_path / name).write_bytes(content)
    assert run(["verify", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert run(["verify", str(tmp_path / "c"), str(tmp_path / "b")]) == 0


RELATIONS = {
    "empty mesh": ("mesh = { tp = 0 }", "tp"),
    "not toml": ("[inputs\n", ""),
    "unknown table": ("[layouts]\nx = 'replicate'\n", "layouts"),
    "unknown input": ("[inputs]\nw = 'replicate'\n", "w"),
    "unknown step": ("[inputs]\nx = 'frobnicate(1)'\n", "frobnicate"),
    "missing dim": ("[inputs]\nx = 'shard(7)'\n", "7"),
    "not a string": ("[inputs]\nx = 3\n", "x"),
    "nul": ("[inputs]\nx = '\0'\n", ""),
}


@pytest.mark.parametrize("name", RELATIONS)
def test_bad_relation_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, expected = RELATIONS[name]
    program, relation = tmp_path / "p.txt", tmp_path / "r.toml"
    program.write_text(HLO)
    relation.write_text(text)
    assert run(["verify", str(program), str(program), "--relation", str(relation)]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("error[E02]: "), err
    assert expected in err
