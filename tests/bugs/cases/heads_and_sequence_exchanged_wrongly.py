"""Ulysses attention: on the way back the exchange splits heads and joins the sequence once more."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

META = {"kind": "all_to_all with split and concat swapped", "expect_buggy": "refuted"}
MESH = {"sp": 2}
INPUTS = {n: jax.ShapeDtypeStruct((4, 4, 3), jnp.float32) for n in ("q", "k", "v")}
IN_SPECS = {n: P("sp") for n in ("q", "k", "v")}
OUT_SPECS = P("sp")


def attend(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, v)


def exchange(x, split, concat):
    return lax.all_to_all(x, "sp", split_axis=split, concat_axis=concat, tiled=True)


def reference(q, k, v):
    return attend(q, k, v)


def to_heads(q, k, v):
    return [exchange(x, 1, 0) for x in (q, k, v)]


def buggy(q, k, v):
    out = attend(*to_heads(q, k, v))
    back = exchange(jnp.swapaxes(out, 0, 1), 0, 1)
    return back.reshape(q.shape)


def fixed(q, k, v):
    out = attend(*to_heads(q, k, v))
    return exchange(out, 0, 1)
