"""Tensors of a weight file (`.safetensors`, `.npz`, `.pt2`, `.onnx`), bit by bit; no framework, no pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Final

import numpy as np

from shardproof.frontends.codes import code_bits, codes_of
from shardproof.frontends.safetensors_file import ELEMENTS, MAX_HEADER, PREFIX, header_length, read_header
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Array, DType

MAX_MEMBERS: Final = 1_000_000
MAX_RATIO: Final = 100
_FREE: Final = 1 << 20
_ZIP: Final = b"PK"
_PICKLE: Final = b"\x80"
_ONNX: Final = b"\x08"
"""As a safetensors file may start, too, but there a header follows the first eight bytes."""
_HEADER: Final = b"{"
_DAMAGED: Final = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError),
    *(SyntaxError, TokenError, RecursionError, TypeError, LookupError, OverflowError),
)
_NUMPY: Final = {
    "bool": DType.BOOL,
    **{f"int{n}": DType[f"S{n}"] for n in (8, 16, 32, 64)},
    **{f"uint{n}": DType[f"U{n}"] for n in (8, 16, 32, 64)},
    **{f"float{n}": DType[f"F{n}"] for n in (16, 32, 64)},
    "complex64": DType.C64,
    "complex128": DType.C128,
}


@dataclass(frozen=True, slots=True)
class Element:
    """An element type; `dtype` is None where only the number of bits is known."""

    name: str
    bits: int
    dtype: DType | None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One tensor of a file, its elements unread; `codes` reads their bits as unsigned integers."""

    name: str
    element: Element
    shape: tuple[int, ...]
    codes: Callable[[], Array]

    def __str__(self) -> str:
        return f"{self.element}[{','.join(map(str, self.shape))}]"


def read(path: Path) -> dict[str, Weight]:
    """The tensors of a file by name, in its order.

    Complex elements of 128 bits are their own codes. Raises `ModuleError`: the file, what was found,
    what to do.
    """
    try:
        with path.open("rb") as file:
            head = file.read(PREFIX)
            if head.startswith(_ZIP):
                return _zipped(path)
            if head.startswith(_ONNX) and file.read(1) != _HEADER:
                return _onnx(path)
            file.seek(len(head))
            if head.startswith(_PICKLE):
                raise ModuleError("is a pickled checkpoint, which is never read: save it as safetensors")
            return _safetensors(path, file, head)
    except ModuleError as error:
        text = str(error)
        raise ModuleError(text if text.startswith(f"{path}:") else f"{path}: {text}") from None
    except MemoryError:
        raise ModuleError(f"{path}: does not fit into memory") from None
    except OSError as error:
        raise ModuleError(f"{path}: can't be read: {(error.strerror or str(error)).lower()}") from None


def _safetensors(path: Path, file: IO[bytes], head: bytes) -> dict[str, Weight]:
    size = path.stat().st_size
    length = header_length(head, size)
    assert length <= MAX_HEADER
    entries = read_header(head + file.read(length), size)
    raw = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)

    def reader(start: int, stop: int, bits: int, shape: tuple[int, ...]) -> Callable[[], Array]:
        return lambda: np.asarray(raw[start:stop].view(f"<u{bits // 8}").reshape(shape))

    found = {}
    for e in entries:
        dtype, bits = ELEMENTS[e.element]
        name = dtype.value if dtype is not None else e.element.lower()
        codes = reader(e.start, e.stop, bits, e.shape)
        found[e.name] = Weight(e.name, Element(name, bits, dtype), e.shape, codes)
    return found


def _zipped(path: Path) -> dict[str, Weight]:
    """An `.npz` has only arrays at its top, an export archive has one folder."""
    try:
        archive = zipfile.ZipFile(path)
        members = archive.infolist()
    except _DAMAGED as error:
        raise ModuleError(f"is not a readable zip archive ({str(error).lower()})") from None
    if any("/" in m.filename for m in members):
        archive.close()
        return _exported(path)
    if len(members) > MAX_MEMBERS:
        raise ModuleError(f"holds {len(members)} arrays, at most {MAX_MEMBERS} are read")
    found: dict[str, Weight] = {}
    for member in members:
        name, suffix = member.filename[:-4], member.filename[-4:]
        if suffix != ".npy" or name in found:
            raise ModuleError(f"holds {member.filename[:80]!r}, where arrays of distinct names are needed")
        try:
            found[name] = _array(archive, member, name)
        except ModuleError as error:
            raise ModuleError(f"array {name[:80]!r}: {error}") from None
        except _DAMAGED as error:
            raise ModuleError(f"array {name[:80]!r}: is damaged ({str(error).lower()[:200]})") from None
    return found


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Weight:
    if member.flag_bits & 0x1:
        raise ModuleError("is encrypted")
    if member.file_size > _FREE and member.file_size > MAX_RATIO * member.compress_size:
        raise ModuleError(f"unpacks to {member.file_size} bytes, {MAX_RATIO} times its size or more")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, by_columns, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ModuleError(f"is of version {version} of the array format, plain arrays are needed")
        start = stream.tell()
    if dtype.hasobject or dtype.names is not None:
        raise ModuleError("holds Python objects or records, which are never read")
    size = prod(shape)
    if size * dtype.itemsize != member.file_size - start:
        held = member.file_size - start
        raise ModuleError(f"{list(shape)} of {dtype} are not the {held} bytes that it has")
    element = _element(dtype)

    def codes() -> Array:
        try:
            with archive.open(member) as stream:
                stream.seek(start)
                raw = stream.read(size * dtype.itemsize)
        except _DAMAGED as error:
            raise ModuleError(f"array {name[:80]!r}: is damaged ({str(error).lower()})") from None
        order: Any = "F" if by_columns else "C"
        array = np.frombuffer(raw, dtype).reshape(shape, order=order)
        if element.dtype is not None:
            return codes_of(array.astype(dtype.newbyteorder("="), copy=False), element.dtype)
        return np.ascontiguousarray(array).view(f"<u{dtype.itemsize}").reshape(shape)

    return Weight(name, element, tuple(map(int, shape)), codes)


def _element(dtype: np.dtype[Any]) -> Element:
    known = _NUMPY.get(dtype.name)
    if known is not None:
        return Element(known.value, known.bits, known)
    if dtype.kind == "V" and dtype.itemsize in (1, 2, 4, 8):
        return Element(f"bits{8 * dtype.itemsize}", 8 * dtype.itemsize, None)
    raise ModuleError(f"has elements of {dtype}, which are not read")


def _onnx(path: Path) -> dict[str, Weight]:
    from shardproof.frontends.onnx.stored import stored_tensors

    return stored_tensors(path.read_bytes(), path.parent)


def _exported(path: Path) -> dict[str, Weight]:
    from shardproof.frontends.fx.archive.read import read_archive, read_weights
    from shardproof.frontends.fx.graph import Tensor

    graph = read_archive(path, str(path))
    types: dict[str, DType] = {}
    for node in graph.nodes:
        title = node.target if node.op == "get_attr" else graph.titles.get(node.name)
        if title is not None and isinstance(node.meta, Tensor):
            types[title] = node.meta.dtype
    values: Mapping[str, Array] = read_weights(path, str(path))
    found = {}
    for name, value in values.items():
        dtype = types.get(name)
        if dtype is None or code_bits(dtype) is None:
            raise ModuleError(f"tensor {name[:80]!r}: the program does not say its element type")
        found[name] = Weight(name, Element(dtype.value, dtype.bits, dtype), value.shape, _coded(value, dtype))
    return found


def _coded(value: Array, dtype: DType) -> Callable[[], Array]:
    return lambda: codes_of(value, dtype)
