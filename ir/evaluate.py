"""The parts that both interpreters share: binding inputs, applying one operator, lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardproof.ir.collectives import place
from shardproof.ir.module import Input, Module, Op
from shardproof.ir.numpy_meaning import InterpretError, Unsupported, settle
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Array


def per_rank(name: str, given: Sequence[Array] | Array, ranks: int) -> list[Array]:
    """One array for each rank, from such a list or from one array that all ranks share."""
    if isinstance(given, np.ndarray | np.generic):
        return [np.asarray(given)] * ranks
    if len(given) != ranks:
        raise InterpretError(f"input {name} has {len(given)} arrays, {ranks} ranks need one each")
    return list(given)


def bind(parameter: Input, given: Any) -> Array:
    """The array as a value of the parameter's type; it must have its shape and fit in its element type."""
    type_, array = parameter.value.type, np.asarray(given)
    if array.shape != type_.shape:
        raise InterpretError(f"input {parameter.name} has shape {list(array.shape)}, {type_} is needed")
    kind = {"b": "bool", "i": "int", "u": "int", "f": "real", "c": "complex"}.get(array.dtype.kind)
    accepted = {"real": ("real", "int"), "complex": ("complex", "real"), "int": ("int",), "uint": ("int",)}
    if kind not in accepted.get(type_.dtype.kind, ("bool",)):
        raise InterpretError(f"input {parameter.name} holds {array.dtype}, {type_} is needed")
    bound = settle(array, type_.dtype)
    if kind == "int" and type_.dtype.kind in ("int", "uint") and not np.array_equal(bound, array):
        raise InterpretError(f"input {parameter.name} has a value outside of {type_.dtype.value}")
    return bound


def apply(op: Op, operands: Sequence[Array]) -> tuple[Array, ...]:
    """Results of an operator that reads nothing but its operands; `Unsupported` if NumPy has no meaning."""
    row = TABLE.get(op.opcode)
    if row is None or row.numpy is None:
        raise Unsupported(op.opcode, f"%{op.results[0].name}{place(op)} has no NumPy meaning")
    results = row.numpy(op, operands)
    for value, array in zip(op.results, results, strict=True):
        if array.shape != value.type.shape:
            shape = list(array.shape)
            raise InterpretError(f"{op.opcode} %{value.name} computed shape {shape}, not {value.type}")
    return results


def rank_number(op: Op, rank: int) -> Array:
    """The result of `rank_id` on one rank."""
    return np.asarray(rank, dtype=op.result.type.dtype.storage)


def last_uses(module: Module) -> list[list[str]]:
    """For each operator, the values that nothing needs after it; outputs are never among them."""
    kept = {output.value.name for output in module.outputs}
    last: dict[str, int] = {}
    for i, op in enumerate(module.ops):
        last |= {value.name: i for value in (*op.operands, *op.results)}
    free: list[list[str]] = [[] for _ in module.ops]
    for name, i in last.items():
        if name not in kept:
            free[i].append(name)
    return free
