"""Products of powers of one positive value under several scales: the normal form is the product's value."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.passes.access import index
from shardproof.passes.arithmetic import exponential, multiply, power, scaled
from shardproof.passes.classes import Store, Term
from shardproof.passes.normalise import new_store

EXPONENTS = st.sampled_from([Fraction(n, 2) for n in (-4, -3, -2, -1, 1, 2, 3, 4)])
FACTORS = st.lists(st.tuples(st.integers(1, 12), EXPONENTS), min_size=1, max_size=5)


def value(store: Store, t: Term, x: float) -> float:
    """The value of a term over the exponential of one input, which is `x`."""
    c = store.classes[t.cls]
    if c.op == "power":
        (base,), _ = store.expand(t)
        return float(t.coef) * value(store, base, x) ** float(c.attrs[0])
    if c.op == "multiply":
        return float(t.coef) * math.prod(value(store, f, x) for f in store.expand(t)[0])
    if c.op == "exponential":
        return float(t.coef) * x
    assert t.cls == store.ONE, c.op
    return float(t.coef)


def product(store: Store, factors: list[tuple[int, Fraction]], n: int) -> Term:
    x = exponential(store, Term(1, store.leaf("input", ("x",), "real", (7,)), (index(n),)))
    return multiply(store, [power(store, scaled(x, scale), exponent) for scale, exponent in factors])


@given(FACTORS, st.floats(0.3, 3), st.booleans())
@settings(max_examples=300, deadline=None)
def test_the_value_is_kept(factors: list[tuple[int, Fraction]], x: float, algebra: bool) -> None:
    store = new_store(algebra=algebra)
    wanted = math.prod((scale * x) ** float(exponent) for scale, exponent in factors)
    assert math.isclose(value(store, product(store, factors, store.fresh(7)), x), wanted, rel_tol=1e-9)


def test_a_root_under_a_scale_is_no_root_under_another() -> None:
    store = new_store()
    n, half = store.fresh(7), Fraction(1, 2)
    assert product(store, [(1, half), (3, -half)], n).cls != store.ONE
    assert product(store, [(3, half), (3, -half)], n) == store.real(1)
    rooted = scaled(product(store, [(3, half)], n), Fraction(1, 3))
    assert product(store, [(1, Fraction(1)), (3, -half)], n) == rooted
