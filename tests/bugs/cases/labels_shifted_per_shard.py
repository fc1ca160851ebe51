"""Context parallelism: next-token labels are shifted within each shard instead of across its border."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "label shift", "expect_buggy": "refuted"}
MESH = {"cp": 2}
INPUTS = {"logp": jax.ShapeDtypeStruct((8, 5), jnp.float32), "ids": jax.ShapeDtypeStruct((8,), jnp.int32)}
RANGES = {"ids": (0, 5)}
IN_SPECS = {"logp": P("cp"), "ids": P("cp")}
OUT_SPECS = P()


def picked(logp, labels):
    return jnp.take_along_axis(logp, labels[:, None], axis=1)[:, 0]


def reference(logp, ids):
    return -jnp.sum(picked(logp, jnp.roll(ids, -1)))


def buggy(logp, ids):
    labels = jnp.roll(ids, -1)
    return lax.psum(-jnp.sum(picked(logp, labels)), "cp")


def fixed(logp, ids):
    n = MESH["cp"]
    following = lax.ppermute(ids[:1], "cp", [(r, (r - 1) % n) for r in range(n)])
    labels = jnp.concatenate([ids[1:], following])
    return lax.psum(-jnp.sum(picked(logp, labels)), "cp")
