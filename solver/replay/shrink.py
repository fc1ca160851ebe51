"""Smaller programs of the same structure, for a quick replay.

The three modules of a check are shrunk together, so that inputs drawn for one fit the others. A
shrunk program is another program (literals such as 1/2048 are not scaled): what it shows is a hint
about the original one, never a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardproof.ir.module import Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.numpy_meaning import InterpretError
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Array, DType, TensorType
from shardproof.ir.verify import verify
from shardproof.solver.replay.extents import atom, choose, chosen, fix, is_fixed, kept, unify
from shardproof.solver.replay.replay import output_read
from shardproof.solver.replay.shrink_rules import RULES, Change, Dims, Site, fix_all, pointwise

SIZES: Final = (3, 5, 4, 7, 2, 6)
"""Small extents, given to the free indices in turn."""
_STATIC_LIMIT: Final = 4096
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The rebuilt modules, and how their elements stand for the original ones.

    `extents` says what changed: "input dim d" -> "old->new". The positions give, per dim, the
    original position of each new one, for the inputs and for the implementation's outputs.
    """

    reference: Module
    implementation: Module
    expected: Module
    extents: Mapping[str, str]
    input_positions: Mapping[str, tuple[Positions, ...]]
    output_positions: Mapping[str, tuple[Positions, ...]]

    def original(self, output: str, index: Sequence[int]) -> tuple[int, ...]:
        """The index in the original output that an index in the shrunk one stands for."""
        kept_in = self.output_positions[output]
        return tuple(int(line[i]) for line, i in zip(kept_in, index, strict=True))


def shrink(reference: Module, implementation: Module, expected: Module) -> Shrunk | str:
    """Shrink all extents of a check consistently, or say why nothing can be shrunk.

    Inputs of the first two modules with one name are one tensor; `expected` reads the reference's
    outputs (stacked when it has several ranks) and its outputs are named like the implementation's.
    Mesh sizes stay. Dims of operators whose meaning is not known stay. The rebuilt modules verify.
    """
    plans = [Plan(m) for m in (reference, implementation, expected)]
    try:
        for plan in plans:
            plan.constrain()
        tie(plans[0].inputs(), plans[1].inputs())
        read = {output_read(name): dims for name, dims in plans[2].inputs().items()}
        if reference.mesh.size > 1:
            for dims in read.values():
                for dim in dims[:1]:
                    fix(dim)
            read = {name: dims[1:] for name, dims in read.items()}
        tie(plans[0].outputs(), read)
        tie(plans[1].outputs(), plans[2].outputs())
    except _Mismatch as error:
        return str(error)
    extents = [d for plan in plans for dims in plan.dims.values() for d in dims]
    choose(extents, SIZES)
    if all(is_fixed(d) or chosen(d) == d.size for d in extents):
        return "no extent can be shrunk: each is 1, or tied to an operator that needs it as it is"
    modules = [plan.rebuild() for plan in plans]
    for module in modules:
        try:
            verify(module)
        except ModuleError as error:
            return f"shrinking made a module that does not verify: {error}"
    changed: dict[str, str] = {}
    for plan in plans[:2]:
        for name, dims in plan.inputs().items():
            for d, dim in enumerate(dims):
                if chosen(dim) != dim.size:
                    changed[f"{name} dim {d}"] = f"{dim.size}->{chosen(dim)}"
    inputs = {n: tuple(map(kept, dims)) for plan in plans[:2] for n, dims in plan.inputs().items()}
    outputs = {n: tuple(map(kept, dims)) for n, dims in plans[1].outputs().items()}
    return Shrunk(modules[0], modules[1], modules[2], changed, inputs, outputs)


class _Mismatch(ValueError):
    pass


def tie(a: Mapping[str, Dims], b: Mapping[str, Dims]) -> None:
    for name in a.keys() & b.keys():
        if [x.size for x in a[name]] != [x.size for x in b[name]]:
            shapes = " and ".join(str(tuple(x.size for x in dims)) for dims in (a[name], b[name]))
            raise _Mismatch(f"{name} has shapes {shapes} in two modules of one check")
    for name in sorted(a.keys() & b.keys()):
        for x, y in zip(a[name], b[name], strict=True):
            unify(x, y)


