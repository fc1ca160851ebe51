"""A Llama-style decoder in plain JAX, written for one device: the reference of parallel.py.

Activations are [batch, sequence, hidden], weights are [input, output]. Parameters are a dict: `embed`,
`norm`, `head`, and `layers`, which is a list of dicts, or one dict of tensors stacked over the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

Parameters = dict[str, Any]
Layer = dict[str, Array]
Form = Literal["list", "stacked", "scanned"]


@dataclass(frozen=True, slots=True)
class Config:
    """Global extents. `form`: weights of layers in a list, stacked, or stacked and scanned over."""

    layers: int = 2
    hidden: int = 48
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 6
    intermediate: int = 40
    vocab: int = 56
    sequence: int = 12
    batch: int = 2
    form: Form = "list"
    remat: bool = False
    dtype: Any = jnp.float32
    eps: float = 1e-5
    theta: float = 500_000.0


def layer_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Global shapes of one layer's weights."""
    hidden, width, mlp = config.hidden, config.head_dim, config.intermediate
    return {
        "attention_norm": (hidden,),
        "query": (hidden, config.heads * width),
        "key": (hidden, config.kv_heads * width),
        "value": (hidden, config.kv_heads * width),
        "output": (config.heads * width, hidden),
        "mlp_norm": (hidden,),
        "gate": (hidden, mlp),
        "up": (hidden, mlp),
        "down": (mlp, hidden),
    }


def abstract_parameters(config: Config) -> Parameters:
    """Shapes and dtypes only; norm weights are float32."""

    def tensor(name: str, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32 if "norm" in name else config.dtype)

    def layer(*leading: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {name: tensor(name, *leading, *shape) for name, shape in layer_shapes(config).items()}

    listed = config.form == "list"
    return {
        "embed": tensor("embed", config.vocab, config.hidden),
        "layers": [layer() for _ in range(config.layers)] if listed else layer(config.layers),
        "norm": tensor("norm", config.hidden),
        "head": tensor("head", config.hidden, config.vocab),
    }


def abstract_tokens(config: Config) -> jax.ShapeDtypeStruct:
    """Token ids, or labels."""
    return jax.ShapeDtypeStruct((config.batch, config.sequence), jnp.int32)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale * weight).astype(x.dtype)


def rotary_tables(positions: Array, config: Config) -> tuple[Array, Array]:
    """Cosine and sine of position times frequency, [positions, head_dim / 2]."""
    exponents = jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim
    angles = positions.astype(jnp.float32)[:, None] * config.theta**-exponents
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Array, tables: tuple[Array, Array]) -> Array:
    """Rotates the halves of each head, x [batch, sequence, heads, head_dim]."""
    cosine, sine = (table[:, None, :].astype(x.dtype) for table in tables)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def heads_of(x: Array, head_dim: int) -> Array:
    return x.reshape(*x.shape[:-1], x.shape[-1] // head_dim, head_dim)


def attend(query: Array, key: Array, value: Array) -> Array:
    """Causal attention of grouped queries; all [batch, sequence, heads, head_dim], result flat over heads."""
    batch, sequence, heads, head_dim = query.shape
    grouped = query.reshape(batch, sequence, key.shape[2], heads // key.shape[2], head_dim)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", grouped, key).astype(jnp.float32) * head_dim**-0.5
    positions = jnp.arange(sequence)
    visible = positions[:, None] >= positions[None, :]
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(value.dtype)
    return jnp.einsum("bkgqs,bskd->bqkgd", weights, value).reshape(batch, sequence, heads * head_dim)


def attention(x: Array, layer: Layer, tables: tuple[Array, Array], head_dim: int) -> Array:
    """The attention block without its norm, for the heads whose weights are given."""
    query, key, value = (heads_of(x @ layer[name], head_dim) for name in ("query", "key", "value"))
    return attend(rotate(query, tables), rotate(key, tables), value) @ layer["output"]


def gated_mlp(x: Array, layer: Layer) -> Array:
    return (jax.nn.silu(x @ layer["gate"]) * (x @ layer["up"])) @ layer["down"]


def apply_layers(block: Callable[[Array, Layer], Array], x: Array, layers: Any, config: Config) -> Array:
    """`block` for each layer in order, as the configuration's form says."""
    step = jax.checkpoint(block) if config.remat else block
    if config.form == "scanned":
        return lax.scan(lambda carry, layer: (step(carry, layer), None), x, layers)[0]
    if config.form == "stacked":
        layers = [{name: w[i] for name, w in layers.items()} for i in range(config.layers)]
    for layer in layers:
        x = step(x, layer)
    return x


def forward(parameters: Parameters, tokens: Array, config: Config) -> Array:
    """Logits, [batch, sequence, vocab], float32."""
    tables = rotary_tables(jnp.arange(config.sequence), config)

    def block(x: Array, layer: Layer) -> Array:
        normed = rms_norm(x, layer["attention_norm"], config.eps)
        x = x + attention(normed, layer, tables, config.head_dim)
        return x + gated_mlp(rms_norm(x, layer["mlp_norm"], config.eps), layer)

    x = apply_layers(block, parameters["embed"][tokens], parameters["layers"], config)
    return (rms_norm(x, parameters["norm"], config.eps) @ parameters["head"]).astype(jnp.float32)


def loss(parameters: Parameters, tokens: Array, labels: Array, config: Config) -> Array:
    """Mean cross-entropy over all tokens."""
    log_probabilities = jax.nn.log_softmax(forward(parameters, tokens, config), axis=-1)
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1))
