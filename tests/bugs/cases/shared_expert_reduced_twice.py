"""Tensor and data parallelism: two branches are reduced, one of them before it is added to the other."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "duplicated psum", "expect_buggy": "refuted"}
MESH = {"dp": 2, "tp": 2}
INPUTS = {
    "x": jax.ShapeDtypeStruct((4, 6), jnp.float32),
    "a": jax.ShapeDtypeStruct((6, 8), jnp.float32),
    "b": jax.ShapeDtypeStruct((8, 6), jnp.float32),
    "c": jax.ShapeDtypeStruct((6, 6), jnp.float32),
}
IN_SPECS = {"x": P("dp"), "a": P(None, "tp"), "b": P("tp"), "c": P(None, "tp")}
OUT_SPECS = P("dp")


def reference(x, a, b, c):
    return jax.nn.silu(x @ a) @ b + jnp.tanh(x @ c) @ c.T


def parts(x, a, b, c):
    return jax.nn.silu(x @ a) @ b, jnp.tanh(x @ c) @ c.T


def buggy(x, a, b, c):
    routed, shared = parts(x, a, b, c)
    shared = lax.psum(shared, "tp")
    return lax.psum(routed + shared, "tp")


def fixed(x, a, b, c):
    routed, shared = parts(x, a, b, c)
    return lax.psum(routed + shared, "tp")
