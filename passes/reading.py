"""Reading rounded literals as the numbers they stand for (soundness A6).

Only a store that allows it (`reading`) does, and lists each reading as an assumption: a literal within
half an ulp of its own type of p/q or sqrt(p/q), with p*q small against the type's precision, or of a
decimal of few digits, is read as that number.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor, frexp
from typing import Final

import numpy as np

from shardproof.ir.types import DType
from shardproof.passes.arithmetic import multiply, power
from shardproof.passes.classes import Store, Term

DIGITS: Final = 4
"""Most significant digits of a decimal that is taken to be meant."""
DYADIC: Final = 1 << 10
"""Fractions with a denominator up to this power of two are meant as they are, in types of WIDE bits or more:
narrower ones hold little else."""
WIDE: Final = 20
MARGIN: Final = {True: 64, False: 8}
"""How far below the precision p*q must stay: for types of at least 20 bits, for others."""


def read_literal(store: Store, value: float, dtype: DType) -> Term:
    """The real constant that the finite `value` of type `dtype` stands for."""
    exact = Fraction(value)
    if exact.denominator <= (DYADIC if dtype.mantissa >= WIDE else 1):
        return store.literal(value)
    half = Fraction(2) ** (frexp(value)[1] - dtype.mantissa - 2)
    found = _rational(abs(exact), half, dtype)
    root = Fraction(1)
    if found is None:
        low, high = (abs(exact) - half) ** 2, (abs(exact) + half) ** 2
        square = simplest_between(low, high)
        if not _small(square, dtype):
            return store.literal(value)
        found, root = Fraction(1), square
    if found == abs(exact):
        return store.literal(value)
    sign = 1 if value > 0 else -1
    text = str(sign * found) if root == 1 else f"{'-' if sign < 0 else ''}sqrt({root})"
    store.assume("literal_rounding", f"the {dtype.value} constant {_shown(value, dtype)} stands for {text}")
    return multiply(store, [store.real(sign * found), power(store, store.real(root), Fraction(1, 2))])


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
    margin = MARGIN[dtype.mantissa >= WIDE]
    return x.numerator * x.denominator * margin <= 1 << (dtype.mantissa + 1)


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of smallest denominator within [low, high], 0 < low (Stern and Brocot)."""
    whole = floor(low)
    if whole == low or whole + 1 <= high:
        return Fraction(whole if whole == low else whole + 1)
    return whole + 1 / simplest_between(1 / (high - whole), 1 / (low - whole))

