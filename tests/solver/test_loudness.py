"""Masks by finite constants matter where scores are as large, and by assumption not from -10000 on."""

from __future__ import annotations

from typing import Any

import pytest

from shardproof.ir.module import Module
from shardproof.ir.types import DType, TensorType
from shardproof.solver.prove import Clock
from shardproof.solver.relations.relation import Composed
from shardproof.solver.replay.loudness import compare_loud, masked_scores
from shardproof.solver.replay.refute import replay
from shardproof.solver.replay.replay import Replay
from shardproof.solver.replay.structured import LOUD

ROWS, KEYS, WIDTH = 2048, 2048, 256
PRODUCT = {"lhs_contracting": (1,), "rhs_contracting": (0,), "lhs_batch": (), "rhs_batch": ()}


def attention(program: Any, mask: float) -> Module:
    """Rows of softmax weights times values, the weights of masked scores from `mask`."""
    p = program()
    shape = TensorType(DType.F32, (ROWS, KEYS))
    q, k, v = p.input("q", ROWS, WIDTH), p.input("k", WIDTH, KEYS), p.input("v", KEYS, 64)
    scores = p.op("dot_general", q, k, type=shape, **PRODUCT)
    wide = p.shape("broadcast_in_dim", p.constant(mask), ROWS, KEYS, dims=())
    scores = p.op("select", p.input("dropped", ROWS, KEYS, dtype=DType.BOOL), wide, scores)
    low = p.constant(-float("inf"))
    most = p.op("reduce", scores, low, dims=(1,), kind="max")
    most = p.shape("broadcast_in_dim", most, ROWS, KEYS, dims=(0,))
    weights = p.op("exponential", p.op("subtract", scores, most))
    total = p.op("reduce", weights, p.constant(0.0), dims=(1,), kind="sum")
    weights = p.op("divide", weights, p.shape("broadcast_in_dim", total, ROWS, KEYS, dims=(0,)))
    p.output("y", p.op("dot_general", weights, v, type=TensorType(DType.F32, (ROWS, 64)), **PRODUCT))
    module: Module = p.module()
    return module


def goal(program: Any) -> Module:
    p = program()
    p.output("y", p.input("y", ROWS, 64))
    module: Module = p.module()
    return module


def test_a_weak_mask_differs_from_a_strong_one(program: Any) -> None:
    strong, weak = attention(program, -10000.0), attention(program, -1000.0)
    assert [c for _, c in masked_scores(weak)] == [-1000.0]
    for pair in ((strong, weak), (weak, strong)):
        outcome = compare_loud(*pair, goal(program), seed=7, trials=4)
        assert isinstance(outcome, Replay) and outcome.differences
        (found,) = outcome.differences
        assert found.seed >= LOUD and isinstance(found.reference, float)
    whole = replay(Composed(strong, weak, goal(program), {}, {}), Clock(None))
    assert whole.difference is not None and whole.difference.seed >= LOUD


@pytest.mark.parametrize("masks", [(-10000.0, -30000.0), (-1e9, -10000.0), (-1000.0, -1000.0)])
def test_strong_masks_and_equal_ones_are_not_told_apart(program: Any, masks: tuple[float, float]) -> None:
    first, second = (attention(program, mask) for mask in masks)
    assert compare_loud(first, second, goal(program), seed=7, trials=4) is None
    assert replay(Composed(first, second, goal(program), {}, {}), Clock(None)).difference is None


def test_a_reading_in_another_order_is_no_difference(program: Any) -> None:
    """The mask of -1000 is there in both, once by a selection and once by a maximum."""
    modules = []
    for chosen in (True, False):
        p = program()
        far, low = (p.shape("broadcast_in_dim", p.constant(c), ROWS, KEYS, dims=()) for c in (1e4, -1000.0))
        x = p.op("multiply", p.input("x", ROWS, KEYS), far)
        below = p.op("compare", x, low, direction="LT", total=False)
        p.output("y", p.op("select", below, low, x) if chosen else p.op("maximum", x, low))
        modules.append(p.module())
    r = program()
    r.output("y", r.input("y", ROWS, KEYS))
    outcome = compare_loud(*modules, r.module(), seed=7, trials=4)
    assert isinstance(outcome, Replay) and outcome.differences == () and outcome.tested == 4
