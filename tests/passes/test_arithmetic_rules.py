"""The rules on arithmetic of docs/soundness.md: infinities, signs, casts and literals."""

from __future__ import annotations

from typing import Any

import numpy as np
from evaluated import check_graph, equal, normalised
from tests.passes.written_programs import B, F, I, Program, U, unrun, unrun_pair

from shardproof.ir.module import Op, Value
from shardproof.ir.types import DType, TensorType
from shardproof.passes.access import index
from shardproof.passes.arithmetic import multiply
from shardproof.passes.classes import Term
from shardproof.passes.evaluate import Evaluation
from shardproof.passes.normalise import new_store
from shardproof.passes.reduction import total


def test_a1_integers_do_not_divide_and_bools_do_not_add() -> None:
    p = Program()
    x, b = p.input(I, (6,)), p.input(B, (6,))
    two = p.full(2, x)
    assert not p.meet(p("multiply", p("divide", x, two), two), x)
    truncated = p("divide", x, two)
    real = p("convert", x, to=(F, (6,)))
    half = p("floor", p("multiply", real, p.full(0.5, real)))
    assert not p.meet(truncated, p("convert", half, to=(I, (6,))))
    assert p.meet(p("add", b, b), b)
    assert not p.meet(p("xor", b, b), b)


def test_a1_unsigned_arithmetic_wraps() -> None:
    p = Program()
    x = p.input(U, (6,))
    below = p("subtract", x, p.full(3, x))
    p("compare", below, x, direction="LT", total=False)
    p("divide", below, p.full(2, x))
    p("divide", x, p.full(0, x))
    wide = p("convert", below, to=(I, (6,)))
    direct = p("subtract", p("convert", x, to=(I, (6,))), p.number([3] * 6, I))
    assert not p.meet(wide, direct)


def test_a1_contractions_are_computed_in_the_type_of_their_result() -> None:
    p = Program()
    x, y = p.input(U, (3,)), p.input(U, (4,))
    large = p("multiply", x, p.full(40, x))
    none: dict[str, Any] = dict.fromkeys(("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch"), ())
    wide = p("dot_general", large, y, to=(DType.U32, (3, 4)), **none)
    narrow = p("dot_general", large, y, to=(U, (3, 4)), **none)
    assert not p.meet(wide, p("convert", narrow, to=(DType.U32, (3, 4))))


def test_a2_a_value_of_unknown_meaning_may_be_infinite() -> None:
    p = Program()
    state = unrun(p, "rng_bit_generator", p.input(U, (3,)), (3,), algorithm="default")
    difference = Value("difference", state.type)
    p.ops.append(Op("subtract", (state, state), (difference,), {}))
    store, found = normalised(p)
    assert found.views["difference"].term != store.real(0)


def test_a2_infinite_masks_do_not_cancel() -> None:
    p = Program(special=True)
    x, mask = p.input(F, (4,)), p.input(B, (4,))
    masked = p("select", mask, x, p.full(-np.inf, x))
    zero = p.full(0.0, x)
    assert not p.meet(p("multiply", masked, zero), zero)
    assert not p.meet(p("subtract", masked, masked), zero)
    assert not p.meet(p("subtract", p("multiply", masked, p.full(3.0, x)), p("add", masked, masked)), masked)
    assert p.meet(p("multiply", x, zero), zero)
    assert p.meet(p("subtract", x, x), zero)
    lost = p("tanh", p("select", mask, x, p.full(np.nan, x)))
    assert not p.meet(p("subtract", lost, lost), zero)
    least = unrun(p, "sort", masked, (4,), dim=0, comparator="lt:0", stable=True)
    assert not equal(p, unrun_pair(p, "subtract", least, least), zero)
    cast = p("convert", mask, to=(F, (4,)))
    assert not p.meet(p("multiply", cast, masked), p("select", mask, masked, zero))
    assert p.meet(p("multiply", cast, x), p("select", mask, x, zero))


def test_a2_a_factor_leaves_no_sum_of_infinite_values() -> None:
    p = Program(special=True)
    x, s, mask = p.input(F, (3, 4)), p.input(F, (3,)), p.input(B, (3, 4))
    masked = p("select", mask, x, p.full(-np.inf, x))
    rows = p("multiply", masked, p.spread(s, (3, 4), 0))
    p.reduced(rows, "sum", 1)
    p("multiply", p.reduced(masked, "sum", 1), s)
    p.reduced(rows, "max", 1)
    p("exponential", masked)
    one = p("select", p.number([True, False, True], B), s, p.full(-np.inf, s))
    cross = p("multiply", p.spread(one, (3, 2), 0), p.spread(p.number([2.0, -1.0]), (3, 2), 1))
    p.reduced(cross, "sum", 0, 1)
    check_graph(p)


def test_a4_signs_are_known_only_where_they_hold() -> None:
    p = Program()
    x, y = p.input(F, (6,)), p.input(F, (6,))
    large = p("exponential", y)
    square = p("multiply", x, x)

    def keeps(v: Value) -> bool:
        return equal(p, p("abs", v), v)

    assert (
        keeps(large)
        and keeps(square)
        and keeps(p("add", square, large))
        and keeps(p("multiply", square, large))
    )
    cube = p("multiply", square, x)
    for v in (
        x,
        cube,
        p("add", x, large),
        p("subtract", square, large),
        p("multiply", x, large),
        p("tanh", x),
    ):
        assert not keeps(v)
    assert keeps(p("maximum", x, large)) and not keeps(p("minimum", x, large))
    inverse = unrun_pair(p, "power", x, p.full(-1.0, x))
    assert not equal(p, unrun(p, "abs", inverse, (6,)), inverse)
    check = Program(special=True)
    x, mask = check.input(F, (4,)), check.input(B, (4,))
    top = check("maximum", check("select", mask, x, check.full(np.inf, x)), check.full(0.0, x))
    assert not check.meet(check("subtract", top, top), check.full(0.0, x))


