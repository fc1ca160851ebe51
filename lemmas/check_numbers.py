"""Numbers on which lemmas are tested: exact ones, and machine numbers with infinities.

`Exact` computes over total functions on the reals: rationals, and 70 digits where a transcendental
function enters. Where a function has no value (1/0, the logarithm of 0, a `take` out of range) it
draws one that depends on the function and its arguments only: a lemma must hold for each choice.
`Extended` computes with infinities and NaN, as machines do, for the condition `x finite`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from random import Random
from typing import Final, Protocol

Value = bool | Fraction | Decimal | float

DIGITS: Final = 70
CLOSE: Final = Decimal("1e-40")
_KEY: Final = Context(prec=30)
_CONTEXT: Final = Context(prec=DIGITS, Emax=10**9, Emin=-(10**9))


class Unsupported(Exception):
    """A term uses an operator for which this module knows no value."""


class Arithmetic(Protocol):
    """Numbers of one kind, and what the operators do to them."""

    def number(self, x: Fraction) -> Value: ...

    def apply(self, op: str, x: Sequence[Value]) -> Value: ...

    def compare(self, direction: str, a: Value, b: Value) -> bool: ...

    def unknown(self, op: str, x: Sequence[object]) -> Value: ...

    def same(self, a: Value, b: Value) -> bool: ...

    def position(self, x: Value) -> int | None: ...


def _decimal(x: Value) -> Decimal:
    if isinstance(x, Fraction):
        return Decimal(x.numerator) / Decimal(x.denominator)
    return x if isinstance(x, Decimal) else Decimal(x)


def _rational(x: Value) -> Fraction:
    return x if isinstance(x, Fraction) else Fraction(x)


class Exact:
    """Total functions on the reals. `seed` chooses the values that the functions leave open.

    Used inside `arithmetic()`; results that are not rational carry an error far below `CLOSE`.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def number(self, x: Fraction) -> Value:
        return x

    def unknown(self, op: str, x: Sequence[object]) -> Value:
        random = Random(f"{self.seed}|{op}|{[self._key(v) for v in x]}")
        return Fraction(random.randint(-7, 7), random.choice((1, 2, 3)))

    def _key(self, x: object) -> str:
        """Equal for equal numbers, however they were computed."""
        if isinstance(x, (Fraction, Decimal)):
            y = _decimal(x)
            return "0" if abs(y) < CLOSE else str(_KEY.plus(y).normalize())
        if isinstance(x, tuple):
            return str([self._key(v) for v in x])
        return str(x)

    def sign(self, a: Value, b: Value) -> int:
        """The sign of a - b; 0 within the error of the computation."""
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return (a > b) - (a < b)
        x, y = _decimal(a), _decimal(b)
        if abs(x - y) <= CLOSE * (1 + abs(x) + abs(y)):
            return 0
        return 1 if x > y else -1

    def compare(self, direction: str, a: Value, b: Value) -> bool:
        if isinstance(a, bool) and isinstance(b, bool):
            return _holds(direction, int(a) - int(b))
        return _holds(direction, self.sign(a, b))

    def same(self, a: Value, b: Value) -> bool:
        if isinstance(a, bool) or isinstance(b, bool):
            return a is b
        return self.sign(a, b) == 0

    def position(self, x: Value) -> int | None:
        exact = _rational(x)
        return int(exact) if exact.denominator == 1 else None

    def apply(self, op: str, x: Sequence[Value]) -> Value:
        if all(isinstance(v, Fraction) for v in x) and op in _EXACT_RATIONAL:
            return _EXACT_RATIONAL[op](*[_rational(v) for v in x])
        handler = getattr(self, f"_{op}", None)
        if handler is not None:
            result: Value = handler(*x)
            return result
        if op in _EXACT_RATIONAL:
            return _DECIMAL_OP[op](*[_decimal(v) for v in x])
        if op in _ENTIRE:
            return _ENTIRE[op](_decimal(x[0]))
        raise Unsupported(f"no value is known for the operator `{op}`")

    def _inverse(self, x: Value) -> Value:
        if self.sign(x, Fraction(0)) == 0:
            return self.unknown("inverse", (Fraction(0),))
        return 1 / x if isinstance(x, Fraction) else 1 / _decimal(x)

    def _divide(self, a: Value, b: Value) -> Value:
        return self.apply("multiply", (a, self._inverse(b)))

    def _log(self, x: Value) -> Value:
        if self.sign(x, Fraction(0)) <= 0:
            return self.unknown("log", (x,))
        return Fraction(0) if x == 1 else _decimal(x).ln()

    def _log1p(self, x: Value) -> Value:
        return self._log(self.apply("add", (x, Fraction(1))))

    def _sqrt(self, x: Value) -> Value:
        order = self.sign(x, Fraction(0))
        if order < 0:
            return self.unknown("sqrt", (x,))
        if order == 0:
            return Fraction(0)
        if isinstance(x, Fraction):
            top, bottom = math.isqrt(x.numerator), math.isqrt(x.denominator)
            if top * top == x.numerator and bottom * bottom == x.denominator:
                return Fraction(top, bottom)
        return _decimal(x).sqrt()

    def _rsqrt(self, x: Value) -> Value:
        if self.sign(x, Fraction(0)) <= 0:
            return self.unknown("rsqrt", (x,))
        return self._inverse(self._sqrt(x))

    def _logistic(self, x: Value) -> Value:
        return self._inverse(self.apply("add", (Fraction(1), _exp(-_decimal(x)))))

    def _convert(self, x: Value) -> Value:
        return Fraction(int(x)) if isinstance(x, bool) else x

    def _maximum(self, a: Value, b: Value) -> Value:
        return a if self.compare("GE", a, b) else b

    def _minimum(self, a: Value, b: Value) -> Value:
        return b if self.compare("GE", a, b) else a

    def _clamp(self, low: Value, x: Value, high: Value) -> Value:
        return self._minimum(self._maximum(x, low), high)

    def _cbrt(self, x: Value) -> Value:
        order = self.sign(x, Fraction(0))
        root = _exp(abs(_decimal(x)).ln() / 3) if order else Decimal(0)
        return root if order >= 0 else -root

    def _tan(self, x: Value) -> Value:
        return self._divide(_sine(_decimal(x)), _cosine(_decimal(x)))

    def _atan2(self, y: Value, x: Value) -> Value:
        if self.sign(x, Fraction(0)) <= 0:
            raise Unsupported("the angle `atan2(y, x)` is known for x > 0 only")
        return _arctangent(_decimal(y) / _decimal(x))

    def _round_even(self, x: Value) -> Value:
        return Fraction(round(_rational(x)))

    def _round_away(self, x: Value) -> Value:
        size = math.floor(abs(_rational(x)) + Fraction(1, 2))
        return Fraction(size if _rational(x) >= 0 else -size)

    def _remainder(self, x: Value, y: Value) -> Value:
        if self.sign(y, Fraction(0)) == 0:
            return self.unknown("remainder", (x, y))
        a, b = _rational(x), _rational(y)
        return a - b * math.trunc(a / b)

    def _sign(self, x: Value) -> Value:
        return Fraction(self.sign(x, Fraction(0)))

    def _abs(self, x: Value) -> Value:
        return x if self.sign(x, Fraction(0)) >= 0 else self.apply("negate", (x,))

    def _floor(self, x: Value) -> Value:
        return self._to_integer(x, math.floor)

    def _ceil(self, x: Value) -> Value:
        return self._to_integer(x, math.ceil)

    def _to_integer(self, x: Value, rounded: Callable[[Fraction], int]) -> Value:
        exact = _rational(x)
        nearest = round(exact)
        return Fraction(nearest) if self.sign(x, Fraction(nearest)) == 0 else Fraction(rounded(exact))

    def _power(self, x: Value, y: Value) -> Value:
        order = self.sign(x, Fraction(0))
        if isinstance(y, Fraction) and y.denominator == 1 and abs(y) < 100:
            base = x if y >= 0 else self._inverse(x)
            if y < 0 and order == 0 and y != -1:
                return self.unknown("power", (x, y))
            result: Value = Fraction(1)
            for _ in range(abs(int(y))):
                result = self.apply("multiply", (result, base))
            return result
        if y in (Fraction(1, 2), Fraction(-1, 2)):
            return self._sqrt(x) if y == Fraction(1, 2) else self._rsqrt(x)
        if order > 0:
            return _exp(_decimal(y) * _decimal(x).ln())
        if order == 0 and self.sign(y, Fraction(0)) > 0:
            return Fraction(0)
        return self.unknown("power", (x, y))


