"""Context parallelism: the causal mask of a rank's queries starts at position 0 on every rank."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "mask offset by rank missing", "expect_buggy": "refuted"}
MESH = {"cp": 2}
INPUTS = {
    "q": jax.ShapeDtypeStruct((2, 6, 4), jnp.float32),
    "k": jax.ShapeDtypeStruct((2, 6, 4), jnp.float32),
    "v": jax.ShapeDtypeStruct((2, 6, 5), jnp.float32),
}
IN_SPECS = {"q": P(None, "cp"), "k": P(None, "cp"), "v": P(None, "cp")}
OUT_SPECS = P(None, "cp")


def attend(q, k, v, rows):
    scores = jnp.einsum("bqd,bkd->bqk", q, k) * 0.5
    allowed = rows[:, None] >= jnp.arange(k.shape[1])[None, :]
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf)), v)


def reference(q, k, v):
    return attend(q, k, v, jnp.arange(q.shape[1]))


def gathered(x):
    return lax.all_gather(x, "cp", axis=1, tiled=True)


def buggy(q, k, v):
    rows = jnp.arange(q.shape[1])
    return attend(q, gathered(k), gathered(v), rows)


def fixed(q, k, v):
    rows = lax.axis_index("cp") * q.shape[1] + jnp.arange(q.shape[1])
    return attend(q, gathered(k), gathered(v), rows)
