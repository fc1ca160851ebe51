"""Weight files: what they hold bit by bit, and hostile ones."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.weight_files import raw_safetensors, safetensors

from shardproof.frontends.codes import cast, code_bits, codes_of, values_of
from shardproof.frontends.hlo.literal import float8_values
from shardproof.frontends.weights import read
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType

ARRAYS: dict[str, Any] = {
    "half": np.array([[1.5, -0.0, np.inf]], np.float16),
    "single": np.arange(6, dtype=np.float32).reshape(2, 3),
    "ids": np.array([1, -2, 3], np.int64),
    "flag": np.array([True, False]),
    "scalar": np.asarray(2.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
}


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_the_bits_are_those_of_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"w.{kind}"
    if kind == "npz":
        np.savez(path, **ARRAYS)
    else:
        safetensors(path, ARRAYS)
    found = read(path)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        weight = found[name]
        assert weight.shape == array.shape
        dtype = weight.element.dtype
        assert dtype is not None
        values = values_of(weight.codes(), dtype)
        assert values.dtype == array.dtype and values.tobytes() == array.tobytes()


def test_bf16_and_8_bit_floats_are_codes(tmp_path: Path) -> None:
    codes = np.array([0x3F80, 0x7FC1, 0x8000], np.uint16)
    eight = np.array([0x38, 0x7F], np.uint8)
    path = safetensors(tmp_path / "w.st", {"b": codes, "e": eight}, {"b": "BF16", "e": "F8_E4M3"})
    found = read(path)
    assert str(found["b"]) == "bf16[3]" and str(found["e"]) == "f8e4m3fn[2]"
    assert found["b"].codes().tolist() == codes.tolist()
    assert values_of(found["b"].codes()[:1], DType.BF16).tolist() == [1.0]


def test_columns_and_byte_order_of_arrays_do_not_matter(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "w.npz", a=np.asfortranarray(array), b=array.astype(">f4"))
    found = read(tmp_path / "w.npz")
    for name in "ab":
        assert found[name].codes().tolist() == array.view(np.uint32).tolist()


@pytest.mark.parametrize("dtype", [d for d in DType if d.value.startswith("f8") and code_bits(d)])
def test_8_bit_floats_round_to_the_nearest(dtype: DType) -> None:
    table = float8_values(dtype).astype(np.float64)
    known = np.flatnonzero(np.isfinite(table))
    assert codes_of(table[known], dtype).tolist() == known.tolist()
    ordered = np.unique(table[known])
    middle = (ordered[1:] + ordered[:-1]) / 2
    up, down = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
    assert np.array_equal(table[codes_of(up, dtype)], ordered[1:])
    assert np.array_equal(table[codes_of(down, dtype)], ordered[:-1])
    assert (codes_of(middle, dtype) % 2 == 0).all()


def test_casts() -> None:
    ones = np.array([1, 300], np.int64).view(np.uint64)
    assert cast(ones, DType.S64, DType.F32) is None
    assert cast(ones, DType.S64, DType.S8) is None
    narrow = cast(ones, DType.S64, DType.S32)
    assert narrow is not None and narrow.tolist() == [1, 300]
    big = np.array([1e30, np.nan], np.float32).view(np.uint32)
    half = cast(big, DType.F32, DType.F16)
    assert half is not None and np.isinf(values_of(half, DType.F16)[0])
    eight = cast(big, DType.F32, DType.F8E4M3FN, saturate=True)
    assert eight is not None and values_of(eight, DType.F8E4M3FN)[0] == 448.0


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry()}, b"\0" * 7, "truncated"),
        ({"a": entry()}, b"\0" * 9, "damaged"),
        ({"a": entry(data_offsets=[4, 12])}, b"\0" * 12, "do not follow"),
        ({"a": entry(), "b": entry()}, b"\0" * 8, "do not follow"),
        ({"a": entry(shape=[3])}, b"\0" * 8, "needs 12 bytes"),
        ({"a": entry(shape=[-2])}, b"\0" * 8, "not lists of sizes"),
        ({"a": entry(shape=[True, 2])}, b"\0" * 8, "not lists of sizes"),
        ({"a": entry(shape=[1 << 40, 1 << 40])}, b"", r"more than 2\*\*48"),
        ({"a": entry(shape=[1] * 65)}, b"\0" * 4, "not lists of sizes"),
        ({"a": entry(dtype="F4")}, b"\0" * 8, "not read"),
        ({"a": entry(extra=1)}, b"\0" * 8, "needs a dtype"),
        ({"a": 3}, b"", "needs a dtype"),
        ([1], b"", "no table"),
        (b'{"a": 1, "a": 2}', b"", "twice"),
        (b"{" * 100_000, b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", b"", "not JSON"),
        (b"\xff\xfe", b"", "not JSON"),
    ],
)
def test_a_hostile_header_is_refused(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    path = raw_safetensors(tmp_path / "w.st", header, data)
    with pytest.raises(ModuleError, match=message) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"1234567", "too short"),
        (struct.pack("<Q", 1 << 60), "at most"),
        (struct.pack("<Q", 100), "truncated"),
        (b"\x80\x02}q\x00.", "pickled"),
        (b"PK\x03\x04 and no archive", "not a readable zip"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(ModuleError, match=message):
        read(path)
    with pytest.raises(ModuleError, match="no such file"):
        read(tmp_path / "absent")


def test_pickles_and_bombs_in_archives_are_refused(tmp_path: Path) -> None:
    objects = np.empty(1, object)
    objects[0] = {}
    np.savez(tmp_path / "o.npz", a=objects)
    with pytest.raises(ModuleError, match="never read"):
        read(tmp_path / "o.npz")
    np.savez_compressed(tmp_path / "z.npz", a=np.zeros(1 << 22))
    with pytest.raises(ModuleError, match="times its size"):
        read(tmp_path / "z.npz")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("../a.npy", b"")
    with pytest.raises(ModuleError, match="leaves"):
        read(tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("a.txt", b"")
    with pytest.raises(ModuleError, match="distinct names"):
        read(tmp_path / "y.npz")
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4' ")
    with pytest.raises(ModuleError, match=r"array 'a': is damaged"):
        read(tmp_path / "t.npz")


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, a=np.zeros(1000))
    raw = bytearray(path.read_bytes())
    raw[500] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(ModuleError, match="damaged"):
        read(path)["a"].codes()
