"""ZeRO: gradients of which each rank has a shard are clipped by the norm of the shard."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "clipping by the local norm", "expect_buggy": "refuted"}
MESH = {"fsdp": 4}
LIMIT = 2.0
INPUTS = {"a": jax.ShapeDtypeStruct((8, 3), jnp.float32), "b": jax.ShapeDtypeStruct((4,), jnp.float32)}
IN_SPECS = {"a": P("fsdp"), "b": P("fsdp")}
OUT_SPECS = (P("fsdp"), P("fsdp"))


def squares(*grads):
    return sum(jnp.sum(g * g) for g in grads)


def clip(total, *grads):
    ratio = LIMIT / jnp.maximum(jnp.sqrt(total), LIMIT)
    return tuple(g * ratio for g in grads)


def reference(a, b):
    return clip(squares(a, b), a, b)


def buggy(a, b):
    total = squares(a, b)
    return clip(total, a, b)


def fixed(a, b):
    total = lax.psum(squares(a, b), "fsdp")
    return clip(total, a, b)
