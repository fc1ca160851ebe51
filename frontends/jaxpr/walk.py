"""Walks a jaxpr: every equation to operators, nested functions in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule, array_of, type_of
from shardproof.ir.module import ModuleError, Value

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
    return any(eqn.primitive.name in _COLLECTIVES for eqn in equations(body))


def constants(state: Lowering, values: Sequence[Any]) -> list[Value]:
    """The constants of a closed jaxpr."""
    found = []
    for value in values:
        array, dtype = array_of(value)
        found.append(state.constant(array, dtype))
    return found


def evaluate(state: Lowering, body: Any, arguments: Sequence[Value]) -> tuple[Value, ...]:
    """The results of a closed or constant-free jaxpr on `arguments`, as operators appended to `state`."""
    from shardproof.frontends.jaxpr.rules import RULES

    jaxpr, consts = opened(body)
    if len(arguments) != len(jaxpr.invars):
        raise ModuleError(f"a function of {len(jaxpr.invars)} arguments is called with {len(arguments)}")
    bound: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
    bound.update(zip(jaxpr.constvars, constants(state, consts), strict=True))
    outer = state.location
    for eqn in jaxpr.eqns:
        location = state.places.at(eqn, outer)
        with state.inside(location):
            for variable, value in zip(eqn.outvars, _results(state, RULES, eqn, bound), strict=True):
                bound[variable] = value
    return tuple(_operand(state, bound, v) for v in jaxpr.outvars)


def _results(
    state: Lowering, rules: Mapping[str, Rule], eqn: Any, bound: Mapping[Any, Value]
) -> Sequence[Value]:
    name = eqn.primitive.name
    try:
        rule = rules.get(name)
        if rule is None:
            raise ModuleError("the primitive is not known")
        equation = Equation(eqn, state.location)
        operands = [_operand(state, bound, v) for v in eqn.invars]
        results = rule(state, equation, operands)
        if len(results) != len(equation.results):
            raise ModuleError(f"gives {len(results)} results, {len(equation.results)} are declared")
        for value, type in zip(results, equation.results, strict=True):
            if value.type != type:
                raise ModuleError(f"gives {value.type}, {type} is declared")
    except ModuleError as error:
        raise Located.at(error, name, state) from None
    return results


class Located(ModuleError):
    """An error that already says at which equation."""

    @staticmethod
    def at(error: ModuleError, name: str, state: Lowering) -> ModuleError:
        if isinstance(error, Located):
            return error
        place = f" at {state.location}" if state.location is not None else ""
        return Located(f"{name}{place}: {error}")


def _operand(state: Lowering, bound: Mapping[Any, Value], variable: Any) -> Value:
    if hasattr(variable, "val"):
        type = type_of(variable.aval)
        return state.constant(variable.val, type.dtype, type.shape)
    found = bound.get(variable)
    if found is None:
        raise ModuleError(f"reads {variable}, which has no value")
    return found
