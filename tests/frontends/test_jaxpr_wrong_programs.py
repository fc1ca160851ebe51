"""JAX functions that differ, by JAX's own execution, are never verified; equal ones are, never refuted."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from shardproof import verify_jax  # noqa: E402

P = jax.sharding.PartitionSpec
Function = Callable[..., Any]


def f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def u(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.uint32)


def b(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bool_)


def _window(kind: Any, init: float, shape: tuple[int, int], padding: str = "VALID") -> Function:
    return lambda x: lax.reduce_window(x, init, kind, shape, (1, 1), padding)


def _gradient(function: Function) -> Function:
    return lambda x: jax.grad(lambda y: function(y).sum())(x)


_READ = {"x": f(8, 2), "k": i(3)}
WRONG: dict[str, tuple[Function, Function, dict[str, Any]]] = {
    "bits": (lambda x: x.view(jnp.int32).astype(jnp.float32), lambda x: x, {"x": f(8)}),
    "bits_cast": (lambda x: x.view(jnp.int32), lambda x: x.astype(jnp.int32), {"x": f(8)}),
    "cast_floor": (lambda x: x.astype(jnp.int32), lambda x: jnp.floor(x).astype(jnp.int32), {"x": f(8)}),
    "cast_saturates": (
        lambda x: (x * 300).astype(jnp.uint8),
        lambda x: (x * 300).astype(jnp.int32).astype(jnp.uint8),
        {"x": f(8)},
    ),
    "halves": (lambda x: x // 2 * 2, lambda x: x, {"x": i(8)}),
    "quotient_sign": (lambda x: lax.div(x, 3), lambda x: x // 3, {"x": i(8)}),
    "remainder_sign": (lambda x: lax.rem(x, 3), lambda x: x % 3, {"x": i(8)}),
    "remainder_sign_real": (lambda x: lax.rem(x, 2.0), lambda x: x % 2.0, {"x": f(8)}),
    "unsigned_difference": (lambda x, y: (x - y) > 0, lambda x, y: x > y, {"x": u(8), "y": u(8)}),
    "unsigned_negative": (lambda x: -x // 2, lambda x: -(x // 2), {"x": u(8)}),
    "choice_out_of_range": (
        lambda x: lax.select_n(x, jnp.zeros(8), jnp.ones(8), 2 * jnp.ones(8)),
        lambda x: jnp.where(x == 0, 0.0, jnp.where(x == 1, 1.0, 2.0)),
        {"x": i(8)},
    ),
    "branch_out_of_range": (
        lambda x, k: lax.switch(k, [jnp.sin, jnp.cos, jnp.tanh], x),
        lambda x, k: jnp.where(k == 0, jnp.sin(x), jnp.where(k == 1, jnp.cos(x), jnp.tanh(x))),
        {"x": f(8), "k": i()},
    ),
    "first_of_equals": (
        lambda x: jnp.argmax(jnp.round(x), 1),
        lambda x: 3 - jnp.argmax(jnp.round(x)[:, ::-1], 1),
        {"x": f(8, 4)},
    ),
    "rounding": (
        lambda x: lax.round(jnp.round(x * 2) / 2, lax.RoundingMethod.AWAY_FROM_ZERO),
        lambda x: lax.round(jnp.round(x * 2) / 2, lax.RoundingMethod.TO_NEAREST_EVEN),
        {"x": f(8)},
    ),
    "bool_sum": (lambda x: x.sum(), lambda x: x.any().astype(jnp.int32), {"x": b(8)}),
    "bool_twice": (lambda x: (x | x).astype(jnp.int32), lambda x: x.astype(jnp.int32) * 2, {"x": b(8)}),
    "bitwise_and": (
        lambda x: lax.reduce(x, jnp.int32(-1), lax.bitwise_and, (0,)),
        lambda x: jnp.all(x != 0).astype(jnp.int32),
        {"x": i(2)},
    ),
    "initial_value": (lambda x: lax.reduce(x, 2.0, lax.add, (0,)), lambda x: x.sum(0), {"x": f(3, 4)}),
    "sign_of_zero": (lambda x: jnp.sign(x), lambda x: jnp.where(x > 0, 1, -1), {"x": i(8)}),
    "bounds_crossed": (lambda x: lax.clamp(1.0, x, -1.0), lambda x: jnp.ones(8), {"x": f(8)}),
    "narrow_count": (
        lambda x: x + lax.iota(jnp.int8, 300)[-1].astype(jnp.int32),
        lambda x: x + 299,
        {"x": i(8)},
    ),
    "slice_from_behind": (
        lambda x: lax.dynamic_slice(x, (-3,), (3,)),
        lambda x: lax.slice(x, (0,), (3,)),
        {"x": f(8)},
    ),
    "filled": (
        lambda x, k: x.at[k].get(mode="fill", fill_value=0.0),
        lambda x, k: x.at[jnp.maximum(k, 0)].get(mode="fill", fill_value=0.0),
        _READ,
    ),
    "filled_other": (
        lambda x, k: x.at[k].get(mode="fill", fill_value=0.0),
        lambda x, k: x.at[k].get(mode="fill", fill_value=1.0),
        _READ,
    ),
    "last_row": (lambda x: x[-1], lambda x: x[0], {"x": f(8, 2)}),
    "dropped": (
        lambda x, k: x.at[k].add(1.0, mode="drop"),
        lambda x, k: x.at[k].add(1.0, mode="clip"),
        _READ,
    ),
    "set_twice": (
        lambda x, k: jnp.zeros(8).at[k % 2].set(1.0),
        lambda x, k: jnp.zeros(8).at[k % 2].add(1.0),
        _READ,
    ),
    "subtracted": (lambda x, k: x.at[k].subtract(2.0), lambda x, k: x.at[k].add(2.0), _READ),
    "applied": (
        lambda x: x.at[jnp.array([1, 2])].apply(jnp.sin),
        lambda x: x.at[jnp.array([1, 2])].set(0.0),
        {"x": f(8)},
    ),
    "narrow_constant": (lambda x: x * jnp.bfloat16(0.1).astype(jnp.float32), lambda x: x * 0.1, {"x": f(8)}),
    "complex_square": (
        lambda x: jnp.real(lax.complex(x, x) * lax.complex(x, x)),
        lambda x: x * x,
        {"x": f(8)},
    ),
    "sums_from_the_end": (
        lambda x: jnp.cumsum(x, 1),
        lambda x: lax.cumsum(x, 1, reverse=True),
        {"x": f(3, 4)},
    ),
    "shift_too_far": (lambda x: lax.shift_left(x, 32), lambda x: x, {"x": i(8)}),
    "shift_sign": (
        lambda x: lax.shift_right_logical(x, 1),
        lambda x: lax.shift_right_arithmetic(x, 1),
        {"x": i(8)},
    ),
    "pool_gradient": (
        _gradient(_window(lax.max, -jnp.inf, (1, 2))),
        _gradient(_window(lax.max, -jnp.inf, (2, 1))),
        {"x": f(3, 4)},
    ),
    "pool_gradient_least": (
        _gradient(_window(lax.max, -jnp.inf, (1, 2))),
        _gradient(_window(lax.min, jnp.inf, (1, 2))),
        {"x": f(3, 4)},
    ),
    "pool_start": (_window(lax.add, 1.0, (1, 2)), _window(lax.add, 0.0, (1, 2)), {"x": f(3, 4)}),
    "key_order": (
        lambda k: jax.random.bits(jax.random.fold_in(jax.random.fold_in(k, 1), 2), (4,)),
        lambda k: jax.random.bits(jax.random.fold_in(jax.random.fold_in(k, 2), 1), (4,)),
        {"k": u(2)},
    ),
    "one_key": (
        lambda k: jax.random.bits(jax.random.split(k)[0], (4,)),
        lambda k: jax.random.bits(k, (4,)),
        {"k": u(2)},
    ),
}

RIGHT: dict[str, tuple[Function, Function, dict[str, Any]]] = {
    "initial_value": (lambda x: lax.reduce(x, 2.0, lax.add, (0,)), lambda x: x.sum(0) + 2, {"x": f(3, 4)}),
    "subtracted": (lambda x, k: x.at[k].subtract(2.0), lambda x, k: x.at[k].add(-2.0), _READ),
    "choice": (
        lambda x: lax.select_n(x, jnp.zeros(8), jnp.ones(8), 2 * jnp.ones(8)),
        lambda x: jnp.where(x <= 0, 0.0, jnp.where(x == 1, 1.0, 2.0)),
        {"x": i(8)},
    ),
    "pool_start": (
        _window(lax.add, 1.0, (1, 2)),
        lambda x: _window(lax.add, 0.0, (1, 2))(x) + 1.0,
        {"x": f(3, 4)},
    ),
    "largest_of_columns": (
        lambda x: jax.vmap(lambda y: lax.top_k(y, 2)[0], 1, 1)(x),
        lambda x: lax.top_k(x.T, 2)[0].T,
        {"x": f(5, 3)},
    ),
    "draws": (
        lambda k: jax.random.uniform(jax.random.split(k)[1], (4,)),
        lambda k: jax.random.uniform(jax.random.wrap_key_data(jax.random.split(k)[1]), (4,)),
        {"k": u(2)},
    ),
}


def arguments(types: dict[str, Any], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {}
    for name, t in types.items():
        if t.dtype == jnp.float32:
            found[name] = (rng.normal(size=t.shape) * 3).astype(np.float32)
        elif t.dtype == jnp.int32:
            found[name] = rng.integers(-9, 12, size=t.shape).astype(np.int32)
        else:
            found[name] = rng.integers(0, 2 if t.dtype == bool else 9, size=t.shape).astype(t.dtype)
    return found


def alike(first: Function, second: Function, types: dict[str, Any]) -> bool:
    """Whether JAX computes the same on some random inputs."""
    for seed in range(6):
        given = {n: jnp.asarray(x) for n, x in arguments(types, seed).items()}
        if not np.allclose(first(**given), second(**given), rtol=1e-4, atol=1e-5, equal_nan=True):
            return False
    return True


def verdict(first: Function, second: Function, types: dict[str, Any]) -> Any:
    specs = {name: P() for name in types}
    return verify_jax(
        first, second, mesh={"tp": 2}, inputs=types, in_specs=specs, out_specs=P(), timeout=60
    )


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    first, second, types = WRONG[name]
    assert not alike(first, second, types)
    assert verdict(first, second, types).verdict != "verified"


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    first, second, types = RIGHT[name]
    assert alike(first, second, types)
    result = verdict(first, second, types)
    assert result.verdict != "refuted", result.text()
    assert result.verdict == "verified", result.text()
