"""Tensor parallelism: a layer norm over features of which each rank has a part has a local variance."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "local statistics", "expect_buggy": "refuted"}
MESH = {"tp": 4}
INPUTS = {
    "x": jax.ShapeDtypeStruct((3, 5), jnp.float32),
    "w": jax.ShapeDtypeStruct((5, 8), jnp.float32),
    "scale": jax.ShapeDtypeStruct((8,), jnp.float32),
}
IN_SPECS = {"x": P(), "w": P(None, "tp"), "scale": P("tp")}
OUT_SPECS = P(None, "tp")


def reference(x, w, scale):
    y = x @ w
    centred = y - jnp.mean(y, axis=-1, keepdims=True)
    spread = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred * lax.rsqrt(spread + 1e-5) * scale


def buggy(x, w, scale):
    y = x @ w
    centred = y - lax.pmean(jnp.mean(y, axis=-1, keepdims=True), "tp")
    spread = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred * lax.rsqrt(spread + 1e-5) * scale


def fixed(x, w, scale):
    y = x @ w
    centred = y - lax.pmean(jnp.mean(y, axis=-1, keepdims=True), "tp")
    spread = lax.pmean(jnp.mean(centred**2, axis=-1, keepdims=True), "tp")
    return centred * lax.rsqrt(spread + 1e-5) * scale
