"""Loops: `scan`, and `while` whose number of rounds follows from constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shardproof.frontends.jaxpr.state import Equation, Lowering, array_of, type_of
from shardproof.frontends.jaxpr.walk import evaluate, opened
from shardproof.ir.module import Input, Module, ModuleError, Output, Value
from shardproof.ir.types import Array, DType, TensorType

MAX_ROUNDS: Final = 1 << 16
"""Rounds of a `while` that are counted."""


def lower_scan(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("jaxpr", "length", "num_carry", "num_consts", "reverse")
    p = eqn.params
    return looped(
        state, p["jaxpr"], operands, eqn.results, p["num_consts"], p["num_carry"], p["length"], p["reverse"]
    )


def looped(
    state: Lowering,
    body: Any,
    operands: Sequence[Value],
    results: Sequence[TensorType],
    consts: int,
    carries: int,
    length: int,
    reverse: bool,
) -> Sequence[Value]:
    """A loop of `length` rounds of `body`: constants, carried values, rows -> carried values, rows."""
    if length == 0:
        empty = [state.spread(state.constant(0, t.dtype), t.shape) for t in results[carries:]]
        return (*operands[consts : consts + carries], *empty)
    module = _module(state, body)
    return state.op_many(
        "scan",
        tuple(operands),
        results,
        body=module,
        consts=consts,
        carries=carries,
        length=length,
        reverse=bool(reverse),
    )


def _module(state: Lowering, body: Any) -> Module:
    """The function of one round as a module."""
    jaxpr, _ = opened(body)
    inner = state.nested()
    values = [inner.fresh("carried", type_of(v.aval)) for v in jaxpr.invars]
    found = evaluate(inner, body, values)
    state.warnings += inner.warnings
    return Module(
        "round",
        state.mesh,
        tuple(Input(v, k) for k, v in enumerate(values)),
        tuple(inner.ops),
        tuple(Output(f"{k}", v) for k, v in enumerate(found)),
    )


def lower_while(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("cond_jaxpr", "cond_nconsts", "body_jaxpr", "body_nconsts")
    p = eqn.params
    tests, consts = p["cond_nconsts"], p["body_nconsts"]
    known = [state.known(v) for v in operands]
    limits, fixed, start = known[:tests], known[tests : tests + consts], known[tests + consts :]
    length = rounds(p["cond_jaxpr"], limits, p["body_jaxpr"], fixed, start)
    if length is None:
        raise ModuleError("is a loop whose number of rounds does not follow from constants")
    given = operands[tests:]
    return looped(
        state, p["body_jaxpr"], given, eqn.results, consts, len(operands) - tests - consts, length, False
    )


Known = Array | None


def rounds(
    test: Any, limits: Sequence[Known], body: Any, fixed: Sequence[Known], start: Sequence[Known]
) -> int | None:
    """How often a loop runs, where that follows from the values that are known; None for the others."""
    carried = list(start)
    for count in range(MAX_ROUNDS):
        (goes_on,) = computed(test, [*limits, *carried])
        if goes_on is None:
            return None
        if not bool(goes_on):
            return count
        carried = list(computed(body, [*fixed, *carried]))
    return None


def computed(body: Any, arguments: Sequence[Known]) -> list[Known]:
    """The results of a jaxpr that follow from known scalars by integer and logical operators alone."""
    jaxpr, consts = opened(body)
    bound: dict[Any, Known] = dict(zip(jaxpr.invars, arguments, strict=True))
    bound.update((v, _scalar(c)) for v, c in zip(jaxpr.constvars, consts, strict=True))
    for eqn in jaxpr.eqns:
        given = [_value(bound, v) for v in eqn.invars]
        bound.update(zip(eqn.outvars, _results(eqn, given), strict=True))
    return [_value(bound, v) for v in jaxpr.outvars]


def _value(bound: Mapping[Any, Known], variable: Any) -> Known:
    if hasattr(variable, "val"):
        return _scalar(variable.val, variable.aval)
    return bound.get(variable)


def _scalar(value: Any, aval: Any = None) -> Known:
    """A concrete integer or bool scalar."""
    if not hasattr(value, "shape"):
        value = np.asarray(value, getattr(value, "dtype", getattr(aval, "dtype", None)))
    if value.shape != ():
        return None
    array, dtype = array_of(value)
    return array if dtype.kind in ("int", "bool") else None


def _results(eqn: Any, given: Sequence[Known]) -> Sequence[Known]:
    unknown: list[Known] = [None] * len(eqn.outvars)
    name = eqn.primitive.name
    called = next((eqn.params[n] for n in ("jaxpr", "call_jaxpr") if n in eqn.params), None)
    if called is not None and name in ("jit", "pjit", "closed_call", "core_call"):
        return computed(called, given)
    if len(eqn.outvars) != 1 or any(v is None for v in given) or eqn.outvars[0].aval.shape:
        return unknown
    type = type_of(eqn.outvars[0].aval)
    if name == "convert_element_type" and type.dtype in (DType.S32, DType.S64):
        return [np.asarray(given[0]).astype(type.dtype.storage)]
    function = _FUNCTIONS.get(name)
    if function is None or type.dtype.kind not in ("int", "bool"):
        return unknown
    with np.errstate(all="ignore"):
        return [np.asarray(function(*given)).astype(type.dtype.storage)]


_FUNCTIONS: Final[Mapping[str, Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
}