def _holds(direction: str, order: int) -> bool:
    return {
        "EQ": order == 0,
        "NE": order != 0,
        "LT": order < 0,
        "LE": order <= 0,
        "GT": order > 0,
        "GE": order >= 0,
    }[direction]


_EXACT_RATIONAL: Final[Mapping[str, Callable[..., Fraction]]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "negate": lambda a: -a,
}
_DECIMAL_OP: Final[Mapping[str, Callable[..., Decimal]]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "negate": lambda a: -a,
}


def _exp(x: Decimal) -> Decimal:
    return x.exp()


def _series(x: Decimal, first: Decimal, ratio: Callable[[int], Decimal]) -> Decimal:
    """The sum of terms whose quotients are given, until they no longer count."""
    total, term, n = first, first, 0
    while abs(term) > Decimal(10) ** -(DIGITS + 5) or n < 4:
        n += 1
        term = term * ratio(n)
        total += term
    return total


def _sine(x: Decimal) -> Decimal:
    return _series(x, x, lambda n: -x * x / (2 * n * (2 * n + 1)))


def _cosine(x: Decimal) -> Decimal:
    return _series(x, Decimal(1), lambda n: -x * x / (2 * n * (2 * n - 1)))


def _arctangent(x: Decimal) -> Decimal:
    """Half the angle three times, then the Maclaurin series."""
    for _ in range(3):
        x = x / (1 + (1 + x * x).sqrt())
    total, power, n = x, x, 1
    while abs(power) > Decimal(10) ** -(DIGITS + 5):
        power, n = -power * x * x, n + 2
        total += power / n
    return 8 * total


