"""Loops of a known number of rounds."""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.frontends.jaxpr.state import Equation, Lowering
from shardproof.frontends.jaxpr.walk import evaluate
from shardproof.ir.module import ModuleError, Value


def lower_scan(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("jaxpr", "length", "num_carry", "num_consts", "reverse")
    p = eqn.params
    consts = list(operands[: p["num_consts"]])
    carry = list(operands[p["num_consts"] : p["num_consts"] + p["num_carry"]])
    xs = operands[p["num_consts"] + p["num_carry"] :]
    order = range(p["length"])
    rows: list[list[Value]] = [[] for _ in range(len(eqn.results) - len(carry))]
    for turn in reversed(order) if p["reverse"] else order:
        own = [_row(state, x, turn) for x in xs]
        results = evaluate(state, p["jaxpr"], [*consts, *carry, *own])
        carry = list(results[: len(carry)])
        for k, y in enumerate(results[len(carry) :]):
            rows[k].append(state.reshape(y, (1, *y.type.shape)))
    if p["reverse"]:
        rows = [list(reversed(r)) for r in rows]
    return (*carry, *(state.concatenate(r, 0) for r in rows))


def _row(state: Lowering, x: Value, turn: int) -> Value:
    shape = x.type.shape
    cut = state.slice(x, (turn, *(0 for _ in shape[1:])), (turn + 1, *shape[1:]))
    return state.reshape(cut, shape[1:])


def lower_while(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    raise ModuleError("is a loop whose number of rounds is not known")
