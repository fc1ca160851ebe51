"""What elementwise operators mean on terms, per kind of element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from shardproof.ir.types import DType, Kind
from shardproof.passes import arithmetic as real
from shardproof.passes import logic, selection
from shardproof.passes.access import Expr, constant, scale, shift
from shardproof.passes.classes import (
    NEGATIVE_INFINITY,
    NOT_A_NUMBER,
    POSITIVE,
    POSITIVE_INFINITY,
    Coefficient,
    Store,
    Term,
)
from shardproof.passes.literals import by_value
from shardproof.passes.pieces import read
from shardproof.passes.tables import meet

UNARY: Final = frozenset(
    {"tanh", "tan", "sine", "cosine", "erf", "sign", "floor", "ceil", "round_even", "round_away", "cbrt"}
)
"""Real functions that are kept as they are."""

AT_ZERO: Final = {
    "exponential": 1, "cosine": 1, "sine": 0, "tanh": 0, "tan": 0, "erf": 0, "sign": 0, "cbrt": 0
}
"""Exact values at 0."""

MIRRORED: Final = {"GT": "LT", "GE": "LE"}


def apply(
    store: Store, opcode: str, x: Sequence[Term], source: DType, dtype: DType, attrs: Mapping[str, Any]
) -> Term:
    """The term of an elementwise operator; `source` is the operands' element type, `dtype` the result's."""
    return by_value(store, _applied(store, opcode, x, source, dtype, attrs))


def _applied(
    store: Store, opcode: str, x: Sequence[Term], source: DType, dtype: DType, attrs: Mapping[str, Any]
) -> Term:
    if opcode == "select":
        return selection.select(store, *x)
    if opcode == "convert":
        return convert(store, x[0], source, dtype)
    kind = source.kind
    if kind == "real" and dtype.kind != "complex":
        return _real(store, opcode, x, attrs)
    if kind == "bool":
        return _bool(store, opcode, x, attrs)
    if kind in ("int", "uint"):
        return _integer(store, opcode, x, source, dtype, attrs)
    return _plain(store, opcode, x, source, dtype, attrs)


def _plain(
    store: Store, opcode: str, x: Sequence[Term], source: DType, dtype: DType, attrs: Mapping[str, Any]
) -> Term:
    """A function about which nothing is known but its name, attributes and types."""
    named = (opcode, source.value, dtype.value, *sorted(attrs.items()))
    kind = "int" if dtype.kind == "uint" else dtype.kind
    return real.pointwise(store, "function", named, kind, x)


def _real(store: Store, opcode: str, x: Sequence[Term], attrs: Mapping[str, Any]) -> Term:
    simple = REAL.get(opcode)
    if simple is not None:
        return simple(store, x)
    if opcode == "compare":
        return _compare_reals(store, attrs, x)
    a = x[0]
    if opcode == "abs":
        return real.absolute(store, a)
    if opcode == "clamp":
        return real.minimum(store, [real.maximum(store, [x[0], x[1]]), x[2]])
    if opcode in AT_ZERO and a.coef == 0:
        return store.real(AT_ZERO[opcode])
    if opcode == "exponential":
        return meet(store, real.exponential(store, a))
    if opcode == "logistic" or opcode in UNARY:
        return meet(store, real.pointwise(store, opcode, (), "real", x))
    if opcode == "power":
        if x[1].cls == store.ONE:
            return real.power(store, a, Fraction(x[1].coef))
        return real.pointwise(store, "power_of", (), "real", x)
    kind: Kind = "bool" if opcode == "is_finite" else "real"
    return real.pointwise(store, "function", (opcode, *sorted(attrs.items())), kind, x)


REAL: Final[Mapping[str, Callable[[Store, Sequence[Term]], Term]]] = {
    "add": real.add,
    "subtract": lambda s, x: real.add(s, [x[0], real.scaled(x[1], -1)]),
    "multiply": real.multiply,
    "divide": lambda s, x: real.divide(s, x[0], x[1]),
    "negate": lambda s, x: real.scaled(x[0], -1),
    "maximum": real.maximum,
    "minimum": real.minimum,
    "sqrt": lambda s, x: real.power(s, x[0], Fraction(1, 2)),
    "rsqrt": lambda s, x: real.power(s, real.power(s, x[0], Fraction(1, 2)), Fraction(-1)),
    "expm1": lambda s, x: real.add(s, [real.exponential(s, x[0]), s.real(-1)]),
    "log1p": lambda s, x: real.pointwise(s, "function", ("log",), "real", [real.add(s, [x[0], s.real(1)])]),
}


def _holds(direction: str, difference: Coefficient) -> bool:
    """Whether a number compares like this with another, from their difference."""
    return {
        "EQ": difference == 0,
        "NE": difference != 0,
        "LT": difference < 0,
        "LE": difference <= 0,
        "GT": difference > 0,
        "GE": difference >= 0,
    }[direction]


def _compare_reals(store: Store, attrs: Mapping[str, Any], x: Sequence[Term]) -> Term:
    direction = attrs["direction"]
    a, b = x
    if a.cls == store.ONE and b.cls == store.ONE:
        return store.truth(_holds(direction, a.coef - b.coef))
    for mask, other, sign in ((a, b, 1), (b, a, -1)):
        if other.cls == store.ONE and store.classes[mask.cls].op == "indicator":
            (p,), _ = store.expand(mask)
            there, elsewhere = (_holds(direction, sign * (c - other.coef)) for c in (mask.coef, 0))
            return selection.select(store, read(store, p), store.truth(there), store.truth(elsewhere))
    if attrs.get("total"):
        return real.pointwise(store, "compare_total", (direction,), "bool", x)
    known = _known_comparison(store, direction, a, b)
    if known is not None:
        return store.truth(known)
    if direction in MIRRORED:
        direction, a, b = MIRRORED[direction], b, a
    if direction == "NE":
        return logic.negate(store, _equal(store, a, b))
    if direction == "EQ":
        return _equal(store, a, b)
    return real.pointwise(store, "compare", (direction,), "bool", [a, b])


def _equal(store: Store, a: Term, b: Term) -> Term:
    for x, y in ((a, b), (b, a)):
        infinity = store.special(y) if store.classes[y.cls].op == "literal" else 0
        if infinity in (POSITIVE_INFINITY, NEGATIVE_INFINITY):
            found = _is_infinite(store, x, infinity)
            if found is not None:
                return found
    return real.pointwise(store, "compare", ("EQ",), "bool", [a, b], commutative=True)


def _is_infinite(store: Store, x: Term, infinity: int) -> Term | None:
    """Whether a value is the infinity, where masks alone decide it: a finite value added changes nothing."""
    flags = store.special(x)
    if not flags & infinity:
        return store.truth(False)
    if flags & NOT_A_NUMBER:
        return None
    c = store.classes[x.cls]
    if c.op == "literal":
        return store.truth(True)
    if c.op not in ("select", "add") or x.coef == 0:
        return None
    within = infinity if x.coef > 0 else POSITIVE_INFINITY + NEGATIVE_INFINITY - infinity
    operands, _ = store.expand(x)
    if c.op == "add":
        infinite = [t for t in operands if store.special(t)]
        return _is_infinite(store, infinite[0], within) if len(infinite) == 1 else None
    p, first, second = operands
    here, there = _is_infinite(store, first, within), _is_infinite(store, second, within)
    return None if here is None or there is None else selection.select(store, p, here, there)


def _known_comparison(store: Store, direction: str, a: Term, b: Term) -> bool | None:
    """A comparison that signs, a missing infinity, or two equal terms decide (soundness A7)."""
    if a == b and _is_number(store, a):
        return direction in ("EQ", "LE", "GE")
    for x, y, flip in ((a, b, False), (b, a, True)):
        towards = {"GT": "LT", "GE": "LE", "LT": "GT", "LE": "GE"}.get(direction, direction)
        way = towards if flip else direction
        if store.special(x):
            continue
        above = False
        if store.classes[y.cls].op == "literal":
            special = store.special(y)
            if special == POSITIVE_INFINITY:
                return way in ("LT", "LE", "NE")
            above = special == NEGATIVE_INFINITY
        if above or (y.coef == 0 and store.sign(x) == POSITIVE):
            return way in ("GT", "GE", "NE")
    return None


def _is_number(store: Store, t: Term) -> bool:
    """Whether a value is not NaN: shown, or in a lenient store assumed and listed."""
    if store.special(t) & NOT_A_NUMBER:
        return False
    if store.classes[t.cls].partial and store.lenient:
        store.assume("finite_value", "what is compared with itself is a number, not one outside a domain")
    return store.lenient or not store.classes[t.cls].partial


def _bool(store: Store, opcode: str, x: Sequence[Term], attrs: Mapping[str, Any]) -> Term:
    if opcode in ("and", "multiply", "minimum"):
        return logic.conjunction(store, x)
    if opcode in ("or", "add", "maximum"):
        return logic.disjunction(store, x)
    if opcode == "not":
        return logic.negate(store, x[0])
    if opcode == "xor":
        return logic.exclusive(store, *x)
    if opcode == "compare":
        a, b = x
        direction = attrs["direction"]
        if direction == "NE":
            return logic.exclusive(store, a, b)
        if direction == "EQ":
            return logic.negate(store, logic.exclusive(store, a, b))
        low, high = (a, b) if direction in ("LT", "LE") else (b, a)
        if direction in ("LT", "GT"):
            return logic.conjunction(store, [logic.negate(store, low), high])
        return logic.disjunction(store, [logic.negate(store, low), high])
    return _plain(store, opcode, x, DType.BOOL, DType.BOOL, attrs)


def _integer(
    store: Store, opcode: str, x: Sequence[Term], source: DType, dtype: DType, attrs: Mapping[str, Any]
) -> Term:
    e = [store.expression(t) for t in x]
    if opcode == "compare":
        return logic.compare_integers(store, attrs["direction"], e[0], e[1])
    value: Expr | None = None
    if opcode == "add":
        value = logic.wrapped(store, store.add(*e), dtype)
    elif opcode == "subtract":
        value = logic.wrapped(store, store.add(e[0], scale(e[1], -1)), dtype)
    elif opcode == "negate":
        value = logic.wrapped(store, scale(e[0], -1), dtype)
    elif opcode == "multiply":
        value = logic.wrapped(store, logic.times(store, *e), dtype)
    elif opcode == "divide":
        value = logic.quotient(store, *e)
        value = logic.modular(store, value, dtype) if dtype.kind == "uint" else value
    elif opcode == "remainder":
        value = logic.remainder(store, *e)
    elif opcode == "maximum":
        value = logic.largest(store, *e)
    elif opcode == "minimum":
        value = logic.smallest(store, *e)
    elif opcode == "clamp":
        value = logic.smallest(store, logic.largest(store, e[0], e[1]), e[2])
    elif opcode == "abs":
        value = logic.wrapped(store, logic.largest(store, e[0], scale(e[0], -1)), dtype)
    elif opcode == "sign":
        above, below = logic.step(store, shift(e[0], -1)), logic.step(store, shift(scale(e[0], -1), -1))
        other = selection.select(store, below, _int(store, -1), _int(store, 0))
        return selection.select(store, above, _int(store, 1), other)
    if value is not None:
        return store.integer(value)
    return _plain(store, opcode, x, source, dtype, attrs)


def _int(store: Store, value: int) -> Term:
    return Term(1, store.POSITION, (constant(value),))


def convert(store: Store, t: Term, source: DType, dtype: DType) -> Term:
    """A cast; identities over the reals and the integers only where no value can change (A5)."""
    a, b = source.kind, dtype.kind
    if a == b == "real" or a == b == "bool":
        return t
    if a == "bool" and b == "real":
        return selection.indicator(store, t)
    if a == "bool" and b in ("int", "uint"):
        if t.cls in (store.TRUE, store.FALSE):
            return _int(store, int(t.cls == store.TRUE))
        return real.pointwise(store, "truth", (), "int", [t])
    if a in ("int", "uint"):
        e = store.expression(t)
        if b == "real":
            return logic.real_of(store, e)
        if b in ("int", "uint"):
            return store.integer(logic.modular(store, e, dtype))
        if b == "bool":
            return logic.negate(store, logic.match(store, e))
    if a == "real" and b == "bool":
        return _compare_reals(store, {"direction": "NE"}, [t, store.real(0)])
    if a == "real" and b in ("int", "uint") and t.cls == store.ONE and Fraction(t.coef).denominator == 1:
        low = -(1 << dtype.bits - 1) if b == "int" else 0
        if low <= t.coef < low + (1 << dtype.bits):
            return _int(store, int(t.coef))
    return _plain(store, "convert", [t], source, dtype, {})

