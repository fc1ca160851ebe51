"""Walks a jaxpr: every equation to operators, nested functions in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule, array_of, type_of
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import Location

_COLLECTIVES: Final = frozenset(
    {
        "all_gather",
        "all_gather_invariant",
        "all_to_all",
        "pbroadcast",
        "pmax",
        "pmin",
        "ppermute",
        "psum",
        "psum2",
        "psum_invariant",
        "psum_scatter",
        "ragged_all_to_all",
        "reduce_scatter",
        "shard_map",
    }
)


def opened(body: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and the values of its constants, from a closed or an open one."""
    if hasattr(body, "consts") and hasattr(body, "jaxpr"):
        return body.jaxpr, body.consts
    return body, ()


def inner(eqn: Any) -> Iterator[Any]:
    """The functions that an equation calls."""
    for value in eqn.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(opened(one)[0], "eqns"):
                yield one


def equations(body: Any) -> Iterator[Any]:
    """All equations, those of called functions included."""
    for eqn in opened(body)[0].eqns:
        yield eqn
        for called in inner(eqn):
            yield from equations(called)


def communicates(body: Any) -> bool:
    """Whether an equation in it exchanges values between ranks."""
    return any(
        eqn.primitive.name in _COLLECTIVES and (eqn.primitive.name != "pbroadcast" or "source" in eqn.params)
        for eqn in equations(body)
    )


def constants(state: Lowering, values: Sequence[Any]) -> list[Value]:
    """The constants of a closed jaxpr."""
    found = []
    for value in values:
        array, dtype = array_of(value)
        found.append(state.constant(array, dtype))
    return found


def evaluate(state: Lowering, body: Any, arguments: Sequence[Value]) -> tuple[Value, ...]:
    """The results of a closed or constant-free jaxpr on `arguments`, as operators appended to `state`."""
    from shardproof.frontends.jaxpr.rules import rule_of

    jaxpr, consts = opened(body)
    if len(arguments) != len(jaxpr.invars):
        raise ModuleError(f"a function of {len(jaxpr.invars)} arguments is called with {len(arguments)}")
    bound: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
    bound.update(zip(jaxpr.constvars, constants(state, consts), strict=True))
    outer = state.location
    try:
        for eqn in jaxpr.eqns:
            state.location = state.places.at(eqn, outer)
            bound.update(zip(eqn.outvars, _results(state, rule_of, eqn, bound), strict=True))
    finally:
        state.location = outer
    return tuple(_operand(state, bound, v) for v in jaxpr.outvars)


def _results(
    state: Lowering, rule_of: Callable[[Any], Rule], eqn: Any, bound: Mapping[Any, Value]
) -> Sequence[Value]:
    name = eqn.primitive.name
    try:
        rule = rule_of(eqn)
        equation = Equation(eqn, state.location)
        operands = [_operand(state, bound, v) for v in eqn.invars]
        results = rule(state, equation, operands)
        if len(results) != len(equation.results):
            raise ModuleError(f"gives {len(results)} results, {len(equation.results)} are declared")
        for value, declared in zip(results, equation.results, strict=True):
            if value.type != declared:
                raise ModuleError(f"gives {value.type}, {declared} is declared")
    except NotRead:
        raise
    except ModuleError as error:
        raise NotRead(name, state.location, str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise NotRead(name, state.location, text) from error
    return results


class NotRead(ModuleError):
    """An equation that has no counterpart here: its primitive, where it was written, and why."""

    def __init__(self, primitive: str, location: Location | None, reason: str) -> None:
        place = f" at {location}" if location is not None else ""
        super().__init__(f"{primitive}{place}: {reason}")
        self.primitive = primitive
        self.location = location
        self.reason = reason


def _operand(state: Lowering, bound: Mapping[Any, Value], variable: Any) -> Value:
    if hasattr(variable, "val"):
        type = type_of(variable.aval)
        return state.constant(variable.val, type.dtype, type.shape)
    found = bound.get(variable)
    if found is None:
        raise ModuleError(f"reads {variable}, which has no value")
    return found
