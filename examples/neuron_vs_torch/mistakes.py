"""The decoder of examples/neuron_llama with one mistake in each class."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "neuron_llama"))

import hlo_ops as hlo
from builder import FOLDERS, RECORDED_AS, Tensor
from model import Decoder, LayerWeights

FOLDERS.add(Path(__file__).resolve().parent)
RECORDED_AS["mistakes.py"] = "examples/neuron_vs_torch/mistakes.py"


class KeyFromQueryColumns(Decoder):
    """The slice that should give the keys starts at the queries."""

    def split_qkv(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, q, kv = self.b, self.heads * self.config.head_dim, self.kv_heads * self.config.head_dim
        query = b.slice(qkv, 1, 0, q)
        key = b.slice(qkv, 1, 0, kv)
        value = b.slice(qkv, 1, q + kv, q + 2 * kv)
        return self.heads_of(query), self.heads_of(key), self.heads_of(value)


class SwappedTables(Decoder):
    """Cosine and sine of the rotary embedding are exchanged."""

    def rotary_tables(self, cache_ids: Tensor) -> tuple[Tensor, Tensor]:
        cosine, sine = super().rotary_tables(cache_ids)
        return sine, cosine


class TiledHeads(Decoder):
    """Query head h reads key-value head h % 4, not h // 2: right only where each rank holds one of them."""

    def per_query_head(self, x: Tensor) -> Tensor:
        s, n, g, d = x.shape
        times = self.heads // self.kv_heads
        wide = self.b.broadcast(x, (s, n, times, g, d), (0, 1, 3, 4))
        return self.b.reshape(wide, s, n, g * times, d)


class UnnormalisedMlp(Decoder):
    """The MLP reads the residual instead of its normalised values."""

    def layer(
        self, x: Tensor, weights: LayerWeights, mask: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        b = self.b
        normed = hlo.rms_norm(b, x, hlo.on_device(b, weights.attention_norm), 2)
        attended, key, value = self.attention(normed, weights, mask, cosine, sine)
        x = b.binary("add", attended, x)
        x = b.binary("add", self.mlp(x, weights), x)
        return x, key, value


class UpThroughSilu(Decoder):
    """The activation is applied to the other projection."""

    def mlp(self, x: Tensor, weights: LayerWeights) -> Tensor:
        b = self.b
        rows = self.rows(x)
        gate = hlo.linear(b, rows, hlo.on_device(b, weights.gate))
        up = hlo.silu(b, hlo.linear(b, rows, hlo.on_device(b, weights.up)))
        inner = b.binary("multiply", gate, up)
        return self.join(self.unrows(hlo.linear(b, inner, hlo.on_device(b, weights.down))))


class ResidualOnEachRank(Decoder):
    """The residual is added before the sum over the ranks, so it counts once for each of them."""

    def mlp(self, x: Tensor, weights: LayerWeights) -> Tensor:
        b = self.b
        rows = self.rows(x)
        gate = hlo.silu(b, hlo.linear(b, rows, hlo.on_device(b, weights.gate)))
        inner = b.binary("multiply", gate, hlo.linear(b, rows, hlo.on_device(b, weights.up)))
        partial = self.unrows(hlo.linear(b, inner, hlo.on_device(b, weights.down)))
        return self.join(b.binary("add", partial, x))


class SmallerEpsilon(Decoder):
    """The last normalisation has another epsilon than the model."""

    def logits(self, x: Tensor, last_token_id: Tensor, norm: Tensor, lm_head: Tensor) -> Tensor:
        b = self.b
        last = b.gather_rows(x, last_token_id)
        last = hlo.rms_norm(b, last, hlo.on_device(b, norm), 2, eps=1e-6)
        scores = hlo.linear(b, self.rows(last), hlo.on_device(b, lm_head))
        return b.reshape(scores, 1, self.batch, scores.shape[1])
