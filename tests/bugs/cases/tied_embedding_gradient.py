"""Pipeline parallelism: the gradients of a table used by the first and the last stage are not added."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "tied gradients", "expect_buggy": "refuted"}
MESH = {"pp": 2, "dp": 2}
INPUTS = {
    "table": jax.ShapeDtypeStruct((6, 4), jnp.float32),
    "ids": jax.ShapeDtypeStruct((4,), jnp.int32),
    "dx": jax.ShapeDtypeStruct((4, 4), jnp.float32),
    "h": jax.ShapeDtypeStruct((4, 4), jnp.float32),
    "dz": jax.ShapeDtypeStruct((4, 6), jnp.float32),
}
RANGES = {"ids": (0, 6)}
IN_SPECS = {"table": P(), "ids": P("dp"), "dx": P("dp"), "h": P("dp"), "dz": P("dp")}
OUT_SPECS = P()


def reference(table, ids, dx, h, dz):
    def objective(e):
        return jnp.sum(jnp.take(e, ids, axis=0) * dx) + jnp.sum((h @ e.T) * dz)

    return jax.grad(objective)(table)


def of_stage(table, ids, dx, h, dz):
    last = lax.axis_index("pp") == 1
    first = jax.grad(lambda e: jnp.sum(jnp.take(e, ids, axis=0) * dx))(table)
    return lax.cond(last, lambda: dz.T @ h, lambda: first)


def buggy(table, ids, dx, h, dz):
    grad = of_stage(table, ids, dx, h, dz)
    return lax.psum(grad, "dp")


def fixed(table, ids, dx, h, dz):
    grad = of_stage(table, ids, dx, h, dz)
    return lax.psum(grad, ("dp", "pp"))
