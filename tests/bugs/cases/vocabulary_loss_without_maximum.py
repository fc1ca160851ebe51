"""Vocabulary-parallel loss: the logits of each rank are shifted by the maximum of its own part."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "vocab-parallel loss without max over axis", "expect_buggy": "refuted"}
MESH = {"tp": 2}
INPUTS = {
    "logits": jax.ShapeDtypeStruct((5, 8), jnp.float32),
    "labels": jax.ShapeDtypeStruct((5,), jnp.int32),
}
RANGES = {"labels": (0, 8)}
IN_SPECS = {"logits": P(None, "tp"), "labels": P()}
OUT_SPECS = P()


def reference(logits, labels):
    logp = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 8) * logp, axis=-1))


def loss(logits, labels, top):
    width = logits.shape[1]
    total = lax.psum(jnp.sum(jnp.exp(logits - top[:, None]), axis=-1), "tp")
    own = labels - width * lax.axis_index("tp")
    picked = jnp.sum(jax.nn.one_hot(own, width) * logits, axis=-1)
    return jnp.mean(jnp.log(total) + top - lax.psum(picked, "tp"))


def buggy(logits, labels):
    top = jnp.max(logits, axis=-1)
    return loss(logits, labels, top)


def fixed(logits, labels):
    top = lax.pmax(jnp.max(logits, axis=-1), "tp")
    return loss(logits, labels, top)
