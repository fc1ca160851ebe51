"""The header of a safetensors file: a length, JSON, then raw little-endian elements without holes."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from typing import Final

from shardproof.frontends.hlo.elements import MAX_DIMS, MAX_ELEMENTS
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType

MAX_HEADER: Final = 100_000_000
"""Most bytes of JSON, the limit that the format itself sets."""

PREFIX: Final = 8
ELEMENTS: Final = {
    "BOOL": (DType.BOOL, 8),
    "U8": (DType.U8, 8),
    "I8": (DType.S8, 8),
    "F8_E5M2": (DType.F8E5M2, 8),
    "F8_E4M3": (DType.F8E4M3FN, 8),
    "F8_E8M0": (None, 8),
    "F8_E4M3FNUZ": (DType.F8E4M3FNUZ, 8),
    "F8_E5M2FNUZ": (DType.F8E5M2FNUZ, 8),
    "I16": (DType.S16, 16),
    "U16": (DType.U16, 16),
    "F16": (DType.F16, 16),
    "BF16": (DType.BF16, 16),
    "I32": (DType.S32, 32),
    "U32": (DType.U32, 32),
    "F32": (DType.F32, 32),
    "C64": (DType.C64, 64),
    "F64": (DType.F64, 64),
    "I64": (DType.S64, 64),
    "U64": (DType.U64, 64),
}
"""Element types by their name in the file; None is one that only its bits are known of."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its element's name in the file, and the bytes of the file that hold it."""

    name: str
    element: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(head: bytes, size: int) -> tuple[Entry, ...]:
    """The tensors of a file of `size` bytes that starts with `head`, which holds the header at least.

    Raises `ModuleError` unless the tensors fill the rest of the file, each with the bytes that its
    type and shape need.
    """
    length = header_length(head, size)
    try:
        header = json.loads(head[PREFIX : PREFIX + length], object_pairs_hook=_once)
    except ModuleError:
        raise
    except (ValueError, RecursionError):
        raise ModuleError("has a header that is not JSON, a safetensors file is needed") from None
    if not isinstance(header, dict):
        raise ModuleError("has a header that is no table of tensors")
    start = PREFIX + length
    entries = [_entry(name, e, start) for name, e in header.items() if name != "__metadata__"]
    at = start
    for e in sorted(entries, key=lambda e: (e.start, e.stop)):
        if e.start != at:
            raise ModuleError(f"tensor {e.name!r}: its bytes do not follow those of the tensor before it")
        at = e.stop
    if at != size:
        raise ModuleError(f"holds {size} bytes, its header speaks of {at}: it is truncated or damaged")
    return tuple(entries)


def header_length(head: bytes, size: int) -> int:
    """Bytes of JSON behind the prefix."""
    if len(head) < PREFIX:
        raise ModuleError("is too short for a safetensors file")
    (length,) = struct.unpack("<Q", head[:PREFIX])
    if length > MAX_HEADER:
        raise ModuleError(f"has a header of {length} bytes, at most {MAX_HEADER} are read")
    if PREFIX + length > size:
        raise ModuleError(f"holds {size} bytes, fewer than its header: it is truncated or damaged")
    return int(length)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ModuleError("has a header that names something twice")
    return table


def _entry(name: str, entry: object, start: int) -> Entry:
    where = f"tensor {name[:80]!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModuleError(f"{where}: needs a dtype, a shape and data_offsets")
    element, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(element, str) or element not in ELEMENTS:
        raise ModuleError(f"{where}: has the element type {str(element)[:20]!r}, which is not read")
    if not (_counts(shape) and _counts(offsets) and len(offsets) == 2 and len(shape) <= MAX_DIMS):
        raise ModuleError(f"{where}: its shape and data_offsets are not lists of sizes")
    begin, end = offsets
    count = prod(n for n in shape if n)
    if count > MAX_ELEMENTS:
        raise ModuleError(f"{where}: has more than 2**48 elements")
    needed = prod(shape) * ELEMENTS[element][1] // 8
    if end - begin != needed:
        raise ModuleError(f"{where}: {element}{shape} needs {needed} bytes, it has {end - begin}")
    return Entry(name, element, tuple(shape), start + begin, start + end)


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in value)
