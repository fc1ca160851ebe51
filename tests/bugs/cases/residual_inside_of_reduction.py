"""Tensor parallelism: grouped-query attention whose residual is added before the reduction."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "residual added on every rank", "expect_buggy": "refuted"}
MESH = {"tp": 2}
INPUTS = {
    "x": jax.ShapeDtypeStruct((2, 4, 6), jnp.float32),
    "wq": jax.ShapeDtypeStruct((6, 4, 3), jnp.float32),
    "wk": jax.ShapeDtypeStruct((6, 2, 3), jnp.float32),
    "wv": jax.ShapeDtypeStruct((6, 2, 3), jnp.float32),
    "wo": jax.ShapeDtypeStruct((4, 3, 6), jnp.float32),
}
HEADS = P(None, "tp")
IN_SPECS = {"x": P(), "wq": HEADS, "wk": HEADS, "wv": HEADS, "wo": P("tp")}
OUT_SPECS = P()


def attend(x, wq, wk, wv, wo):
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w) for w in (wq, wk, wv))
    k, v = (jnp.repeat(t, q.shape[2] // k.shape[2], axis=2) for t in (k, v))
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) * 3**-0.5
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1)
    return jnp.einsum("bhqs,bshk,hkd->bqd", weights, v, wo)


def reference(x, wq, wk, wv, wo):
    return x + attend(x, wq, wk, wv, wo)


def buggy(x, wq, wk, wv, wo):
    y = x + attend(x, wq, wk, wv, wo)
    return lax.psum(y, "tp")


def fixed(x, wq, wk, wv, wo):
    y = attend(x, wq, wk, wv, wo)
    return x + lax.psum(y, "tp")
