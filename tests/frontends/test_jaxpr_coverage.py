"""Every primitive is read, kept as a function known by name, or refused with a reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.extend.core.primitives as primitives  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.extend.core import Primitive  # noqa: E402

from shardproof import verify_jax  # noqa: E402
from shardproof.frontends.jaxpr.lower import lower  # noqa: E402
from shardproof.frontends.jaxpr.rules import RULES  # noqa: E402
from shardproof.frontends.jaxpr.unknown import REFUSED, described, structure  # noqa: E402
from shardproof.ir.module import ModuleError  # noqa: E402

KEPT = {
    "approx_top_k",
    "cholesky_update",
    "householder_product",
    "lu_pivots_to_permutation",
    "ormqr",
    "random_gamma",
    "rng_bit_generator",
    "symmetric_product",
    "tridiagonal",
    "tridiagonal_solve",
    "zeros_like",
}
"""Functions known by name and parameters."""

EFFECTS = {"after_all", "create_token", "dce_sink", "stage"}
"""Primitives that only order others, or have effects."""

FUNCTIONS = {"custom_jvp_call_jaxpr", "select_and_scatter", "xla_pmap"}
"""Primitives that hold a function and have no rule."""

P = jax.sharding.PartitionSpec


def test_every_lax_primitive_is_accounted_for() -> None:
    places = (lax, lax.linalg, primitives)
    names = {x.name for place in places for x in vars(place).values() if isinstance(x, Primitive)}
    assert len(names) > 150
    assert names - RULES.keys() - REFUSED.keys() <= KEPT | EFFECTS | FUNCTIONS


def f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def verdict(reference: Callable[..., Any], body: Callable[..., Any], x: Any, spec: Any = None) -> Any:
    spec = spec or P()
    return verify_jax(
        reference, body, mesh={"tp": 2}, inputs={"x": x}, in_specs={"x": spec}, out_specs=spec, timeout=60
    )


def test_unknown_primitives_are_functions_of_operands_and_parameters() -> None:
    def best(recall: float) -> Callable[[Any], Any]:
        return lambda x: lax.approx_max_k(x, 2, recall_target=recall)[0]

    result = verdict(best(0.9), best(0.9), f(4, 8))
    assert result.verdict == "verified"
    assert {a.kind for a in result.assumptions} == {"opaque_function"}
    assert any("approx_top_k" in text for text in result.findings)
    assert verdict(best(0.9), best(0.8), f(4, 8)).verdict == "unknown"
    assert verdict(best(0.9), best(0.9), f(4, 8), P("tp")).verdict == "unknown"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.fft.fft(x).real,
        lambda x: jnp.linalg.qr(x)[1],
        lambda x: jnp.linalg.solve(x, x + 1),
        lambda x: lax.reduce(x, 0.0, lambda a, b: a + b - a * b, (1,)),
        lambda x: jax.grad(
            lambda y: lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 1), (1, 1, 1), "VALID").sum()
        )(x),
        lambda x: lax.sort((x, -x), num_keys=2)[1],
    ],
)
def test_kept_functions_work_slice_by_slice(function: Callable[[Any], Any]) -> None:
    result = verdict(function, function, f(8, 4, 4), P("tp"))
    assert result.verdict == "verified", result.text()
    assert "opaque_batched" in {a.kind for a in result.assumptions}
    mirrored = verdict(function, lambda x: function(jnp.swapaxes(x, 1, 2)), f(8, 4, 4), P("tp"))
    assert mirrored.verdict != "verified"


@pytest.mark.parametrize(
    ("function", "primitive", "reason"),
    [
        (
            lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
            "pure_callback",
            "calls back into Python",
        ),
        (lambda x: lax.rng_uniform(0.0, 1.0, x.shape) + x, "rng_uniform", "no key"),
        (lambda x: x.at[jnp.array([1, 2])].apply(jnp.sin), "scatter", "a function of what was there"),
        (
            lambda x: lax.reduce_window(x, 1.0, lax.add, (1, 2), (1, 1), "SAME"),
            "reduce_window",
            "pads with an initial value that changes sums",
        ),
        (lambda x: lax.while_loop(lambda y: y.sum() > 0, lambda y: y - 1, x), "while", "rounds"),
    ],
)
def test_refused(function: Callable[[Any], Any], primitive: str, reason: str) -> None:
    result = verdict(function, function, f(4, 4))
    assert (result.verdict, result.code) == ("unknown", "U15")
    assert result.location is not None
    assert (result.location.op, result.location.file) == (primitive, __file__)
    assert primitive in result.message and reason in result.message
    assert [o.verdict for o in result.outputs] == ["unknown"]


def test_element_types_of_inputs() -> None:
    """What no equation is about makes the verdict `unknown`, too."""
    dtype = getattr(jnp, "float8_e8m0fnu", None)
    if dtype is None:
        pytest.skip("this version of JAX has no element type that is not known")
    result = verdict(lambda x: x, lambda x: x, jax.ShapeDtypeStruct((4,), dtype))
    assert (result.verdict, result.code) == ("unknown", "U15")
    assert "float8_e8m0fnu" in result.message


def test_what_communicates_is_no_function_of_its_operands() -> None:
    """A primitive of another library that names an axis of the mesh, or has a parameter without a text."""
    from jax.extend.core import Primitive as New

    twin = New("twin")
    twin.def_abstract_eval(lambda x, **_: x)

    def using(**parameters: Any) -> Callable[[Any], Any]:
        return lambda x: twin.bind(x, **parameters)

    assert verdict(using(turn=1), using(turn=1), f(4)).verdict == "verified"
    assert verdict(using(turn=1), using(turn=2), f(4)).verdict == "unknown"
    assert verdict(using(turn=1), using(turn=1.0), f(4)).verdict == "unknown"
    for parameters in ({"over": "tp"}, {"axis_name": "other"}, {"deep": (1, ("tp",))}, {"other": object()}):
        result = verdict(lambda x: x, using(**parameters), f(4))
        assert (result.verdict, result.code) == ("unknown", "U15"), parameters


def test_primitives_of_others_with_known_names() -> None:
    """A rule is for JAX's own primitive of that name, and two primitives of one name are two functions."""
    from jax.extend.core import Primitive as New

    first, second, sine = New("shared"), New("shared"), New("sin")
    for primitive in (first, second, sine):
        primitive.def_abstract_eval(lambda x: x)
    assert verdict(jnp.sin, lambda x: sine.bind(x), f(4)).verdict == "unknown"
    assert verdict(lambda x: sine.bind(x), lambda x: sine.bind(x), f(4)).verdict == "verified"
    assert verdict(lambda x: first.bind(x), lambda x: first.bind(x), f(4)).verdict == "verified"
    result = verdict(lambda x: first.bind(x), lambda x: second.bind(x), f(4))
    assert (result.verdict, result.code) == ("unknown", "U15")


