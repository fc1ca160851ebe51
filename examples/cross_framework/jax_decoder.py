"""The same decoder in plain JAX, as functions of arrays: `forward`, and `forward_of_rank` for `shard_map`.

Weights are [input, output], heads are dims of their own, gate and up are one weight; rotary positions turn
the elements 2i and 2i + 1 of a head against each other, as in Meta's Llama.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from extents import Config
from jax import Array, lax
from jax.sharding import PartitionSpec as P

Parameters = dict[str, Any]
Layer = dict[str, Array]


def parameter_shapes(config: Config) -> Parameters:
    """Global shapes."""
    hidden, width, mlp = config.hidden, config.head_dim, config.intermediate

    def tensor(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layer = {
        "attention_norm": tensor(hidden),
        "query": tensor(hidden, config.heads, width),
        "key": tensor(hidden, config.kv_heads, width),
        "value": tensor(hidden, config.kv_heads, width),
        "output": tensor(config.heads, width, hidden),
        "mlp_norm": tensor(hidden),
        "gate_up": tensor(hidden, 2, mlp),
        "down": tensor(mlp, hidden),
    }
    return {
        "embed": tensor(config.vocab, hidden),
        "layers": [dict(layer) for _ in range(config.layers)],
        "norm": tensor(hidden),
        "head": tensor(hidden, config.vocab),
    }


def input_shapes(config: Config) -> dict[str, Any]:
    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence), jnp.int32)
    return {"parameters": parameter_shapes(config), "tokens": tokens}


def input_specs(config: Config) -> dict[str, Any]:
    """How the ranks of tp divide the inputs: heads, the MLP and the vocabulary."""
    layer = {
        "attention_norm": P(),
        "query": P(None, "tp"),
        "key": P(None, "tp"),
        "value": P(None, "tp"),
        "output": P("tp"),
        "mlp_norm": P(),
        "gate_up": P(None, None, "tp"),
        "down": P("tp"),
    }
    layers = [dict(layer) for _ in range(config.layers)]
    parameters = {"embed": P("tp"), "layers": layers, "norm": P(), "head": P(None, "tp")}
    return {"parameters": parameters, "tokens": P()}


LOGITS = P(None, None, "tp")


def rms_norm(x: Array, weight: Array, config: Config) -> Array:
    eps = 10 * config.eps if config.bug == "epsilon" else config.eps
    return x * weight / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def rotary_tables(config: Config) -> tuple[Array, Array]:
    """Cosine and sine of position times frequency, [sequence, 1, head_dim / 2]."""
    exponents = jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim
    angles = jnp.arange(config.sequence, dtype=jnp.float32)[:, None] * config.theta**-exponents
    return jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]


def rotate(x: Array, tables: tuple[Array, Array], config: Config) -> Array:
    """x [batch, sequence, heads, head_dim]."""
    cosine, sine = tables
    if config.bug == "rotary_sign":
        sine = -sine
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return turned.reshape(x.shape)


def grouped(query: Array, groups: int, config: Config) -> Array:
    """The query heads of each key-value head, [batch, sequence, groups, heads / groups, head_dim]."""
    batch, sequence, heads, width = query.shape
    if config.bug == "wrong_group":
        return query.reshape(batch, sequence, heads // groups, groups, width).swapaxes(2, 3)
    return query.reshape(batch, sequence, groups, heads // groups, width)


def attention(x: Array, layer: Layer, tables: tuple[Array, Array], config: Config) -> Array:
    query, key, value = (jnp.einsum("bsh,hnd->bsnd", x, layer[n]) for n in ("query", "key", "value"))
    if config.bug == "wrong_key_slice":
        key = jnp.roll(key, 1, axis=2)
    query, key = rotate(query, tables, config), rotate(key, tables, config)
    query = grouped(query, key.shape[2], config)
    scale = 1 / config.head_dim if config.bug == "scaled_twice" else config.head_dim**-0.5
    scores = jnp.einsum("bqkgd,bskd->bkgqs", query, key) * scale
    positions = jnp.arange(config.sequence)
    visible = positions[:, None] >= positions[None, :]
    if config.bug == "mask_off_by_one":
        visible = positions[:, None] + 1 >= positions[None, :]
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    attended = jnp.einsum("bkgqs,bskd->bqkgd", weights, value)
    attended = attended.reshape(*x.shape[:2], -1, config.head_dim)
    return jnp.einsum("bsnd,ndh->bsh", attended, layer["output"])


def mlp(x: Array, layer: Layer, config: Config) -> Array:
    both = jnp.einsum("bsh,htm->tbsm", x, layer["gate_up"])
    gate, up = (both[1], both[0]) if config.bug == "swapped_gate" else (both[0], both[1])
    return (jax.nn.silu(gate) * up) @ layer["down"]


def summed(x: Array, config: Config) -> Array:
    """The sum over ranks."""
    return x if config.tp == 1 else lax.psum(x, "tp")


def embedded(table: Array, tokens: Array, config: Config) -> Array:
    if config.tp == 1:
        return table[tokens]
    local = tokens - lax.axis_index("tp") * table.shape[0]
    held = (local >= 0) & (local < table.shape[0])
    return lax.psum(jnp.where(held[..., None], table[jnp.where(held, local, 0)], 0), "tp")


def forward(parameters: Parameters, tokens: Array, config: Config) -> Array:
    """Logits, [batch, sequence, vocab]; of `config.tp` ranks each has its part of the vocabulary."""
    tables = rotary_tables(config)
    x = embedded(parameters["embed"], tokens, config)
    for layer in parameters["layers"]:
        attended = attention(rms_norm(x, layer["attention_norm"], config), layer, tables, config)
        x = x + (attended if config.bug == "missing_all_reduce" else summed(attended, config))
        x = x + summed(mlp(rms_norm(x, layer["mlp_norm"], config), layer, config), config)
    return rms_norm(x, parameters["norm"], config) @ parameters["head"]
