"""A convolution over shards of a sequence: the first shard gets the border of the last, not zeros."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "ppermute that wraps around", "expect_buggy": "refuted"}
MESH = {"sp": 2}
INPUTS = {"x": jax.ShapeDtypeStruct((8, 3), jnp.float32), "kernel": jax.ShapeDtypeStruct((3,), jnp.float32)}
IN_SPECS = {"x": P("sp"), "kernel": P()}
OUT_SPECS = P("sp")


def convolved(padded, kernel):
    return kernel[0] * padded[:-2] + kernel[1] * padded[1:-1] + kernel[2] * padded[2:]


def reference(x, kernel):
    return convolved(jnp.pad(x, ((1, 1), (0, 0))), kernel)


def with_halo(x, before):
    left = lax.ppermute(x[-1:], "sp", before)
    right = lax.ppermute(x[:1], "sp", [(1, 0)])
    return jnp.concatenate([left, x, right])


def buggy(x, kernel):
    return convolved(with_halo(x, [(0, 1), (1, 0)]), kernel)


def fixed(x, kernel):
    return convolved(with_halo(x, [(0, 1)]), kernel)
