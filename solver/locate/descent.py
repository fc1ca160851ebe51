"""Where two terms differ: equal operators around different operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import islice, permutations
from typing import Any, Final

import numpy as np

from shardproof.passes.access import index
from shardproof.passes.arithmetic import scaled
from shardproof.passes.classes import Store, Term
from shardproof.passes.evaluate import EvaluationError
from shardproof.passes.pieces import read
from shardproof.passes.sampling import POINTS, RELATIVE, Sampling, TooLarge
from shardproof.solver.certificates.install import JOINED

Agree = Callable[[Term, Term], bool]

DEEPEST: Final = 60
"""Most operators of one descent."""
PAIRS: Final = 6
"""Most pairs of terms that agree at random points."""
INSIDE: Final = 200
"""Most terms inside one that are looked at."""
TINY: Final = 1e-9
"""A smaller value says nothing of a factor."""
ORDERS: Final = 24
"""Most ways in which the bound indices of two reductions are paired."""


def levels(store: Store, a: Term, b: Term) -> list[tuple[Term, Term]]:
    """Pairs of terms of which one may make the other's equal: inner ones first, `a` and `b` last."""
    chain = [(a, b)]
    while len(chain) < DEEPEST:
        inner = inside(store, *chain[-1])
        if inner is None:
            break
        chain.append(inner)
    last = len(chain) - 1
    around = [chain[n] for n in (last, last - 1, last - 2, last - 4, last - 8, 0) if n >= 0]
    return list(dict.fromkeys((*twins(store, a, b), *around)))


def twins(store: Store, a: Term, b: Term) -> list[tuple[Term, Term]]:
    """Terms inside `a` and inside `b`, but not in both, that agree at random points up to a factor.

    What both have is taken as random functions. The smallest pairs come first; terms under a binder are
    left out.
    """
    common = frozenset(below(store, a.cls) & below(store, b.cls))
    free = sorted(store.term_indices(a) | store.term_indices(b))
    draw = np.random.default_rng(0)
    at = {i: draw.integers(0, store.sizes[i], POINTS) for i in free}
    values = Sampling(store, common, 0, positive=True)
    found = []
    left, right = (_valued(store, t, common, set(free), values, at) for t in (a, b))
    for s, x in left:
        for t, y in right:
            ratio = _ratio(x, y) if store.kind(s) == store.kind(t) else None
            if ratio is not None and (s.cls, s.access) != (t.cls, t.access):
                found.append((s, scaled(t, ratio)))
                break
        if len(found) == PAIRS:
            break
    return found


def _valued(
    store: Store, t: Term, common: frozenset[int], free: set[int], values: Sampling, at: dict[int, Any]
) -> list[tuple[Term, Any]]:
    """The real terms inside a term that are not common to both, with their values, those made first first."""
    terms: dict[Term, None] = {}
    stack = [t]
    while stack and len(terms) < INSIDE:
        x = read(store, stack.pop())
        x = Term(1, x.cls, x.access)
        c = store.classes[x.cls]
        if x in terms or x.cls in common or c.kind != "real" or not store.term_indices(x) <= free:
            continue
        terms[x] = None
        if not c.bound and c.operands and c.op not in ("concat", "opaque"):
            stack += store.expand(x)[0]
    found = []
    for x in sorted(terms, key=lambda t: t.cls):
        try:
            with np.errstate(all="ignore"):
                found.append((x, np.broadcast_to(values.term(x, at, 1), (POINTS,))))
        except (TooLarge, EvaluationError, RecursionError, OverflowError):
            continue
    return found


def _ratio(x: Any, y: Any) -> Fraction | None:
    """A simple factor with which one is the other everywhere."""
    if not all(np.isfinite(v).all() and (abs(v) > TINY).all() for v in (x, y)):
        return None
    ratio = Fraction(float(x[0] / y[0])).limit_denominator(64)
    close = ratio and abs(x - float(ratio) * y).max() <= RELATIVE * abs(x).max()
    return ratio if close else None


def below(store: Store, cls: int) -> set[int]:
    """The class and every class inside it."""
    seen: set[int] = set()
    stack = [cls]
    while stack:
        c = stack.pop()
        if c not in seen:
            seen.add(c)
            stack += [t.cls for t in store.classes[c].operands]
    return seen


def inside(store: Store, a: Term, b: Term, *, agree: Agree | None = None) -> tuple[Term, Term] | None:
    """Two terms whose equality makes these equal, below the operator that both have.

    With `agree`, which says whether two terms may be equal, what is left of sums and products is joined;
    without it no class is made, and of several differences the first one is given.
    """
    a, b = read(store, a), read(store, b)
    c, d = store.classes[a.cls], store.classes[b.cls]
    if (c.op, c.attrs, len(c.bound)) != (d.op, d.attrs, len(d.bound)) or not c.operands:
        return None
    if a.coef != b.coef:
        if c.op not in ("multiply", "sum"):
            return None
        inner = inside(store, Term(1, a.cls, a.access), Term(1, b.cls, b.access), agree=agree)
        return inner and (scaled(inner[0], a.coef), scaled(inner[1], b.coef))
    if c.kind not in ("real", "bool") or c.groups or d.groups:
        return None
    x, own = store.expand(a)
    y, other = store.expand(b)
    if own:
        return _bodies(store, (x[0], y[0]), own, other, agree)
    if c.op in JOINED:
        rest = [t for t in x if t not in y], [t for t in y if t not in x]
        if not rest[0] or not rest[1]:
            return None
        if agree is None:
            return _paired(store, *rest)
        if (len(rest[0]), len(rest[1])) == (len(x), len(y)):
            return None
        joined = JOINED[c.op]
        return joined(store, rest[0]), joined(store, rest[1])
    differing = [(s, t) for s, t in zip(x, y, strict=False) if s != t]
    if len(x) != len(y) or not differing or (agree and len(differing) > 1):
        return None
    return differing[0] if store.kind(differing[0][0]) in ("real", "bool") else None


def _paired(store: Store, x: Sequence[Term], y: Sequence[Term]) -> tuple[Term, Term] | None:
    """The first two operands that may have to be equal: the last ones, or the only ones of an operator."""
    if len(x) == len(y) == 1:
        return x[0], y[0]

    def operators(terms: Sequence[Term]) -> list[str]:
        return [store.classes[t.cls].op for t in terms]

    own, other = operators(x), operators(y)
    for op, t in zip(own, x, strict=True):
        if own.count(op) == other.count(op) == 1:
            return t, y[other.index(op)]
    return None


def _bodies(
    store: Store, body: tuple[Term, Term], own: Sequence[int], other: Sequence[int], agree: Agree | None
) -> tuple[Term, Term] | None:
    """The bodies of two reductions over indices of the same extents; those that agree, if any do."""
    if sorted(store.sizes[i] for i in own) != sorted(store.sizes[i] for i in other):
        return None
    x, y = body
    first = None
    for order in islice(permutations(other), ORDERS):
        if [store.sizes[i] for i in order] != [store.sizes[i] for i in own]:
            continue
        by = {j: index(i) for i, j in zip(own, order, strict=True)}
        pair = x, store.substitute_term(y, by)
        first = first or pair
        if agree is None or len(own) == 1 or agree(*pair):
            return pair
    return first
