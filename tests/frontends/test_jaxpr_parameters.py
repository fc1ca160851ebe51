"""No parameter of a primitive is passed over: another value makes another operator, or an error."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
jax = pytest.importorskip("jax", reason="jax is not installed")

from shardproof.frontends.jaxpr.rules import rule_of  # noqa: E402
from shardproof.frontends.jaxpr.state import Equation, Lowering, type_of  # noqa: E402
from shardproof.frontends.jaxpr.tracing import trace  # noqa: E402
from shardproof.frontends.jaxpr.walk import equations, opened  # noqa: E402
from shardproof.ir.types import Mesh  # noqa: E402

_SPEC = importlib.util.spec_from_file_location(
    "jaxpr_programs", Path(__file__).parent / "jaxpr_programs.py"
)
assert _SPEC is not None and _SPEC.loader is not None
_PROGRAMS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_PROGRAMS)

BY_TYPE = {
    ("broadcast_in_dim", "shape"),
    ("iota", "shape"),
    ("reshape", "new_sizes"),
    ("squeeze", "dimensions"),
}
"""Parameters that the declared type of the result says as well."""

SETS = {(f"reduce_{kind}", "axes") for kind in ("and", "or", "max", "min", "prod", "sum")}
SETS |= {("reduce", "dimensions")}
"""Lists without an order."""

BOUNDS = {"gather", "scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"}
"""Primitives whose mode may promise what another mode does."""

ELSEWHERE = {
    *("_split_transpose", "copy_semantics", "differentiated", "donated_invars", "impl", "indices_are_sorted"),
    *("inline", "keep_unused", "linear", "name", "num_consts", "prevent_cse", "symbolic_zeros", "unroll"),
    *("unique_indices", "weak_type"),
}
"""Parameters that say how, where or for what a primitive is computed, and promises about indices."""


def others(value: Any) -> Iterator[Any]:
    """Values beside the one given."""
    if isinstance(value, Enum):
        yield from (one for one in type(value) if one is not value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | np.integer):
        yield from (value + 1, -value - 1)
    elif isinstance(value, float) and value == value:
        yield value + 1
    elif isinstance(value, str):
        yield value + "x"
    elif isinstance(value, tuple | list):
        for k, one in enumerate(value):
            for other in others(one):
                parts = [*value[:k], other, *value[k + 1 :]]
                yield type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if len(value) > 1 and not hasattr(value, "_fields") and value[0] != value[-1]:
            yield type(value)([value[-1], *value[1:-1], value[0]])


def read(eqn: Any) -> str:
    """The operators of one equation as text. Raises what its rule does, and TypeError for other types."""
    state = Lowering(Mesh(), ())
    operands = [
        state.constant(v.val, type_of(v.aval).dtype, v.aval.shape)
        if hasattr(v, "val")
        else state.fresh("x", type_of(v.aval))
        for v in eqn.invars
    ]
    equation = Equation(eqn, None)
    results = rule_of(eqn)(state, equation, operands)
    if tuple(v.type for v in results) != equation.results:
        raise TypeError
    lines = [
        (
            op.opcode,
            [v.name for v in op.operands],
            [(v.name, str(v.type)) for v in op.results],
            [(k, x.tolist() if isinstance(x, np.ndarray) else x) for k, x in op.attrs.items()],
        )
        for op in state.ops
    ]
    return repr((lines, [v.name for v in results]))


@pytest.mark.parametrize("name", sorted(_PROGRAMS.ONE_RANK.keys() - {"attention_gradient", "draws"}))
def test_no_parameter_is_passed_over(name: str) -> None:
    function, shapes = _PROGRAMS.ONE_RANK[name]
    names = [f"a{k}" for k in range(len(shapes))]
    traced = trace(lambda **a: function(*(a[n] for n in names)), dict(zip(names, shapes, strict=True)))
    for eqn in equations(traced.closed):
        primitive, plain = eqn.primitive.name, read(eqn)
        for parameter, value in eqn.params.items():
            key = (primitive, parameter)
            promised = primitive in BOUNDS and parameter == "mode"
            if parameter in ELSEWHERE or key in BY_TYPE | SETS or hasattr(opened(value)[0], "eqns"):
                continue
            for other in others(value):
                if promised and "PROMISE" in f"{other}{value}":
                    continue
                try:
                    found = read(eqn.replace(params={**eqn.params, parameter: other}))
                except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                    continue
                assert found != plain, f"{primitive}: {parameter} {value} or {other} makes no difference"
