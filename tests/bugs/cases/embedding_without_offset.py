"""Vocabulary-parallel look-up: ids are masked to the block of each rank, and looked up without its offset."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "wrong slice offset", "expect_buggy": "refuted"}
MESH = {"tp": 4}
INPUTS = {"table": jax.ShapeDtypeStruct((12, 3), jnp.float32), "ids": jax.ShapeDtypeStruct((2, 5), jnp.int32)}
RANGES = {"ids": (0, 12)}
IN_SPECS = {"table": P("tp"), "ids": P()}
OUT_SPECS = P()


def reference(table, ids):
    return jnp.take(table, ids, axis=0)


def look_up(table, ids, start, at):
    inside = (ids >= start) & (ids < start + table.shape[0])
    rows = jnp.take(table, jnp.where(inside, at, 0), axis=0)
    return lax.psum(jnp.where(inside[..., None], rows, 0.0), "tp")


def buggy(table, ids):
    start = lax.axis_index("tp") * table.shape[0]
    return look_up(table, ids, start, jnp.minimum(ids, table.shape[0] - 1))


def fixed(table, ids):
    start = lax.axis_index("tp") * table.shape[0]
    return look_up(table, ids, start, ids - start)
