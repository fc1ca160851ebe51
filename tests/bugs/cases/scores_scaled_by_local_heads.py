"""Tensor parallelism: the output of attention is divided by the number of heads of one rank."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "scaled by the wrong size", "expect_buggy": "refuted"}
MESH = {"tp": 2}
INPUTS = {
    "q": jax.ShapeDtypeStruct((4, 5, 3), jnp.float32),
    "k": jax.ShapeDtypeStruct((4, 5, 3), jnp.float32),
}
IN_SPECS = {"q": P("tp"), "k": P("tp")}
OUT_SPECS = P()


def per_head(q, k):
    return jax.nn.softmax(q @ k.T, axis=-1)


def reference(q, k):
    return jnp.sum(jax.vmap(per_head)(q, k), axis=0) / q.shape[0]


def buggy(q, k):
    total = lax.psum(jnp.sum(jax.vmap(per_head)(q, k), axis=0), "tp")
    return total / q.shape[0]


def fixed(q, k):
    total = lax.psum(jnp.sum(jax.vmap(per_head)(q, k), axis=0), "tp")
    return total / (q.shape[0] * MESH["tp"])