def test_descriptions_tell_apart() -> None:
    values: list[Any] = [
        *(None, True, 1, 1.0, "1", (1,), (1, 2), {"a": 1}, {"a": 2}, frozenset({1}), frozenset({1, 2})),
        *(np.float32(1), np.float64(1), np.arange(3), np.arange(3.0), np.arange(3)[::-1], np.ones((3, 1))),
        *(np.dtype("f4"), np.dtype("f8"), lax.RoundingMethod.AWAY_FROM_ZERO, np.zeros((1, 3)), -0.0, 0.0),
    ]
    texts = [described(v) for v in values]
    assert len(set(texts)) == len(values)
    assert described((1, np.int32(2))) != described((1, 2))
    with pytest.raises(ModuleError, match="has no text of its own"):
        described(object())
    with pytest.raises(ModuleError):
        described([lambda x: x])


def test_structures_tell_apart() -> None:
    def text(function: Callable[..., Any]) -> str:
        return structure(jax.make_jaxpr(function)(1.0, 2.0))

    assert text(lambda a, b: a + b) == text(lambda c, d: jnp.add(c, d))
    functions: list[Callable[..., Any]] = [
        *(lambda a, b: a + b, lambda a, b: b + a, lambda a, b: a * b, lambda a, b: a - b, lambda a, b: a),
        *(lambda a, b: b, lambda a, b: a + 1.0, lambda a, b: a + 2.0, lambda a, b: (a + b) * a),
        *(lambda a, b: (a + b) * b, lambda a, b: jnp.round(a), lambda a, b: a**2, lambda a, b: a**3),
    ]
    assert len({text(function) for function in functions}) == len(functions)


def test_an_open_sum_is_refused() -> None:
    from shardproof.frontends.jaxpr.sharded import spec_of

    try:
        spec = P("tp", unreduced={"dp"})
    except TypeError:
        pytest.skip("this version of JAX has no unreduced specs")
    with pytest.raises(ModuleError, match="leaves sums over ranks open"):
        spec_of(spec)


def test_mutable_arrays_are_refused() -> None:
    make = getattr(jax, "new_ref", None)
    if make is None:
        pytest.skip("this version of JAX has no mutable arrays")

    def function(x: Any) -> Any:
        box = make(x)
        box[...] = x * 2
        return box[...]

    with pytest.raises(ModuleError):
        lower(jax.make_jaxpr(function)(f(4)))
