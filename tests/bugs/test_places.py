"""The judge of places: what it accepts, and that it accepts nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax", reason="jax is not installed")

import jax
from bug_equations import Program, flattened
from bug_places import accepted, placed
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from shardproof.frontends.jaxpr.tracing import sharded, trace
from shardproof.solver.verdict import Place

INPUTS = {"x": jax.ShapeDtypeStruct((4, 6), jnp.float32), "w": jax.ShapeDtypeStruct((6, 5), jnp.float32)}


def program(body: Callable[..., Any]) -> Program:
    specs = {"x": P(None, "tp"), "w": P("tp")}
    return flattened(trace(sharded(body, {"tp": 2}, INPUTS, specs, P()), INPUTS).closed)


def whole(x: Any, w: Any) -> Any:
    y = lax.psum(x @ w, "tp")
    z = jnp.tanh(y)
    return jnp.sin(z)


def partial(x: Any, w: Any) -> Any:
    y = x @ w
    z = jnp.tanh(y)
    return jnp.sin(z)


def twice(x: Any, w: Any) -> Any:
    y = lax.psum(lax.psum(x @ w, "tp"), "tp")
    z = jnp.tanh(y)
    return jnp.sin(z)


def names(wrong: Program, right: Program) -> set[str]:
    return {wrong.steps[n].primitive for n in accepted(wrong, right)}


def test_around_a_missing_equation() -> None:
    assert names(program(partial), program(whole)) == {"dot_general", "tanh", "sin"}


def test_around_a_superfluous_equation() -> None:
    assert names(program(twice), program(whole)) == {"psum", "tanh"}


def test_equal_programs_have_no_place() -> None:
    assert accepted(program(whole), program(whole)) == set()


def test_a_carried_value_leads_back_to_its_maker() -> None:
    def looped(f: Callable[[Any], Any]) -> Callable[..., Any]:
        def body(x: Any, w: Any) -> Any:
            def turn(carry: Any, row: Any) -> Any:
                return jnp.sin(f(carry)) + row, None

            return lax.scan(turn, jnp.zeros(3), x)[0]

        return body

    found = names(program(looped(jnp.tanh)), program(looped(jnp.cos)))
    assert {"tanh", "sin", "add"} <= found and "return" not in found


@pytest.mark.parametrize(
    ("op", "shift", "right"),
    [
        ("dot_general", 0, True),
        ("tanh", 1, True),
        ("dot_general", 1, False),
        ("tanh", 0, False),
        ("tanh", 2, False),
    ],
)
def test_a_place_is_a_line_and_an_operator(op: str, shift: int, right: bool) -> None:
    wrong = program(partial)
    line = partial.__code__.co_firstlineno + 1 + shift
    place = Place("v", op, __file__, line)
    assert placed(place, wrong, accepted(wrong, program(whole))) is right
