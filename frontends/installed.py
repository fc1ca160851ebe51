"""Frontends of other packages: the entry points of one group, loaded when a file may be theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from shardproof.frontends.formats import Format
from shardproof.frontends.source import Source
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.verify import verify

GROUP: Final = "shardproof.frontends"
"""Each entry point of this group names a `Frontend`: a Python module, or an object in one."""


def installed() -> tuple[Format, ...]:
    """The frontends of installed packages by name; raises `ModuleError` naming one that can't be loaded."""
    from importlib.metadata import entry_points

    found = sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value))
    return tuple(map(_loaded, found))


def _loaded(point: Any) -> Format:
    package = point.dist.name if point.dist is not None else point.module
    name = f"the frontend `{point.name}` of the package {package}"
    try:
        frontend = point.load()
    except Exception as error:
        raise ModuleError(f"{name} can't be loaded ({_line(error)}): repair or uninstall it") from error
    missing = [n for n in ("recognises", "read") if not callable(getattr(frontend, n, None))]
    if missing:
        raise ModuleError(f"{name} has no function `{missing[0]}`: repair or uninstall it")

    def recognises(source: Source) -> bool:
        try:
            return bool(frontend.recognises(source))
        except ModuleError:
            raise
        except Exception as error:
            raise ModuleError(f"{name} fails at telling whether this is its ({_line(error)})") from error

    def read(source: Source) -> Module:
        try:
            module = frontend.read(source)
        except ModuleError:
            raise
        except Exception as error:
            raise ModuleError(f"{name} fails at reading it ({_line(error)})") from error
        if not isinstance(module, Module):
            raise ModuleError(f"{name} gives a {type(module).__name__}, a Module is needed")
        try:
            verify(module)
        except Exception as error:
            raise ModuleError(f"{name} gives a module that is not well formed: {_line(error)}") from error
        return replace(module, warnings=(*module.warnings, f"{source.path.name} is read by {name}"))

    return Format(name, recognises, read)


def _line(error: Exception) -> str:
    """One line: a ModuleError's own message, else the kind of the error as well."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ModuleError) else f"{type(error).__name__}: {text}".rstrip(": ")
