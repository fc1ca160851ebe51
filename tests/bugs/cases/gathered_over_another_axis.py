"""Mesh of two axes: weights sharded over one are gathered over the other, of the same size."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "wrong axis", "expect_buggy": "refuted"}
MESH = {"fsdp": 2, "tp": 2}
INPUTS = {"x": jax.ShapeDtypeStruct((4, 6), jnp.float32), "w": jax.ShapeDtypeStruct((6, 8), jnp.float32)}
IN_SPECS = {"x": P("fsdp"), "w": P("fsdp", "tp")}
OUT_SPECS = P("fsdp", "tp")


def reference(x, w):
    return jnp.tanh(x @ w)


def buggy(x, w):
    whole = lax.all_gather(w, "tp", axis=0, tiled=True)
    return jnp.tanh(x @ whole)


def fixed(x, w):
    whole = lax.all_gather(w, "fsdp", axis=0, tiled=True)
    return jnp.tanh(x @ whole)