def test_a2_an_infinite_factor_keeps_the_sums_it_stands_in_together() -> None:
    store = new_store()
    infinite = store.literal(float("-inf"))
    i, j = store.fresh(4), store.fresh(3)
    a = Term(1, store.leaf("input", ("a",), "real", (4,)), (index(i),))
    b = Term(1, store.leaf("input", ("b",), "real", (3,)), (index(j),))
    whole = total(store, {i, j}, multiply(store, [infinite, a, a, b, b]))
    inputs = {"a": np.array([1.0, 2.0, 1.0, 3.0]), "b": np.array([5.0, 0.0, 1.0])}
    assert np.isnan(Evaluation(store, inputs).term(whole, {}))


def test_a4_a_divisor_that_may_be_infinite_does_not_cancel() -> None:
    p = Program(special=True)
    x, mask = p.input(F, (4,)), p.input(B, (4,))
    large = p("exponential", p("select", mask, x, p.full(np.inf, x)))
    ratio = unrun_pair(p, "divide", large, large)
    assert not equal(p, ratio, p.full(1.0, x))
    finite = p("exponential", x)
    assert equal(p, unrun_pair(p, "divide", finite, finite), p.full(1.0, x))


def test_a4_a_quotient_cancels_only_where_the_divisor_is_not_zero() -> None:
    p = Program()
    x, y = p.input(F, (4,)), p.input(F, (4,))
    safe = p("add", p("multiply", y, y), p.full(1.0, y))
    assert p.meet(p("multiply", p("divide", x, safe), safe), x)
    p = Program(special=True)
    x, y = p.input(F, (4,)), p.input(F, (4,))
    back = p("multiply", p("divide", x, y), y)
    assert not equal(p, back, x)
    root = p("sqrt", y)
    assert not equal(p, p("multiply", root, root), y)
    assert not equal(p, p("sqrt", p("multiply", y, y)), y)
    assert not equal(p, p("sqrt", p("multiply", x, y)), p("multiply", p("sqrt", x), root))
    four, minus = (p("sqrt", p("multiply", y, p.full(k, y))) for k in (4.0, -4.0))
    assert equal(p, four, p("multiply", root, p.full(2.0, y)))
    assert not equal(p, minus, p("multiply", root, p.full(-2.0, y)))
    inverse, square = (unrun_pair(p, "power", y, p.full(k, y)) for k in (-1.0, -2.0))
    assert not equal(p, unrun(p, "sqrt", square, (4,)), inverse)


def test_a4_an_inverse_root_is_one_over_the_root_whatever_the_sign() -> None:
    """Both are not-a-number below 0 and infinite at 0; what a root squared is needs the sign."""
    p = Program(special=True)
    x = p.input(F, (4,))
    one = p.full(1.0, x)
    inverse, root = (unrun(p, f, x, (4,)) for f in ("rsqrt", "sqrt"))
    mirrored = unrun(p, "rsqrt", p("negate", x), (4,))
    assert equal(p, inverse, unrun_pair(p, "divide", one, root))
    assert not equal(p, inverse, root)
    assert not equal(p, inverse, mirrored)
    assert not equal(p, unrun_pair(p, "multiply", inverse, inverse), unrun_pair(p, "divide", one, x))
    assert not equal(p, unrun_pair(p, "multiply", inverse, root), one)


def test_a5_casts_that_lose_values_are_operators() -> None:
    p = Program()
    x, i = p.input(F, (6,)), p.input(I, (6,))
    half = p("multiply", x, p.full(0.5, x))
    whole = p("convert", p("convert", half, to=(I, (6,))), to=(F, (6,)))
    assert not equal(p, whole, half)
    narrow = p("convert", p("convert", p("multiply", i, p.full(100, i)), to=(DType.S8, (6,))), to=(I, (6,)))
    assert not p.meet(narrow, p("multiply", i, p.full(100, i)))
    assert p.meet(
        p("convert", p("convert", i, to=(DType.S64, (6,))), to=(I, (6,))), p("convert", i, to=(I, (6,)))
    )
    truth = p("convert", p("convert", i, to=(B, (6,))), to=(I, (6,)))
    assert not p.meet(truth, i)


def test_a6_two_unsigned_tables_and_a_signed_one_are_three() -> None:
    p = Program()
    p("constant", to=(DType.S64, (3,)), value=np.array([-1, 0, 5], np.int64))
    large = Value("big", TensorType(DType.U64, (3,)))
    store, state = normalised(p)
    v = state.algebra.literal(np.array([2**64 - 1, 0, 5], np.uint64), large.type)
    w = state.algebra.literal(np.array([-1, 0, 5], np.int64), TensorType(DType.S64, (3,)))
    assert v.term.cls != w.term.cls
    wrapped = np.array([0, 2**62, -(2**63), -(2**62)], np.int64)
    line = state.algebra.literal(wrapped, TensorType(DType.S64, (4,)))
    assert line.term.cls != store.POSITION
