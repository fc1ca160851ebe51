"""The verifier: what must hold of a module before anything else reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from shardproof.ir.module import GUESSES, Module, ModuleError, Op, Value
from shardproof.ir.ops import TABLE, Row
from shardproof.ir.types import TensorType
from shardproof.ir.typing import is_integer


def verify(module: Module) -> None:
    """Raises `ModuleError`, with the value and its location, unless the module is well formed.

    Then every name is defined once and before its uses (so no value depends on itself), every
    operator is in the table with exactly its attributes and the result types of its type rule, rank
    groups are disjoint lists of existing ranks, and every output and state update has a value.
    """
    _verify_mesh(module)
    for guess in module.guesses:
        if guess.kind not in GUESSES:
            raise ModuleError(f"guess `{guess.kind}` of %{guess.value} is none of {', '.join(GUESSES)}")
    defined: dict[str, Value] = {}
    later = {value.name: op for op in module.ops for value in op.results}
    _verify_inputs(module, defined)
    for op in module.ops:
        if not op.results:
            raise ModuleError(f"an operator {op.opcode} of module {module.name} has no result")
        try:
            for value in op.operands:
                _verify_use(op, value, defined, later)
            _verify_op(module, op)
        except ModuleError as error:
            raise ModuleError(f"{op.opcode} {describe(op.results[0])}: {error}") from None
        _define(op.results, defined)
    _verify_outputs(module, defined)


def describe(value: Value) -> str:
    """`%name at file:line`."""
    return f"%{value.name}" + (f" at {value.location}" if value.location is not None else "")


def _verify_mesh(module: Module) -> None:
    names = [name for name, _ in module.mesh.axes]
    if len(set(names)) != len(names):
        raise ModuleError(f"mesh {module.mesh} names an axis twice")
    for name, size in module.mesh.axes:
        if not is_integer(size) or size < 1:
            raise ModuleError(f"mesh axis {name} has size {size}, at least 1 is needed")
    if module.rank is not None and not 0 <= module.rank < module.mesh.size:
        raise ModuleError(
            f"module {module.name} is of rank {module.rank}, "
            f"the ranks of its mesh are 0 to {module.mesh.size - 1}"
        )


def _verify_inputs(module: Module, defined: dict[str, Value]) -> None:
    _define((parameter.value for parameter in module.inputs), defined)
    numbers: dict[int, str] = {}
    for parameter in module.inputs:
        found = describe(parameter.value)
        if not is_integer(parameter.number) or parameter.number < 0:
            raise ModuleError(f"input {found} has number {parameter.number}, a position is needed")
        if parameter.number in numbers:
            raise ModuleError(
                f"inputs %{numbers[parameter.number]} and {found} both have number {parameter.number}"
            )
        numbers[parameter.number] = parameter.name
        parts, rank = parameter.sharding, len(parameter.value.type.shape)
        if parts is not None and (len(parts) != rank or any(not is_integer(n) or n < 1 for n in parts)):
            raise ModuleError(
                f"input {found} has sharding {parts}, {rank} positive numbers of parts are needed"
            )


def _define(values: Iterable[Value], defined: dict[str, Value]) -> None:
    for value in values:
        if value.name in defined:
            first = describe(defined[value.name])
            raise ModuleError(f"value {describe(value)} has the name of {first}, names must be distinct")
        if any(not is_integer(size) or size < 0 for size in value.type.shape):
            raise ModuleError(f"value {describe(value)} has type {value.type}, sizes are at least 0")
        defined[value.name] = value


def _verify_use(op: Op, value: Value, defined: dict[str, Value], later: dict[str, Op]) -> None:
    found = defined.get(value.name)
    if found is value:
        return
    if found is not None:
        raise ModuleError(f"operand {describe(value)} is not the value {describe(found)} of that name")
    source = later.get(value.name)
    if source is None:
        raise ModuleError(f"operand %{value.name} is not defined")
    why = "depends on itself" if _depends(source, op, later) else "is used before it is defined"
    raise ModuleError(f"operand {describe(value)} {why}")


def _depends(op: Op, target: Op, later: dict[str, Op]) -> bool:
    """Whether `op` is `target` or reads a result of it, through any operators."""
    seen: set[int] = set()
    pending = [op]
    while pending:
        current = pending.pop()
        if current is target:
            return True
        if id(current) not in seen:
            seen.add(id(current))
            pending += [later[v.name] for v in current.operands if v.name in later]
    return False


def _verify_op(module: Module, op: Op) -> None:
    row = TABLE.get(op.opcode)
    if row is None:
        raise ModuleError("the operator is not in the table")
    if set(op.attrs) != set(row.attrs):
        missing = [name for name in row.attrs if name not in op.attrs]
        extra = sorted(set(op.attrs) - set(row.attrs))
        found = [
            f"{what} {', '.join(names)}"
            for what, names in (("lacks", missing), ("has unknown", extra))
            if names
        ]
        raise ModuleError(f"the operator {' and '.join(found)} as attribute")
    if "groups" in row.attrs:
        _verify_groups(op.attrs["groups"], module.mesh.size)
    for value in op.attrs.values():
        if isinstance(value, Module):
            verify(replace(value, mesh=module.mesh))
    if "pairs" in row.attrs:
        _verify_pairs(op.attrs["pairs"], module.mesh.size)
    _verify_types(row, op)


def _verify_types(row: Row, op: Op) -> None:
    declared = [value.type for value in op.results]
    expected = row.type([value.type for value in op.operands], op.attrs, declared)
    if len(expected) != len(declared):
        raise ModuleError(f"{len(declared)} results declared, {len(expected)} needed")
    for found, needed in zip(declared, expected, strict=True):
        if found != needed:
            raise ModuleError(f"result is declared {found}, the operator gives {needed}")


def _verify_groups(groups: Any, ranks: int) -> None:
    if not isinstance(groups, tuple) or not groups or not all(isinstance(g, tuple) and g for g in groups):
        raise ModuleError(f"attribute groups is {groups!r}, a tuple of tuples of ranks is needed")
    _verify_ranks("groups", [rank for group in groups for rank in group], ranks)


def _verify_pairs(pairs: Any, ranks: int) -> None:
    if not isinstance(pairs, tuple) or not all(isinstance(p, tuple) and len(p) == 2 for p in pairs):
        raise ModuleError(f"attribute pairs is {pairs!r}, a tuple of (source, target) ranks is needed")
    _verify_ranks("pairs", [source for source, _ in pairs], ranks)
    _verify_ranks("pairs", [target for _, target in pairs], ranks)


def _verify_ranks(name: str, found: Sequence[Any], ranks: int) -> None:
    for rank in found:
        if not is_integer(rank) or not 0 <= rank < ranks:
            raise ModuleError(f"attribute {name} names rank {rank!r}, the mesh has {ranks} ranks")
    if len(set(found)) != len(found):
        twice = next(rank for rank in found if found.count(rank) > 1)
        raise ModuleError(f"attribute {name} names rank {twice} twice")


def _verify_outputs(module: Module, defined: dict[str, Value]) -> None:
    inputs: dict[str, TensorType] = {parameter.name: parameter.value.type for parameter in module.inputs}
    names: set[str] = set()
    updated: set[str] = set()
    for output in module.outputs:
        if output.name in names:
            raise ModuleError(f"output {output.name!r} is declared twice")
        names.add(output.name)
        if defined.get(output.value.name) is not output.value:
            raise ModuleError(f"output {output.name!r} is {describe(output.value)}, which is not defined")
        if output.updates is None:
            continue
        if output.updates not in inputs:
            raise ModuleError(f"output {output.name!r} updates %{output.updates}, which is no input")
        if inputs[output.updates] != output.value.type:
            needed = inputs[output.updates]
            raise ModuleError(f"output {output.name!r} is {output.value.type}, %{output.updates} is {needed}")
        if output.updates in updated:
            raise ModuleError(f"output {output.name!r} updates %{output.updates}, as another output does")
        updated.add(output.updates)
