"""Context parallelism: rotary angles are computed from positions that restart on every rank."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "rotary position offset", "expect_buggy": "refuted"}
MESH = {"cp": 2}
INPUTS = {"x": jax.ShapeDtypeStruct((8, 2, 6), jnp.float32)}
IN_SPECS = {"x": P("cp")}
OUT_SPECS = P("cp")


def turn(x, places):
    half = x.shape[-1] // 2
    speed = 1.0 / (100.0 ** (jnp.arange(half) / half))
    angle = places[:, None, None] * speed
    a, b = x[..., :half], x[..., half:]
    c, s = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def reference(x):
    return turn(x, jnp.arange(x.shape[0]))


def buggy(x):
    places = jnp.arange(x.shape[0])
    return turn(x, places)


def fixed(x):
    places = jnp.arange(x.shape[0]) + lax.axis_index("cp") * x.shape[0]
    return turn(x, places)
