"""What a frontend reads: one file, its bytes when they are asked for, and what is known besides."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from shardproof.frontends.locate import WRAPPER_FILES
from shardproof.ir.module import ModuleError

MAX_BYTES: Final = 8 << 30
HEAD: Final = 1 << 16
"""Bytes by which a format is recognised."""
_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK"
_CHUNK: Final = 1 << 24
_EMPTY: Final = "is empty, a program is needed"
_CONTROL: Final = frozenset(range(32)) - frozenset(b"\t\n\r\f")

Constants = Mapping[str, float | tuple[float, ...]]
Initializers = Literal["auto", "inputs", "constants"]


class Source:
    """A file to read a program from; what it holds is read when it is asked for, unpacked when gzipped.

    - `path`: the file; what stands beside it may be read, too.
    - `ranks`: the number of ranks that the program is wanted for; None when the file has to tell.
    - `constants`: numbers by name, from `[constants]` of the relation file, for what the file leaves open.
    - `initializers`: which stored tensors of an ONNX model are inputs: "auto" (those that look like weights),
      "inputs" (all) or "constants" (none).
    - `wrapper_files`: files that are passed over when choosing the source line to show (`Locator`).

    Reading raises `ModuleError`. `data` takes the place of the file's own bytes.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        data: bytes | None = None,
        ranks: int | None = None,
        constants: Constants = MappingProxyType({}),
        initializers: Initializers = "auto",
        wrapper_files: Sequence[str] = WRAPPER_FILES,
    ) -> None:
        self.path = Path(path)
        self.ranks = ranks
        self.constants = constants
        self.initializers = initializers
        self.wrapper_files = tuple(wrapper_files)
        self._data = data
        self._head: bytes | None = None
        self._text: str | None = None

    @property
    def name(self) -> str:
        """The path as messages show it."""
        return str(self.path)

    @property
    def head(self) -> bytes:
        """The first `HEAD` bytes, fewer only when there are no more."""
        if self._head is None:
            if self._data is None:
                with _unpacked(self.path) as stream:
                    self._head = stream.read(HEAD)
            else:
                self._head = self._data[:HEAD]
            if not self._head:
                raise ModuleError(_EMPTY)
        return self._head

    @property
    def data(self) -> bytes:
        """All bytes."""
        if self._data is None:
            self._data = contents(self.path)
        return self._data

    @property
    def text(self) -> str:
        """All as text. Raises `ModuleError` when it is not UTF-8."""
        if self._text is None:
            try:
                self._text = self.data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ModuleError(
                    f"is text with bytes that are not UTF-8, the first at byte {error.start}"
                ) from None
        return self._text

    def lines(self) -> list[str] | None:
        """The lines at the start, the last perhaps cut; None for a file that is not text."""
        if not _CONTROL.isdisjoint(self.head[:4096]):
            return None
        try:
            return codecs.getincrementaldecoder("utf-8")().decode(self.head).splitlines()
        except UnicodeDecodeError:
            return None

    def first_line(self) -> str:
        """The first line that is neither blank nor a comment, stripped; "" without one."""
        stripped = (line.strip() for line in self.lines() or ())
        return next((line for line in stripped if line and not line.startswith(("//", "#"))), "")

    def is_zip(self) -> bool:
        return self.head.startswith(_ZIP)

    def file(self) -> Path | io.BytesIO:
        """The file where its own bytes are what is read, else a stream of those; for archives."""
        return self.path if self._data is None and is_archive(self.path) else io.BytesIO(self.data)


def is_archive(path: Path) -> bool:
    """Whether the file starts like a zip archive; False also when it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except (OSError, ValueError):
        return False


def contents(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a file, unpacked when gzipped. Raises `ModuleError` when it has none, or over `limit`."""
    chunks: list[bytes] = []
    total = 0
    with _unpacked(path) as stream:
        while chunk := stream.read(_CHUNK):
            total += len(chunk)
            if total > limit:
                raise ModuleError(f"holds more than {limit >> 20} MiB")
            chunks.append(chunk)
    if not chunks:
        raise ModuleError(_EMPTY)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@contextmanager
def _unpacked(path: Path) -> Iterator[io.BufferedIOBase]:
    """The file as a stream; what goes wrong while reading it is told by `ModuleError`."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            yield gzip.GzipFile(fileobj=file) if packed else file
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
