"""Reading a program from a file, whatever kind of file it is."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardproof.frontends import stablehlo
from shardproof.frontends.locate import WRAPPER_FILES, Locator
from shardproof.frontends.onnx.read import looks_like_onnx
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Mesh
from shardproof.ir.verify import verify

if TYPE_CHECKING:
    from shardproof.frontends.fx.graph import Graph

MAX_BYTES: Final = 8 << 30
_GZIP: Final = b"\x1f\x8b"
_CHUNK: Final = 1 << 24
_ZIP: Final = b"PK"
_MLIR: Final = ("module @", "module attributes", "module {", "builtin.module", "func.func", "sdy.mesh")
_KINDS: Final = "an HLO module (serialised or text), StableHLO, ONNX, an FX code dump, a .pt2 or IR text"


def load(
    path: str | Path, *, ranks: int | None = None, wrapper_files: Sequence[str] = WRAPPER_FILES
) -> Module:
    """The program in `path`: IR text, HLO (serialised, bare or HloProto, or text), StableHLO (text, bytecode,
    a `jax.export` file; by jaxlib, where that is installed), an FX code dump, a `.pt2`.

    Each but the last may be gzipped.

    The kind is recognised by content. `ranks` is the number of ranks where the file doesn't tell (if it
    does, they must agree); `wrapper_files` are passed over when choosing the source line to show. What
    is returned has passed `shardproof.ir.verify`.
    Raises `ModuleError` with one line: the file, what was found, what to do.
    """
    name = str(path)
    try:
        if is_archive(Path(path)):
            return _archive(Path(path), name, ranks, wrapper_files)
        return interpret(contents(Path(path)), name, ranks, wrapper_files)
    except ModuleError as error:
        line = " ".join(str(error).split())
        raise ModuleError(line if line.startswith(f"{name}:") else f"{name}: {line}") from None
    except RecursionError:
        raise ModuleError(f"{name}: is nested too deeply to be a real program") from None
    except MemoryError:
        raise ModuleError(f"{name}: does not fit into memory") from None
    except OverflowError as error:
        raise ModuleError(f"{name}: holds a number out of range: {' '.join(str(error).split())}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ModuleError(f"{name}: is malformed in a way without its own message ({found})") from error


def torch_graphs(
    paths: Sequence[str | Path], wrapper_files: Sequence[str] = WRAPPER_FILES
) -> list[Graph] | None:
    """The graphs of FX code dumps or `.pt2`, in the order of `paths`; None when a file is something else.

    Raises as `load`.
    """
    if not all(map(_is_torch, paths)):
        return None
    from shardproof.frontends.fx.code_ranks import read_ranks

    try:
        return read_ranks(paths, wrapper_files)
    except RecursionError:
        raise ModuleError(f"{paths[0]}: is nested too deeply to be a real program") from None
    except MemoryError:
        raise ModuleError(f"{paths[0]}: does not fit into memory") from None


def _is_torch(path: str | Path) -> bool:
    """Whether a file is a `.pt2` or an FX code dump, by how it starts; False also when it can't be read."""
    if is_archive(Path(path)):
        return True
    from shardproof.frontends.fx.code_lines import starts_like_code

    try:
        with open(path, "rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            head = gzip.GzipFile(fileobj=file).read(1 << 16) if packed else file.read(1 << 16)
    except (OSError, EOFError, ValueError, zlib.error):
        return False
    text = _as_text(head[: head.rfind(b"\n") + 1])
    return bool(text) and starts_like_code(text or "")


def is_archive(path: Path) -> bool:
    """Whether the file starts like a zip archive; False also when it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except (OSError, ValueError):
        return False


def is_capture(path: Path) -> bool:
    """Whether the file starts like one rank of a saved capture; False also when it can't be read."""
    from shardproof.frontends.fx.saved import MARK

    try:
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK.encode("ascii")
    except (OSError, ValueError):
        return False


def _archive(file: Path | io.BytesIO, name: str, ranks: int | None, wrapper_files: Sequence[str]) -> Module:
    """The verified program of a `.pt2`, whose weights stay in the file."""
    from shardproof.frontends.fx.archive import read_archive
    from shardproof.frontends.fx.graph import titled

    module = _lowered(titled(read_archive(file, name, Locator(wrapper_files))), ranks)
    verify(module)
    return module


def _lowered(graph: Graph, ranks: int | None) -> Module:
    """The program of a graph; what the lowering took for granted is among its warnings."""
    from shardproof.frontends.fx.lowering import lower

    found = lower(graph, ranks=ranks or 1)
    guesses = (f"{guess.kind}: {guess.text}" for guess in found.guesses)
    return replace(found.module, warnings=(*found.module.warnings, *guesses))


def contents(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a file, unpacked when gzipped. Raises `ModuleError` when it has more than `limit`."""
    try:
        with path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            data = _decompressed(file, limit) if head == _GZIP else _bounded(file, limit)
    except ModuleError:
        raise
    except FileNotFoundError:
        raise ModuleError("no such file") from None
    except IsADirectoryError:
        raise ModuleError("is a directory, a file is needed") from None
    except PermissionError:
        raise ModuleError("can't be read: permission denied") from None
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise ModuleError("is a damaged or truncated gzip file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModuleError(f"can't be read: {reason.lower()}") from None
    if not data:
        raise ModuleError(f"is empty, {_KINDS} is needed")
    return data


def _decompressed(file: io.BufferedReader, limit: int) -> bytes:
    with gzip.GzipFile(fileobj=file) as stream:
        return _bounded(stream, limit)


def _bounded(stream: io.BufferedIOBase, limit: int) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while chunk := stream.read(_CHUNK):
        total += len(chunk)
        if total > limit:
            raise ModuleError(f"holds more than {limit >> 20} MiB")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def interpret(data: bytes, name: str, ranks: int | None, wrapper_files: Sequence[str]) -> Module:
    """The verified program in `data`; as `load`, but an error may be any that malformed input can cause."""
    module = _read(data, name, ranks, wrapper_files)
    verify(module)
    return module


def _read(data: bytes, name: str, ranks: int | None, wrapper_files: Sequence[str]) -> Module:
    text = _as_text(data)
    if text is not None:
        start = _first_line(text)
        if start.startswith(("HloModule ", "HloModule\t")):
            from shardproof.frontends.hlo.lower import lower
            from shardproof.frontends.hlo.read_text import read_text

            return lower(read_text(text, Locator(wrapper_files)), ranks)
        if start.startswith(_MLIR):
            return _stablehlo(text, ranks, wrapper_files)
        if start.startswith("module"):
            from shardproof.ir.text import parse

            return _with_ranks(parse(text, source=name), ranks)
        from shardproof.frontends.fx.code_lines import starts_like_code

        if starts_like_code(text):
            from shardproof.frontends.fx.code import read_code

            return _lowered(read_code(text, name), ranks)
        raise ModuleError(f"is text that starts with {start[:40]!r}, {_KINDS} is needed")
    if data.startswith(_ZIP):
        return _archive(io.BytesIO(data), name, ranks, wrapper_files)
    if looks_like_onnx(data):
        from shardproof.frontends.onnx.lower import read_onnx

        return read_onnx(data, Path(name).parent, ranks=ranks, wrapper_files=wrapper_files)
    if data.startswith(stablehlo.MAGIC):
        return _stablehlo(data, ranks, wrapper_files)
    inside = stablehlo.exported(data)
    if inside is not None:
        return _stablehlo(inside, ranks, wrapper_files)
    return _hlo(data, ranks, wrapper_files)


def _hlo(data: bytes, ranks: int | None, wrapper_files: Sequence[str]) -> Module:
    from shardproof.frontends.hlo.lower import lower
    from shardproof.frontends.hlo.read_proto import parse as parse_proto
    from shardproof.frontends.hlo.read_proto import read_proto

    return lower(read_proto(parse_proto(data), Locator(wrapper_files)), ranks)


def _stablehlo(program: str | bytes, ranks: int | None, wrapper_files: Sequence[str]) -> Module:
    return _hlo(stablehlo.to_hlo(program), ranks, wrapper_files)


def _with_ranks(module: Module, ranks: int | None) -> Module:
    """The program on the ranks asked for; text without a mesh doesn't tell, every rank runs it."""
    if ranks is None or ranks == module.mesh.size:
        return module
    if not module.mesh.axes:
        return replace(module, mesh=Mesh((("rank", ranks),)))
    raise ModuleError(f"{ranks} ranks were asked for, the module is for {module.mesh.size}")


def _first_line(text: str) -> str:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(("//", "#")):
            return stripped
    return ""


def _as_text(data: bytes) -> str | None:
    """`data` as text, or None when it has bytes that no text has."""
    head = data[:4096]
    if any(byte < 32 and byte not in b"\t\n\r\f" for byte in head):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
