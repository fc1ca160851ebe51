"""`HloModule` to the project's IR: computations inlined, tuples resolved, ids flattened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from shardproof.frontends.hlo.elements import Shape
from shardproof.frontends.hlo.instruction import HloComputation, HloInstruction, HloModule, Key
from shardproof.frontends.hlo.ranks import COLLECTIVES, Ranks, count_ranks
from shardproof.frontends.hlo.reducers import MAX_DEPTH
from shardproof.ir.module import Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.types import DType, Mesh, TensorType

MAX_OPS: Final = 1_000_000
MAX_STEPS: Final = 4_000_000
"""Instructions that inlining may visit, an instruction once for each place it is inlined at."""


class Token:
    """The value of an instruction that only orders others."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """What an asynchronous start will give to its done."""

    name: str
    value: Bound


Bound: TypeAlias = "Value | Token | Pending | tuple[Bound, ...]"
"""What an instruction stands for."""

TOKEN: Final = Token()


def leaves(bound: Bound) -> tuple[Value, ...]:
    """The arrays in it, in order, without tokens."""
    if isinstance(bound, Value):
        return (bound,)
    if isinstance(bound, tuple):
        return tuple(leaf for part in bound for leaf in leaves(part))
    if isinstance(bound, Pending):
        raise ModuleError(f"the result of `{bound.name}` is used before its wait")
    return ()


class Lowering:
    """The state of one import; `lower` is the way in."""

    def __init__(self, module: HloModule, ranks: Ranks) -> None:
        self.module = module
        self.ranks = ranks
        self.ops: list[Op] = []
        self.warnings: list[str] = []
        self.names: set[str] = set()
        self.known: dict[Value, Any] = {}
        self.structures: dict[Key, str] = {}
        self.unrolling = 0
        self.rounds = 0
        self.steps = 0
        self.depth = 0

    def name(self, plain: str, prefix: str, *, own: bool = False) -> str:
        """A name not used yet: the instruction's own, or behind the place it was inlined at.

        `own` says that it is the one value of an instruction; those of the entry keep their names.
        """
        if own and not prefix:
            return plain
        name = plain
        if name in self.names and prefix:
            name = f"{prefix}/{plain}"
        count = 1
        while name in self.names:
            name = f"{prefix}/{plain}#{count}" if prefix else f"{plain}#{count}"
            count += 1
        self.names.add(name)
        return name

    def emit(
        self,
        opcode: str,
        operands: tuple[Value, ...],
        type: TensorType,
        attrs: Mapping[str, Any],
        op: HloInstruction,
        prefix: str,
        part: str | None = None,
    ) -> Value:
        """Append an operator with one result; `part` names a piece of an instruction that became several."""
        plain = op.name if part is None else f"{op.name}#{part}"
        value = Value(self.name(plain, prefix, own=part is None), type, op.location)
        self.ops.append(Op(opcode, operands, (value,), attrs))
        if not type.shape and type.dtype in _COUNTERS:
            self._fold(opcode, operands, value, attrs)
        return value

    def emit_many(
        self,
        opcode: str,
        operands: tuple[Value, ...],
        types: Sequence[TensorType],
        attrs: Mapping[str, Any],
        op: HloInstruction,
        prefix: str,
    ) -> tuple[Value, ...]:
        """Append an operator with one result per type, named by position when there are several."""
        if len(types) == 1:
            return (self.emit(opcode, operands, types[0], attrs, op, prefix),)
        values = tuple(
            Value(self.name(f"{op.name}#{k}", prefix), type, op.location) for k, type in enumerate(types)
        )
        self.ops.append(Op(opcode, operands, values, attrs))
        return values

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def _fold(self, opcode: str, operands: tuple[Value, ...], value: Value, attrs: Mapping[str, Any]) -> None:
        if opcode == "constant":
            self.known[value] = attrs["value"]
            return
        if not self.unrolling or any(x not in self.known for x in operands):
            return
        rule = _SCALAR_RULES.get(opcode)
        if value.type.dtype is DType.BOOL and opcode not in ("and", "or", "not", "select", "compare"):
            return
        arguments = [self.known[x] for x in operands]
        if rule is not None and operands:
            with np.errstate(all="ignore"):
                self.known[value] = np.asarray(rule(*arguments)).astype(value.type.dtype.storage)
        elif opcode == "compare":
            self.known[value] = np.asarray(_COMPARISONS[attrs["direction"]](*arguments))

    def computation(self, body: HloComputation, arguments: Sequence[Bound], prefix: str) -> Bound:
        """Lower a called computation in place and give its root."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ModuleError("computations call each other without end")
        root = self.environment(body, arguments, prefix)[body.root]
        self.depth -= 1
        return root

    def environment(self, body: HloComputation, arguments: Sequence[Bound], prefix: str) -> dict[Key, Bound]:
        """Lower a computation and give what each of its instructions stands for."""
        from shardproof.frontends.hlo.rules import RULES

        bound: dict[Key, Bound] = {}
        for key, op in body.instructions.items():
            operands = [bound[k] for k in op.operands]
            if op.opcode == "parameter":
                if not 0 <= op.number < len(arguments):
                    raise ModuleError(f"`{op.name}` is parameter {op.number} of {len(arguments)}")
                result = arguments[op.number]
            else:
                rule = RULES.get(op.opcode)
                if rule is None:
                    raise ModuleError(f"`{op.name}`: the opcode {op.opcode!r} is not known")
                result = rule(self, op, operands, prefix)
            if not _fits(result, op.shape):
                raise ModuleError(f"`{op.name}` is declared as {op.shape}, but is {_types(result)}")
            bound[key] = result
        self.steps += len(bound)
        if len(self.ops) > MAX_OPS or self.steps > MAX_STEPS:
            raise ModuleError(f"the module has more than {MAX_OPS} operators after inlining")
        return bound

    def called(self, op: HloInstruction, count: int) -> list[HloComputation]:
        """The computations that `op` calls."""
        if len(op.called) != count:
            raise ModuleError(f"`{op.name}` calls {len(op.called)} computations, {count} needed")
        found = [self.module.computations.get(key) for key in op.called]
        if None in found:
            raise ModuleError(f"`{op.name}` calls a computation that the file doesn't have")
        return [body for body in found if body is not None]


