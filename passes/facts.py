"""What is known of a class: infinities and NaN it may have, its sign, integer bounds, closedness.

Computed forward when a class is made (soundness rules A2, A4). Every rule may only say less than the
truth; an operator without a rule says nothing.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from shardproof.passes.access import Element
from shardproof.passes.classes import (
    NEGATIVE_INFINITY,
    NONNEGATIVE,
    NOT_A_NUMBER,
    POSITIVE,
    POSITIVE_INFINITY,
    UNKNOWN_SIGN,
)

if TYPE_CHECKING:
    from shardproof.passes.classes import Class, Store

ANYTHING: Final = POSITIVE_INFINITY | NEGATIVE_INFINITY | NOT_A_NUMBER
BOTH: Final = POSITIVE_INFINITY | NEGATIVE_INFINITY

BOUNDED: Final = frozenset({"tanh", "logistic", "erf", "sign"})
"""Finite at the infinities."""

KEEPING: Final = frozenset(
    {
        "absolute",
        "floor",
        "ceil",
        "round_even",
        "round_away",
        "select",
        "concat",
        "maximum",
        "minimum",
        "max",
        "min",
        "cube_root",
    }
)
"""Only as infinite as some operand."""


def derive(store: Store, c: Class) -> None:
    """Set the facts of a freshly made class from those of its operands."""
    c.closed = all(store.classes[t.cls].closed for t in c.operands) and all(
        _closed_access(store, e) for t in c.operands for e in t.access
    )
    if c.kind == "real":
        c.special = _special(store, c)
        c.sign = _sign(store, c)
    elif c.kind in ("int", "uint"):
        c.low, c.high = _bounds(store, c)


def _closed_access(store: Store, e: tuple[int, tuple[tuple[int, int], ...]]) -> bool:
    for t, _ in e[1]:
        if t < 0:
            atom = store.atom(t)
            if isinstance(atom, Element) and not store.classes[atom.cls].closed:
                return False
            if not all(_closed_access(store, x) for x in store.inner(t)):
                return False
    return True


def _special(store: Store, c: Class) -> int:
    flags = 0
    for t in c.operands:
        if store.kind(t) == "real":
            flags |= store.special(t)
    if c.op in ("opaque", "sort", "top_k_values"):
        return ANYTHING if flags or c.op == "opaque" else 0
    if flags == 0:
        return 0
    if c.op == "exponential":
        return flags & ~NEGATIVE_INFINITY
    if c.op in BOUNDED:
        return flags & NOT_A_NUMBER
    if c.op in ("add", "sum"):
        return flags | (NOT_A_NUMBER if flags & BOTH == BOTH or (c.op == "sum" and flags & BOTH) else 0)
    if c.op in ("maximum", "minimum"):
        return _extremum_special(store, c, flags)
    if c.op in KEEPING:
        return flags | (POSITIVE_INFINITY if c.op == "absolute" else 0)
    return ANYTHING


def _extremum_special(store: Store, c: Class, flags: int) -> int:
    away = NEGATIVE_INFINITY if c.op == "maximum" else POSITIVE_INFINITY
    if any(store.special(t) == 0 for t in c.operands):
        return flags & ~away
    return flags


def _sign(store: Store, c: Class) -> int:
    signs = [store.sign(t) for t in c.operands if store.kind(t) == "real"]
    low = min(signs, default=UNKNOWN_SIGN)
    if c.op == "exponential":
        finite = all(store.special(t) & (NEGATIVE_INFINITY | NOT_A_NUMBER) == 0 for t in c.operands)
        return POSITIVE if finite else NONNEGATIVE
    if c.op == "logistic":
        return POSITIVE if c.special == 0 else NONNEGATIVE
    if c.op == "absolute":
        return POSITIVE if low == POSITIVE else NONNEGATIVE
    if c.op in ("sum", "max", "min", "prod", "select", "concat", "square_root"):
        return low
    if c.op == "power":
        return low if low == POSITIVE else UNKNOWN_SIGN
    if c.op == "indicator":
        return NONNEGATIVE
    if c.op == "maximum":
        return max(signs)
    if c.op == "minimum":
        return low
    if c.op == "add":
        return max(signs) if low >= NONNEGATIVE else UNKNOWN_SIGN
    if c.op == "multiply":
        return _product_sign(store, c)
    return UNKNOWN_SIGN


def _product_sign(store: Store, c: Class) -> int:
    """Factors that occur in pairs are squares."""
    count: dict[tuple[int, object], int] = {}
    for t in c.operands:
        key = (t.cls, t.access)
        count[key] = count.get(key, 0) + 1
    known = POSITIVE
    for (cls, _), n in count.items():
        sign = store.classes[cls].sign
        known = min(known, sign if n % 2 else max(sign, NONNEGATIVE))
    return known


def _bounds(store: Store, c: Class) -> tuple[int | None, int | None]:
    if c.op == "truth":
        return 0, 1
    ranges = [store.range(store.expression(t)) for t in c.operands if store.kind(t) in ("int", "uint")]
    lows = [a for a, _ in ranges]
    highs = [b for _, b in ranges]
    known_low = None if any(a is None for a in lows) else [a for a in lows if a is not None]
    known_high = None if any(b is None for b in highs) else [b for b in highs if b is not None]
    if c.op in ("select", "min", "max", "concat"):
        return (min(known_low) if known_low else None, max(known_high) if known_high else None)
    if c.op == "maximum":
        some = [a for a in lows if a is not None]
        return (max(some) if some else None, max(known_high) if known_high else None)
    if c.op == "minimum":
        some = [b for b in highs if b is not None]
        return (min(known_low) if known_low else None, min(some) if some else None)
    if c.op == "sum":
        n = prod(store.sizes[b] for b in c.bound)
        return (known_low[0] * n if known_low else None, known_high[0] * n if known_high else None)
    if c.op == "modular":
        bits, signed = c.attrs[-2:]
        return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return None, None
