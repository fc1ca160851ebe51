"""The same step in PyTorch: `alone` on one rank, `sharded` on four, `next_row` wrong.

Caches are buffers that the step overwrites in place; `position` is an input, the row of the new token.

    shardproof capture torch_decoder:sharded --mesh tp=4 -o captures/tp4
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

HIDDEN, HEADS, KV_HEADS, SIZE, VOCAB, LENGTH, BATCH = 32, 8, 4, 8, 96, 16, 2


class Step(nn.Module):
    """One attention layer and the output layer; rank r of `tp` has the r-th part of every head's weights.

    `ahead` is how many rows too far the new token is written.
    """

    def __init__(self, tp: int, ahead: int = 0) -> None:
        super().__init__()
        self.tp, self.ahead = tp, ahead
        self.norm = nn.RMSNorm(HIDDEN)
        self.query = nn.Linear(HIDDEN, HEADS * SIZE // tp, bias=False)
        self.key = nn.Linear(HIDDEN, KV_HEADS * SIZE // tp, bias=False)
        self.value = nn.Linear(HIDDEN, KV_HEADS * SIZE // tp, bias=False)
        self.out = nn.Linear(HEADS * SIZE // tp, HIDDEN, bias=False)
        self.scores = nn.Linear(HIDDEN, VOCAB // tp, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(BATCH, LENGTH, KV_HEADS // tp, SIZE))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, [batch, vocabulary]; x is [batch, hidden], position s64[1]."""
        normal = self.norm(x)
        query = self.query(normal).view(BATCH, KV_HEADS // self.tp, HEADS // KV_HEADS, SIZE)
        self.keys: torch.Tensor
        self.values: torch.Tensor
        row = position + self.ahead
        self.keys.index_copy_(1, row, self.key(normal).view(BATCH, 1, -1, SIZE))
        self.values.index_copy_(1, row, self.value(normal).view(BATCH, 1, -1, SIZE))
        weights = torch.einsum("bgqd,btgd->bgqt", query, self.keys) * SIZE**-0.5
        weights = weights.masked_fill(torch.arange(LENGTH) > position, float("-inf"))
        context = torch.einsum("bgqt,btgd->bgqd", F.softmax(weights, -1), self.values)
        added = self.out(context.reshape(BATCH, -1))
        if self.tp > 1:
            dist.all_reduce(added)
        scores: torch.Tensor = self.scores(x + added)
        return scores


def _inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(BATCH, HIDDEN), torch.zeros(1, dtype=torch.int64)


def alone() -> tuple[Any, Any]:
    return Step(1), _inputs()


def sharded() -> tuple[Any, Any]:
    return Step(4), _inputs()


def next_row() -> tuple[Any, Any]:
    """Wrong: the new token is written one row too far."""
    return Step(4, ahead=1), _inputs()
