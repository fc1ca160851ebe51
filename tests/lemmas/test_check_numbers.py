"""The arithmetic of the lemma tests, against Python's floats and by definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from shardproof.lemmas.check_numbers import Exact, Extended, Value, arithmetic
from shardproof.lemmas.check_values import Meaning
from shardproof.lemmas.parse import parse
from shardproof.lemmas.terms import Lemma, Opaque, walk
from shardproof.lemmas.typing import check as check_typing

POINTS = [Fraction(n, d) for n, d in ((-3, 1), (-1, 2), (0, 1), (1, 3), (1, 1), (5, 2), (7, 1))]
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "exponential": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "logistic": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "sine": math.sin,
    "cosine": math.cos,
    "tan": math.tan,
    "erf": math.erf,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "sign": lambda x: (x > 0) - (x < 0),
    "round_even": round,
}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_agree_with_floats_where_they_have_a_value(op: str) -> None:
    exact, machine = Exact(0), Extended()
    with arithmetic():
        for x in POINTS:
            try:
                expected = FUNCTIONS[op](float(x))
            except (ValueError, ZeroDivisionError):
                continue
            assert math.isclose(float(exact.apply(op, [x])), expected, rel_tol=1e-12, abs_tol=1e-12)
            assert math.isclose(float(machine.apply(op, [float(x)])), expected, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize(("y", "x"), [(1, 1), (-2, 3), (5, 2), (0, 1)])
def test_arctangent(y: int, x: int) -> None:
    with arithmetic():
        found = Exact(0).apply("atan2", [Fraction(y), Fraction(x)])
    assert math.isclose(float(found), math.atan2(y, x), abs_tol=1e-15)


def test_identities_hold_to_forty_digits() -> None:
    exact = Exact(0)
    with arithmetic():
        third = Fraction(1, 3)
        e = exact.apply("exponential", [third])
        cube = exact.apply("multiply", [e, exact.apply("multiply", [e, e])])
        assert exact.same(cube, exact.apply("exponential", [Fraction(1)]))
        assert not exact.same(cube, exact.apply("add", [cube, Decimal("1e-30")]))
        assert exact.same(exact.apply("log", [e]), third)
        s, c = exact.apply("sine", [third]), exact.apply("cosine", [third])
        squares = [exact.apply("multiply", [v, v]) for v in (s, c)]
        assert exact.same(exact.apply("add", squares), Fraction(1))


def test_open_values_depend_on_function_argument_and_seed_only() -> None:
    with arithmetic():
        draws = [Exact(seed).apply("log", [Fraction(-1)]) for seed in range(8)]
        assert draws == [Exact(seed).apply("log", [Decimal(-1)]) for seed in range(8)]
        assert len(set(draws)) > 3
        assert [Exact(s).apply("sqrt", [Fraction(-1)]) for s in range(8)] != draws


def test_infinities_follow_ieee() -> None:
    machine = Extended()
    inf = math.inf
    cases: list[tuple[str, list[Value], float]] = [
        ("subtract", [inf, inf], math.nan),
        ("multiply", [0.0, inf], math.nan),
        ("exponential", [-inf], 0.0),
        ("divide", [0.0, 0.0], math.nan),
        ("divide", [1.0, 0.0], inf),
        ("maximum", [math.nan, 1.0], math.nan),
        ("log", [0.0], -inf),
        ("logistic", [-inf], 0.0),
        ("logistic", [-1000.0], 0.0),
    ]
    for op, x, expected in cases:
        assert machine.same(machine.apply(op, x), expected), (op, x)
    assert not machine.compare("EQ", math.nan, math.nan)
    assert machine.compare("NE", math.nan, 1.0)


def _lemma(text: str) -> Lemma:
    (lemma,) = parse(f'lemma a "b" {text}', "test.lemma")
    checked = check_typing(lemma)
    assert isinstance(checked, Lemma)
    return checked


def test_binders_agree_with_numpy() -> None:
    random = np.random.default_rng(1)
    x = random.integers(-5, 6, size=(2, 3))
    table: dict[tuple[int, ...], Value] = {(i, j): Fraction(int(x[i, j])) for i in range(2) for j in range(3)}
    extents = {"i": 2, "j": 3}
    with arithmetic():
        for text, expected in (
            ("sum[i, j](x) => max[i, j](x)", (x.sum(), x.max())),
            ("min[i, j](x) => prod[i, j](x)", (x.min(), x.prod())),
            ("take[i, j](x, 4) => take[j, i](x, 4)", (x.reshape(6)[4], x.T.reshape(6)[4])),
            ("sum[i](take[j](x, i + 1)) => sum[j](|i|*x)", (x[0, 1] + x[1, 2], None)),
        ):
            lemma = _lemma(text)
            meaning = Meaning(Exact(0), extents, {"x": ("i", "j")}, {"x": table})
            assert meaning.at(lemma.left, {"i": 0, "j": 0}) == int(expected[0])
            if expected[1] is not None:
                assert meaning.at(lemma.right, {"i": 0, "j": 0}) == int(expected[1])


def test_an_opaque_binder_is_a_function_of_its_arrays() -> None:
    lemma = _lemma("sort[k -> o](x) + y => y + sort[k -> o](x)")
    call = next(t for t in walk(lemma.left) if isinstance(t, Opaque))
    reads = {"x": ("k",)}
    one: dict[tuple[int, ...], Value] = {(0,): Fraction(1), (1,): Fraction(2)}
    two: dict[tuple[int, ...], Value] = {(0,): Fraction(2), (1,): Fraction(1)}
    values = []
    with arithmetic():
        for seed in range(6):
            for table in (one, dict(one), two):
                meaning = Meaning(Exact(seed), {"k": 2, "o": 2}, reads, {"x": table})
                values.append([meaning.at(call, {"o": o, "k": 0}) for o in range(2)])
    assert values[0::3] == values[1::3]
    assert values[0::3] != values[2::3]
