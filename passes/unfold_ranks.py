"""Program of all ranks to one of a single rank, in which the values of all ranks stand side by side.

There a rank is no index but a constant: what is read from a neighbour, and what is masked at an edge, are
known for each rank. It is the reverse of `fold_ranks`, and costs as many operators as there are ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from shardproof.ir.collectives import members
from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.numpy_meaning import InterpretError
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.passes.unroll import LOOP

_COMBINE: Final[Mapping[str, str]] = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "and": "and",
    "or": "or",
}


class NotUnfolded(Exception):
    """A program that has no such form: it draws random numbers, has effects, or loops, on every rank."""


def named(name: str, rank: int) -> str:
    """What a value of a rank is called."""
    return f"{name}@{rank}"


def unfold_ranks(module: Module) -> Module:
    """The same on a mesh without axes; inputs, outputs and values of rank r are called `name@r`.

    An operator whose operands are the same on several ranks is applied once, under the lowest of these.
    Raises NotUnfolded.
    """
    for op in module.ops:
        row = TABLE.get(op.opcode)
        if (
            row is None
            or row.traits & {"random", "effect"}
            or op.opcode in ("custom_call", LOOP)
            or ("collective" in row.traits and op.opcode not in _EXCHANGES)
        ):
            raise NotUnfolded(f"`{op.result.name}` ({op.opcode}) has no form for one rank")
    return _Unfolding(module).run()


@dataclass(slots=True)
class _Unfolding:
    module: Module
    ops: list[Op] = field(default_factory=list)
    values: dict[str, list[Value]] = field(default_factory=dict)

    def run(self) -> Module:
        ranks, count = self.module.mesh.size, len(self.module.inputs)
        numbers = {n: at for at, n in enumerate(sorted(i.number for i in self.module.inputs))}
        inputs = []
        for i in self.module.inputs:
            own = [replace(i.value, name=named(i.name, r)) for r in range(ranks)]
            self.values[i.name] = own
            inputs += [Input(v, r * count + numbers[i.number]) for r, v in enumerate(own)]
        for op in self.module.ops:
            operands = [self.values[v.name] for v in op.operands]
            row = TABLE[op.opcode]
            if op.opcode == "rank_id":
                found = [[self._rank(op, r)] for r in range(ranks)]
            elif "collective" in row.traits:
                found = [[v] for v in self._communicate(op, operands[0])]
            else:
                found = self._apply(op, operands)
            for k, result in enumerate(op.results):
                self.values[result.name] = [own[k] for own in found]
        outputs = [
            Output(named(o.name, r), self.values[o.value.name][r])
            for r in range(ranks)
            for o in self.module.outputs
        ]
        return replace(
            self.module,
            mesh=Mesh(),
            inputs=tuple(sorted(inputs, key=lambda i: i.number)),
            ops=tuple(self.ops),
            outputs=tuple(outputs),
        )

    def _rank(self, op: Op, rank: int) -> Value:
        result = op.result
        number = np.asarray(rank, dtype=result.type.dtype.storage)
        return self._emit(op, rank, "constant", (), result.type, {"value": number})

    def _apply(self, op: Op, operands: list[list[Value]]) -> list[list[Value]]:
        done: dict[tuple[str, ...], list[Value]] = {}
        found = []
        for rank in range(self.module.mesh.size):
            own = tuple(values[rank] for values in operands)
            key = tuple(v.name for v in own)
            if key not in done:
                results = tuple(replace(v, name=named(v.name, rank)) for v in op.results)
                self.ops.append(Op(op.opcode, own, results, op.attrs))
                done[key] = list(results)
            found.append(done[key])
        return found

    def _communicate(self, op: Op, operands: list[Value]) -> list[Value]:
        results: dict[int, Value] = {}
        for rank in range(self.module.mesh.size):
            if rank in results:
                continue
            try:
                group = members(op, rank)
            except InterpretError as error:
                raise NotUnfolded(str(error)) from None
            if not group:
                results[rank] = self._zeros(op, rank)
                continue
            results |= _EXCHANGES[op.opcode](self, op, {r: operands[r] for r in group})
        return [results[rank] for rank in range(self.module.mesh.size)]

    def _permute(self, op: Op, operands: dict[int, Value]) -> dict[int, Value]:
        sources = {target: source for source, target in op.attrs["pairs"]}
        return {r: operands[sources[r]] if r in sources else self._zeros(op, r) for r in operands}

    def _broadcast(self, op: Op, operands: dict[int, Value]) -> dict[int, Value]:
        return dict.fromkeys(operands, next(iter(operands.values())))

    def _reduce(self, op: Op, operands: dict[int, Value]) -> dict[int, Value]:
        return dict.fromkeys(operands, self._combined(op, operands))

    def _gather(self, op: Op, operands: dict[int, Value]) -> dict[int, Value]:
        first = next(iter(operands))
        return dict.fromkeys(
            operands, self._joined(op, first, list(operands.values()), op.attrs["dim"], op.result.type)
        )

    def _scatter(self, op: Op, operands: dict[int, Value]) -> dict[int, Value]:
        total, count, dim = self._combined(op, operands), len(operands), op.attrs["dim"]
        return {rank: self._part(op, rank, total, dim, k, count) for k, rank in enumerate(operands)}

    def _exchange(self, op: Op, operands: dict[int, Value]) -> dict[int, Value]:
        split, joined = op.attrs["split_dim"], op.attrs["concat_dim"]
        found = {}
        for k, rank in enumerate(operands):
            parts = [
                self._part(op, rank, v, split, k, len(operands), f"part{source}")
                for source, v in operands.items()
            ]
            found[rank] = self._joined(op, rank, parts, joined, op.result.type)
        return found

    def _combined(self, op: Op, operands: dict[int, Value]) -> Value:
        first, *rest = operands
        total = operands[first]
        opcode = _COMBINE[op.attrs["kind"]]
        if total.type.dtype is DType.BOOL:
            opcode = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}.get(opcode, opcode)
        for n, rank in enumerate(rest, 1):
            part = None if n == len(rest) and op.opcode == "all_reduce" else f"first{n + 1}"
            total = self._emit(op, first, opcode, (total, operands[rank]), total.type, {}, part)
        return total

    def _part(
        self, op: Op, rank: int, value: Value, dim: int, at: int, parts: int, part: str | None = None
    ) -> Value:
        shape = value.type.shape
        size = shape[dim] // parts
        starts = tuple(at * size if d == dim else 0 for d in range(len(shape)))
        limits = tuple((at + 1) * size if d == dim else n for d, n in enumerate(shape))
        cut = {"starts": starts, "limits": limits, "strides": (1,) * len(shape)}
        type_ = TensorType(value.type.dtype, (*shape[:dim], size, *shape[dim + 1 :]))
        return self._emit(op, rank, "slice", (value,), type_, cut, part)

    def _joined(self, op: Op, rank: int, parts: list[Value], dim: int, type_: TensorType) -> Value:
        return self._emit(op, rank, "concatenate", tuple(parts), type_, {"dim": dim})

    def _zeros(self, op: Op, rank: int) -> Value:
        type_ = op.result.type
        zero = {"value": np.zeros((), dtype=type_.dtype.storage)}
        scalar = self._emit(op, rank, "constant", (), TensorType(type_.dtype, ()), zero, "zero")
        return self._emit(op, rank, "broadcast_in_dim", (scalar,), type_, {"dims": ()})

    def _emit(
        self,
        op: Op,
        rank: int,
        opcode: str,
        operands: tuple[Value, ...],
        type_: TensorType,
        attrs: Mapping[str, Any],
        part: str | None = None,
    ) -> Value:
        """Append one operator; `part` names a piece of what became several."""
        name = op.result.name if part is None else f"{op.result.name}#{part}"
        value = Value(named(name, rank), type_, op.location)
        self.ops.append(Op(opcode, operands, (value,), attrs))
        return value


_Exchange = Callable[[_Unfolding, Op, dict[int, Value]], dict[int, Value]]
_EXCHANGES: Final[Mapping[str, _Exchange]] = {
    "all_gather": _Unfolding._gather,
    "all_reduce": _Unfolding._reduce,
    "all_to_all": _Unfolding._exchange,
    "collective_broadcast": _Unfolding._broadcast,
    "collective_permute": _Unfolding._permute,
    "reduce_scatter": _Unfolding._scatter,
}
