"""Sequence parallelism, remat: of two gradients the one that is whole is summed, not the partial one."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "psum of another value", "expect_buggy": "refuted"}
MESH = {"tp": 2}
INPUTS = {
    "x": jax.ShapeDtypeStruct((4, 2, 6), jnp.float32),
    "scale": jax.ShapeDtypeStruct((6,), jnp.float32),
    "up": jax.ShapeDtypeStruct((6, 8), jnp.float32),
    "down": jax.ShapeDtypeStruct((8, 6), jnp.float32),
    "dy": jax.ShapeDtypeStruct((4, 2, 6), jnp.float32),
}
IN_SPECS = {"x": P("tp"), "scale": P(), "up": P(None, "tp"), "down": P("tp"), "dy": P("tp")}
OUT_SPECS = (P(), P(None, "tp"))


def norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def reference(x, scale, up, down, dy):
    def objective(scale, up):
        return jnp.sum((x + jax.nn.silu(norm(x, scale) @ up) @ down) * dy)

    return jax.grad(objective, argnums=(0, 1))(scale, up)


def gradients(x, scale, up, down, dy):
    @jax.checkpoint
    def objective(scale, up):
        h = lax.all_gather(norm(x, scale), "tp", axis=0, tiled=True)
        y = lax.psum_scatter(jax.nn.silu(h @ up) @ down, "tp", scatter_dimension=0, tiled=True)
        return jnp.sum((x + y) * dy)

    return jax.grad(objective, argnums=(0, 1))(scale, up)


def buggy(x, scale, up, down, dy):
    first, second = gradients(x, scale, up, down, dy)
    return first, lax.psum(second, "tp")


def fixed(x, scale, up, down, dy):
    first, second = gradients(x, scale, up, down, dy)
    return lax.psum(first, "tp"), second
