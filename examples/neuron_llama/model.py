"""A Llama decoder's prefill step as NeuronX traces it: one program, run by every rank.

Activations are [sequence, batch, hidden]. Weights are stored [input, output]. A rank holds its own
heads, its own part of the MLP and of the vocabulary; two all-reduces per layer join them.
"""

from __future__ import annotations

from dataclasses import dataclass

import hlo_ops as hlo
from builder import Builder, Groups, Tensor


@dataclass(frozen=True, slots=True)
class Config:
    """Global extents; rank = dp_rank * tp + tp_rank. The defaults differ from each other where they can."""

    layers: int = 1
    tp: int = 1
    dp: int = 1
    hidden: int = 26
    heads: int = 24
    kv_heads: int = 8
    head_dim: int = 14
    sequence: int = 20
    batch: int = 10
    mlp: int = 44
    vocab: int = 68
    mean_output: bool = False

    @property
    def tp_groups(self) -> Groups:
        return [[d * self.tp + t for t in range(self.tp)] for d in range(self.dp)]

    @property
    def dp_groups(self) -> Groups:
        return [[d * self.tp + t for d in range(self.dp)] for t in range(self.tp)]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One rank's weights of one layer."""

    attention_norm: Tensor
    qkv: Tensor
    o_proj: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class Decoder:
    """Traces one configuration; `trace` gives the serialised `HloModuleProto`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.b = Builder("Prefill")
        self.heads = config.heads // config.tp
        self.kv_heads = config.kv_heads // config.tp
        self.batch = config.batch // config.dp
        self.sequence = config.sequence

    def trace(self) -> bytes:
        c, b = self.config, self.b
        x = b.parameter("f16", self.sequence, self.batch, c.hidden)
        cache_ids = b.parameter("s32", c.sequence)
        start_ids = b.parameter("s32", self.batch)
        last_token_id = b.parameter("s32", 1)
        for _ in range(c.layers):
            self.cache_parameter()
            self.cache_parameter()
        weights: list[LayerWeights] = []
        for _ in range(c.layers):
            weights.append(self.layer_parameters())
        final_norm = b.parameter("f32", c.hidden)
        lm_head = b.parameter("f16", c.hidden, c.vocab // c.tp)

        mask = hlo.causal_mask(b, cache_ids, start_ids)
        cosine, sine = self.rotary_tables(cache_ids)
        states: list[Tensor] = []
        for layer in weights:
            x, key, value = self.layer(x, layer, mask, cosine, sine)
            states += [key, value]
        logits = self.logits(self.whole_sequence(x), last_token_id, final_norm, lm_head)
        updates = {1 + k: 4 + k for k in range(len(states))}
        outputs = [logits, *states]
        if c.mean_output:
            outputs.append(self.batch_mean(logits))
        return b.finish(outputs, updates)

    def cache_parameter(self) -> None:
        c, b = self.config, self.b
        hlo.on_device(b, b.parameter("f16", c.sequence, self.batch, self.kv_heads, c.head_dim))

    def layer_parameters(self) -> LayerWeights:
        c, b = self.config, self.b
        columns = (self.heads + 2 * self.kv_heads) * c.head_dim
        return LayerWeights(
            attention_norm=b.parameter("f32", c.hidden),
            qkv=b.parameter("f16", c.hidden, columns),
            o_proj=b.parameter("f16", self.heads * c.head_dim, c.hidden),
            mlp_norm=b.parameter("f32", c.hidden),
            gate=b.parameter("f16", c.hidden, c.mlp // c.tp),
            up=b.parameter("f16", c.hidden, c.mlp // c.tp),
            down=b.parameter("f16", c.mlp // c.tp, c.hidden),
        )

    def rotary_tables(self, cache_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of position times inverse frequency, [sequence, head_dim / 2]."""
        c, b = self.config, self.b
        half = c.head_dim // 2
        inv_freq = b.constant("f32", [10000.0 ** (-k / half) for k in range(half)])
        positions = b.reshape(b.convert("f32", cache_ids), c.sequence, 1)
        angles = b.dot(positions, b.reshape(inv_freq, 1, half), (1, 0))
        sine = b.convert("f16", b.unary("sine", angles))
        cosine = b.convert("f16", b.unary("cosine", angles))
        return cosine, sine

    def layer(
        self, x: Tensor, weights: LayerWeights, mask: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        b = self.b
        normed = hlo.rms_norm(b, x, hlo.on_device(b, weights.attention_norm), 2)
        attended, key, value = self.attention(normed, weights, mask, cosine, sine)
        x = b.binary("add", attended, x)
        normed = hlo.rms_norm(b, x, hlo.on_device(b, weights.mlp_norm), 2)
        x = b.binary("add", self.mlp(normed, weights), x)
        return x, key, value

    def attention(
        self, x: Tensor, weights: LayerWeights, mask: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The attention block's contribution to the residual, and this layer's keys and values."""
        c, b = self.config, self.b
        qkv = hlo.linear(b, self.rows(x), hlo.on_device(b, weights.qkv))
        query, key, value = self.split_qkv(qkv)
        query = hlo.rotate(b, query, cosine, sine)
        key = hlo.rotate(b, key, cosine, sine)
        scale = hlo.full(b, "f16", query.shape, c.head_dim**0.5)
        query = b.binary("divide", query, scale)
        all_keys, all_values = self.per_query_head(key), self.per_query_head(value)
        scores = b.dot(query, all_keys, (3, 3), ((1, 2), (1, 2)))
        visible = b.broadcast(mask, scores.shape, (0, 2, 3))
        scores = b.select(visible, scores, hlo.full(b, "f16", scores.shape, -30000.0))
        probabilities = hlo.softmax(b, scores)
        context = b.dot(probabilities, all_values, (3, 0), ((0, 1), (1, 2)))
        context = b.transpose(context, 2, 0, 1, 3)
        context = b.reshape(context, c.sequence * self.batch, self.heads * c.head_dim)
        partial = hlo.linear(b, context, hlo.on_device(b, weights.o_proj))
        return self.join(self.unrows(partial)), key, value

    def split_qkv(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cuts the fused projection [rows, q | k | v] into [sequence, batch, heads, head_dim] each."""
        b, q, kv = self.b, self.heads * self.config.head_dim, self.kv_heads * self.config.head_dim
        query = b.slice(qkv, 1, 0, q)
        key = b.slice(qkv, 1, q, q + kv)
        value = b.slice(qkv, 1, q + kv, q + 2 * kv)
        return self.heads_of(query), self.heads_of(key), self.heads_of(value)

    def heads_of(self, columns: Tensor) -> Tensor:
        c = self.config
        return self.b.reshape(columns, c.sequence, self.batch, columns.shape[1] // c.head_dim, c.head_dim)

    def per_query_head(self, x: Tensor) -> Tensor:
        return hlo.repeat_heads(self.b, x, self.heads // self.kv_heads)

    def mlp(self, x: Tensor, weights: LayerWeights) -> Tensor:
        """The gated MLP's contribution to the residual."""
        b = self.b
        rows = self.rows(x)
        gate = hlo.silu(b, hlo.linear(b, rows, hlo.on_device(b, weights.gate)))
        inner = b.binary("multiply", gate, hlo.linear(b, rows, hlo.on_device(b, weights.up)))
        partial = hlo.linear(b, inner, hlo.on_device(b, weights.down))
        return self.join(self.unrows(partial))

    def rows(self, x: Tensor) -> Tensor:
        return self.b.reshape(x, x.shape[0] * x.shape[1], x.shape[2])

    def unrows(self, x: Tensor) -> Tensor:
        return self.b.reshape(x, self.config.sequence, self.batch, x.shape[1])

    def join(self, partial: Tensor) -> Tensor:
        """The sum of all ranks' contributions."""
        if self.config.tp == 1:
            return partial
        return self.b.all_reduce(partial, self.config.tp_groups)

    def whole_sequence(self, x: Tensor) -> Tensor:
        return x

    def logits(self, x: Tensor, last_token_id: Tensor, norm: Tensor, lm_head: Tensor) -> Tensor:
        """[1, batch, vocabulary], of the last token only."""
        b = self.b
        last = b.gather_rows(x, last_token_id)
        last = hlo.rms_norm(b, last, hlo.on_device(b, norm), 2)
        scores = hlo.linear(b, self.rows(last), hlo.on_device(b, lm_head))
        return b.reshape(scores, 1, self.batch, scores.shape[1])

    def batch_mean(self, logits: Tensor) -> Tensor:
        """Mean over the global batch, [1, vocabulary]."""
        c, b = self.config, self.b
        total = b.reduce("add", b.convert("f32", logits), b.constant("f32", 0.0), 1)
        if c.dp > 1:
            total = b.all_reduce(total, c.dp_groups)
        return b.binary("divide", total, hlo.full(b, "f32", total.shape, float(c.batch)))
