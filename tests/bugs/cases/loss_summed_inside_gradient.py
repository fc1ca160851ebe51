"""Data parallelism: the loss is summed over ranks inside of the function that is differentiated."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "psum inside of grad", "expect_buggy": "refuted"}
MESH = {"dp": 4}
INPUTS = {"w": jax.ShapeDtypeStruct((3,), jnp.float32), "x": jax.ShapeDtypeStruct((8, 3), jnp.float32)}
IN_SPECS = {"w": P(), "x": P("dp")}
OUT_SPECS = P()


def loss(w, x):
    return jnp.sum(jnp.sin(x @ w))


def reference(w, x):
    return jax.grad(loss)(w, x)


def buggy(w, x):
    grad = jax.grad(lambda p: lax.psum(loss(p, x), "dp"))(w)
    return lax.psum(grad, "dp")


def fixed(w, x):
    grad = jax.grad(loss)(w, x)
    return lax.psum(grad, "dp")
