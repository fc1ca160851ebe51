"""Grouped-query attention: with more ranks than key heads each rank picks its head by the remainder."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "rank order swapped", "expect_buggy": "refuted"}
MESH = {"tp": 4}
INPUTS = {
    "q": jax.ShapeDtypeStruct((5, 8, 3), jnp.float32),
    "k": jax.ShapeDtypeStruct((5, 2, 3), jnp.float32),
}
IN_SPECS = {"q": P(None, "tp"), "k": P()}
OUT_SPECS = P("tp")


def reference(q, k):
    return jnp.einsum("qhd,khd->hqk", q, jnp.repeat(k, 4, axis=1))


def scores(q, k, head):
    own = lax.dynamic_index_in_dim(k, head, axis=1, keepdims=False)
    return jnp.einsum("qhd,kd->hqk", q, own)


def buggy(q, k):
    head = lax.rem(lax.axis_index("tp"), 2)
    return scores(q, k, head)


def fixed(q, k):
    head = lax.div(lax.axis_index("tp"), 2)
    return scores(q, k, head)
