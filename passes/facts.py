"""What is known of a class: infinities and NaN it may have, its sign, integer bounds, closedness.

Computed forward when a class is made (soundness rules A2, A4). Every rule may only say less than the
truth; an operator without a rule says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from shardproof.passes.access import Element, Expr, constant, index, scale, shift
from shardproof.passes.classes import (
    NEGATIVE_INFINITY,
    NONNEGATIVE,
    NOT_A_NUMBER,
    POSITIVE,
    POSITIVE_INFINITY,
    UNKNOWN_SIGN,
)

if TYPE_CHECKING:
    from shardproof.passes.classes import Class, Store, Term

MASK_LIMIT: Final = 1 << 20
"""Most values of a constant mask that are looked at."""

VANISHING: Final = 8
"""How many operators deep masks are looked for."""
SUMMING: Final = frozenset({"add", "sum", "max", "maximum", "concat"})

ANYTHING: Final = POSITIVE_INFINITY | NEGATIVE_INFINITY | NOT_A_NUMBER
BOTH: Final = POSITIVE_INFINITY | NEGATIVE_INFINITY

_TOP_K: Final = re.compile(r"top_k \d+")
_SORT: Final = re.compile(r"sort [a-z]+:\d+ (True|False)")

BOUNDED: Final = frozenset({"tanh", "logistic", "erf", "sign"})
"""Finite at the infinities."""

TOTAL: Final = frozenset(
    {"absolute", "add", "cbrt", "ceil", "concat", "cosine", "erf", "exponential", "floor", "indicator"}
    | {"logistic", "max", "maximum", "min", "minimum", "multiply", "prod", "real", "round_away"}
    | {"round_even", "select", "sign", "sine", "sum", "tanh"}
)
"""Functions of all reals, the masks and integers among their operands aside."""

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
        c.partial = _partial(store, c)
        if c.op == "max" and c.special == NEGATIVE_INFINITY and some_live(store, c, c.operands[0]):
            c.special = 0
        if c.op == "sum" and c.sign == NONNEGATIVE and _some_positive(store, c):
            c.sign = POSITIVE
    elif c.kind in ("int", "uint"):
        c.low, c.high = _bounds(store, c)


def _partial(store: Store, c: Class) -> bool:
    """Whether the class, or a real that it is made of, may be outside the domain of a function.

    The sum of what masks leave is not 0 where that was assumed and listed (`_outside_domain`).
    """
    if any(store.classes[t.cls].partial for t in c.operands):
        return True
    if c.op == "power":
        needed = POSITIVE if c.attrs[0] < 0 else NONNEGATIVE if c.attrs[0].denominator > 1 else UNKNOWN_SIGN
        (base,) = c.operands
        return store.sign(base) < needed and not (store.lenient and _weights(store, base))
    if c.op == "function":
        return c.attrs[0] != "atan2" and (c.attrs[0] != "log" or store.sign(c.operands[0]) < POSITIVE)
    return c.op not in TOTAL


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
    if _outside_domain(store, c):
        return ANYTHING
    if c.op == "opaque":
        picked = _picked(c)
        return ANYTHING if picked is None else store.special(picked)
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


def _outside_domain(store: Store, c: Class) -> bool:
    """Whether a quotient, root or logarithm may be one of 0 because everything is masked; a lenient store
    assumes and lists that it is not."""
    if not ((c.op == "power" and c.attrs[0] < 0) or (c.op == "function" and c.attrs[0] == "log")):
        return False
    if not _may_vanish(store, c.operands[0], VANISHING):
        return False
    if store.lenient:
        kind = "row_not_fully_masked" if _weights(store, c.operands[0]) else "nonzero_divisor"
        store.assume(kind, "no row is fully masked: a sum of what masks leave is not 0")
    return not store.lenient


def _may_vanish(store: Store, t: Term, depth: int) -> bool:
    """Whether masks may make the term 0: of a sum all addends, of a product one factor."""
    c = store.classes[t.cls]
    if depth == 0 or store.sign(t) == POSITIVE or not c.operands:
        return False
    if c.op == "exponential":
        return bool(store.special(c.operands[0]) & NEGATIVE_INFINITY)
    if c.op == "indicator":
        return True
    inner = [x for x in c.operands if store.kind(x) == "real"]
    if c.op == "select":
        return any(x.coef == 0 or _may_vanish(store, x, depth - 1) for x in inner)
    if c.op == "multiply" or (c.op == "power" and c.attrs[0] > 0):
        return any(_may_vanish(store, x, depth - 1) for x in inner)
    return c.op in SUMMING and all(_may_vanish(store, x, depth - 1) for x in inner)


def _weights(store: Store, t: Term) -> bool:
    """Whether the term is a sum of positive values, some of which a mask makes 0."""
    if store.classes[t.cls].op != "sum":
        return False
    (x,) = store.classes[t.cls].operands
    if store.classes[x.cls].op == "exponential":
        return x.coef > 0
    cases = store.classes[x.cls].operands[1:] if store.classes[x.cls].op == "select" else ()
    return bool(cases) and x.coef > 0 and all(y.coef == 0 or store.sign(y) == POSITIVE for y in cases)


def _some_positive(store: Store, c: Class) -> bool:
    """Whether a sum of exponentials of masked values has a term that is not 0 everywhere."""
    t = c.operands[0]
    inner = store.classes[t.cls]
    if inner.op != "exponential" or t.coef <= 0 or c.special:
        return False
    (x,), _ = store.expand(t)
    return store.special(x) == NEGATIVE_INFINITY and some_live(store, c, x)


def some_live(store: Store, c: Class, t: Term) -> bool:
    """Whether each row of a reduction has a value that is not masked to minus infinity.

    Proved where the mask is a constant; a lenient store assumes and lists it where it is not.
    """
    if store.classes[t.cls].op == "add" and t.coef > 0:
        masked = [x for x in store.expand(t)[0] if store.special(x)]
        return len(masked) == 1 and some_live(store, c, masked[0])
    if store.classes[t.cls].op != "select" or t.coef <= 0:
        return False
    from shardproof.passes import logic

    p, a, b = store.expand(t)[0]
    if _masked(store, a):
        p, a, b = logic.negate(store, p), b, a
    if store.special(a) or not _masked(store, b):
        return False
    parts = store.expand(p)[0] if store.classes[p.cls].op == "and" else [p]
    closed = [q for q in parts if store.classes[q.cls].closed]
    if not _rows_live(store, c, closed):
        return False
    if len(closed) < len(parts):
        if store.lenient:
            text = "no row is fully masked: of values that may be minus infinity the largest is finite"
            store.assume("row_not_fully_masked", text)
        return store.lenient
    return True


def _masked(store: Store, t: Term) -> bool:
    return store.classes[t.cls].op == "literal" and store.special(t) == NEGATIVE_INFINITY


def _rows_live(store: Store, c: Class, parts: Sequence[Term]) -> bool:
    """Whether constant conditions hold together somewhere in each row."""
    from shardproof.passes.evaluate import Evaluation, EvaluationError

    if all(p.cls in (store.STEP, store.MATCH) for p in parts) and any(
        all(_holds(store, p, by) for p in parts) for p in parts for by in _places(store, c, p.access[0])
    ):
        return True
    read = sorted(set().union(*(store.term_indices(p) for p in parts)))
    order = [*(i for i in read if i not in c.bound), *(i for i in read if i in c.bound)]
    shape = [store.sizes[i] for i in order]
    if prod(shape) > MASK_LIMIT:
        return False
    axes = {
        i: np.arange(n).reshape([-1 if k == d else 1 for k in range(len(shape))])
        for d, (i, n) in enumerate(zip(order, shape, strict=True))
    }
    evaluation = Evaluation(store, {})
    values = np.ones(shape, np.bool_)
    try:
        for p in parts:
            values = values & evaluation.term(p, axes)
    except EvaluationError:
        return False
    bound = tuple(d for d, i in enumerate(order) if i in c.bound)
    return bool(values.any(axis=bound).all())


def _places(store: Store, c: Class, e: Expr) -> Iterator[dict[int, Expr]]:
    """Positions of the bound indices of a reduction: where the affine `e` is largest, where it is 0."""
    strides = dict(e[1])
    corner = {i: constant(store.sizes[i] - 1 if strides.get(i, 0) > 0 else 0) for i in c.bound}
    yield corner
    for i in c.bound:
        s = strides.get(i, 0)
        if abs(s) == 1:
            others = {j: at for j, at in corner.items() if j != i}
            zero = store.substitute(scale(store.add(e, scale(index(i), -s)), -s), others)
            if store.within(zero, 0, store.sizes[i]):
                yield {**others, i: zero}


def _holds(store: Store, p: Term, by: dict[int, Expr]) -> bool:
    """Whether a comparison holds at a position, whatever the indices are that it does not give."""
    low, high = store.range(store.substitute(p.access[0], by))
    return low is not None and low >= 0 and (p.cls == store.STEP or (low, high) == (0, 0))


def _extremum_special(store: Store, c: Class, flags: int) -> int:
    away = NEGATIVE_INFINITY if c.op == "maximum" else POSITIVE_INFINITY
    if any(store.special(t) == 0 for t in c.operands):
        return flags & ~away
    return flags


def _sign(store: Store, c: Class) -> int:
    signs = [store.sign(t) for t in c.operands if store.kind(t) == "real"]
    low = min(signs, default=UNKNOWN_SIGN)
    if c.op in ("exponential", "logistic"):
        finite = all(store.special(t) & (NEGATIVE_INFINITY | NOT_A_NUMBER) == 0 for t in c.operands)
        return POSITIVE if finite else NONNEGATIVE
    if c.op == "absolute":
        return POSITIVE if low == POSITIVE else NONNEGATIVE
    if c.op in ("sum", "max", "min", "prod", "select", "concat", "square_root"):
        return low
    if c.op == "opaque":
        picked = _picked(c)
        return UNKNOWN_SIGN if picked is None else store.sign(picked)
    if c.op == "power":
        if low == POSITIVE and c.attrs[0] < 0 and store.special(c.operands[0]):
            return NONNEGATIVE
        return low if low == POSITIVE else UNKNOWN_SIGN
    if c.op == "indicator":
        return NONNEGATIVE
    if c.op == "function" and c.attrs[0] == "atan2" and c.special == 0:
        return POSITIVE if store.sign(c.operands[0]) == POSITIVE else UNKNOWN_SIGN
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
    if c.op == "select":
        return _chosen_bounds(store, c.operands)
    if c.op == "opaque":
        return _position_bounds(c)
    ranges = [store.range(store.expression(t)) for t in c.operands if store.kind(t) in ("int", "uint")]
    lows = [a for a, _ in ranges]
    highs = [b for _, b in ranges]
    known_low = None if any(a is None for a in lows) else [a for a in lows if a is not None]
    known_high = None if any(b is None for b in highs) else [b for b in highs if b is not None]
    if c.op in ("min", "max", "concat"):
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


def _picked(c: Class) -> Term | None:
    """What an opaque function gives elements of: the largest ones, or all in order; None for others."""
    name, result = c.attrs[:2]
    if _TOP_K.fullmatch(name):
        return c.operands[0] if result == 0 else None
    return c.operands[result] if _SORT.fullmatch(name) else None


def _position_bounds(c: Class) -> tuple[int | None, int | None]:
    """The bounds of the positions that an extreme, or one of the largest elements, is found at."""
    name, result, _, operands = c.attrs
    if name in ("argmax", "argmin") or (_TOP_K.fullmatch(name) and result == 1):
        (_, (extent,)) = operands[0]
        return 0, extent - 1
    return None, None


def _chosen_bounds(store: Store, operands: Sequence[Term]) -> tuple[int | None, int | None]:
    """The bounds of both cases of a selection, each as its condition limits it."""
    p, *cases = operands
    found = []
    for case, holds in zip(cases, (True, False), strict=True):
        e = store.expression(case)
        low, high = store.range(e)
        for f in _floors(store, p, holds):
            above, below = store.add(e, scale(f, -1)), store.add(e, f)
            if not above[1]:
                low = above[0] if low is None else max(low, above[0])
            if not below[1]:
                high = below[0] if high is None else min(high, below[0])
        found.append((low, high))
    (a, b), (c, d) = found
    return (None if a is None or c is None else min(a, c), None if b is None or d is None else max(b, d))


def _floors(store: Store, p: Term, holds: bool) -> list[Expr]:
    """Expressions that are at least 0 where `p` holds, or where it does not."""
    if p.cls == store.STEP:
        return [p.access[0] if holds else shift(scale(p.access[0], -1), -1)]
    if not holds or store.classes[p.cls].op != "and":
        return []
    return [q.access[0] for q in store.expand(p)[0] if q.cls == store.STEP]
