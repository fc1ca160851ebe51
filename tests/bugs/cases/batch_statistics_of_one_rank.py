"""Data parallelism: batch normalisation with the statistics of the local batch, under a nested jit."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "batch statistics local", "expect_buggy": "refuted"}
MESH = {"dp": 2}
INPUTS = {"x": jax.ShapeDtypeStruct((8, 3), jnp.float32), "gain": jax.ShapeDtypeStruct((3,), jnp.float32)}
IN_SPECS = {"x": P("dp"), "gain": P()}
OUT_SPECS = P("dp")


@jax.jit
def moments(x):
    return jnp.mean(x, axis=0), jnp.mean(x * x, axis=0)


def normalise(x, gain, first, second):
    return (x - first) * lax.rsqrt(second - first * first + 1e-3) * gain


def reference(x, gain):
    return normalise(x, gain, *moments(x))


def buggy(x, gain):
    first, second = moments(x)
    return normalise(x, gain, lax.pmean(first, "dp"), second)


def fixed(x, gain):
    first, second = moments(x)
    return normalise(x, gain, lax.pmean(first, "dp"), lax.pmean(second, "dp"))
