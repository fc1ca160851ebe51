"""Inputs with few distinct slices, and which integers they may hold.

The classes of an input's dims follow how the program reshapes it, so that a dim that is split into heads
has classes of heads and classes of positions in a head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from shardproof.ir.module import Module, Op, Value
from shardproof.solver.replay.extents import Extent, atoms, resolve
from shardproof.solver.replay.partitions import LARGEST, Numbers, Partition, TooLong, classes_of
from shardproof.solver.replay.shrink import Plan

CLASSES: Final = 3
"""How many kinds of positions an extent without structure has."""
_FEW: Final = 4
"""Extents up to which each position is a kind of its own."""
_LISTED: Final = 64


class Structure:
    """The inputs of programs with the extents of their dims; the first program that reads an input counts.

    Positions that a program orders stay apart, since which of two equal ones comes first says little.
    """

    def __init__(self, modules: Sequence[Module]) -> None:
        self._dims: dict[str, tuple[Extent, ...]] = {}
        self._apart: list[Extent] = []
        for module in modules:
            names = {i.name for i in module.inputs} - self._dims.keys()
            if names:
                plan = Plan(module)
                plan.constrain()
                self._dims |= {n: dims for n, dims in plan.inputs().items() if n in names}
                needed = wanted(module)
                ordered = [op for op in module.ops if orders(op, needed)]
                self._apart += [plan.dims[op.operands[0]][order_dim(op)] for op in ordered]

    def parts(self, seed: int) -> dict[str, tuple[Partition, ...]]:
        """Input name -> a partition of each of its dims into few classes. Raises TooLong."""
        numbers = np.random.default_rng(seed)
        apart = [node for extent in self._apart for node in atoms(extent) if node.size <= LARGEST]
        made: dict[int, Numbers] = {id(node): np.arange(node.size) for node in apart}
        return {
            name: tuple(classes_of(_labels(d, numbers, made)) for d in dims)
            for name, dims in self._dims.items()
        }


def wanted(module: Module) -> set[Value]:
    """The values that the outputs depend on, these among them."""
    found = {o.value for o in module.outputs}
    for op in reversed(module.ops):
        if any(r in found for r in op.results):
            found.update(op.operands)
    return found


def orders(op: Op, needed: Collection[Value]) -> bool:
    """Whether it matters to an operator which of two equal reals comes first; `needed` is what is read."""
    if op.opcode not in ("sort", "top_k", "argreduce"):
        return False
    key = order_key(op)
    others = (r for n, r in enumerate(op.results) if n != key)
    return op.operands[key].type.dtype.kind == "real" and any(r in needed for r in others)


def order_key(op: Op) -> int:
    """Which operand an operator orders by."""
    number = op.attrs.get("comparator", "").partition(":")[2]
    return int(number) if number.isdecimal() and int(number) < len(op.operands) else 0


def order_dim(op: Op) -> int:
    """The dim along which an operator orders."""
    return int(op.attrs.get("dim", len(op.operands[0].type.shape) - 1))


def _labels(extent: Extent, numbers: np.random.Generator, made: dict[int, Numbers]) -> Numbers:
    """The class of each position: `made` holds those of atoms, which are drawn.

    Half of them are runs of positions, so that the shards of ranks differ in more than their order.
    """
    if extent.size > LARGEST:
        raise TooLong(f"a dim of {extent.size} positions has too many to class")
    node = resolve(extent)
    if node.form == "atom":
        if id(node) not in made:
            mixed = numbers.integers(0, CLASSES, node.size)
            drawn = np.sort(mixed) if numbers.random() < 0.5 else mixed
            made[id(node)] = np.arange(node.size) if node.size <= _FEW else drawn
        return made[id(node)]
    parts = [_labels(part, numbers, made) for part in node.parts]
    if node.form == "sum":
        offsets = np.cumsum([0, *(int(p.max(initial=-1)) + 1 for p in parts)])
        return np.concatenate([p + at for p, at in zip(parts, offsets[:-1], strict=True)])
    flat = np.zeros(1, np.int64)
    for part in parts:
        flat = (flat[:, None] * (int(part.max(initial=0)) + 1) + part[None, :]).reshape(-1)
    return flat


def limits(module: Module) -> dict[str, tuple[int, int]]:
    """For integer inputs that a program reads at: from 0 to the smallest extent that they index."""
    producers = {r: op for op in module.ops for r in op.results}
    inputs = {i.value: i.name for i in module.inputs if i.value.type.dtype.kind in ("int", "uint")}
    found: dict[str, int] = {}
    for op in module.ops:
        for value, extent in _indexed(op, producers):
            for source in _sources([value], producers):
                if source in inputs:
                    name = inputs[source]
                    found[name] = min(found.get(name, extent), extent)
    return {name: (0, n) for name, n in found.items() if n > 0}


def literals(modules: Sequence[Module]) -> list[int]:
    """Where ranges that programs test integers for may begin or end: literals and their neighbours."""
    found: set[int] = set()
    for module in modules:
        producers = {r: op for op in module.ops for r in op.results}
        tested = [v for op in module.ops if op.opcode == "compare" for v in op.operands]
        for value in _sources(tested, producers):
            op = producers.get(value)
            if op is not None and op.opcode == "constant" and value.type.size <= _LISTED:
                found.update(int(n) for n in np.ravel(op.attrs["value"]))
    return sorted({n + by for n in found for by in (-1, 0, 1)})


def _indexed(op: Op, producers: Mapping[Value, Op]) -> list[tuple[Value, int]]:
    """(position value, how many positions it can mean) of an operator."""
    if op.opcode in ("dynamic_slice", "dynamic_update_slice"):
        first = 1 if op.opcode == "dynamic_slice" else 2
        whole, part = op.operands[0].type.shape, (op.attrs.get("sizes") or op.operands[1].type.shape)
        places = zip(op.operands[first:], whole, part, strict=True)
        return [(start, n - k + 1) for start, n, k in places]
    if op.opcode == "compare" and op.attrs["direction"] == "EQ":
        return _counted(op, producers)
    if op.opcode not in ("gather", "scatter"):
        return []
    a, shape = op.attrs, op.operands[0].type.shape
    gathers = op.opcode == "gather"
    dims = a["start_index_map"] if gathers else a["scatter_dims_to_operand_dims"]
    columns = _columns(op.operands[1], a["index_vector_dim"], len(dims), producers)
    return [(v, shape[d]) for d, vs in zip(dims, columns, strict=True) for v in vs]


def _counted(op: Op, producers: Mapping[Value, Op]) -> list[tuple[Value, int]]:
    """A value that is compared with every position of a dim: its one-hot form."""
    found = []
    for counter, value in (op.operands, op.operands[::-1]):
        made = producers.get(counter)
        while made is not None and made.opcode in ("broadcast_in_dim", "reshape", "convert"):
            made = producers.get(made.operands[0])
        if made is not None and made.opcode == "iota":
            found.append((value, made.result.type.shape[made.attrs["dim"]]))
    return found


def _columns(
    indices: Value, vector: int, count: int, producers: Mapping[Value, Op]
) -> list[Sequence[Value]]:
    """The values that each entry of the index vectors is made of."""
    op = producers.get(indices)
    while op is not None and op.opcode == "convert":
        indices = op.operands[0]
        op = producers.get(indices)
    joined = op is not None and op.opcode == "concatenate" and op.attrs["dim"] == vector
    if op is not None and joined and all(v.type.shape[vector] == 1 for v in op.operands):
        return [(v,) for v in op.operands]
    return [(indices,)] * count


def _sources(values: Sequence[Value], producers: Mapping[Value, Op]) -> set[Value]:
    """The integers among some values, and those that they are computed from."""
    stack = list(values)
    seen: set[Value] = set()
    while stack:
        value = stack.pop()
        if value in seen or value.type.dtype.kind not in ("int", "uint"):
            continue
        seen.add(value)
        op = producers.get(value)
        stack.extend(op.operands if op is not None else ())
    return seen
