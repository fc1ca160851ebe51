"""Access expressions are exact integer functions: every rewriting against brute force."""

from __future__ import annotations

from itertools import product
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.passes.access import Accesses, Digit, Expr, constant, index, scale, shift

Point = dict[int, int]


def value(a: Accesses, e: Expr, at: Point) -> int:
    total = e[0]
    for t, s in e[1]:
        if t > 0:
            total += s * at[t]
        else:
            atom = a.atom(t)
            assert isinstance(atom, Digit)
            total += s * (value(a, atom.expr, at) // atom.div % atom.mod)
    return total


def points(a: Accesses, indices: list[int]) -> list[Point]:
    return [dict(zip(indices, p, strict=True)) for p in product(*(range(a.sizes[i]) for i in indices))]


def some(draw: Random, a: Accesses, indices: list[int], depth: int = 2) -> Expr:
    e = constant(draw.randint(-5, 5))
    for _ in range(draw.randint(1, 3)):
        i = draw.choice(indices)
        term = index(i)
        if depth and draw.random() < 0.6:
            inner = some(draw, a, indices, depth - 1)
            term = a.digit(inner, draw.choice([1, 2, 3, 4, 6]), draw.choice([1, 2, 3, 4, 6, 12]))
        e = a.add(e, scale(term, draw.choice([-3, -2, -1, 1, 2, 3, 4, 6, 12])))
    return e


def world(draw: Random) -> tuple[Accesses, list[int], list[Point]]:
    a = Accesses()
    indices = [a.fresh(draw.choice([2, 3, 4, 6])) for _ in range(3)]
    return a, indices, points(a, indices)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_digit_is_floored_quotient_and_modulus(draw: Random) -> None:
    a, indices, every = world(draw)
    e = some(draw, a, indices)
    div, mod = draw.choice([1, 2, 3, 4, 6, 8]), draw.choice([1, 2, 3, 4, 6, 24])
    d = a.digit(e, div, mod)
    assert all(value(a, d, p) == value(a, e, p) // div % mod for p in every)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_sums_and_ranges_are_exact(draw: Random) -> None:
    a, indices, every = world(draw)
    x, y = some(draw, a, indices), some(draw, a, indices)
    k = draw.choice([-12, -6, -2, 1, 3, 6])
    total = a.add(x, scale(y, k))
    low, high = a.range(total)
    assert low is not None and high is not None
    for p in every:
        assert value(a, total, p) == value(a, x, p) + k * value(a, y, p)
        assert low <= value(a, total, p) <= high


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_digits_of_one_expression_join_again(draw: Random) -> None:
    a, indices, every = world(draw)
    e = some(draw, a, indices, 1)
    div, low, high = draw.choice([1, 2, 3]), draw.choice([2, 3, 4]), draw.choice([2, 3, 4])
    parts = [(a.digit(e, div, low), 1), (a.digit(e, div * low, high), low), (a.digit(e, 1, div), -div)]
    draw.shuffle(parts)
    total, rest = constant(0), some(draw, a, indices, 1)
    for part, k in [*parts, (rest, 1)]:
        total = a.add(total, scale(part, k))
    for p in every:
        v = value(a, e, p)
        want = v // div % low + low * (v // (div * low) % high) - div * (v % div) + value(a, rest, p)
        assert value(a, total, p) == want


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_digits_that_are_not_adjacent_stay_apart(draw: Random) -> None:
    a, indices, every = world(draw)
    e = some(draw, a, indices, 0)
    div, low = draw.choice([1, 2, 3]), draw.choice([2, 3, 4])
    div_high, high, k = draw.choice([2, 3, 4, 6, 8]), draw.choice([2, 3]), draw.choice([1, low])
    total = a.add(a.digit(e, div, low), scale(a.digit(e, div_high, high), k))
    for p in every:
        v = value(a, e, p)
        assert value(a, total, p) == v // div % low + k * (v // div_high % high)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_whole_quotient_and_remainder_join(draw: Random) -> None:
    a, indices, every = world(draw)
    e = a.add(index(indices[0]), scale(index(indices[1]), draw.choice([2, 3, 6])))
    e = shift(e, draw.randint(0, 5))
    div, k = draw.choice([2, 3, 4]), draw.choice([-2, -1, 1, 3])
    total = a.add(scale(e, k), scale(a.digit(e, div, 100), -k * div))
    assert all(value(a, total, p) == k * (value(a, e, p) % div) for p in every)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_substitution_replaces_all_at_once(draw: Random) -> None:
    a, indices, every = world(draw)
    e = some(draw, a, indices)
    i, j, _ = indices
    by = {i: a.digit(some(draw, a, indices, 1), 1, a.sizes[i]), j: a.digit(index(i), 1, a.sizes[j])}
    replaced = a.substitute(e, by)
    for p in every:
        inner = p | {k: value(a, v, p) for k, v in by.items()}
        assert value(a, replaced, p) == value(a, e, inner)


def test_reading_a_row_major_position_digit_by_digit_gives_the_indices() -> None:
    a = Accesses()
    i, j, k = a.fresh(2), a.fresh(3), a.fresh(4)
    flat = a.flatten([i, j, k])
    assert a.digit(flat, 1, 4) == index(k)
    assert a.digit(flat, 4, 3) == index(j)
    assert a.digit(flat, 12, 2) == index(i)
    assert a.digit(shift(flat, 24), 12, 2) == index(i)


def test_a_quotient_below_zero_is_floored() -> None:
    a = Accesses()
    i = a.fresh(4)
    d = a.digit(shift(index(i), -2), 2, 6)
    assert [value(a, d, {i: v}) for v in range(4)] == [5, 5, 0, 0]


def test_what_is_below_a_common_stride_does_not_change_a_digit_above_it() -> None:
    a = Accesses()
    rank, own = a.fresh(4), a.fresh(2)
    head = a.flatten([rank, own])
    assert a.digit(head, 4, 2) == a.digit(index(rank), 2, 2)
    assert a.digit(head, 1, 4) == a.add(scale(a.digit(index(rank), 1, 2), 2), index(own))
    assert a.digit(scale(index(rank), 2), 4, 2) == a.digit(index(rank), 2, 2)


def test_what_reaches_a_common_stride_stays_in_the_digit() -> None:
    a = Accesses()
    i, j = a.fresh(4), a.fresh(3)
    e = a.add(scale(index(i), 2), index(j))
    assert a.digit(e, 4, 2) != a.digit(index(i), 2, 2)
    assert [value(a, a.digit(e, 4, 2), {i: 1, j: v}) for v in range(3)] == [0, 0, 1]
    assert [value(a, a.digit(shift(e, 1), 1, 4), {i: 1, j: v}) for v in range(3)] == [3, 0, 1]
