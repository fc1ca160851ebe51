"""Every kind of file is recognised by content, and every bad one gives one clear line."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hlo_programs import PROGRAMS
from hlo_writer import pb, to_bytes, to_proto

from shardproof.frontends.load import load
from shardproof.ir.module import ModuleError
from shardproof.ir.text import to_text

TEXT = PROGRAMS["elementwise"].text


def _wrapped() -> bytes:
    data: bytes = pb.HloProto(hlo_module=to_proto(TEXT)).SerializeToString()
    return data


KINDS = {
    "bare": to_bytes(TEXT),
    "wrapped": _wrapped(),
    "text": TEXT.encode(),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_recognised_by_content(kind: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "anything.bin"
    path.write_bytes(gzip.compress(KINDS[kind]) if zipped else KINDS[kind])
    module = load(path)
    assert [op.opcode for op in module.ops][-1] == "select"
    assert [i.name for i in module.inputs] == ["x", "y"]
    assert [o.name for o in module.outputs] == ["r"]


@pytest.mark.parametrize("zipped", [False, True])
def test_ir_text(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_bytes(TEXT.encode())
    text = to_text(load(path))
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert to_text(load(str(path))) == text
    assert load(path, ranks=4).mesh.size == 4
    text = text.replace("mesh()", "mesh(tp=2)")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    with pytest.raises(ModuleError, match="4 ranks were asked for, the module is for 2"):
        load(path, ranks=4)


def _bad(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(ModuleError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:") and "\n" not in message
    assert "without its own message" not in message
    return message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (gzip.compress(b""), "is empty"),
        (gzip.compress(TEXT.encode())[:-9], "damaged or truncated gzip"),
        (b"\x1f\x8b\x08\x00garbage", "damaged or truncated gzip"),
        (KINDS["bare"][:-20], "cut short"),
        (KINDS["text"][:-4], "cut short"),
        (b"\x00" * 64, "not a serialised HLO module"),
        (b"\x7fELF" + b"\x01" * 60, "not a serialised HLO module"),
        (b"import torch\n", "is text that starts with 'import torch'"),
        (b"module @jit_f attributes {} {\n}\n", "StableHLO"),
        (b'{"a": 1}', "is text that starts with"),
        (b"HloModule m\nENTRY e {\n  x = f32[2] what is this\n}\n", "line 3"),
        ("HloModule m\nENTRY é {}".encode(), "line 2"),
        (pb.HloModuleProto(name="only a name").SerializeToString(), "no HLO computation"),
        (b'module "x" mesh() {\n  nonsense\n}\n', "2:"),
    ],
)
def test_bad_content(content: bytes, expected: str, tmp_path: Path) -> None:
    assert expected in _bad(tmp_path, content)


def test_missing_directory_and_permission(tmp_path: Path) -> None:
    with pytest.raises(ModuleError, match="no such file"):
        load(tmp_path / "absent")
    with pytest.raises(ModuleError, match="is a directory"):
        load(tmp_path)
    with pytest.raises(ModuleError, match=r"no such file|can't be read"):
        load("nul\0byte")
    secret = tmp_path / "secret"
    secret.write_bytes(b"HloModule m")
    secret.chmod(0)
    if os.access(secret, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ModuleError, match="permission denied"):
        load(secret)


HEADER = "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("  ROOT y = f32[4] negate(z)\n}", "uses an operand (z) that its computation doesn't have"),
        ("  y = f32[4] negate(z)\n  ROOT z = f32[4] negate(y)\n}", "comes later: a cycle"),
        ("  y = f32[4] negate(x)\n  ROOT y = f32[4] negate(x)\n}", "two instructions have the name `y`"),
        ("  ROOT y = f32[4] frobnicate(x)\n}", "the opcode 'frobnicate' is not known"),
        ("  ROOT y = f32[4] negate(x), secret=1\n}", "attribute secret, which is not known"),
        ("  ROOT y = f32[5] negate(x)\n}", "f32[4]"),
        ("  ROOT y = f32[4] add(x)\n}", "1 operands, 2 needed"),
        ("  ROOT y = f32[999999999,999999999] broadcast(x), dimensions={0}\n}", "more than 2**48 elements"),
        ("  ROOT y = f32[<=4] negate(x)\n}", "dynamic dim"),
        ("  ROOT y = f8e3m4[4] convert(x)\n}", "element type f8e3m4, which is not supported"),
        ("  ROOT y = f32[2] call(x), to_apply=gone\n}", "calls a computation that the file doesn't have"),
        ("  c = f32[4] constant({...})\n  ROOT y = f32[4] add(x, c)\n}", "use the serialised dump"),
        ("  c = f32[4] constant({1,2,3})\n  ROOT y = f32[4] add(x, c)\n}", "has 3 values"),
        ("  c = s8[] constant(200)\n  ROOT y = f32[4] negate(x)\n}", "holds a number that s8 doesn't"),
        ("  t = token[] after-all()\n  ROOT y = f32[4] infeed(t)\n}", "reads from the host"),
        ("  w = f32[4] parameter(2)\n  ROOT y = f32[4] add(x, w)\n}", "not numbered 0, 1, 2"),
        ("  ROOT y = f32[4] set-dimension-size(x, x), dimensions={0}\n}", "makes a dynamic dim"),
    ],
)
def test_bad_programs(body: str, expected: str, tmp_path: Path) -> None:
    assert expected in _bad(tmp_path, f"{HEADER}{body}".encode())


def test_a_program_that_calls_itself(tmp_path: Path) -> None:
    text = "HloModule m\nf {\n  p = f32[] parameter(0)\n  ROOT r = f32[] call(p), to_apply=f\n}\n"
    text += "ENTRY e {\n  x = f32[] parameter(0)\n  ROOT y = f32[] call(x), to_apply=f\n}\n"
    assert "call each other without end" in _bad(tmp_path, text.encode())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m, i: i.ParseFromString(i.SerializeToString() + b"\xa2\x06\x01\x01"), "field 100 of"),
        (
            lambda m, i: m.ParseFromString(m.SerializeToString() + b"\xa0\x06\x01"),
            "field 100 of HloModuleProto",
        ),
        (lambda m, i: i.shape.is_dynamic_dimension.append(True), "dynamic dim"),
        (lambda m, i: i.shape.dimensions.__setitem__(0, -1), "negative dim"),
        (lambda m, i: setattr(i.shape, "element_type", 77), "element type number 77"),
        (lambda m, i: setattr(i, "id", 12345), "that its computation doesn't have"),
        (lambda m, i: setattr(i, "name", ""), "has no name"),
        (lambda m, i: i.ClearField("shape"), "has no shape"),
        (lambda m, i: setattr(m, "is_dynamic", True), "dynamic dims"),
        (lambda m, i: setattr(m.computations[0], "root_id", 99), "no root"),
        (lambda m, i: i.shape.dimensions.extend([1] * 70), "at most 64"),
    ],
)
def test_bad_serialised(change: object, expected: str, tmp_path: Path) -> None:
    message = to_proto(TEXT)
    assert callable(change)
    change(message, message.computations[0].instructions[0])
    assert expected in _bad(tmp_path, message.SerializeToString())


def test_only_what_a_file_needs_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "m"
    heavy = ("torch", "jax", "onnx", "egglog", "z3", "lark", "google.protobuf")
    for kind, unused in (("bare", heavy[:-1]), ("text", (*heavy[:-2], heavy[-1]))):
        path.write_bytes(KINDS[kind])
        code = (
            "import sys; from shardproof.frontends.load import load; load(sys.argv[1]); "
            f"print([m for m in {unused!r} if m in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]", kind
