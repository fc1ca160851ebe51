"""ZeRO-3: of two weight gradients one is reduced and scattered, of the other the own rows are kept."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "slice for psum_scatter", "expect_buggy": "refuted"}
MESH = {"fsdp": 4}
INPUTS = {
    "up": jax.ShapeDtypeStruct((8, 12), jnp.float32),
    "down": jax.ShapeDtypeStruct((12, 8), jnp.float32),
    "x": jax.ShapeDtypeStruct((8, 8), jnp.float32),
    "t": jax.ShapeDtypeStruct((8, 8), jnp.float32),
}
IN_SPECS = {name: P("fsdp") for name in INPUTS}
OUT_SPECS = (P("fsdp"), P("fsdp"))


def loss(up, down, x, t):
    return jnp.sum((jax.nn.relu(x @ up) @ down - t) ** 2)


def reference(up, down, x, t):
    return jax.grad(loss, argnums=(0, 1))(up, down, x, t)


def gradients(up, down, x, t):
    whole = [lax.all_gather(w, "fsdp", axis=0, tiled=True) for w in (up, down)]
    return jax.grad(loss, argnums=(0, 1))(*whole, x, t)


def scattered(grad):
    return lax.psum_scatter(grad, "fsdp", scatter_dimension=0, tiled=True)


def kept(grad):
    rows = grad.shape[0] // MESH["fsdp"]
    return lax.dynamic_slice_in_dim(grad, lax.axis_index("fsdp") * rows, rows)


def buggy(up, down, x, t):
    first, second = gradients(up, down, x, t)
    return scattered(first), kept(second)


def fixed(up, down, x, t):
    first, second = gradients(up, down, x, t)
    return scattered(first), scattered(second)
