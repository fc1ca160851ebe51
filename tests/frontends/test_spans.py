"""What importers know of positions."""

from __future__ import annotations

import numpy as np

from shardproof.frontends.spans import distinct, span
from shardproof.ir.build import Builder
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType


def free(dtype: DType, *shape: int) -> Value:
    return Value("x", TensorType(dtype, shape))


def test_positions_of_extremes_lie_in_their_dim() -> None:
    s = Builder()
    x = free(DType.F32, 4, 7)
    _, at = s.emit_many("top_k", (x,), (), k=3)
    wide = s.convert(s.transpose(at, (1, 0)), DType.S64)
    assert span(s, wide) == (0, 6)
    column = s.iota(DType.S64, (4, 7), 1)
    assert span(s, s.select(s.compare("LT", x, 0), s.like(column, 9), column)) == (0, 9)
    assert span(s, free(DType.S64, 3)) is None
    assert span(s, s.emit("add", wide, wide)) is None


def test_a_type_that_wraps_has_no_range() -> None:
    s = Builder()
    x = free(DType.F32, 300)
    at = s.emit_many("argreduce", (x,), (x.type, TensorType(DType.S64, ())), dim=0, kind="max")[1]
    assert span(s, at) == (0, 299)
    assert span(s, s.convert(at, DType.S8)) is None
    assert span(s, s.convert(at, DType.U16)) == (0, 299)
    assert span(s, s.convert(x, DType.S32)) is None


def test_many_uses_of_one_value_are_looked_at_once() -> None:
    s = Builder()
    x = s.emit_many("top_k", (free(DType.F32, 4, 7),), (), k=4)[1]
    for _ in range(20):
        x = s.emit("concatenate", x, x, dim=0)
        x = s.slice(x, 0, 0, 4)
    assert span(s, x) == (0, 6)


def test_distinct_positions() -> None:
    s = Builder()
    _, at = s.emit_many("top_k", (free(DType.F32, 4, 7),), (), k=3)
    assert distinct(s, at, 1) and not distinct(s, at, 0)
    turned = s.convert(s.transpose(at, (1, 0)), DType.S64)
    assert distinct(s, turned, 0) and not distinct(s, turned, 1)
    assert distinct(s, s.slice(turned, 0, 0, 2), 0)
    assert not distinct(s, s.convert(at, DType.S8), 1)
    assert not distinct(s, s.reshape(at, (12,)), 0)
    assert not distinct(s, free(DType.S64, 3), 0)
    rows = s.literal(np.asarray([[0, 1], [0, 2]]), DType.S64)
    assert distinct(s, rows, 1) and not distinct(s, rows, 0)
