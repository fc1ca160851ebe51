"""A mask of numbers that is compared with a number is the condition that it was made of, or its negation."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from shardproof.ir.build import Builder
from shardproof.ir.module import Input, Module, Output, Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.passes.access import index
from shardproof.passes.classes import Store, Term
from shardproof.passes.elementwise import apply
from shardproof.passes.normalise import new_store
from shardproof.passes.selection import indicator, select
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

DIRECTIONS: dict[str, Callable[[Any, Any], bool]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}
NUMBERS = (-2, -1, 0, 1, 2)


def condition(store: Store) -> Term:
    return Term(1, store.leaf("input", ("p",), "bool", (5,)), (index(store.fresh(5)),))


def compared(store: Store, direction: str, a: Term, b: Term) -> Term:
    attrs = {"direction": direction, "total": False}
    return apply(store, "compare", [a, b], DType.F32, DType.BOOL, attrs)


@pytest.mark.parametrize("algebra", [False, True])
@pytest.mark.parametrize(("direction", "scale"), list(product(DIRECTIONS, NUMBERS)))
def test_every_comparison(direction: str, scale: int, algebra: bool) -> None:
    store = new_store(algebra=algebra)
    p = condition(store)
    mask = select(store, p, store.real(scale), store.real(0))
    for number in NUMBERS:
        for own, other, flip in ((mask, store.real(number), False), (store.real(number), mask, True)):
            holds = [DIRECTIONS[direction](*((number, c) if flip else (c, number))) for c in (scale, 0)]
            wanted = select(store, p, *(store.truth(h) for h in holds))
            assert compared(store, direction, own, other) == wanted


def test_a_mask_against_what_is_no_number_is_left() -> None:
    store = new_store()
    p = condition(store)
    x = Term(1, store.leaf("input", ("x",), "real", (5,)), p.access)
    assert store.classes[compared(store, "EQ", indicator(store, p), x).cls].op == "compare"


def test_causal_masks_of_ones_and_zeros() -> None:
    """`where(tril(ones) == 0, -inf, 0)`, as exporters write it, is a mask."""
    def program(exported: bool, direction: str = "GE") -> Module:
        b = Builder()
        x = Value(b.claim("x"), TensorType(DType.F32, (4, 4)))
        b.begin("masked")
        seen = b.compare(direction, b.iota(DType.S32, (4, 4), 0), b.iota(DType.S32, (4, 4), 1))
        if exported:
            ones = b.select(seen, b.full(1.0, DType.F32, (4, 4)), b.full(0.0, DType.F32, (4, 4)))
            seen = b.emit("not", b.compare("EQ", ones, 0.0))
        y = b.select(seen, x, b.like(x, float("-inf")))
        return Module("m", Mesh(), (Input(x, 0),), tuple(b.ops), (Output("y", y),))

    assert verify(program(False), program(True)).verdict is Verdict.VERIFIED
    assert verify(program(False), program(True, "GT")).verdict is Verdict.REFUTED
