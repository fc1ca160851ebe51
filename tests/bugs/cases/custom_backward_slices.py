"""Sequence parallelism: the written backward of a gather keeps a slice and drops what others computed."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "slice for psum_scatter, custom_vjp", "expect_buggy": "refuted"}
MESH = {"tp": 4}
INPUTS = {
    "x": jax.ShapeDtypeStruct((8, 3), jnp.float32),
    "w": jax.ShapeDtypeStruct((3, 4), jnp.float32),
    "dy": jax.ShapeDtypeStruct((8, 4), jnp.float32),
}
IN_SPECS = {"x": P("tp"), "w": P(None, "tp"), "dy": P(None, "tp")}
OUT_SPECS = P("tp")


def gather_with(back):
    @jax.custom_vjp
    def gather(t):
        return lax.all_gather(t, "tp", axis=0, tiled=True)

    gather.defvjp(lambda t: (gather(t), None), lambda _, g: (back(g),))
    return gather


def keep_own(g):
    rows = g.shape[0] // MESH["tp"]
    return lax.dynamic_slice_in_dim(g, lax.axis_index("tp") * rows, rows)


def reduce_own(g):
    return lax.psum_scatter(g, "tp", scatter_dimension=0, tiled=True)


def reference(x, w, dy):
    return jax.grad(lambda t: jnp.sum((jnp.tanh(t) @ w) * dy))(x)


def input_gradient(x, w, dy, back):
    gather = gather_with(back)
    _, pull = jax.vjp(lambda t: gather(jnp.tanh(t)) @ w, x)
    return pull(dy)[0]


def buggy(x, w, dy):
    return input_gradient(x, w, dy, keep_own)


def fixed(x, w, dy):
    return input_gradient(x, w, dy, reduce_own)
