"""A gather written as a ring: blocks go round one way and are put where they would be from the other."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "ppermute in the wrong direction", "expect_buggy": "refuted"}
MESH = {"cp": 4}
INPUTS = {"q": jax.ShapeDtypeStruct((8, 3), jnp.float32), "k": jax.ShapeDtypeStruct((8, 3), jnp.float32)}
IN_SPECS = {"q": P("cp"), "k": P("cp")}
OUT_SPECS = P("cp")


def reference(q, k):
    return q @ k.T


def scores(q, k, shift):
    n, own = MESH["cp"], k.shape[0]
    rank = lax.axis_index("cp")
    pairs = [(r, (r + shift) % n) for r in range(n)]

    def turn(t, carry):
        block, whole = carry
        source = jnp.mod(rank - t, n)
        whole = lax.dynamic_update_slice(whole, q @ block.T, (0, source * own))
        return lax.ppermute(block, "cp", pairs), whole

    start = (k, jnp.zeros((q.shape[0], n * own), k.dtype))
    return lax.fori_loop(0, n, turn, start)[1]


def buggy(q, k):
    return scores(q, k, -1)


def fixed(q, k):
    return scores(q, k, 1)
