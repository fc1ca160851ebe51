"""Data parallelism: the velocity is updated with the local gradient, the parameters with the averaged one."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "optimizer state not synchronised", "expect_buggy": "refuted"}
MESH = {"dp": 2}
RATE, DECAY = 0.05, 0.9
INPUTS = {
    "w": jax.ShapeDtypeStruct((4,), jnp.float32),
    "velocity": jax.ShapeDtypeStruct((4,), jnp.float32),
    "x": jax.ShapeDtypeStruct((6, 4), jnp.float32),
    "t": jax.ShapeDtypeStruct((6,), jnp.float32),
}
IN_SPECS = {"w": P(), "velocity": P(), "x": P("dp"), "t": P("dp")}
OUT_SPECS = (P(), P())


def gradient(w, x, t):
    return jax.grad(lambda p: jnp.mean((x @ p - t) ** 2))(w)


def reference(w, velocity, x, t):
    velocity = DECAY * velocity + gradient(w, x, t)
    return w - RATE * velocity, velocity


def buggy(w, velocity, x, t):
    own = gradient(w, x, t)
    moved = DECAY * velocity + lax.pmean(own, "dp")
    kept = DECAY * velocity + own
    return w - RATE * moved, kept


def fixed(w, velocity, x, t):
    own = lax.pmean(gradient(w, x, t), "dp")
    moved = DECAY * velocity + own
    return w - RATE * moved, moved
