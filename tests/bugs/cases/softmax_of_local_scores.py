"""Scores sharded over keys: each rank divides by the sum of its own exponentials."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "nonlinear on partial, softmax", "expect_buggy": "refuted"}
MESH = {"tp": 2}
INPUTS = {"scores": jax.ShapeDtypeStruct((3, 8), jnp.float32), "v": jax.ShapeDtypeStruct((8, 4), jnp.float32)}
IN_SPECS = {"scores": P(None, "tp"), "v": P("tp")}
OUT_SPECS = P()


def reference(scores, v):
    return jax.nn.softmax(scores, axis=-1) @ v


def exponentials(scores):
    top = lax.pmax(jnp.max(scores, axis=-1, keepdims=True), "tp")
    return jnp.exp(scores - top)


def buggy(scores, v):
    e = exponentials(scores)
    total = jnp.sum(e, axis=-1, keepdims=True)
    return lax.psum((e / total) @ v, "tp")


def fixed(scores, v):
    e = exponentials(scores)
    total = lax.psum(jnp.sum(e, axis=-1, keepdims=True), "tp")
    return lax.psum((e / total) @ v, "tp")
