"""The intermediate representation: a flat SPMD program in single-assignment form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardproof.ir.types import Location, Mesh, TensorType

Attributes = Mapping[str, Any]
"""Attribute values are int, float, bool, str, None, (nested) tuples of those, an ndarray, or a Module."""


class ModuleError(ValueError):
    """A module, or the file it came from, is not well formed; the message is one line."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor of the program, per rank; `name` is unique within its module."""

    name: str
    type: TensorType
    location: Location | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operator application; `opcode` names a row of `shardproof.ir.ops.TABLE`."""

    opcode: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: Attributes = field(default_factory=dict)

    @property
    def result(self) -> Value:
        return self.results[0]

    @property
    def location(self) -> Location | None:
        return self.results[0].location


@dataclass(frozen=True, slots=True)
class Input:
    """A parameter: its value, its number in the caller's order, and sharding metadata if the file has any.

    `sharding` holds, per dim, the number of equal contiguous parts that the *global* tensor was cut
    into (None when the file says nothing).
    """

    value: Value
    number: int
    sharding: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return self.value.name


@dataclass(frozen=True, slots=True)
class Output:
    """A result, in the caller's order; `updates` names the input whose buffer it overwrites (state)."""

    name: str
    value: Value
    updates: str | None = None


GUESSES: Final = ("group_guess", "constant_guess", "ids_in_range", "opaque_batched")


@dataclass(frozen=True, slots=True)
class Guess:
    """What the importer took to be so although the program does not say it.

    `kind` is one of `GUESSES`; `value` names the node, group, constant or custom operator that it is about.
    """

    kind: str
    text: str
    value: str


@dataclass(frozen=True, slots=True)
class Module:
    """One program for all ranks of `mesh`.

    Replica groups in attributes are explicit tuples of flat rank numbers. `rank` is set when the
    module is the program of that single rank and not yet folded with the others.
    `warnings` says what the importer kept opaque, one line each; a verdict lists `guesses` as assumptions.
    """

    name: str
    mesh: Mesh
    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Output, ...]
    rank: int | None = None
    warnings: tuple[str, ...] = ()
    guesses: tuple[Guess, ...] = ()
