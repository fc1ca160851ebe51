"""Small changes to a module: the wrong programs that a verifier must catch, and harmless ones it must not.

A mutant's name is `kind:value`. The kinds in `EQUIVALENT_KINDS` compute the same as the original over
the reals; every other kind may or may not, which only a run can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Module, Op, Output, Value
from shardproof.ir.types import TensorType

EQUIVALENT_KINDS: Final = frozenset({"swapped_add", "identity_transposes"})

_SCALED: Final = frozenset({"dot_general", "all_reduce", "add"})


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed copy of a module; `value` names the result of the changed or inserted operator."""

    name: str
    kind: str
    module: Module
    value: str


def mutants(module: Module) -> Iterator[Mutant]:
    """Every single change of the kinds below, in program order; the original module is not touched.

    all-reduce: dropped, doubled, groups in halves, the groups of the other axis; slice: another start;
    subtract: operands swapped; dot, all-reduce, add: result scaled by 2; square matrix input:
    transposed; and the equivalent ones: operands of add swapped, two transpositions that cancel.
    """
    names = {i.name for i in module.inputs} | {v.name for op in module.ops for v in op.results}
    for source in module.inputs:
        shape = source.value.type.shape
        if len(shape) == 2 and shape[0] == shape[1] > 1 and source.value.type.dtype.kind == "real":
            yield _transposed_input(module, source.value, names)
    for position, op in enumerate(module.ops):
        for kind, change in _CHANGES.get(op.opcode, ()):
            changed = change(op)
            if changed is not None:
                yield _changed(module, position, kind, changed)
        if op.opcode == "all_reduce":
            yield _inserted(module, position, "doubled_all_reduce", [_again(op, names)])
        if op.opcode in _SCALED and op.result.type.dtype.kind == "real":
            yield _inserted(module, position, "scaled_by_2", _doubling(op.result, names))
        if op.opcode == "dot_general" and len(op.result.type.shape) >= 2:
            yield _inserted(module, position, "identity_transposes", _there_and_back(op.result, names))


def _dropped(op: Op) -> Op | None:
    return Op("convert", op.operands, op.results)


def _halved_groups(op: Op) -> Op | None:
    groups: tuple[tuple[int, ...], ...] = op.attrs["groups"]
    if not groups or any(len(g) % 2 for g in groups):
        return None
    halves = tuple(h for g in groups for h in (g[: len(g) // 2], g[len(g) // 2 :]))
    return _with_attrs(op, groups=halves)


def _other_groups(op: Op) -> Op | None:
    groups: tuple[tuple[int, ...], ...] = op.attrs["groups"]
    if len(groups) < 2 or len({len(g) for g in groups}) > 1 or len(groups[0]) < 2:
        return None
    return _with_attrs(op, groups=tuple(zip(*groups, strict=True)))


def _moved_slice(op: Op) -> Op | None:
    """Moves the first dim that the slice cuts: to the start if it begins later, else by one."""
    shape = op.operands[0].type.shape
    starts, limits, strides = op.attrs["starts"], op.attrs["limits"], op.attrs["strides"]
    for dim, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
        if stride != 1 or limit - start == shape[dim]:
            continue
        step = -start if start > 0 else 1
        return _with_attrs(
            op,
            starts=(*starts[:dim], start + step, *starts[dim + 1 :]),
            limits=(*limits[:dim], limit + step, *limits[dim + 1 :]),
        )
    return None


def _swapped(op: Op) -> Op | None:
    left, right = op.operands
    return None if left is right else replace(op, operands=(right, left))


_CHANGES: Final[Mapping[str, tuple[tuple[str, Callable[[Op], Op | None]], ...]]] = {
    "all_reduce": (
        ("dropped_all_reduce", _dropped),
        ("halved_groups", _halved_groups),
        ("other_groups", _other_groups),
    ),
    "slice": (("moved_slice", _moved_slice),),
    "subtract": (("swapped_subtract", _swapped),),
    "add": (("swapped_add", _swapped),),
}


def _with_attrs(op: Op, **attrs: Any) -> Op:
    return replace(op, attrs={**op.attrs, **attrs})


def _new_value(base: Value, suffix: str, names: set[str], type_: TensorType | None = None) -> Value:
    name = f"{base.name}.{suffix}"
    while name in names:
        name += "_"
    return Value(name, type_ or base.type, base.location)


def _again(op: Op, names: set[str]) -> Op:
    return replace(op, operands=(op.result,), results=(_new_value(op.result, "again", names),))


def _doubling(value: Value, names: set[str]) -> list[Op]:
    scalar = TensorType(value.type.dtype, ())
    two = _new_value(value, "two", names, scalar)
    twos = _new_value(value, "twos", names)
    doubled = _new_value(value, "doubled", names)
    return [
        Op("constant", (), (two,), {"value": np.array(2, dtype=value.type.dtype.storage)}),
        Op("broadcast_in_dim", (two,), (twos,), {"dims": ()}),
        Op("multiply", (value, twos), (doubled,)),
    ]


def _there_and_back(value: Value, names: set[str]) -> list[Op]:
    shape = value.type.shape
    order = tuple(reversed(range(len(shape))))
    reversed_type = TensorType(value.type.dtype, tuple(reversed(shape)))
    there = _new_value(value, "there", names, reversed_type)
    back = _new_value(value, "back", names)
    return [
        Op("transpose", (value,), (there,), {"permutation": order}),
        Op("transpose", (there,), (back,), {"permutation": order}),
    ]


def _changed(module: Module, position: int, kind: str, op: Op) -> Mutant:
    ops = (*module.ops[:position], op, *module.ops[position + 1 :])
    return Mutant(f"{kind}:{op.result.name}", kind, replace(module, ops=ops), op.result.name)


def _inserted(module: Module, position: int, kind: str, new: list[Op]) -> Mutant:
    """Puts `new` after the operator at `position`; its users read the last new value instead."""
    old, last = module.ops[position].result, new[-1].result
    after = (_reading(op, old, last) for op in module.ops[position + 1 :])
    ops = (*module.ops[: position + 1], *new, *after)
    outputs = _outputs_reading(module.outputs, old, last)
    return Mutant(f"{kind}:{old.name}", kind, replace(module, ops=ops, outputs=outputs), last.name)


def _transposed_input(module: Module, value: Value, names: set[str]) -> Mutant:
    flipped = _new_value(value, "transposed", names)
    first = Op("transpose", (value,), (flipped,), {"permutation": (1, 0)})
    ops = (first, *(_reading(op, value, flipped) for op in module.ops))
    outputs = _outputs_reading(module.outputs, value, flipped)
    kind = "transposed_weight"
    return Mutant(f"{kind}:{value.name}", kind, replace(module, ops=ops, outputs=outputs), flipped.name)


def _reading(op: Op, old: Value, new: Value) -> Op:
    if all(v is not old for v in op.operands):
        return op
    return replace(op, operands=tuple(new if v is old else v for v in op.operands))


def _outputs_reading(outputs: tuple[Output, ...], old: Value, new: Value) -> tuple[Output, ...]:
    return tuple(replace(o, value=new) if o.value is old else o for o in outputs)
