"""Tensor parallelism: the ranks are reduced in pairs, over groups that leave the other pair out."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "wrong group", "expect_buggy": "refuted"}
MESH = {"tp": 4}
INPUTS = {"x": jax.ShapeDtypeStruct((3, 8), jnp.float32), "w": jax.ShapeDtypeStruct((8, 5), jnp.float32)}
IN_SPECS = {"x": P(None, "tp"), "w": P("tp")}
OUT_SPECS = P()


def reference(x, w):
    return jax.nn.relu(x @ w)


def buggy(x, w):
    y = x @ w
    return jax.nn.relu(lax.psum(y, "tp", axis_index_groups=[[0, 1], [2, 3]]))


def fixed(x, w):
    y = x @ w
    y = lax.psum(y, "tp", axis_index_groups=[[0, 1], [2, 3]])
    return jax.nn.relu(lax.psum(y, "tp", axis_index_groups=[[0, 2], [1, 3]]))
