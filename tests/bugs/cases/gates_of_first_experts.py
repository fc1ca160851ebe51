"""Expert parallelism: every rank weighs the outputs of its experts by the gates of the first ones."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "wrong slice offset, routing", "expect_buggy": "refuted"}
MESH = {"ep": 2}
INPUTS = {
    "x": jax.ShapeDtypeStruct((6, 4), jnp.float32),
    "router": jax.ShapeDtypeStruct((4, 4), jnp.float32),
    "w": jax.ShapeDtypeStruct((4, 4, 5), jnp.float32),
}
IN_SPECS = {"x": P(), "router": P(), "w": P("ep")}
OUT_SPECS = P()


def gates(x, router):
    best, which = lax.top_k(jax.nn.softmax(x @ router, axis=-1), 2)
    best = best / jnp.sum(best, axis=-1, keepdims=True)
    return jnp.sum(jax.nn.one_hot(which, 4) * best[..., None], axis=1)


def combine(gates, x, w):
    return jnp.einsum("te,td,edo->to", gates, x, w)


def reference(x, router, w):
    return combine(gates(x, router), x, w)


def buggy(x, router, w):
    own = lax.slice_in_dim(gates(x, router), 0, w.shape[0], axis=1)
    return lax.psum(combine(own, x, w), "ep")


def fixed(x, router, w):
    first = lax.axis_index("ep") * w.shape[0]
    own = lax.dynamic_slice_in_dim(gates(x, router), first, w.shape[0], axis=1)
    return lax.psum(combine(own, x, w), "ep")