class Plan:
    """The extents of one module and how its operators change with them."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.dims: dict[Value, Dims] = {}
        self.changes: dict[Op, Any] = {}
        self.static: dict[Value, tuple[Array, ...]] = {}
        values = [i.value for i in module.inputs] + [v for op in module.ops for v in op.results]
        for value in values:
            self.dims[value] = tuple(atom(n) for n in value.type.shape)

    def inputs(self) -> dict[str, Dims]:
        return {i.name: self.dims[i.value] for i in self.module.inputs}

    def outputs(self) -> dict[str, Dims]:
        return {o.name: self.dims[o.value] for o in self.module.outputs}

    def constrain(self) -> None:
        for op in self.module.ops:
            self._evaluate(op)
            site = Site(
                op,
                tuple(self.dims[v] for v in op.operands),
                tuple(self.dims[v] for v in op.results),
                self.static.get,
            )
            row = TABLE.get(op.opcode)
            if op.opcode in RULES:
                self.changes[op] = RULES[op.opcode](site)
            elif row is not None and "elementwise" in row.traits:
                pointwise(site)
            else:
                fix_all(site)
        inputs = self.inputs()
        for output in self.module.outputs:
            if output.updates in inputs:
                tie({"": inputs[output.updates]}, {"": self.dims[output.value]})

    def _evaluate(self, op: Op) -> None:
        """Keep the values of small integer results that no input determines."""
        types = [r.type for r in op.results]
        if any(t.size > _STATIC_LIMIT or t.dtype.kind not in ("int", "uint", "bool") for t in types):
            return
        ranks = range(self.module.mesh.size)
        if op.opcode == "rank_id":
            self.static[op.result] = tuple(np.array(r, op.result.type.dtype.storage) for r in ranks)
            return
        row = TABLE.get(op.opcode)
        if row is None or row.numpy is None or not all(v in self.static for v in op.operands):
            return
        try:
            outcomes = [row.numpy(op, [self.static[v][r] for v in op.operands]) for r in ranks]
        except InterpretError:
            return
        for n, result in enumerate(op.results):
            self.static[result] = tuple(outcome[n] for outcome in outcomes)

    def rebuild(self) -> Module:
        names = {v.name for v in self.dims}
        new: dict[Value, Value] = {}
        for value, dims in self.dims.items():
            shape = tuple(chosen(d) for d in dims)
            new[value] = replace(value, type=TensorType(value.type.dtype, shape))
        ops: list[Op] = []
        for op in self.module.ops:
            rule = self.changes.get(op)
            change = rule() if rule is not None else Change()
            operands = [new[v] for v in op.operands]
            for n, positions in change.starts.items():
                old = self.static[op.operands[n]]
                if any(int(v) != p for v, p in zip(old, positions, strict=True)):
                    made = _per_rank(operands[n], positions, names)
                    ops.extend(made)
                    operands[n] = made[-1].result
            attrs = {**op.attrs, **change.attrs}
            ops.append(Op(op.opcode, tuple(operands), tuple(new[v] for v in op.results), attrs))
        outputs = tuple(Output(o.name, new[o.value], o.updates) for o in self.module.outputs)
        inputs = tuple(Input(new[i.value], i.number, i.sharding) for i in self.module.inputs)
        return replace(self.module, inputs=inputs, ops=_live(ops, outputs), outputs=outputs)


def _per_rank(old: Value, positions: Sequence[int], names: set[str]) -> list[Op]:
    """Operators whose last result is the scalar `positions[rank]`."""

    def value(dtype: DType, *shape: int) -> Value:
        n = len(names)
        while f"{old.name}.shrunk{n}" in names:
            n += 1
        names.add(f"{old.name}.shrunk{n}")
        return Value(f"{old.name}.shrunk{n}", TensorType(dtype, shape), old.location)

    dtype = old.type.dtype
    table = np.array(positions, dtype.storage)
    if len(set(positions)) == 1:
        return [Op("constant", (), (value(dtype),), {"value": table[0]})]
    constant = Op("constant", (), (value(dtype, len(positions)),), {"value": table})
    rank = Op("rank_id", (), (value(DType.U32),))
    one = Op("dynamic_slice", (constant.result, rank.result), (value(dtype, 1),), {"sizes": (1,)})
    return [constant, rank, one, Op("reshape", (one.result,), (value(dtype),))]


def _live(ops: Sequence[Op], outputs: Iterable[Output]) -> tuple[Op, ...]:
    """The operators that the outputs depend on."""
    needed = {o.value for o in outputs}
    alive: list[Op] = []
    for op in reversed(ops):
        if any(r in needed for r in op.results):
            needed.update(op.operands)
            alive.append(op)
    return tuple(reversed(alive))
