"""Data parallelism: both moments of Adam are updated with the gradient of the own batch."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "missing psum, optimizer", "expect_buggy": "refuted"}
MESH = {"dp": 2}
INPUTS = {
    "w": jax.ShapeDtypeStruct((4,), jnp.float32),
    "first": jax.ShapeDtypeStruct((4,), jnp.float32),
    "second": jax.ShapeDtypeStruct((4,), jnp.float32),
    "x": jax.ShapeDtypeStruct((6, 4), jnp.float32),
    "t": jax.ShapeDtypeStruct((6,), jnp.float32),
}
IN_SPECS = {"w": P(), "first": P(), "second": P(), "x": P("dp"), "t": P("dp")}
OUT_SPECS = (P(), P(), P())


def gradient(w, x, t):
    return jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p) - t) ** 2))(w)


def adam(w, first, second, g):
    first = 0.9 * first + 0.1 * g
    second = 0.99 * second + 0.01 * g * g
    return w - 0.01 * first / (jnp.sqrt(second**2 + 1e-8) + 1e-3), first, second


def reference(w, first, second, x, t):
    return adam(w, first, second, gradient(w, x, t))


def buggy(w, first, second, x, t):
    g = gradient(w, x, t)
    return adam(w, first, second, g)


def fixed(w, first, second, x, t):
    g = lax.pmean(gradient(w, x, t), "dp")
    return adam(w, first, second, g)
