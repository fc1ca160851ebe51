"""A scan over layers: the residual stream is inside of the reduction of every layer."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "doubled in a scan", "expect_buggy": "refuted"}
MESH = {"tp": 2}
INPUTS = {
    "x": jax.ShapeDtypeStruct((4, 6), jnp.float32),
    "up": jax.ShapeDtypeStruct((3, 6, 8), jnp.float32),
    "down": jax.ShapeDtypeStruct((3, 8, 6), jnp.float32),
}
IN_SPECS = {"x": P(), "up": P(None, None, "tp"), "down": P(None, "tp")}
OUT_SPECS = P()


def layers(x, up, down, residual):
    def layer(h, weights):
        a, b = weights
        return residual(h, jax.nn.silu(h @ a) @ b), None

    return lax.scan(layer, x, (up, down))[0]


def reference(x, up, down):
    return layers(x, up, down, lambda h, y: h + y)


def buggy(x, up, down):
    return layers(x, up, down, lambda h, y: lax.psum(h + y, "tp"))


def fixed(x, up, down):
    return layers(x, up, down, lambda h, y: h + lax.psum(y, "tp"))
