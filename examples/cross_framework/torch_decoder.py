"""A Llama-style decoder in plain PyTorch, on one rank or on each of `tp` ranks.

Weights are [output, input], as `nn.Linear` has them, each projection a matrix of its own. Rotary positions
turn element i of a head against element i + head_dim / 2, as in Hugging Face's Llama.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from extents import Config
from torch import Tensor, nn
from torch.distributed import _functional_collectives as funcol


class RmsNorm(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden))
        self.eps = 10 * config.eps if config.bug == "epsilon" else config.eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def summed(x: Tensor, config: Config) -> Tensor:
    """The sum over ranks."""
    if config.tp == 1:
        return x
    total: Tensor = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return total


def rotary_tables(config: Config) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position times frequency, [sequence, head_dim]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    positions = torch.arange(config.sequence, dtype=torch.float32)
    angles = positions[:, None] * config.theta**-exponents
    both = torch.cat([angles, angles], -1)
    return both.cos(), both.sin()


def rotate(x: Tensor, tables: tuple[Tensor, Tensor], config: Config) -> Tensor:
    cosine, sine = tables
    first, second = x.chunk(2, -1)
    turned = [second, -first] if config.bug == "rotary_sign" else [-second, first]
    return x * cosine + torch.cat(turned, -1) * sine


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width, group = config.head_dim, config.tp
        self.attention_norm = RmsNorm(config)
        self.query = nn.Linear(config.hidden, config.heads * width // group, bias=False)
        self.key = nn.Linear(config.hidden, config.kv_heads * width // group, bias=False)
        self.value = nn.Linear(config.hidden, config.kv_heads * width // group, bias=False)
        self.output = nn.Linear(config.heads * width // group, config.hidden, bias=False)
        self.mlp_norm = RmsNorm(config)
        self.gate = nn.Linear(config.hidden, config.intermediate // group, bias=False)
        self.up = nn.Linear(config.hidden, config.intermediate // group, bias=False)
        self.down = nn.Linear(config.intermediate // group, config.hidden, bias=False)

    def heads(self, x: Tensor, count: int) -> Tensor:
        """[batch, heads, sequence, head_dim] of what is flat over the heads of all ranks."""
        config = self.config
        return x.view(*x.shape[:2], count // config.tp, config.head_dim).transpose(1, 2)

    def of_queries(self, x: Tensor) -> Tensor:
        """The key-value heads, each as often as it has query heads."""
        times = self.config.heads // self.config.kv_heads
        if self.config.bug == "wrong_group":
            return x.repeat(1, times, 1, 1)
        return x.repeat_interleave(times, dim=1)

    def attention(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        config = self.config
        query = rotate(self.heads(self.query(x), config.heads), tables, config)
        key = self.key(x)
        if config.bug == "wrong_key_slice":
            key = key.roll(config.head_dim, -1)
        key = rotate(self.heads(key, config.kv_heads), tables, config)
        value = self.heads(self.value(x), config.kv_heads)
        last = 1 if config.bug == "mask_off_by_one" else 0
        visible = torch.ones(config.sequence, config.sequence, dtype=torch.bool).tril(last)
        if config.bug == "scaled_twice":
            query = query * config.head_dim**-0.5
        key, value = self.of_queries(key), self.of_queries(value)
        attended = F.scaled_dot_product_attention(query, key, value, visible)
        return self.output(attended.transpose(1, 2).flatten(2))

    def mlp(self, x: Tensor) -> Tensor:
        gate, up = self.gate(x), self.up(x)
        if self.config.bug == "swapped_gate":
            gate, up = up, gate
        return self.down(F.silu(gate) * up)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        attended = self.attention(self.attention_norm(x), tables)
        x = x + (attended if self.config.bug == "missing_all_reduce" else summed(attended, self.config))
        return x + summed(self.mlp(self.mlp_norm(x)), self.config)


class Decoder(nn.Module):
    """Logits of all positions; of `tp` ranks each has its part of the vocabulary.

    `rank` is this one's number, for the ids whose rows it holds.
    """

    def __init__(self, config: Config, rank: int = 0) -> None:
        super().__init__()
        self.config, self.rank = config, rank
        rows = config.vocab // config.tp
        self.embed = nn.Embedding(rows, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RmsNorm(config)
        self.head = nn.Linear(config.hidden, rows, bias=False)

    def embedded(self, tokens: Tensor) -> Tensor:
        if self.config.tp == 1:
            return self.embed(tokens)
        rows = self.embed.num_embeddings
        local = tokens - self.rank * rows
        held = (local >= 0) & (local < rows)
        own = self.embed(torch.where(held, local, 0)) * held[..., None]
        return summed(own, self.config)

    def forward(self, tokens: Tensor) -> Tensor:
        tables = rotary_tables(self.config)
        x = self.embedded(tokens)
        for layer in self.layers:
            x = layer(x, tables)
        return self.head(self.norm(x))


def example_inputs(config: Config) -> tuple[Tensor]:
    return (torch.zeros(config.batch, config.sequence, dtype=torch.int64),)


def made(config: Config) -> tuple[nn.Module, Any]:
    """What `shardproof.capture_torch` calls on every rank: the decoder and its example inputs."""
    rank = dist.get_rank() if config.tp > 1 else 0
    return Decoder(config, rank), example_inputs(config)
