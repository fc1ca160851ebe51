"""Expert parallelism: combined tokens are added into a buffer at positions counted from the rank's first."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "wrong offset, scatter", "expect_buggy": "refuted"}
MESH = {"ep": 2}
INPUTS = {"x": jax.ShapeDtypeStruct((8, 3), jnp.float32), "w": jax.ShapeDtypeStruct((3, 3), jnp.float32)}
IN_SPECS = {"x": P("ep"), "w": P()}
OUT_SPECS = P()


def reference(x, w):
    return jax.nn.relu(x @ w)


def combine(x, w, at):
    y = jax.nn.relu(x @ w)
    buffer = jnp.zeros((x.shape[0] * MESH["ep"], y.shape[1]), y.dtype)
    return lax.psum(buffer.at[at].add(y), "ep")


def buggy(x, w):
    at = jnp.arange(x.shape[0]) * MESH["ep"] + lax.axis_index("ep")
    return combine(x, w, at)


def fixed(x, w):
    at = jnp.arange(x.shape[0]) + lax.axis_index("ep") * x.shape[0]
    return combine(x, w, at)