def _erf(x: Decimal) -> Decimal:
    """The Maclaurin series with positive terms: 2/sqrt(pi) exp(-x^2) sum (2 x^2)^n x / (2n+1)!!."""
    total = _series(x, x, lambda n: 2 * x * x / (2 * n + 1))
    return 2 * total * _exp(-x * x) / _PI.sqrt()


_PI: Final = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803"
)


def _tanh(x: Decimal) -> Decimal:
    return 1 - 2 / (1 + _exp(2 * x))


_ENTIRE: Final[Mapping[str, Callable[[Decimal], Decimal]]] = {
    "exponential": _exp,
    "expm1": lambda x: _exp(x) - 1,
    "sine": _sine,
    "cosine": _cosine,
    "erf": _erf,
    "tanh": _tanh,
}


class Extended:
    """Machine arithmetic on moderate numbers: infinities and NaN as IEEE 754 has them, rounding ignored."""

    def number(self, x: Fraction) -> Value:
        return float(x)

    def unknown(self, op: str, x: Sequence[object]) -> Value:
        return math.nan if op == "take" else float(Random(repr((op, x))).randint(-9, 9))

    def compare(self, direction: str, a: Value, b: Value) -> bool:
        x, y = float(a), float(b)
        if math.isnan(x) or math.isnan(y):
            return direction == "NE"
        if self.same(x, y):
            return _holds(direction, 0)
        return _holds(direction, 1 if x > y else -1)

    def same(self, a: Value, b: Value) -> bool:
        x, y = float(a), float(b)
        if math.isnan(x) or math.isnan(y):
            return math.isnan(x) and math.isnan(y)
        return x == y or math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9)

    def position(self, x: Value) -> int | None:
        return int(x) if math.isfinite(float(x)) and float(x) == int(x) else None

    def apply(self, op: str, x: Sequence[Value]) -> Value:
        handler = _FLOAT.get(op)
        if handler is None:
            raise Unsupported(f"no value is known for the operator `{op}`")
        try:
            return handler(*[float(v) for v in x]) + 0.0
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan


def _float_divide(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)


def _float_log(x: float) -> float:
    return -math.inf if x == 0 else math.log(x)


def _float_power(x: float, y: float) -> float:
    return _float_divide(1.0, x**-y) if y < 0 else x**y


def _propagating(choose: Callable[[float, float], float]) -> Callable[[float, float], float]:
    return lambda a, b: math.nan if math.isnan(a) or math.isnan(b) else choose(a, b)


_FLOAT_MAX: Final = _propagating(max)
_FLOAT_MIN: Final = _propagating(min)
_FLOAT: Final[Mapping[str, Callable[..., float]]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": _float_divide,
    "negate": lambda a: -a,
    "exponential": math.exp,
    "expm1": math.expm1,
    "log": _float_log,
    "log1p": lambda x: _float_log(1 + x),
    "logistic": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0 * x if math.isnan(x) else 0.0,
    "tanh": math.tanh,
    "sine": math.sin,
    "cosine": math.cos,
    "erf": math.erf,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: _float_divide(1.0, math.sqrt(x)),
    "abs": abs,
    "sign": lambda x: x if math.isnan(x) else float((x > 0) - (x < 0)),
    "floor": lambda x: float(math.floor(x)) if math.isfinite(x) else x,
    "ceil": lambda x: float(math.ceil(x)) if math.isfinite(x) else x,
    "convert": lambda x: x,
    "maximum": _FLOAT_MAX,
    "minimum": _FLOAT_MIN,
    "clamp": lambda low, x, high: _FLOAT_MIN(_FLOAT_MAX(x, low), high),
    "power": _float_power,
    "infinity": lambda: math.inf,
    "cbrt": lambda x: math.copysign(abs(x) ** (1 / 3), x),
    "tan": math.tan,
    "round_even": lambda x: float(round(x)) if math.isfinite(x) else x,
    "round_away": lambda x: math.copysign(math.floor(abs(x) + 0.5), x) if math.isfinite(x) else x,
    "remainder": math.fmod,
    "atan2": math.atan2,
}


def arithmetic() -> AbstractContextManager[Context]:
    """The context in which exact values are computed."""
    return localcontext(_CONTEXT)
