"""A stored table that is what the other program computes of constants, and tables that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shardproof.ir.build import Builder
from shardproof.ir.module import Input, Module, Output, Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.solver.verdict import Result, Verdict
from shardproof.solver.verify import verify

SHAPE = (16, 8)


def angles() -> Any:
    """Positions times inverse frequencies, each rounded to float32."""
    frequencies = (np.float32(10000) ** (-np.arange(8, dtype=np.float32) / np.float32(8))).astype(np.float32)
    return np.arange(16, dtype=np.float32)[:, None] * frequencies[None, :], frequencies


def program(table: Callable[[Builder, DType], Value], dtype: DType) -> Module:
    b = Builder()
    x = Value(b.claim("x"), TensorType(dtype, SHAPE))
    b.begin("scaled")
    y = b.pair("multiply", x, table(b, dtype))
    return Module("rotary", Mesh(), (Input(x, 0),), tuple(b.ops), (Output("y", y),))


def computed(b: Builder, dtype: DType) -> Value:
    frequencies = b.spread(b.literal(angles()[1], dtype), SHAPE)
    return b.emit("cosine", b.pair("multiply", b.convert(b.iota(DType.S32, SHAPE, 0), dtype), frequencies))


def stored(change: Callable[[Any], Any]) -> Callable[[Builder, DType], Value]:
    def table(b: Builder, dtype: DType) -> Value:
        return b.literal(change(np.cos(angles()[0]).astype(np.float32)), dtype)

    return table


def compared(change: Callable[[Any], Any], dtype: DType = DType.F32) -> Result:
    return verify(program(computed, dtype), program(stored(change), dtype))


def one_off(by: float) -> Callable[[Any], Any]:
    def change(table: Any) -> Any:
        table[11, 3] *= np.float32(1 + by)
        return table

    return change


def test_a_table_that_is_computed() -> None:
    result = compared(lambda table: table)
    assert result.verdict is Verdict.VERIFIED
    assert {a.kind for a in result.assumptions} == {"literal_rounding"}


@pytest.mark.parametrize("by", [1e-5, -1e-4, 1e-2])
def test_an_element_that_is_off(by: float) -> None:
    assert compared(one_off(by)).verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("change", [lambda t: t[::-1].copy(), lambda t: np.roll(t, 1, 0), np.negative])
def test_another_table(change: Callable[[Any], Any]) -> None:
    assert compared(change).verdict is Verdict.REFUTED


def test_a_narrow_type_is_read_as_it_is() -> None:
    assert compared(one_off(1e-2), DType.BF16).verdict is not Verdict.VERIFIED
