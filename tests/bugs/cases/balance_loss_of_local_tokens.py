"""Expert parallelism: the product of two token averages of the balance loss is averaged over ranks."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "nonlinear on partial", "expect_buggy": "refuted"}
MESH = {"ep": 2}
INPUTS = {"x": jax.ShapeDtypeStruct((8, 3), jnp.float32), "router": jax.ShapeDtypeStruct((3, 4), jnp.float32)}
IN_SPECS = {"x": P("ep"), "router": P()}
OUT_SPECS = P()


def shares(x, router):
    gates = jax.nn.softmax(x @ router, axis=-1)
    chosen = (gates >= jnp.max(gates, axis=-1, keepdims=True)).astype(gates.dtype)
    return jnp.mean(gates, axis=0), jnp.mean(chosen, axis=0)


def reference(x, router):
    gate, chosen = shares(x, router)
    return 4 * jnp.sum(gate * chosen)


def buggy(x, router):
    gate, chosen = shares(x, router)
    return lax.pmean(4 * jnp.sum(gate * chosen), "ep")


def fixed(x, router):
    gate, chosen = shares(x, router)
    return 4 * jnp.sum(lax.pmean(gate, "ep") * lax.pmean(chosen, "ep"))
