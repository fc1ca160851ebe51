"""Other ways to split the same decoder: two that are wrong and four that are right."""

from __future__ import annotations

import hlo_ops as hlo
from builder import Tensor
from model import Config, Decoder, LayerWeights

VOCABULARY_PART = (1, 2, 3, 0)
"""Which part of the vocabulary each rank of `PermutedHead` holds."""


class ValueFromKeyColumns(Decoder):
    """Wrong: the slice that should give the values starts at the keys."""

    def split_qkv(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, q, kv = self.b, self.heads * self.config.head_dim, self.kv_heads * self.config.head_dim
        query = b.slice(qkv, 1, 0, q)
        key = b.slice(qkv, 1, q, q + kv)
        value = b.slice(qkv, 1, q, q + kv)
        return self.heads_of(query), self.heads_of(key), self.heads_of(value)


class UnjoinedMlp(Decoder):
    """Wrong: each rank adds only its own part of the MLP to the residual."""

    def mlp(self, x: Tensor, weights: LayerWeights) -> Tensor:
        b = self.b
        rows = self.rows(x)
        gate = hlo.silu(b, hlo.linear(b, rows, hlo.on_device(b, weights.gate)))
        inner = b.binary("multiply", gate, hlo.linear(b, rows, hlo.on_device(b, weights.up)))
        partial = hlo.linear(b, inner, hlo.on_device(b, weights.down))
        return self.unrows(partial)


class SequenceParallel(Decoder):
    """Right: between the blocks, each rank holds its part of the sequence."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.sequence = config.sequence // config.tp

    def rows(self, x: Tensor) -> Tensor:
        return super().rows(self.whole_sequence(x))

    def whole_sequence(self, x: Tensor) -> Tensor:
        if x.shape[0] != self.sequence:
            return x
        return self.b.all_gather(x, 0, self.config.tp_groups)

    def join(self, partial: Tensor) -> Tensor:
        return self.b.reduce_scatter(partial, 0, self.config.tp_groups)


class InterleavedQkv(Decoder):
    """Right: the fused weight is laid out per key-value head: its query heads, its key, its value."""

    def split_qkv(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c, b = self.config, self.b
        per_group = self.heads // self.kv_heads
        rows = qkv.shape[0]
        grouped = b.reshape(qkv, rows, self.kv_heads, per_group + 2, c.head_dim)
        query = b.slice(grouped, 2, 0, per_group)
        key = b.slice(grouped, 2, per_group, per_group + 1)
        value = b.slice(grouped, 2, per_group + 1, per_group + 2)
        return self.group_heads(query), self.group_heads(key), self.group_heads(value)

    def group_heads(self, x: Tensor) -> Tensor:
        c = self.config
        return self.b.reshape(x, c.sequence, self.batch, x.shape[1] * x.shape[2], c.head_dim)


class PermutedHead(Decoder):
    """Right: rank r holds part `VOCABULARY_PART[r]` of the vocabulary, and a gather restores the order."""

    def logits(self, x: Tensor, last_token_id: Tensor, norm: Tensor, lm_head: Tensor) -> Tensor:
        own = super().logits(x, last_token_id, norm, lm_head)
        holder = [VOCABULARY_PART.index(part) for part in range(self.config.tp)]
        return self.b.all_gather(own, 2, [holder])


class PaddedHeads(Decoder):
    """Right: every query head has a key-value head of its own, and zero heads fill up the last rank."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.heads = -(-config.heads // config.tp)
        self.kv_heads = self.heads