def _fits(bound: Bound, shape: Shape) -> bool:
    """Whether a value has the declared shape; what is pending is judged at its wait."""
    if isinstance(bound, Value):
        return bound.type == shape.type
    if isinstance(bound, tuple):
        return shape.type is None and len(bound) == len(shape.parts) and all(map(_fits, bound, shape.parts))
    if isinstance(bound, Token):
        return shape.type is not None and shape.type.dtype is DType.TOKEN
    return True


def _types(bound: Bound) -> str:
    if isinstance(bound, tuple):
        return f"({', '.join(map(_types, bound))})"
    return (
        str(bound.type) if isinstance(bound, Value) else "a token" if isinstance(bound, Token) else "pending"
    )


def _check_order(body: HloComputation) -> None:
    """Raise `ModuleError` unless operands come before their use and parameters are numbered from 0."""
    numbers = sorted(op.number for op in body.instructions.values() if op.opcode == "parameter")
    if numbers != list(range(len(numbers))):
        raise ModuleError(
            f"the {len(numbers)} parameters of {body.name} are not numbered 0, 1, 2, ... once each"
        )
    before: set[Key] = set()
    for key, op in body.instructions.items():
        for operand in op.operands:
            if operand in before:
                continue
            later = body.instructions.get(operand)
            if later is None:
                raise ModuleError(
                    f"`{op.name}` uses an operand ({operand}) that its computation doesn't have"
                )
            raise ModuleError(
                f"`{op.name}` uses `{later.name}`, which comes later: a cycle, or instructions out of order"
            )
        before.add(key)


_COUNTERS: Final = frozenset(
    d for d in DType if d.kind in ("int", "uint", "bool") and d.storage.itemsize * 8 == d.bits
)
"""Types whose arithmetic NumPy does exactly as XLA does."""

