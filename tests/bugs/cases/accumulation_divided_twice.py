"""Gradient accumulation: every micro-batch and the total are divided by the number of micro-batches."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "accumulation divided twice", "expect_buggy": "refuted"}
MESH = {"dp": 2}
MICRO = 3
INPUTS = {
    "w": jax.ShapeDtypeStruct((4, 2), jnp.float32),
    "x": jax.ShapeDtypeStruct((3, 4, 4), jnp.float32),
    "t": jax.ShapeDtypeStruct((3, 4, 2), jnp.float32),
}
IN_SPECS = {"w": P(), "x": P(None, "dp"), "t": P(None, "dp")}
OUT_SPECS = P()


def loss(w, x, t):
    return jnp.mean(jnp.square(x @ w - t))


def reference(w, x, t):
    return jax.grad(lambda p: jnp.mean(jnp.square(x @ p - t)))(w)


def accumulate(w, x, t, scale):
    def micro(total, batch):
        return total + scale * jax.grad(loss)(w, *batch), None

    total, _ = lax.scan(micro, jnp.zeros_like(w), (x, t))
    return lax.pmean(total, "dp")


def buggy(w, x, t):
    return accumulate(w, x, t, 1.0 / MICRO) / MICRO


def fixed(w, x, t):
    return accumulate(w, x, t, 1.0) / MICRO
