"""Operators that compilers write as others, written so: equal over the reals, and then one normal form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardproof.ir.module import Module, Op, Value
from shardproof.ir.types import TensorType


def spell_out(module: Module) -> Module:
    """The module with `logistic(x)` as `1 / (1 + exp(-x))`, in the bodies of loops, too."""
    names = {i.name for i in module.inputs} | {v.name for op in module.ops for v in op.results}
    ops: list[Op] = []
    for op in module.ops:
        if op.opcode == "logistic":
            ops += _logistic(op, names)
        elif any(isinstance(value, Module) for value in op.attrs.values()):
            attrs = {k: spell_out(v) if isinstance(v, Module) else v for k, v in op.attrs.items()}
            ops.append(replace(op, attrs=attrs))
        else:
            ops.append(op)
    return replace(module, ops=tuple(ops))


def spelled_alike(first: Module, second: Module) -> tuple[Module, Module]:
    """Both programs, spelled out where only one of them has operators that this is about."""
    if _has_logistic(first) == _has_logistic(second):
        return first, second
    return spell_out(first), spell_out(second)


def _has_logistic(module: Module) -> bool:
    return any(
        op.opcode == "logistic" or any(_has_logistic(b) for b in op.attrs.values() if isinstance(b, Module))
        for op in module.ops
    )


def _logistic(op: Op, names: set[str]) -> list[Op]:
    result, made = op.result, []

    def apply(
        part: str, opcode: str, *operands: Value, type: TensorType = result.type, **attrs: Any
    ) -> Value:
        name = f"{result.name}#{part}"
        while name in names:
            name += "'"
        names.add(name)
        made.append(Op(opcode, operands, (Value(name, type, result.location),), attrs))
        return made[-1].result

    one = np.ones((), dtype=result.type.dtype.storage)
    scalar = apply("one", "constant", type=TensorType(result.type.dtype, ()), value=one)
    ones = apply("ones", "broadcast_in_dim", scalar, dims=())
    exponential = apply("exp", "exponential", apply("negate", "negate", *op.operands))
    total = apply("add", "add", ones, exponential)
    return [*made, Op("divide", (ones, total), (result,))]
