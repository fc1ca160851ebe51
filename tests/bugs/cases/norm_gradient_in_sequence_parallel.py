"""Sequence parallelism, backward: the gradient of a norm's scale is that of the rank's own tokens."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "norm gradient not summed in SP", "expect_buggy": "refuted"}
MESH = {"tp": 2}
INPUTS = {
    "scale": jax.ShapeDtypeStruct((5,), jnp.float32),
    "x": jax.ShapeDtypeStruct((6, 5), jnp.float32),
    "w": jax.ShapeDtypeStruct((5, 8), jnp.float32),
    "dy": jax.ShapeDtypeStruct((6, 8), jnp.float32),
}
IN_SPECS = {"scale": P(), "x": P("tp"), "w": P(None, "tp"), "dy": P(None, "tp")}
OUT_SPECS = P()


def norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def reference(scale, x, w, dy):
    return jax.grad(lambda s: jnp.sum((norm(x, s) @ w) * dy))(scale)


def scale_gradient(scale, x, w, dy):
    def projected(s):
        return lax.all_gather(norm(x, s), "tp", axis=0, tiled=True) @ w

    _, pull = jax.vjp(projected, scale)
    (found,) = pull(dy)
    return found


def buggy(scale, x, w, dy):
    return scale_gradient(scale, x, w, dy)


def fixed(scale, x, w, dy):
    return lax.psum(scale_gradient(scale, x, w, dy), "tp")
