"""The formats of program files: a frontend for each that this package reads, and those of other packages.

A file is read by the first that recognises it, in this order:

1. the frontends here whose format cannot be mistaken for another (`CERTAIN`);
2. those of installed packages (`shardproof.frontends.installed`), of which no two may claim one file;
3. those here that take what may be meant for them (`GUESSED`), and then say what is wrong with it.

So no installed package changes how a file of a known format is read, nor is it imported for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from shardproof.frontends import wire
from shardproof.frontends.locate import Locator
from shardproof.frontends.source import Source
from shardproof.ir.module import Module, ModuleError

if TYPE_CHECKING:
    from shardproof.frontends.fx.graph import Graph


class Frontend(Protocol):
    """What reads one kind of file. An object, or a Python module, with these two functions."""

    def recognises(self, source: Source) -> bool:
        """Whether the file is of this kind, by what it starts with or by its name; it may be anything."""
        ...

    def read(self, source: Source) -> Module:
        """The program. Raises `ModuleError`: what was found, where, what to do; `load` adds the file."""
        ...


@dataclass(frozen=True, slots=True)
class Format:
    """A frontend, and the `name` of what it reads."""

    name: str
    recognises: Callable[[Source], bool]
    read: Callable[[Source], Module]


def frontend_of(source: Source) -> Format:
    """The frontend that reads the file. Raises `ModuleError` when there is none, or more than one."""
    certain = next((f for f in CERTAIN if f.recognises(source)), None)
    if certain is not None:
        return certain
    from shardproof.frontends.installed import installed

    others = installed()
    claims = [f for f in others if f.recognises(source)]
    if len(claims) > 1:
        names = " and ".join(f.name for f in claims)
        raise ModuleError(f"is claimed by {names}: uninstall the package that should not read it")
    found = next((f for f in (*claims, *GUESSED) if f.recognises(source)), None)
    if found is not None:
        return found
    names = ", ".join(dict.fromkeys(f.name for f in (*CERTAIN, *GUESSED, *others)))
    raise ModuleError(f"is text that starts with {source.first_line()[:40]!r}; what is read: {names}")


# HLO


def _is_hlo(source: Source) -> bool:
    """Whether the file holds an HloModuleProto, or an HloProto, whose first instruction has an opcode."""
    if not source.head.startswith(b"\n"):
        return False
    found = wire.fields(source.data)
    return any(
        re.fullmatch(r"[a-z][a-z0-9-]*", wire.text(wire.message(wire.message(module, 3), 2), 2)) is not None
        for module in (found, wire.message(found, 1))
    )


def _hlo(source: Source) -> Module:
    return _from_proto(source, source.data)


def _from_proto(source: Source, proto: bytes) -> Module:
    from shardproof.frontends.hlo.lower import lower
    from shardproof.frontends.hlo.read_proto import parse, read_proto

    return lower(read_proto(parse(proto), Locator(source.wrapper_files)), source.ranks)


def _is_hlo_text(source: Source) -> bool:
    return source.first_line().startswith(("HloModule ", "HloModule\t"))


def _hlo_text(source: Source) -> Module:
    from shardproof.frontends.hlo.lower import lower
    from shardproof.frontends.hlo.read_text import read_text

    return lower(read_text(source.text, Locator(source.wrapper_files)), source.ranks)


# StableHLO

_MLIR: Final = ("module @", "module attributes", "module {", "builtin.module", "func.func", "sdy.mesh")


def _is_stablehlo_text(source: Source) -> bool:
    return source.first_line().startswith(_MLIR)


def _stablehlo_text(source: Source) -> Module:
    from shardproof.frontends.stablehlo import to_hlo

    return _from_proto(source, to_hlo(source.text))


def _is_stablehlo(source: Source) -> bool:
    from shardproof.frontends.stablehlo import MAGIC, exported

    return source.head.startswith(MAGIC) or (source.lines() is None and exported(source.data) is not None)


def _stablehlo(source: Source) -> Module:
    from shardproof.frontends.stablehlo import exported, to_hlo

    return _from_proto(source, to_hlo(exported(source.data) or source.data))


# ONNX


def _is_onnx(source: Source) -> bool:
    """Whether the file holds a ModelProto with a version, a graph and an opset."""
    if not _may_be_onnx(source):
        return False
    found = wire.fields(source.data)
    return isinstance(found.get(1), int) and bool(wire.message(found, 7)) and bool(wire.message(found, 8))


def _may_be_onnx(source: Source) -> bool:
    return source.head.startswith(b"\x08")


def _onnx(source: Source) -> Module:
    from shardproof.frontends.onnx.lower import read_onnx

    return read_onnx(
        source.data,
        source.path.parent,
        ranks=source.ranks,
        constants=source.constants,
        initializers=source.initializers,
        wrapper_files=source.wrapper_files,
    )


# PyTorch


def _is_code(source: Source) -> bool:
    from shardproof.frontends.fx.code.lines import starts_like_code

    lines = source.lines()
    return lines is not None and starts_like_code("\n".join(lines))


def _code(source: Source) -> Module:
    from shardproof.frontends.fx.code.read import read_code

    return _lowered(read_code(source.text, source.name), source)


def _is_pt2(source: Source) -> bool:
    if not source.is_zip():
        return False
    from shardproof.frontends.fx.archive.zip import is_exported

    return is_exported(source.file())


def _pt2(source: Source) -> Module:
    from shardproof.frontends.fx.archive.read import read_archive
    from shardproof.frontends.fx.graph import titled

    graph = read_archive(source.file(), source.name, Locator(source.wrapper_files))
    return _lowered(titled(graph), source)


def _lowered(graph: Graph, source: Source) -> Module:
    """The program of a graph, with what the lowering took for granted."""
    from dataclasses import replace

    from shardproof.frontends.fx.lowering.lower import lower

    found = lower(graph, ranks=source.ranks or 1, constants=source.constants)
    return replace(found.module, guesses=tuple(found.guesses))


# IR text


def _is_ir(source: Source) -> bool:
    return source.first_line().startswith('module "')


def _ir(source: Source) -> Module:
    from shardproof.ir.text import parse

    return parse(source.text, source=source.name)


HLO: Final = Format("HLO (serialised)", _is_hlo, _hlo)
CODE: Final = Format("an FX code dump", _is_code, _code)
PT2: Final = Format("a .pt2", _is_pt2, _pt2)
ONNX: Final = Format("ONNX", _is_onnx, _onnx)
STABLEHLO: Final = Format("StableHLO (bytecode, jax.export)", _is_stablehlo, _stablehlo)

CERTAIN: Final = (
    Format("HLO text", _is_hlo_text, _hlo_text),
    Format("StableHLO text", _is_stablehlo_text, _stablehlo_text),
    Format("IR text", _is_ir, _ir),
    CODE,
    PT2,
    ONNX,
    HLO,
    STABLEHLO,
)
GUESSED: Final = (
    Format(PT2.name, Source.is_zip, _pt2),
    Format(ONNX.name, _may_be_onnx, _onnx),
    Format(HLO.name, lambda source: source.lines() is None, _hlo),
)
