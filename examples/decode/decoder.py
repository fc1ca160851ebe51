"""A Llama decoder's token-generation step: one new token per sequence, caches in and out.

It is the decoder of `../neuron_llama` with one position of activations. Caches are
[cache length, batch, heads, head_dim] and are overwritten in place (input_output_alias); parameter 1 is
the position of the new token.
"""

from __future__ import annotations

import hlo_ops as hlo
from builder import Tensor
from cache_builder import CacheBuilder
from model import Config, Decoder, LayerWeights


class TokenDecoder(Decoder):
    """Right: the new keys and values are written by dynamic-update-slice.

    `position` is s32[1]; in each layer the two caches of `caches` are replaced by the updated ones.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.b: CacheBuilder = CacheBuilder("TokenGeneration")
        self.sequence = 1

    def trace(self) -> bytes:
        c, b = self.config, self.b
        x = b.parameter("f16", 1, self.batch, c.hidden)
        self.position = b.parameter("s32", *self.position_shape())
        start_ids = b.parameter("s32", self.batch)
        held = self.cache_parameters()
        weights = [self.layer_parameters() for _ in range(c.layers)]
        final_norm = b.parameter("f32", c.hidden)
        lm_head = b.parameter("f16", c.hidden, c.vocab // c.tp)

        mask = self.visible(start_ids)
        cosine, sine = self.rotary_tables(self.position)
        states: list[Tensor] = []
        for number, layer in enumerate(weights):
            self.caches = held[number * self.per_layer : (number + 1) * self.per_layer]
            x, _, _ = self.layer(x, layer, mask, cosine, sine)
            states += self.caches
        scores = self.scores(x, final_norm, lm_head)
        return b.finish([scores, *states], {1 + k: 3 + k for k in range(len(states))})

    per_layer = 2

    def position_shape(self) -> tuple[int, ...]:
        return (1,)

    def cache_parameters(self) -> list[Tensor]:
        c, b = self.config, self.b
        shape = (c.sequence, self.batch, self.kv_heads, c.head_dim)
        return [b.parameter("f16", *shape) for _ in range(2 * c.layers)]

    def visible(self, start_ids: Tensor) -> Tensor:
        """pred[batch, 1, key]: from the sequence's first token to the new one."""
        c, b = self.config, self.b
        shape = (self.batch, 1, c.sequence)
        keys = b.broadcast(b.iota("s32", c.sequence), shape, (2,))
        past = b.compare("LE", keys, b.broadcast(self.position, shape, (1,)))
        started = b.compare("GE", keys, b.broadcast(start_ids, shape, (0,)))
        return b.binary("and", past, started)

    def rotary_tables(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of position times inverse frequency, [1, head_dim / 2]."""
        b, half = self.b, self.config.head_dim // 2
        inv_freq = b.constant("f32", [10000.0 ** (-k / half) for k in range(half)])
        rows = b.reshape(b.convert("f32", position), *position.shape, 1)
        angles = b.dot(rows, b.reshape(inv_freq, 1, half), (1, 0))
        return b.convert("f16", b.unary("cosine", angles)), b.convert("f16", b.unary("sine", angles))

    def attention(
        self, x: Tensor, weights: LayerWeights, mask: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The attention block's contribution to the residual, and this layer's keys and values."""
        c, b = self.config, self.b
        qkv = hlo.linear(b, self.rows(x), hlo.on_device(b, weights.qkv))
        query, key, value = self.split_qkv(qkv)
        query, key = self.rotated(query, cosine, sine), self.rotated(key, cosine, sine)
        query = b.binary("divide", query, hlo.full(b, "f16", query.shape, c.head_dim**0.5))
        keys, values = self.remembered(key, value)
        all_keys, all_values = self.per_query_head(keys), self.per_query_head(values)
        scores = b.dot(query, all_keys, (3, 3), ((1, 2), (1, 2)))
        shown = b.broadcast(mask, scores.shape, (0, 2, 3))
        scores = b.select(shown, scores, hlo.full(b, "f16", scores.shape, -30000.0))
        context = b.dot(hlo.softmax(b, scores), all_values, (3, 0), ((0, 1), (1, 2)))
        context = b.reshape(b.transpose(context, 2, 0, 1, 3), self.batch, self.heads * c.head_dim)
        partial = hlo.linear(b, context, hlo.on_device(b, weights.o_proj))
        return self.join(self.unrows(partial)), keys, values

    def rotated(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return hlo.rotate(self.b, x, cosine, sine)

    def remembered(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, [cache length, batch, heads, head_dim], with the new ones in place."""
        self.caches = [self.written(c, new) for c, new in zip(self.caches, (key, value), strict=True)]
        return self.caches[0], self.caches[1]

    def written(self, cache: Tensor, new: Tensor) -> Tensor:
        b, zero = self.b, self.b.constant("s32", 0)
        return b.dynamic_update_slice(cache, new, (self.row(), zero, zero, zero))

    def row(self) -> Tensor:
        """The cache row of the new token, a scalar."""
        return self.b.reshape(self.position)

    def heads_of(self, columns: Tensor) -> Tensor:
        d = self.config.head_dim
        return self.b.reshape(columns, 1, self.batch, columns.shape[1] // d, d)

    def unrows(self, x: Tensor) -> Tensor:
        return self.b.reshape(x, 1, self.batch, x.shape[1])

    def scores(self, x: Tensor, norm: Tensor, lm_head: Tensor) -> Tensor:
        """[1, batch, vocabulary]."""
        b = self.b
        last = hlo.rms_norm(b, x, hlo.on_device(b, norm), 2)
        return self.unrows(hlo.linear(b, self.rows(last), hlo.on_device(b, lm_head)))
