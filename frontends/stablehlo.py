"""StableHLO, as text, bytecode or in a `jax.export` file, to HLO by jaxlib's own converter."""

from __future__ import annotations

from typing import Any, Final

from shardproof.ir.module import ModuleError

MAGIC: Final = b"ML\xefR"
_MODULE: Final = 13
"""The field of an exported program that holds its bytecode."""


def exported(data: bytes) -> bytes | None:
    """The bytecode in what `jax.export.Exported.serialize` wrote, a FlatBuffers table; None without one."""

    def number(at: int, size: int, signed: bool = False) -> int:
        if not 0 <= at <= len(data) - size:
            raise IndexError(at)
        return int.from_bytes(data[at : at + size], "little", signed=signed)

    try:
        table = number(0, 4)
        fields = table - number(table, 4, signed=True)
        entry = 4 + 2 * _MODULE
        offset = number(fields + entry, 2) if number(fields, 2) > entry else 0
        if not offset:
            return None
        vector = table + offset + number(table + offset, 4)
        length = number(vector, 4)
        found = data[vector + 4 : vector + 4 + length]
    except IndexError:
        return None
    return found if len(found) == length and found.startswith(MAGIC) else None


def to_hlo(program: str | bytes) -> bytes:
    """A serialised HloModuleProto of StableHLO text or bytecode.

    Raises ModuleError when jaxlib is not installed, or can't convert the program.
    """
    converter = _converter()
    try:
        found = converter(program, use_tuple_args=False, return_tuple=False)
        return bytes(found.as_serialized_hlo_module_proto())
    except (RuntimeError, ValueError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "no reason is given")
        raise ModuleError(f"is no StableHLO that jaxlib converts: {first}") from None


def _converter() -> Any:
    """The function of jaxlib, which has moved once."""
    try:
        try:
            from jaxlib import _jax as library
        except ImportError:
            from jaxlib import xla_extension as library
    except ImportError:
        raise ModuleError(
            "is StableHLO, which jaxlib converts to HLO: install jax, or dump HLO instead"
        ) from None
    return library.mlir.mlir_module_to_xla_computation
