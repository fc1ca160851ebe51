"""Tensor parallelism, backward through remat: the gradient before a column-parallel layer is partial."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "missing psum, backward", "expect_buggy": "refuted"}
MESH = {"tp": 2}
INPUTS = {
    "x": jax.ShapeDtypeStruct((4, 3), jnp.float32),
    "scale": jax.ShapeDtypeStruct((3,), jnp.float32),
    "up": jax.ShapeDtypeStruct((3, 8), jnp.float32),
    "down": jax.ShapeDtypeStruct((8, 3), jnp.float32),
    "dy": jax.ShapeDtypeStruct((4, 3), jnp.float32),
}
IN_SPECS = {"x": P(), "scale": P(), "up": P(None, "tp"), "down": P("tp"), "dy": P()}
OUT_SPECS = P()


def block(x, up, down):
    return jnp.tanh(x @ up) @ down


def reference(x, scale, up, down, dy):
    return jax.grad(lambda s: jnp.sum(block(x * s, up, down) * dy))(scale)


def scale_gradient(x, scale, up, down, dy):
    step = jax.checkpoint(lambda s: block(x * s, up, down))
    _, pull = jax.vjp(step, scale)
    return pull(dy)[0]


def buggy(x, scale, up, down, dy):
    return scale_gradient(x, scale, up, down, dy)


def fixed(x, scale, up, down, dy):
    return lax.psum(scale_gradient(x, scale, up, down, dy), "tp")
