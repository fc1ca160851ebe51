"""Reading rounded literals as the numbers they stand for (soundness A6).

Only a store that allows it (`reading`) does, and lists each reading as an assumption. A literal within half
an ulp of its own type is read as p/q, as a decimal of few digits, or as a root of p/q, with p*q small against
the type's precision. In wide types it may also be a fourth root, within an ulp since such a root is often
rounded twice, or a simple multiple of pi or 1/pi, or the root of one.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor, frexp
from typing import Final

import numpy as np

from shardproof.ir.types import DType
from shardproof.passes.arithmetic import multiply, pointwise, power, scaled
from shardproof.passes.classes import Store, Term

DIGITS: Final = 4
"""Most significant digits of a decimal that is taken to be meant."""
DYADIC: Final = 1 << 10
"""Fractions with a denominator up to this power of two are meant as they are, in types of WIDE bits or more:
narrower ones hold little else."""
WIDE: Final = 20
MARGIN: Final = {True: 64, False: 8}
"""How far below the precision p*q must stay: for types of at least 20 bits, for others."""
FOURTH: Final = 1 << 12
"""The largest p*q of a fourth root."""
CIRCULAR: Final = 1 << 6
"""The largest p*q of a multiple of pi."""
PI: Final = Fraction(314159265358979323846264338327950288419716939937510, 10**50)


def read_literal(store: Store, value: float, dtype: DType) -> Term:
    """The real constant that the finite `value` of type `dtype` stands for."""
    exact = Fraction(value)
    if exact.denominator <= (DYADIC if dtype.mantissa >= WIDE else 1):
        return store.literal(value)
    half = Fraction(2) ** (frexp(value)[1] - dtype.mantissa - 2)
    found = _meant(abs(exact), half, dtype)
    if found is None or (found == (abs(exact), 1, 0)):
        return store.literal(value)
    sign = 1 if value > 0 else -1
    text = _text(*found)
    text = text if sign > 0 else f"-{text}"
    store.assume("literal_rounding", f"the {dtype.value} constant {_shown(value, dtype)} stands for {text}")
    return scaled(_term(store, *found), sign)


def _meant(value: Fraction, half: Fraction, dtype: DType) -> tuple[Fraction, int, int] | None:
    """(p/q, n, k) where `value`, within `half`, is the n-th root of p/q * pi**k."""
    rational = _rational(value, half, dtype)
    if rational is not None:
        return rational, 1, 0
    square = simplest_between((value - half) ** 2, (value + half) ** 2)
    if _small(square, dtype):
        return square, 2, 0
    if dtype.mantissa < WIDE:
        return None
    fourth = simplest_between((value - 2 * half) ** 4, (value + 2 * half) ** 4)
    if _product(fourth) <= FOURTH:
        return fourth, 4, 0
    for root in (1, 2):
        low, high = (value - half) ** root, (value + half) ** root
        for k in (1, -1):
            times = simplest_between(low / PI**k, high / PI**k)
            if _product(times) <= CIRCULAR:
                return times, root, k
    return None


def _term(store: Store, times: Fraction, root: int, k: int) -> Term:
    found = store.real(times)
    if k:
        quarter = pointwise(store, "function", ("atan2",), "real", [store.real(1)] * 2)
        found = multiply(store, [store.real(times * 4**k), power(store, quarter, Fraction(k))])
    for _ in range(root.bit_length() - 1):
        found = power(store, found, Fraction(1, 2))
    return found


def _text(times: Fraction, root: int, k: int) -> str:
    inside = f"{times}{'*pi' if k > 0 else '/pi' if k else ''}"
    return inside if root == 1 else f"{'sqrt' if root == 2 else 'root4'}({inside})"


def _shown(value: float, dtype: DType) -> str:
    return str(np.float32(value)) if dtype.bits <= 32 else repr(value)


def _rational(value: Fraction, half: Fraction, dtype: DType) -> Fraction | None:
    near = simplest_between(value - half, value + half)
    if _small(near, dtype):
        return near
    text = _shown(float(value), dtype)
    digits = text.partition("e")[0].replace(".", "").strip("0")
    decimal = Fraction(text)
    if len(digits) <= DIGITS and abs(decimal - value) <= half:
        return decimal
    return None


def _small(x: Fraction, dtype: DType) -> bool:
    return _product(x) * MARGIN[dtype.mantissa >= WIDE] <= 1 << (dtype.mantissa + 1)


def _product(x: Fraction) -> int:
    return x.numerator * x.denominator


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of smallest denominator within [low, high], 0 < low (Stern and Brocot)."""
    whole = floor(low)
    if whole == low or whole + 1 <= high:
        return Fraction(whole if whole == low else whole + 1)
    return whole + 1 / simplest_between(1 / (high - whole), 1 / (low - whole))

