"""Reading a program from a file, whatever kind of file it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from shardproof.frontends.formats import CODE, PT2, frontend_of
from shardproof.frontends.locate import WRAPPER_FILES
from shardproof.frontends.source import Constants, Initializers, Source
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Mesh
from shardproof.ir.verify import verify

if TYPE_CHECKING:
    from shardproof.frontends.fx.graph import Graph

_NONE: Final[Constants] = MappingProxyType({})


def load(
    path: str | Path,
    *,
    ranks: int | None = None,
    constants: Constants = _NONE,
    initializers: Initializers = "auto",
    wrapper_files: Sequence[str] = WRAPPER_FILES,
) -> Module:
    """The program in `path`, of any of the formats of `shardproof.frontends.formats`; it may be gzipped.

    `ranks` is the number of ranks where the file doesn't tell (if it does, they must agree); `constants`
    are numbers by name for what it leaves open; `initializers` says which stored tensors of an ONNX model
    are inputs (`Source`); `wrapper_files` are passed over when choosing the source
    line to show. What is returned has passed `shardproof.ir.verify`.
    Raises `ModuleError` with one line: the file, what was found, what to do.
    """
    with _told(str(path)):
        return interpret(
            Source(
                path,
                ranks=ranks,
                constants=constants,
                initializers=initializers,
                wrapper_files=wrapper_files,
            )
        )


def interpret(source: Source) -> Module:
    """The verified program; as `load`, but an error may be any that malformed input can cause."""
    module = _with_ranks(frontend_of(source).read(source), source.ranks)
    verify(module)
    return module


def torch_graphs(
    paths: Sequence[str | Path], wrapper_files: Sequence[str] = WRAPPER_FILES
) -> list[Graph] | None:
    """The graphs of FX code dumps or `.pt2`, in the order of `paths`; None when a file is something else.

    Raises as `load`.
    """
    if not all(map(_is_torch, paths)):
        return None
    from shardproof.frontends.fx.code.ranks import read_ranks

    with _told(*map(str, paths)):
        return read_ranks(paths, wrapper_files)


def is_capture(path: Path) -> bool:
    """Whether the file starts like one rank of a saved capture; False also when it can't be read."""
    from shardproof.frontends.fx.saved import MARK

    try:
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK.encode("ascii")
    except (OSError, ValueError):
        return False


def _is_torch(path: str | Path) -> bool:
    """Whether a file is a `.pt2` or an FX code dump; False also when it can't be read."""
    source = Source(path)
    try:
        return CODE.recognises(source) or PT2.recognises(source)
    except ModuleError:
        return False


def _with_ranks(module: Module, ranks: int | None) -> Module:
    """The program on the ranks asked for; one without a mesh doesn't tell, every rank runs it."""
    if ranks is None or ranks == module.mesh.size:
        return module
    if not module.mesh.axes:
        return replace(module, mesh=Mesh((("rank", ranks),)))
    raise ModuleError(f"{ranks} ranks were asked for, the module is for {module.mesh.size}")


@contextmanager
def _told(*names: str) -> Iterator[None]:
    """Makes any error that malformed input can cause a `ModuleError` of one line that starts with its file,
    the first unless the error tells."""
    name = names[0]
    try:
        yield
    except ModuleError as error:
        line = " ".join(str(error).split())
        is_placed = line.startswith(tuple(f"{n}:" for n in names))
        raise ModuleError(line if is_placed else f"{name}: {line}") from None
    except RecursionError:
        raise ModuleError(f"{name}: is nested too deeply to be a real program") from None
    except MemoryError:
        raise ModuleError(f"{name}: does not fit into memory") from None
    except OverflowError as error:
        raise ModuleError(f"{name}: holds a number out of range: {' '.join(str(error).split())}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ModuleError(f"{name}: is malformed in a way without its own message ({found})") from error
