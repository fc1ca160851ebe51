"""Programs before and after a compiler rewrote them: XLA's algebraic simplifier, PyTorch's decompositions.

Each with one operator of the result exchanged for another, too.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
import torch_decoder
from extents import Config
from jax import lax
from programs import dump_of_passes, lowered_by_jax
from torch import nn

SIMPLIFIER: Final = "algsimp"
BEFORE, AFTER = "before_algsimp", "after_algsimp"
EXCHANGED: Final = (("add", "subtract"), ("multiply", "add"), ("maximum", "minimum"))
"""HLO operators, and others of the same type."""
ATEN: Final = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Case:
    """A program before and after; `wrong` is the latter with a mistake."""

    name: str
    before: Any
    after: Any
    wrong: Any


def shape(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def layer_norm(x: Any, w: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w


def padded_product(x: Any, w: Any) -> Any:
    """Zeros, ones, transpositions and slices that can go."""
    y = jnp.pad(x, ((0, 0), (0, 4)))[:, :8] * 1.0 + 0.0
    return (w.T @ y.T).T / 4.0 + (-x.sum()) * 0.5


def running_sum(x: Any, w: Any) -> Any:
    return jnp.maximum(lax.reshape(jnp.cumsum(x @ w, axis=0), (16, 5)), 0.0) * 2.0 * 3.0


def gradient(x: Any, w: Any) -> Any:
    return jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)


FUNCTIONS: Final = {
    "layer norm": (layer_norm, (shape(6, 8), shape(8))),
    "padded product": (padded_product, (shape(6, 8), shape(8, 10))),
    "running sum": (running_sum, (shape(8, 6), shape(6, 10))),
    "gradient": (gradient, (shape(6, 8), shape(8, 10))),
}


def simplified(folder: Path) -> Iterator[Case]:
    """HLO before the first and after the last run of XLA's algebraic simplifier."""
    programs = {name: jax.jit(f).lower(*inputs) for name, (f, inputs) in FUNCTIONS.items()}
    programs["decoder"] = lowered_by_jax(Config())
    for name, lowered in programs.items():
        own = folder / name.replace(" ", "_")
        own.mkdir()
        dump_of_passes(lowered, SIMPLIFIER, own, text=True)
        dumps = sorted(p for p in own.glob("*.simplification.*.txt"))
        before = next(p for p in dumps if BEFORE in p.name)
        after = next(p for p in reversed(dumps) if AFTER in p.name)
        wrong = own / "wrong.txt"
        wrong.write_text(with_mistake(after.read_text()))
        yield Case(f"XLA simplifier: {name}", before, after, wrong)


def with_mistake(text: str) -> str:
    """HLO whose last operator of those that have another of the same type, in the entry, is that one."""
    start = text.index("\nENTRY ")
    for right, wrong in EXCHANGED:
        found = [*re.finditer(rf"(?<= ){right}(?=\()", text[start:])]
        if found:
            at = start + found[-1].start()
            return text[:at] + wrong + text[at + len(right) :]
    raise ValueError(f"no operator of {', '.join(right for right, _ in EXCHANGED)} in the entry")


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.scores = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self.norm(x).mean(1) * x.amax(1)
        return F.log_softmax(self.scores(F.gelu(pooled)), -1)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(8)
        self.up = nn.Linear(8, 24)
        self.down = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = x + self.down(F.glu(self.up(self.norm(x))))
        return added


MODULES: Final = {
    "gated unit": (Gated, (torch.zeros(4, 6, 8),)),
    "classifier": (Classifier, (torch.zeros(4, 6, 8),)),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 24, activation="gelu", batch_first=True),
        (torch.zeros(4, 6, 8),),
    ),
    "decoder": (lambda: torch_decoder.Decoder(Config()), torch_decoder.example_inputs(Config())),
}


def decomposed() -> Iterator[Case]:
    """Exports of PyTorch before and after decomposition: as `{}` leaves them, and into core ATen."""
    tables = {"made functional": {}, "core ATen": torch.export.default_decompositions()}
    for name, (make, inputs) in MODULES.items():
        before = torch.export.export(make().eval(), inputs)
        for level, table in tables.items():
            after = before.run_decompositions(table)
            yield Case(f"PyTorch, {level}: {name}", before, after, exchanged(after))


def exchanged(program: Any) -> Any:
    """The export with another operator in the place of the last that has one."""
    wrong = copy.deepcopy(program)
    others = {ATEN.add.Tensor: ATEN.sub.Tensor, ATEN.mul.Tensor: ATEN.div.Tensor}
    node = next(n for n in reversed(wrong.graph.nodes) if n.target in others)
    node.target = others[node.target]
    return wrong