_SCALAR_RULES: Final[Mapping[str, Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "convert": np.asarray,
    "select": np.where,
}
_COMPARISONS: Final[Mapping[str, Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def lower(module: HloModule, ranks: int | None = None) -> Module:
    """The IR of `module` on `ranks` ranks (None: as the file says).

    Raises `ModuleError` for what the importer doesn't know; what it keeps opaque is in `warnings`.
    """
    for body in module.computations.values():
        _check_order(body)
    entry = module.computations[module.entry]
    unpartitioned = ranks is None and _is_unpartitioned(module, entry)
    state = Lowering(module, Ranks(1, 1, 1) if unpartitioned else count_ranks(module, ranks))
    if unpartitioned and (module.partitions or 1) > 1:
        state.warn(f"module {module.name} is not partitioned yet: read as the program of one device")
    if state.ranks.note is not None:
        state.warn(state.ranks.note)
    for op in entry.instructions.values():
        if op.name in state.names:
            raise ModuleError(f"two instructions have the name `{op.name}`")
        state.names.add(op.name)
    inputs, arguments = _inputs(module, entry, with_sharding=not unpartitioned)
    bound = state.environment(entry, arguments, "")
    size = state.ranks.size
    return Module(
        name=module.name,
        mesh=Mesh((("rank", size),)) if size > 1 else Mesh(),
        inputs=tuple(i for group in inputs for i in group),
        ops=tuple(state.ops),
        outputs=_outputs(module, entry, bound, inputs),
        warnings=tuple(dict.fromkeys(state.warnings)),
    )


def _is_unpartitioned(module: HloModule, entry: HloComputation) -> bool:
    """Whether this is the program before partitioning: inner values have shardings, nothing communicates."""
    if module.partitioned:
        return False
    annotated = any(
        op.annotated and op.opcode != "parameter" and op.key != entry.root
        for op in entry.instructions.values()
    )
    return annotated and not any(
        op.opcode in COLLECTIVES or op.opcode in ("partition-id", "replica-id")
        for body in module.computations.values()
        for op in body.instructions.values()
    )


def _inputs(
    module: HloModule, entry: HloComputation, *, with_sharding: bool
) -> tuple[list[tuple[Input, ...]], list[Bound]]:
    """The inputs of each parameter (several for a tuple), and what the parameter stands for."""
    parameters = entry.parameters()
    groups: list[tuple[Input, ...]] = []
    arguments: list[Bound] = []
    number = 0
    for k, p in enumerate(parameters):
        sharding = p.sharding
        if sharding is None and len(module.shardings) == len(parameters):
            sharding = module.shardings[k]
        if not with_sharding:
            sharding = None
        found: list[Input] = []
        for shape in p.shape.leaves():
            type = shape.type
            if type is None or type.dtype is DType.TOKEN:
                continue
            name = f"{p.name}#{len(found)}" if p.shape.is_tuple else p.name
            parts = (1,) * len(type.shape) if sharding == () else sharding
            if parts is not None and (p.shape.is_tuple or len(parts) != len(type.shape)):
                parts = None
            found.append(Input(Value(name, type, p.location), number, parts))
            number += 1
        arguments.append(_pack(p.shape, iter([i.value for i in found])))
        groups.append(tuple(found))
    return groups, arguments


def _pack(shape: Shape, values: Iterator[Value]) -> Bound:
    if shape.type is None:
        return tuple(_pack(part, values) for part in shape.parts)
    return TOKEN if shape.type.dtype is DType.TOKEN else next(values)


def _outputs(
    module: HloModule, entry: HloComputation, bound: Mapping[Key, Bound], inputs: list[tuple[Input, ...]]
) -> tuple[Output, ...]:
    updates: dict[tuple[int, ...], str] = {}
    for alias in module.aliases:
        if not 0 <= alias.parameter < len(inputs):
            raise ModuleError(f"an output aliases parameter {alias.parameter} of {len(inputs)}")
        candidates = inputs[alias.parameter]
        position = alias.path[0] if alias.path else 0
        if len(alias.path) > 1 or not 0 <= position < len(candidates):
            raise ModuleError(f"an output aliases part {alias.path} of parameter {alias.parameter}")
        if alias.output in updates:
            raise ModuleError(f"output {list(alias.output)} aliases two parameters")
        updates[alias.output] = candidates[position].name
    outputs: list[Output] = []
    taken: dict[str, int] = {}
    for path, name, value in _results(entry, entry.root, bound[entry.root], ()):
        repeat = taken.get(name, 0)
        taken[name] = repeat + 1
        while repeat and f"{name}#{repeat}" in taken:
            repeat += 1
        unique = f"{name}#{repeat}" if repeat else name
        taken.setdefault(unique, 1)
        outputs.append(Output(unique, value, updates.pop(path, None)))
    if updates:
        raise ModuleError(f"an alias names output {list(next(iter(updates)))}, which the module doesn't have")
    return tuple(outputs)


def _results(
    entry: HloComputation, key: Key, bound: Bound, path: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], str, Value]]:
    """The output arrays with their index paths and the names of the instructions that give them."""
    op = entry.instructions[key]
    if isinstance(bound, tuple) and op.opcode == "tuple":
        for k, (operand, part) in enumerate(zip(op.operands, bound, strict=True)):
            yield from _results(entry, operand, part, (*path, k))
        return
    yield from _named(op.name, bound, path)


def _named(name: str, bound: Bound, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str, Value]]:
    if isinstance(bound, Value):
        yield path, name, bound
    elif isinstance(bound, tuple):
        for k, part in enumerate(bound):
            yield from _named(f"{name}#{k}", part, (*path, k))
    else:
        leaves(bound)
