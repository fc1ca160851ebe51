"""Equal layers whose masks a lemma relates are proved as one loop, and a wrong one among them is found."""

from __future__ import annotations

from typing import Any

import pytest

from shardproof.ir.build import Builder
from shardproof.ir.module import Input, Module, Output, Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.solver import decide
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

LAYERS = 40
SIZE = 6
SQUARE = (SIZE, SIZE)


def program(b: Builder, finite: bool, wrong: int | None = None) -> Module:
    """Layers of causal attention; masked scores are far below the others, or minus infinity."""
    x = Value(b.claim("x"), TensorType(DType.F32, SQUARE))
    weights = [Value(b.claim(f"w{n}"), TensorType(DType.F32, SQUARE)) for n in range(LAYERS)]
    inputs = tuple(Input(v, k) for k, v in enumerate((x, *weights)))
    y = x
    for n, w in enumerate(weights):
        b.begin(f"layer{n}")
        scores = b.dot(b.dot(y, w, (1, 0), ((), ())), y, (1, 1), ((), ()))
        row, column = b.iota(DType.S32, SQUARE, 0), b.iota(DType.S32, SQUARE, 1)
        seen = b.compare("LT" if n == wrong else "LE", column, row)
        if finite:
            masked = b.pair("add", scores, b.select(seen, b.like(scores, 0.0), b.like(scores, -1e9)))
        else:
            masked = b.select(seen, scores, b.like(scores, float("-inf")))
        top = b.reduce(masked, (1,), "max", keepdim=True)
        e = b.emit("exponential", b.pair("subtract", masked, top))
        weight = b.pair("divide", e, b.reduce(e, (1,), "sum", keepdim=True))
        y = b.pair("add", y, b.dot(weight, y, (1, 0), ((), ())))
    return Module("layers", Mesh(), inputs, tuple(b.ops), (Output("y", y),))


def test_masked_layers_are_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    by_layers, proved = decide._by_layers, []

    def seen(*arguments: Any) -> Any:
        proved.append(by_layers(*arguments))
        return proved[-1]

    monkeypatch.setattr(decide, "_by_layers", seen)
    result = verify(program(Builder(), True), program(Builder(), False))
    assert result.verdict is Verdict.VERIFIED and proved[0] is not None
    assert {a.kind for a in result.assumptions} >= {"mask_value"}


@pytest.mark.slow
def test_a_wrong_layer_is_not_proved() -> None:
    result = verify(program(Builder(), True), program(Builder(), False, LAYERS // 2))
    assert result.verdict is not Verdict.VERIFIED
