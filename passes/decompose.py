"""Composite operators written out in primitive ones: `Module -> Module`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Module, Op, Value
from shardproof.ir.types import DType, TensorType


class Writer:
    """Makes the operators that replace one; the last result keeps the replaced value."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.made: list[Op] = []

    def value(self, opcode: str, operands: tuple[Value, ...], type: TensorType, **attrs: Any) -> Value:
        result = Value(f"{self.op.result.name}.{len(self.made)}", type, self.op.location)
        self.made.append(Op(opcode, operands, (result,), attrs))
        return result

    def constant(self, number: float, dtype: DType) -> Value:
        return self.value("constant", (), TensorType(dtype, ()), value=np.asarray(number, dtype.storage))

    def broadcast(self, x: Value, dims: tuple[int, ...], shape: tuple[int, ...]) -> Value:
        return self.value("broadcast_in_dim", (x,), TensorType(x.type.dtype, shape), dims=dims)

    def finish(self) -> list[Op]:
        last = self.made.pop()
        return [*self.made, replace(last, results=self.op.results)]


def _rms_norm(op: Op) -> list[Op]:
    """Root-mean-square normalisation along one dim: x * rsqrt(mean(x*x) + eps) * w."""
    x, weight, eps = op.operands
    dim, shape, dtype = int(op.attrs["config"]), x.type.shape, x.type.dtype
    write = Writer(op)
    rest = tuple(d for d in range(len(shape)) if d != dim)
    small = TensorType(dtype, tuple(shape[d] for d in rest))
    square = write.value("multiply", (x, x), x.type)
    zero = write.constant(0.0, dtype)
    total = write.value("reduce", (square, zero), small, dims=(dim,), kind="sum")
    count = write.broadcast(write.constant(float(shape[dim]), dtype), (), small.shape)
    mean = write.value("divide", (total, count), small)
    safe = write.value("add", (mean, write.broadcast(eps, (), small.shape)), small)
    inverse = write.value("rsqrt", (safe,), small)
    scaled = write.value("multiply", (x, write.broadcast(inverse, rest, shape)), x.type)
    if weight.type.dtype is not dtype:
        weight = write.value("convert", (weight,), TensorType(dtype, weight.type.shape))
    weighted = write.value("multiply", (scaled, write.broadcast(weight, (dim,), shape)), x.type)
    write.value("convert", (weighted,), op.result.type)
    return write.finish()


CUSTOM_CALLS: Final[Mapping[str, Callable[[Op], list[Op]]]] = {"AwsNeuronRmsNorm": _rms_norm}
"""Custom calls whose meaning is known; the rest are opaque functions."""


def decompose(module: Module) -> Module:
    """The module without composite operators."""
    ops: list[Op] = []
    for op in module.ops:
        known = CUSTOM_CALLS.get(op.attrs["target"]) if op.opcode == "custom_call" else None
        if known is None:
            ops.append(op)
        else:
            ops += known(op)
    return replace(module, ops=tuple(ops))
