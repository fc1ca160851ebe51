"""Loops written out, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardproof.ir.module import Module, ModuleError, Op, Value
from shardproof.ir.types import TensorType

LOOP = "scan"


def has_loops(module: Module) -> bool:
    """Whether an operator of the module is a loop."""
    return any(op.opcode == LOOP for op in module.ops)


def every_op(ops: Sequence[Op]) -> Iterator[Op]:
    """All operators, those of the bodies of loops included, once each."""
    for op in ops:
        yield op
        if op.opcode == LOOP:
            yield from every_op(op.attrs["body"].ops)


def unrolled_size(ops: Sequence[Op]) -> int:
    """The number of operators of the rounds of all loops, and of the others."""
    return sum(
        op.attrs["length"] * unrolled_size(op.attrs["body"].ops) if op.opcode == LOOP else 1 for op in ops
    )


def unrolled(module: Module, most: int) -> Module:
    """The module with its loops written out. Raises ModuleError for more than `most` operators."""
    if not has_loops(module):
        return module
    count = unrolled_size(module.ops)
    if count > most:
        raise ModuleError(f"{module.name}: its loops written out have {count} operators, at most {most} are")
    names = {i.name for i in module.inputs} | {v.name for op in module.ops for v in op.results}
    writer = _Writer(names)
    bound: dict[str, Value] = {i.name: i.value for i in module.inputs}
    writer.write(module.ops, bound, "")
    outputs = tuple(replace(o, value=bound[o.value.name]) for o in module.outputs)
    return replace(module, ops=tuple(writer.ops), outputs=outputs)


class _Writer:
    """Operators written so far; `names` are taken."""

    def __init__(self, names: set[str]) -> None:
        self.ops: list[Op] = []
        self.names = names

    def write(self, ops: Sequence[Op], bound: dict[str, Value], turn: str) -> None:
        """Append `ops` on the values that names are `bound` to; in a round, every result gets a new name."""
        for op in ops:
            operands = tuple(bound[v.name] for v in op.operands)
            if op.opcode == LOOP:
                results = self._loop(op, operands, turn)
            elif turn:
                results = tuple(Value(self._name(v.name + turn), v.type, v.location) for v in op.results)
                self.ops.append(Op(op.opcode, operands, results, op.attrs))
            else:
                results = op.results
                same = all(a is b for a, b in zip(operands, op.operands, strict=True))
                self.ops.append(op if same else replace(op, operands=operands))
            bound.update(zip([v.name for v in op.results], results, strict=True))

    def _loop(self, op: Op, operands: Sequence[Value], turn: str) -> tuple[Value, ...]:
        attrs = op.attrs
        body, consts, length = attrs["body"], attrs["consts"], attrs["length"]
        before = consts + attrs["carries"]
        carry, stacked = list(operands[consts:before]), operands[before:]
        given = [i.name for i in body.inputs]
        rows: list[list[Value]] = [[] for _ in op.results[attrs["carries"] :]]
        order = range(length)
        for k in reversed(order) if attrs["reverse"] else order:
            own = [self._row(op, x, k) for x in stacked]
            bound = dict(zip(given, (*operands[:consts], *carry, *own), strict=True))
            self.write(body.ops, bound, f"{turn}@{k}")
            results = [bound[o.value.name] for o in body.outputs]
            carry = results[: len(carry)]
            for kept, y in zip(rows, results[len(carry) :], strict=True):
                kept.append(self._emit(op, "reshape", (y,), (1, *y.type.shape), {}))
        found = []
        for kept, result in zip(rows, op.results[len(carry) :], strict=True):
            pieces = tuple(reversed(kept)) if attrs["reverse"] else tuple(kept)
            found.append(self._emit(op, "concatenate", pieces, result.type.shape, {"dim": 0}))
        return (*carry, *found)

    def _row(self, op: Op, x: Value, k: int) -> Value:
        rest = x.type.shape[1:]
        none, ones = (0,) * len(rest), (1,) * len(rest)
        cut = {"starts": (k, *none), "limits": (k + 1, *rest), "strides": (1, *ones)}
        return self._emit(op, "reshape", (self._emit(op, "slice", (x,), (1, *rest), cut),), rest, {})

    def _emit(
        self,
        op: Op,
        opcode: str,
        operands: tuple[Value, ...],
        shape: tuple[int, ...],
        attrs: Mapping[str, Any],
    ) -> Value:
        type = TensorType(operands[0].type.dtype, shape)
        value = Value(self._name(f"{op.result.name}.{opcode}"), type, op.location)
        self.ops.append(Op(opcode, operands, (value,), attrs))
        return value

    def _name(self, wanted: str) -> str:
        name, count = wanted, 0
        while name in self.names:
            count += 1
            name = f"{wanted}.{count}"
        self.names.add(name)
        return name
