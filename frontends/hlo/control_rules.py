"""Control flow: calls and fusions in place, branches as selections, loops unrolled when they end provably."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, TypeAlias

import numpy as np

from shardproof.frontends.hlo.binding import IMPURE, arrays, opaque
from shardproof.frontends.hlo.instruction import HloComputation, HloInstruction
from shardproof.frontends.hlo.lower import TOKEN, Bound, Lowering, Token, leaves
from shardproof.frontends.hlo.ranks import COLLECTIVES
from shardproof.frontends.hlo.reducers import calls
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import DType, TensorType

Rule: TypeAlias = Callable[[Lowering, HloInstruction, list[Bound], str], Bound]

MAX_UNROLLED: Final = 20_000
"""Operators that unrolling one loop may give; a longer loop is kept opaque."""

MAX_ROUNDS: Final = 50_000
"""Rounds of all loops of a module that are tried."""


def _inside(op: HloInstruction, prefix: str) -> str:
    return f"{prefix}/{op.name}" if prefix else op.name


def _call(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    (body,) = state.called(op, 1)
    for operand in operands:
        leaves(operand)
    return state.computation(body, operands, _inside(op, prefix))


def _conditional(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    if len(operands) < 2:
        raise ModuleError(
            f"`{op.name}` has {len(operands)} operands, a predicate and the branches' are needed"
        )
    (chooser,) = arrays(op, operands[:1])
    branches = state.called(op, len(operands) - 1)
    by_predicate = chooser.type.dtype is DType.BOOL
    if chooser.type.shape or (by_predicate and len(branches) != 2):
        raise ModuleError(f"`{op.name}` chooses among {len(branches)} branches by {chooser.type}")
    for key in op.called:
        for inner in calls(state.module, key):
            if inner.opcode in COLLECTIVES:
                raise ModuleError(
                    f"`{op.name}` has the collective `{inner.name}` in a branch, which is not supported"
                )
    if any(inner.opcode in IMPURE for key in op.called for inner in calls(state.module, key)):
        return opaque(state, op, operands, prefix)
    found = [
        state.computation(body, [operand], f"{_inside(op, prefix)}/{k}")
        for k, (body, operand) in enumerate(zip(branches, operands[1:], strict=True))
    ]
    if by_predicate:
        return _choose(state, chooser, found[0], found[1], op, prefix, "")
    chosen = found[-1]
    for k in reversed(range(len(found) - 1)):
        number = state.emit(
            "constant",
            (),
            chooser.type,
            {"value": np.asarray(k, dtype=chooser.type.dtype.storage)},
            op,
            prefix,
            f"index{k}",
        )
        test = state.emit(
            "compare",
            (chooser, number),
            TensorType(DType.BOOL, ()),
            {"direction": "EQ", "total": False},
            op,
            prefix,
            f"is{k}",
        )
        chosen = _choose(state, test, found[k], chosen, op, prefix, f"branch{k}.")
    return chosen


def _choose(
    state: Lowering, test: Value, true: Bound, false: Bound, op: HloInstruction, prefix: str, part: str
) -> Bound:
    """Part by part the one or the other."""
    if isinstance(true, tuple) and isinstance(false, tuple) and len(true) == len(false):
        return tuple(
            _choose(state, test, a, b, op, prefix, f"{part}{k}.")
            for k, (a, b) in enumerate(zip(true, false, strict=True))
        )
    if isinstance(true, Value) and isinstance(false, Value) and true.type == false.type:
        if true is false:
            return true
        return state.emit("select", (test, true, false), true.type, {}, op, prefix, part.rstrip(".") or None)
    if isinstance(true, Token) and isinstance(false, Token):
        return TOKEN
    leaves(true)
    leaves(false)
    raise ModuleError(f"`{op.name}` has branches with different results")


def _while(state: Lowering, op: HloInstruction, operands: list[Bound], prefix: str) -> Bound:
    if len(operands) != 1 or len(op.called) != 2:
        raise ModuleError(
            f"`{op.name}` has {len(operands)} operands and {len(op.called)} computations, 1 and 2 needed"
        )
    leaves(operands[0])
    body, condition = _body_and_condition(state, op)
    start, warned = len(state.ops), len(state.warnings)
    names = set(state.names)
    state.unrolling += 1
    carried = operands[0]
    unrolled = False
    for turn in count():
        state.rounds += 1
        if state.rounds > MAX_ROUNDS:
            break
        goes_on = _test(state, condition, carried)
        if goes_on is False:
            unrolled = True
            break
        if goes_on is None or len(state.ops) - start > MAX_UNROLLED:
            break
        carried = state.computation(body, [carried], f"{_inside(op, prefix)}/{turn}")
    state.unrolling -= 1
    if unrolled:
        return carried
    del state.ops[start:]
    del state.warnings[warned:]
    state.names = names
    return opaque(state, op, operands, prefix)


def _body_and_condition(state: Lowering, op: HloInstruction) -> tuple[HloComputation, HloComputation]:
    """The two computations of a loop; the file lists the body first."""
    body, condition = state.called(op, 2)
    root = condition.instructions[condition.root].shape.type
    if root is None or root.dtype is not DType.BOOL or root.shape:
        raise ModuleError(f"`{op.name}` goes on while {condition.name}, which gives no predicate")
    return body, condition


def _test(state: Lowering, condition: HloComputation, carried: Bound) -> bool | None:
    """Whether the loop goes on from `carried`, when that follows from constants alone."""
    start, warned = len(state.ops), len(state.warnings)
    kept, state.names = state.names, set()
    try:
        answer = state.computation(condition, [carried], "condition")
    finally:
        state.names = kept
        del state.ops[start:]
        del state.warnings[warned:]
    if isinstance(answer, Value) and answer in state.known:
        return bool(state.known[answer])
    return None


RULES: Final[Mapping[str, Rule]] = {
    "call": _call,
    "conditional": _conditional,
    "fusion": _call,
    "while": _while,
}
