"""Data parallelism: each rank divides by its own number of valid tokens before the losses are averaged."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "local count", "expect_buggy": "refuted"}
MESH = {"dp": 2}
INPUTS = {"loss": jax.ShapeDtypeStruct((4, 5), jnp.float32), "length": jax.ShapeDtypeStruct((4,), jnp.int32)}
RANGES = {"length": (1, 6)}
IN_SPECS = {"loss": P("dp"), "length": P("dp")}
OUT_SPECS = P()


def sums(loss, length):
    valid = jnp.arange(loss.shape[1])[None, :] < length[:, None]
    return jnp.sum(jnp.where(valid, loss, 0.0)), jnp.sum(valid.astype(loss.dtype))


def reference(loss, length):
    total, count = sums(loss, length)
    return total / count


def buggy(loss, length):
    total, count = sums(loss, length)
    return lax.pmean(total / count, "dp")


def fixed(loss, length):
    total, count = sums(loss, length)
    return lax.psum(total, "dp") / lax.psum(count, "dp")
