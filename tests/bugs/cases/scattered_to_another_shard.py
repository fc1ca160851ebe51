"""ZeRO: the reduced gradient is sliced for the rank after, the parameters for the rank itself."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "shard update off by one", "expect_buggy": "refuted"}
MESH = {"dp": 4}
INPUTS = {"w": jax.ShapeDtypeStruct((8, 2), jnp.float32), "g": jax.ShapeDtypeStruct((4, 8, 2), jnp.float32)}
IN_SPECS = {"w": P(), "g": P("dp")}
OUT_SPECS = P()
RATE = 0.5


def reference(w, g):
    return w - RATE * jnp.sum(g, axis=0)


def updated(w, g, shift):
    rows = w.shape[0] // MESH["dp"]
    rank = lax.axis_index("dp")
    total = lax.psum(g[0], "dp")
    own = lax.dynamic_slice_in_dim(w, rank * rows, rows)
    part = lax.dynamic_slice_in_dim(total, (rank + shift) % MESH["dp"] * rows, rows)
    return lax.all_gather(own - RATE * part, "dp", axis=0, tiled=True)


def buggy(w, g):
    return updated(w, g, 1)


def fixed(w, g):
    return updated(w, g, 0)
