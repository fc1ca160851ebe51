"""Layouts as programs: the operators that cut a rank's tensor out of whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from shardproof.ir.module import Op, Value
from shardproof.ir.positions import Positions
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.solver.relations.steps import Layout, Pattern, RelationError, Step, show


def chosen_axes(mesh: Mesh, names: Sequence[object], example: str) -> tuple[str, ...]:
    """The named axes of a mesh, or its only axis of more than one rank; `example` shows how to name one."""
    sizes = dict(mesh.axes)
    axes = tuple(str(n) for n in names)
    if not axes:
        axes = tuple(name for name, n in mesh.axes if n > 1)
        if len(axes) > 1:
            raise RelationError(f"the mesh has several axes ({mesh}): name one, as in {example}")
    for n, axis in enumerate(axes):
        if axis not in sizes:
            raise RelationError(f"the mesh has no axis `{axis}` (it has {mesh})")
        if axis in axes[:n]:
            raise RelationError(f"axis `{axis}` is named twice")
    return axes


class Cutter:
    """Collects operators that run on every rank of `mesh` before (or after) a program."""

    def __init__(self, mesh: Mesh, prefix: str) -> None:
        self.mesh = mesh
        self.prefix = prefix
        self.ops: list[Op] = []
        self.ranks = Positions(mesh, self.op)

    def op(self, opcode: str, operands: tuple[Value, ...], type: TensorType, /, **attrs: Any) -> Value:
        """One operator with a fresh name."""
        result = Value(f"{self.prefix}{len(self.ops)}", type)
        self.ops.append(Op(opcode, operands, (result,), attrs))
        return result

    def define(self, target: Value, v: Value) -> None:
        """Make `target` the tensor `v`."""
        self.ops.append(Op("reshape", (v,), (target,), {}))

    # plain layout

    def reshape(self, v: Value, shape: tuple[int, ...]) -> Value:
        return v if shape == v.type.shape else self.op("reshape", (v,), TensorType(v.type.dtype, shape))

    def transpose(self, v: Value, permutation: Sequence[int]) -> Value:
        shape = tuple(v.type.shape[p] for p in permutation)
        return self.op("transpose", (v,), TensorType(v.type.dtype, shape), permutation=tuple(permutation))

    def slice(self, v: Value, dim: int, start: int, stop: int) -> Value:
        shape = v.type.shape
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        limits = tuple(stop if d == dim else n for d, n in enumerate(shape))
        result = TensorType(v.type.dtype, tuple(b - a for a, b in zip(starts, limits, strict=True)))
        return self.op("slice", (v,), result, starts=starts, limits=limits, strides=(1,) * len(shape))

    def join(self, parts: Sequence[Value], dim: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].type.shape)
        if not 0 <= dim < len(shape):
            raise RelationError(f"there is no dim {dim} in {parts[0].type}")
        for p in parts[1:]:
            other = list(p.type.shape)
            if len(other) != len(shape) or [*other[:dim], *other[dim + 1 :]] != [
                *shape[:dim],
                *shape[dim + 1 :],
            ]:
                raise RelationError(f"{parts[0].type} and {p.type} can't be joined on dim {dim}")
            if p.type.dtype is not parts[0].type.dtype:
                raise RelationError(f"{parts[0].type} and {p.type} are of different types")
        shape[dim] = sum(p.type.shape[dim] for p in parts)
        return self.op("concatenate", tuple(parts), TensorType(parts[0].type.dtype, tuple(shape)), dim=dim)

    def zeros(self, dtype: DType, shape: tuple[int, ...]) -> Value:
        zero = self.op("constant", (), TensorType(dtype, ()), value=np.zeros((), dtype.storage))
        return self.op("broadcast_in_dim", (zero,), TensorType(dtype, shape), dims=())

    # ranks

    def lookup(self, table: Sequence[int], at: Value) -> Value:
        """`table[at]`."""
        values = np.asarray(table, np.int32)
        whole = self.op("constant", (), TensorType(DType.S32, (len(table),)), value=values)
        one = self.op("dynamic_slice", (whole, at), TensorType(DType.S32, (1,)), sizes=(1,))
        return self.reshape(one, ())

    # steps

    def apply(self, layout: Layout, v: Value, find: Callable[[str], Value]) -> Value:
        """The tensor that `layout` makes of `v`; `find` gives other reference tensors by name."""
        steps = layout.steps
        used: list[str] = []
        for n, step in enumerate(steps):
            after = steps[n + 1] if n + 1 < len(steps) else None
            try:
                if isinstance(step, Step) and step.name == "shard":
                    used += chosen_axes(self.mesh, step.args[1:], f"shard({step.args[0]}, axis)")
                    if len(set(used)) < len(used):
                        raise RelationError("an axis of the mesh divides the tensor twice")
                if isinstance(step, Step) and step.name == "ranks":
                    before = steps[n - 1] if n else None
                    if not isinstance(before, Step) or before.name != "shard":
                        raise RelationError("stands right after the shard step whose parts it orders")
                    continue
                v = self._step(step, after, v, find)
            except RelationError as e:
                raise RelationError(f"`{show(step)}`: {e}") from None
        return v

    def _step(
        self, step: Step | Pattern, after: Step | Pattern | None, v: Value, find: Callable[[str], Value]
    ) -> Value:
        if isinstance(step, Pattern):
            return self._rearranged(step, v)
        args, named = step.args, dict(step.named)
        if step.name == "permute":
            if sorted(args) != list(range(len(v.type.shape))):
                raise RelationError(f"the dims {args} are no permutation of the {len(v.type.shape)} dims")
            return self.transpose(v, args)
        if step.name == "slice":
            dim, start, stop = self._dim(v, args, 3)
            if not 0 <= start <= stop <= v.type.shape[dim]:
                raise RelationError(f"{start}:{stop} is not within dim {dim} of extent {v.type.shape[dim]}")
            return self.slice(v, dim, start, stop)
        if step.name == "pad":
            dim, before, behind = self._dim(v, args, 3)
            return self._padded(v, dim, before, behind)
        if step.name == "repeat":
            dim, times = self._dim(v, args[:2], 2)
            block = named.get("block", args[2] if len(args) > 2 else 1)
            return self._repeated(v, dim, times, block)
        if step.name == "concat":
            others = [find(str(name)) for name in args[1:]]
            return self.join([v, *others], args[0])
        if step.name == "shard":
            return self._sharded(v, args, after)
        if step.name == "per_rank":
            raise RelationError("only an output of a distributed reference is per rank")
        raise RelationError("partial stands for the whole tensor, not for a segment of it")

    def _dim(self, v: Value, args: Sequence[Any], count: int) -> tuple[int, ...]:
        if len(args) != count or not all(isinstance(a, int) for a in args):
            raise RelationError(f"needs {count} integers")
        if not 0 <= args[0] < len(v.type.shape):
            raise RelationError(f"there is no dim {args[0]} in {v.type}")
        return tuple(args)

    def _padded(self, v: Value, dim: int, before: int, behind: int) -> Value:
        def block(n: int) -> list[Value]:
            shape = v.type.shape
            return [self.zeros(v.type.dtype, (*shape[:dim], n, *shape[dim + 1 :]))] if n else []

        if before < 0 or behind < 0:
            raise RelationError("padding is not negative")
        return self.join([*block(before), v, *block(behind)], dim)

    def _repeated(self, v: Value, dim: int, times: int, block: int) -> Value:
        shape = v.type.shape
        if times < 1 or block < 1 or shape[dim] % block:
            raise RelationError(f"blocks of {block} do not fill dim {dim} of extent {shape[dim]}")
        blocks = shape[dim] // block
        split = self.reshape(v, (*shape[:dim], blocks, block, *shape[dim + 1 :]))
        wide = (*shape[:dim], blocks, times, block, *shape[dim + 1 :])
        dims = tuple(d if d <= dim else d + 1 for d in range(len(split.type.shape)))
        many = self.op("broadcast_in_dim", (split,), TensorType(v.type.dtype, wide), dims=dims)
        return self.reshape(many, (*shape[:dim], shape[dim] * times, *shape[dim + 1 :]))

    def _sharded(self, v: Value, args: Sequence[Any], after: Step | Pattern | None) -> Value:
        dim = self._dim(v, args[:1], 1)[0]
        axes = chosen_axes(self.mesh, args[1:], f"shard({dim}, axis)")
        sizes = dict(self.mesh.axes)
        count = prod(sizes[a] for a in axes)
        if v.type.shape[dim] % count:
            raise RelationError(f"dim {dim} of extent {v.type.shape[dim]} does not divide into {count} parts")
        number = self.ranks.along(axes)
        if isinstance(after, Step) and after.name == "ranks":
            if sorted(after.args) != list(range(count)):
                raise RelationError(f"ranks{after.args} is no permutation of the {count} parts")
            number = self.lookup(after.args, number)
        return self.ranks.part(v, dim, count, number)

    def _rearranged(self, pattern: Pattern, v: Value) -> Value:
        sizes = dict(pattern.sizes)
        flat = [n for g in pattern.before for n in g]
        if len(sizes) < len(pattern.sizes) or any(n < 1 or name not in flat for name, n in pattern.sizes):
            raise RelationError("sizes are at least 1, each of an axis on the left, once")
        target = [n for g in pattern.after for n in g]
        if sorted(flat) != sorted(target) or len(set(flat)) != len(flat):
            raise RelationError("the two sides do not name the same axes once each")
        if len(pattern.before) != len(v.type.shape):
            raise RelationError(f"has {len(pattern.before)} dims on the left, the tensor is {v.type}")
        for group, extent in zip(pattern.before, v.type.shape, strict=True):
            open_names = [n for n in group if n not in sizes]
            known = prod(sizes[n] for n in group if n in sizes)
            if len(open_names) > 1 or extent % known or (not open_names and known != extent):
                raise RelationError(f"({' '.join(group)}) does not fit extent {extent}")
            if open_names:
                sizes[open_names[0]] = extent // known
        v = self.reshape(v, tuple(sizes[n] for n in flat))
        if flat != target:
            v = self.transpose(v, [flat.index(n) for n in target])
        return self.reshape(v, tuple(prod(sizes[n] for n in g) for g in pattern.after))
