"""Sequence parallelism: every rank takes the masks of the first shard from a bank of them."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "RNG bank", "expect_buggy": "refuted"}
MESH = {"tp": 2}
KEEP = 0.75
INPUTS = {"x": jax.ShapeDtypeStruct((6, 4), jnp.float32), "bank": jax.ShapeDtypeStruct((6, 4), jnp.int32)}
RANGES = {"bank": (0, 2)}
IN_SPECS = {"x": P("tp"), "bank": P()}
OUT_SPECS = P("tp")


def dropped(x, kept):
    return jnp.where(kept > 0, x / KEEP, 0.0)


def reference(x, bank):
    return dropped(x, bank)


def buggy(x, bank):
    own = lax.slice_in_dim(bank, 0, x.shape[0])
    return dropped(x, own)


def fixed(x, bank):
    own = lax.dynamic_slice_in_dim(bank, lax.axis_index("tp") * x.shape[0], x.shape[0])
    return dropped(x, own)
