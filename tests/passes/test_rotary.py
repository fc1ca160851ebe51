"""What the two spellings of an attention layer share: rotary halves, irrational scales, rounded tables."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
from evaluated import check_graph, equal
from random_graphs import Graph

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.passes.arithmetic import add, multiply, power
from shardproof.passes.classes import Store, Term
from shardproof.passes.literals import literal, scalar
from shardproof.passes.normalise import new_store

HALF = 3
HALVED = Fraction(1, 2)


class Program(Graph):
    """A program on one rank, written out; every value is computed as it is made."""

    def __init__(self) -> None:
        super().__init__(Random(5), Mesh(()))

    def __call__(
        self, opcode: str, *operands: Value, to: tuple[DType, tuple[int, ...]] | None = None, **attrs: Any
    ) -> Value:
        made = self.add(opcode, operands, *(() if to is None else (TensorType(*to),)), **attrs)
        assert made is not None, f"{opcode} does not type or run"
        return made

    def spread(self, x: Value, shape: tuple[int, ...], *dims: int) -> Value:
        return self("broadcast_in_dim", x, to=(x.type.dtype, shape), dims=dims)

    def cut(self, x: Value, start: int, limit: int) -> Value:
        return self("slice", x, starts=(0, start), limits=(x.type.shape[0], limit), strides=(1, 1))


def by_halves(g: Program, x: Value, cos: Value, sin: Value) -> Value:
    """Each half by itself, then side by side."""
    low, high = g.cut(x, 0, HALF), g.cut(x, HALF, 2 * HALF)
    c, s = (g.spread(t, low.type.shape, 1) for t in (cos, sin))
    first = g("subtract", g("multiply", low, c), g("multiply", high, s))
    second = g("add", g("multiply", high, c), g("multiply", low, s))
    return g("concatenate", first, second, dim=1)


def by_rotation(
    g: Program, x: Value, cos: Value, sin: Value, turn: Callable[[Program, Value, Value], tuple[Value, Value]]
) -> Value:
    """The whole times doubled tables, and what `turn` makes of the halves."""
    parts = turn(g, g.cut(x, 0, HALF), g.cut(x, HALF, 2 * HALF))
    turned = g("concatenate", *parts, dim=1)
    c, s = (g.spread(g("concatenate", t, t, dim=0), x.type.shape, 1) for t in (cos, sin))
    return g("add", g("multiply", x, c), g("multiply", turned, s))


def quarter(g: Program, low: Value, high: Value) -> tuple[Value, Value]:
    return g("negate", high), low


WRONG = {
    "other direction": lambda g, low, high: (high, g("negate", low)),
    "no sign": lambda g, low, high: (high, low),
    "halves kept": lambda g, low, high: (g("negate", low), high),
}


def rotary(turn: Callable[[Program, Value, Value], tuple[Value, Value]]) -> tuple[Program, Value, Value]:
    g = Program()
    x, cos, sin = g.input(DType.F32, (4, 2 * HALF)), g.input(DType.F32, (HALF,)), g.input(DType.F32, (HALF,))
    return g, by_halves(g, x, cos, sin), by_rotation(g, x, cos, sin, turn)


def test_two_ways_to_rotate_are_one() -> None:
    g, a, b = rotary(quarter)
    assert equal(g, a, b)
    check_graph(g)


@pytest.mark.parametrize("name", WRONG)
def test_other_rotations_are_others(name: str) -> None:
    g, a, b = rotary(WRONG[name])
    assert not equal(g, a, b)
    check_graph(g)


def test_a_concatenation_of_single_positions_is_not_one_along_another_index() -> None:
    g = Program()
    x, y = g.input(DType.F32, (6,)), g.input(DType.F32, (6,))
    parts = [g("exponential", x), g("sine", y)]
    rows = g("concatenate", *(g("reshape", p, to=(DType.F32, (1, 6))) for p in parts), dim=0)
    whole = g("concatenate", *parts, dim=0)
    woven = g("reshape", g("transpose", rows, permutation=(1, 0)), to=(DType.F32, (12,)))
    assert not equal(g, woven, whole)
    check_graph(g)


def real(store: Store, name: str) -> Term:
    i = store.fresh(5)
    return store.whole(store.leaf("input", (name,), "real", (5,)), (i,))


def test_a_root_that_all_addends_share_leaves_their_sum() -> None:
    store = new_store(reading=True)
    x, y = real(store, "x"), real(store, "y")
    six, five = (power(store, store.real(n), HALVED) for n in (6, 5))
    inside = add(store, [multiply(store, [x, six]), multiply(store, [y, six])])
    assert inside == multiply(store, [six, add(store, [x, y])])
    other = add(store, [multiply(store, [x, six]), multiply(store, [y, five])])
    assert other not in (multiply(store, [r, add(store, [x, y])]) for r in (six, five))
    bare = add(store, [x, multiply(store, [y, six])])
    assert bare != multiply(store, [six, add(store, [x, y])])


FREQUENCIES = np.array([1.0, 0.046415888, 0.0021544347], np.float32)


@pytest.mark.parametrize(
    ("factors", "one"),
    [
        ((1, 1 + 2e-7, 1), True),
        ((1, 1, 1 - 5e-7), True),
        ((1, 1 + 3e-6, 1), False),
        ((1, -1, 1), False),
        ((1, 0, 1), False),
    ],
)
def test_tables_are_one_up_to_the_tolerance_only(factors: tuple[float, ...], one: bool) -> None:
    other = FREQUENCIES * np.array(factors, np.float64)
    for reading in (True, False):
        store = new_store(folding=True, lenient=True, reading=reading)
        i = store.fresh(3)
        a = literal(store, FREQUENCIES, DType.F32, [i])
        b = literal(store, other, DType.F32, [i])
        assert (a == b) is (one and reading)
        kinds = {kind for kind, _ in store.assumptions}
        assert kinds == ({"constant_tolerance"} if one and reading else set())


@pytest.mark.parametrize(
    ("value", "dtype", "square"),
    [
        (11.3125, DType.F16, 128),
        (2.44921875, DType.F16, 6),
        (11.3125, DType.F32, None),
        (12.0, DType.F16, None),
        (0.8125, DType.F16, None),
        (-30000.0, DType.F16, None),
        (3.375, DType.F16, None),
    ],
)
def test_roots_in_half_precision(value: float, dtype: DType, square: int | None) -> None:
    store = new_store(reading=True)
    found = scalar(store, value, dtype)
    wanted = store.literal(value) if square is None else power(store, store.real(square), HALVED)
    assert found == wanted
    assert bool(store.assumptions) is (square is not None)
