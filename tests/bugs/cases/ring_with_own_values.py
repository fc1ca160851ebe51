"""Context parallelism: keys go round the ring, the values that they are weights of stay behind."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "stale value in a ring", "expect_buggy": "refuted"}
MESH = {"cp": 2}
INPUTS = {n: jax.ShapeDtypeStruct((4, 3), jnp.float32) for n in ("q", "k", "v")}
IN_SPECS = {n: P("cp") for n in ("q", "k", "v")}
OUT_SPECS = P("cp")


def reference(q, k, v):
    weights = jnp.exp(q @ k.T)
    return weights @ v / jnp.sum(weights, axis=1, keepdims=True)


def ring(q, k, v, own_values):
    n = MESH["cp"]
    pairs = [(r, (r + 1) % n) for r in range(n)]

    def turn(carry, _):
        keys, values, total, norm = carry
        weights = jnp.exp(q @ keys.T)
        total = total + weights @ (v if own_values else values)
        norm = norm + jnp.sum(weights, axis=1, keepdims=True)
        return (lax.ppermute(keys, "cp", pairs), lax.ppermute(values, "cp", pairs), total, norm), None

    start = (k, v, jnp.zeros((q.shape[0], v.shape[1])), jnp.zeros((q.shape[0], 1)))
    (_, _, total, norm), _ = lax.scan(turn, start, None, length=n)
    return total / norm


def buggy(q, k, v):
    return ring(q, k, v, True)


def fixed(q, k, v):
    return ring(q, k, v, False)
