"""Tensor parallelism: the bias of a row-parallel layer is inside of the reduction."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "bias added on every rank", "expect_buggy": "refuted"}
MESH = {"tp": 2}
INPUTS = {
    "x": jax.ShapeDtypeStruct((4, 3), jnp.float32),
    "up": jax.ShapeDtypeStruct((3, 8), jnp.float32),
    "down": jax.ShapeDtypeStruct((8, 3), jnp.float32),
    "bias": jax.ShapeDtypeStruct((3,), jnp.float32),
}
IN_SPECS = {"x": P(), "up": P(None, "tp"), "down": P("tp"), "bias": P()}
OUT_SPECS = P()


def reference(x, up, down, bias):
    hidden = jax.nn.gelu(x @ up)
    return x + hidden @ down + bias


def buggy(x, up, down, bias):
    hidden = jax.nn.gelu(x @ up)
    branch = hidden @ down + bias
    return x + lax.psum(branch, "tp")


def fixed(x, up, down, bias):
    hidden = jax.nn.gelu(x @ up)
    branch = lax.psum(hidden @ down, "tp") + bias
    return x + branch
