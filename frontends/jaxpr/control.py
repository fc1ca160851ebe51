"""Calls in place, branches as selections, loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.frontends.jaxpr.loops import lower_scan, lower_while
from shardproof.frontends.jaxpr.pointwise import chosen
from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.frontends.jaxpr.walk import communicates, evaluate
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import DType

_BODIES: Final = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call", "fwd_jaxpr")


def _call(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    body = next((eqn.params[name] for name in _BODIES if name in eqn.params), None)
    if body is None:
        raise ModuleError("is a call without a function that is read")
    return evaluate(state, body, operands)


def _cond(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    which, *given = operands
    branches = eqn.params["branches"]
    if which.type.shape:
        raise ModuleError(f"chooses among {len(branches)} branches by {which.type}, a scalar is needed")
    if any(map(communicates, branches)):
        which = state.agree(which, [name for name, _ in state.mesh.axes])
    results = [evaluate(state, branch, given) for branch in branches]
    if len(branches) == 1:
        return results[0]
    if which.type.dtype is DType.BOOL and len(branches) != 2:
        raise ModuleError(f"chooses among {len(branches)} branches by {which.type}")
    return tuple(
        cases[0] if all(c is cases[0] for c in cases) else chosen(state, which, cases)
        for cases in zip(*results, strict=True)
    )


def _silent(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """What only prints."""
    if eqn.results:
        raise ModuleError("calls back into Python for a result")
    return ()


RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        (
            "checkpoint",
            "call",
            "closed_call",
            "composite",
            "core_call",
            "core_closed_call",
            "custom_jvp_call",
            "custom_lin",
            "custom_partitioning",
            "custom_vjp_call",
            "custom_vjp_call_jaxpr",
            "custom_vmap_call",
            "jit",
            "pjit",
            "remat",
            "remat2",
            "remat_opt",
            "xla_call",
        ),
        _call,
    ),
    "cond": _cond,
    "debug_callback": _silent,
    "debug_print": _silent,
    "scan": lower_scan,
    "while": lower_while,
}
