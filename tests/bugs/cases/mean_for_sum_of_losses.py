"""Data parallelism, forward and backward: gradients of summed losses are averaged, the loss is summed."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "mean for sum", "expect_buggy": "refuted"}
MESH = {"dp": 4}
INPUTS = {
    "w": jax.ShapeDtypeStruct((5, 2), jnp.float32),
    "x": jax.ShapeDtypeStruct((8, 5), jnp.float32),
    "t": jax.ShapeDtypeStruct((8, 2), jnp.float32),
}
IN_SPECS = {"w": P(), "x": P("dp"), "t": P("dp")}
OUT_SPECS = (P(), P())


def loss(w, x, t):
    return jnp.sum(jnp.square(jnp.tanh(x @ w) - t))


def reference(w, x, t):
    return jax.value_and_grad(loss)(w, x, t)


def buggy(w, x, t):
    value, grad = jax.value_and_grad(loss)(w, x, t)
    return lax.psum(value, "dp"), lax.pmean(grad, "dp")


def fixed(w, x, t):
    value, grad = jax.value_and_grad(loss)(w, x, t)
    return lax.psum(value, "dp"), lax.psum(grad, "dp")
