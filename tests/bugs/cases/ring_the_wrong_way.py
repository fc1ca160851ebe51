"""Context parallelism: keys and values go round the ring one way, the masks are made for the other."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


META = {"kind": "ppermute in the wrong direction", "expect_buggy": "refuted"}
MESH = {"cp": 4}
INPUTS = {
    "q": jax.ShapeDtypeStruct((8, 3), jnp.float32),
    "k": jax.ShapeDtypeStruct((8, 3), jnp.float32),
    "v": jax.ShapeDtypeStruct((8, 5), jnp.float32),
}
IN_SPECS = {"q": P("cp"), "k": P("cp"), "v": P("cp")}
OUT_SPECS = P("cp")


def reference(q, k, v):
    place = jnp.arange(q.shape[0])
    weights = jnp.where(place[:, None] >= place[None, :], jnp.exp(q @ k.T), 0.0)
    return weights @ v / jnp.sum(weights, axis=1, keepdims=True)


def ring(q, k, v, step):
    n, own = MESH["cp"], q.shape[0]
    rank = lax.axis_index("cp")
    pairs = [(r, (r + step) % n) for r in range(n)]

    def turn(t, carry):
        k, v, total, norm = carry
        source = jnp.mod(rank - t, n)
        rows = rank * own + jnp.arange(own)
        columns = source * own + jnp.arange(own)
        weights = jnp.where(rows[:, None] >= columns[None, :], jnp.exp(q @ k.T), 0.0)
        total, norm = total + weights @ v, norm + jnp.sum(weights, axis=1, keepdims=True)
        return lax.ppermute(k, "cp", pairs), lax.ppermute(v, "cp", pairs), total, norm

    start = (k, v, jnp.zeros((own, v.shape[1]), v.dtype), jnp.zeros((own, 1), v.dtype))
    _, _, total, norm = lax.fori_loop(0, n, turn, start)
    return total / norm


def buggy(q, k, v):
    return ring(q, k, v, -1)


def fixed(q, k, v):
    return ring(q, k, v, 1)
