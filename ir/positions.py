"""Where a rank stands, as operators: its position along axes of the mesh, and its part of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType

_SCALAR = TensorType(DType.S32, ())


class Emit(Protocol):
    """Appends one operator to a program and gives its result."""

    def __call__(
        self, opcode: str, operands: tuple[Value, ...], type: TensorType, /, **attrs: Any
    ) -> Value: ...


class Positions:
    """Operators of one program over `mesh`; a scalar that occurs again is made once."""

    def __init__(self, mesh: Mesh, emit: Emit) -> None:
        self.mesh = mesh
        self._emit = emit
        self._scalars: dict[tuple[Any, ...], Value] = {}

    def integer(self, value: int) -> Value:
        """A constant s32 scalar."""
        return self._once(
            ("constant", value),
            lambda: self._emit("constant", (), _SCALAR, value=np.asarray(value, np.int32)),
        )

    def along(self, axes: Sequence[str]) -> Value:
        """The rank's row-major position along some axes of the mesh, as an s32 scalar."""
        sizes = dict(self.mesh.axes)
        names = [name for name, _ in self.mesh.axes]
        rank = self._once(("rank",), lambda: self._emit("rank_id", (), _SCALAR))
        total: Value | None = None
        for axis in axes:
            stride = prod(sizes[n] for n in names[names.index(axis) + 1 :])
            digit = rank if stride == 1 else self._scalar("divide", rank, stride)
            if stride * sizes[axis] < self.mesh.size:
                digit = self._scalar("remainder", digit, sizes[axis])
            if total is None:
                total = digit
            else:
                high = self._scalar("multiply", total, sizes[axis])
                total = self._emit("add", (high, digit), _SCALAR)
        return total if total is not None else self.integer(0)

    def part(self, v: Value, dim: int, count: int, number: Value) -> Value:
        """Part `number` of `count` equal parts along `dim`."""
        m = v.type.shape[dim] // count
        start = self._scalar("multiply", number, m)
        starts = tuple(start if d == dim else self.integer(0) for d in range(len(v.type.shape)))
        shape = tuple(m if d == dim else n for d, n in enumerate(v.type.shape))
        return self._emit("dynamic_slice", (v, *starts), TensorType(v.type.dtype, shape), sizes=shape)

    def _once(self, key: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        if key not in self._scalars:
            self._scalars[key] = make()
        return self._scalars[key]

    def _scalar(self, opcode: str, a: Value, b: int) -> Value:
        return self._once(
            (opcode, a.name, b), lambda: self._emit(opcode, (a, self.integer(b)), _SCALAR)
        )
