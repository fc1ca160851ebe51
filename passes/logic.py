"""Booleans and exact integers on terms.

Integers are expressions, so `+`, `-` and multiplication by constants need no class of their own, and
comparisons are steps and matches of one expression. Arithmetic that may leave its type is a listed
assumption for signed integers and an operator modulo 2**n for unsigned ones (soundness A1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from math import gcd

from shardproof.ir.types import DType
from shardproof.passes.access import Element, Expr, constant, scale, shift
from shardproof.passes.arithmetic import pointwise
from shardproof.passes.canonical import node
from shardproof.passes.classes import Store, Term
from shardproof.passes.pieces import Rebuild, read
from shardproof.passes.selection import select


def negate(store: Store, p: Term) -> Term:
    """`not p`."""
    if p.cls == store.TRUE:
        return store.truth(False)
    if p.cls == store.FALSE:
        return store.truth(True)
    if p.cls == store.STEP:
        return step(store, shift(scale(p.access[0], -1), -1))
    if store.classes[p.cls].op == "not":
        return store.expand(p)[0][0]
    return node(store, "not", (), "bool", [p], rebuild=Rebuild(lambda ts, _: negate(store, ts[0])))


def conjunction(store: Store, operands: Sequence[Term]) -> Term:
    """All of the operands."""
    seen: dict[Term, None] = {}
    for t in operands:
        inner = [t]
        if store.classes[t.cls].op == "and":
            inner = [read(store, x) for x in store.expand(t)[0]]
        for x in inner:
            if x.cls == store.FALSE:
                return x
            if x.cls != store.TRUE:
                seen[x] = None
    terms = _decided(store, list(seen))
    if terms is None:
        return store.truth(False)
    plain = [t for t in terms if t.cls == store.STEP or store.classes[t.cls].op == "not"]
    if any(negate(store, t) in terms for t in plain):
        return store.truth(False)
    if not terms:
        return store.truth(True)
    if len(terms) == 1:
        return terms[0]
    return node(
        store,
        "and",
        (),
        "bool",
        terms,
        commutative=True,
        rebuild=Rebuild(lambda ts, _: conjunction(store, ts)),
    )


def _decided(store: Store, terms: list[Term]) -> list[Term] | None:
    """The terms, where integers are compared with positions: what is equal to a position without limits that
    other comparisons imply, and without comparisons that the equality implies; None where it excludes one."""
    matches = [t for t in terms if t.cls == store.MATCH and any(u < 0 for u, _ in t.access[0][1])]
    steps = [t for t in terms if t.cls == store.STEP]
    if not matches or not steps:
        return terms
    from shardproof.passes.given import given

    simpler = {t: given(store, t, steps) for t in matches}
    simpler |= {t: given(store, t, list(simpler.values())) for t in steps}
    if any(t.cls == store.FALSE for t in simpler.values()):
        return None
    kept = {t: simpler.get(t, t) for t in terms}
    return [new if t in matches else t for t, new in kept.items() if new.cls != store.TRUE]


def disjunction(store: Store, operands: Sequence[Term]) -> Term:
    """Any of the operands."""
    return negate(store, conjunction(store, [negate(store, t) for t in operands]))


def exclusive(store: Store, a: Term, b: Term) -> Term:
    """Whether exactly one holds."""
    for x, y in ((a, b), (b, a)):
        if x.cls == store.TRUE:
            return negate(store, y)
        if x.cls == store.FALSE:
            return y
    return pointwise(store, "xor", (), "bool", [a, b], commutative=True)


def step(store: Store, e: Expr) -> Term:
    """`e >= 0`."""
    low, high = store.range(e)
    if low is not None and low >= 0:
        return store.truth(True)
    if high is not None and high < 0:
        return store.truth(False)
    g = fold(gcd, (s for _, s in e[1]), 0)
    if g > 1:
        e = (e[0] // g, tuple((t, s // g) for t, s in e[1]))
    return Term(1, store.STEP, (e,))


def match(store: Store, e: Expr) -> Term:
    """`e == 0`."""
    low, high = store.range(e)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return store.truth(False)
    if not e[1]:
        return store.truth(e[0] == 0)
    g = fold(gcd, (s for _, s in e[1]), 0)
    if e[0] % g:
        return store.truth(False)
    lead = max(e[1], key=lambda x: (abs(x[1]), store.sizes[x[0]] if x[0] > 0 else 0, -x[0]))
    if lead[1] < 0:
        g = -g
    return Term(1, store.MATCH, ((e[0] // g, tuple((t, s // g) for t, s in e[1])),))


def within(store: Store, e: Expr, n: int) -> list[Term]:
    """`0 <= e < n` as the parts of a conjunction."""
    if n == 1:
        return [match(store, e)]
    return [step(store, e), step(store, shift(scale(e, -1), n - 1))]


def compare_integers(store: Store, direction: str, a: Expr, b: Expr) -> Term:
    """The comparison of two exact integers."""
    difference = store.add(a, scale(b, -1))
    if direction == "GE":
        return step(store, difference)
    if direction == "GT":
        return step(store, shift(difference, -1))
    if direction == "LE":
        return step(store, scale(difference, -1))
    if direction == "LT":
        return step(store, shift(scale(difference, -1), -1))
    equal = match(store, difference)
    return equal if direction == "EQ" else negate(store, equal)


def wrapped(store: Store, e: Expr, dtype: DType) -> Expr:
    """`e` computed in `dtype`: itself where it provably fits.

    Signed overflow is assumed away and listed, unsigned arithmetic is modulo 2**bits.
    """
    bits, signed = dtype.bits, dtype.kind == "int"
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    if store.within(e, low, high):
        return e
    if signed:
        store.assume("no_overflow", f"no {dtype.value} addition or multiplication overflows")
        return e
    return modular(store, e, dtype)


def modular(store: Store, e: Expr, dtype: DType) -> Expr:
    """`e` reduced to the range of `dtype` modulo 2**bits."""
    bits, signed = dtype.bits, dtype.kind == "int"
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    if store.within(e, low, high):
        return e
    wrapped = pointwise(store, "modular", (bits, signed), "int", [Term(1, store.POSITION, (e,))])
    return store.expression(wrapped)


def real_of(store: Store, e: Expr) -> Term:
    """The integer as a real number."""
    if not e[1]:
        return store.real(e[0])
    g = fold(gcd, (s for _, s in e[1]), abs(e[0]))
    lead = max(e[1], key=lambda x: (abs(x[1]), x[0]))
    if lead[1] < 0:
        g = -g
    return Term(g, store.REAL, ((e[0] // g, tuple((t, s // g) for t, s in e[1])),))


def largest(store: Store, a: Expr, b: Expr) -> Expr:
    """`max(a, b)`, one of them where it is provably the larger."""
    low, high = store.range(store.add(a, scale(b, -1)))
    if low is not None and low >= 0:
        return a
    if high is not None and high <= 0:
        return b
    terms = [Term(1, store.POSITION, (x,)) for x in (a, b)]
    return store.expression(_extremum(store, "maximum", terms))


def smallest(store: Store, a: Expr, b: Expr) -> Expr:
    """`min(a, b)`, one of them where it is provably the smaller."""
    low, high = store.range(store.add(a, scale(b, -1)))
    if low is not None and low >= 0:
        return b
    if high is not None and high <= 0:
        return a
    terms = [Term(1, store.POSITION, (x,)) for x in (a, b)]
    return store.expression(_extremum(store, "minimum", terms))


def _extremum(store: Store, op: str, terms: list[Term]) -> Term:
    return pointwise(store, op, (), "int", terms, commutative=True)


def clamp(store: Store, e: Expr, low: int, high: int) -> Expr:
    """`e` limited to `low..high`."""
    wish(store, e, low, high)
    return smallest(store, largest(store, e, constant(low)), constant(high))


def wish(store: Store, e: Expr, low: int, high: int) -> None:
    """Note that `e`, or what it takes a limit of, had better be in `low..high`."""
    for inner in _limited(store, e, low, high):
        store.wish(inner, low, high)


def _limited(store: Store, e: Expr, low: int, high: int) -> list[Expr]:
    """`e`, what it selects from to stay within `low..high`, or what it takes these limits of in an addend, as
    a position that wraps around does."""
    if len(e[1]) < 2:
        return _cases(store, e) if store.within(e, low, high + 1) else [e]
    found = []
    for t, _ in e[1]:
        atom = store.atom(t) if t < 0 else None
        if not isinstance(atom, Element) or store.classes[atom.cls].op != "minimum":
            continue
        parts = _operands(store, atom)
        if constant(high) not in parts:
            continue
        for part in parts:
            inner = store.atom(part[1][0][0]) if len(part[1]) == 1 and part[1][0][0] < 0 else None
            if isinstance(inner, Element) and store.classes[inner.cls].op == "maximum":
                others = _operands(store, inner)
                if constant(low) in others:
                    found += [y for x in others if x != constant(low) for y in _cases(store, x)]
    return found


def _cases(store: Store, e: Expr) -> list[Expr]:
    """`e`, or what it selects from."""
    atom = store.atom(e[1][0][0]) if len(e[1]) == 1 and e[1][0][0] < 0 and not e[0] else None
    if not isinstance(atom, Element) or store.classes[atom.cls].op != "select":
        return [e]
    return [store.expression(x) for x in store.expand(Term(1, atom.cls, atom.access))[0][1:]]


def _operands(store: Store, atom: Element) -> list[Expr]:
    return [store.expression(x) for x in store.expand(Term(1, atom.cls, atom.access))[0]]


def times(store: Store, a: Expr, b: Expr) -> Expr:
    """`a * b`, a class of its own unless one is constant."""
    if not a[1]:
        return scale(b, a[0])
    if not b[1]:
        return scale(a, b[0])
    for x, y in ((a, b), (b, a)) if store.algebra else ():
        held = _truth(store, x)
        if held is not None:
            stride, p = held
            chosen = select(store, p, store.integer(scale(y, stride)), store.integer(constant(0)))
            return store.expression(chosen)
    terms = [Term(1, store.POSITION, (x,)) for x in (a, b)]
    return store.expression(pointwise(store, "multiply", (), "int", terms, commutative=True))


def _truth(store: Store, e: Expr) -> tuple[int, Term] | None:
    """The factor and the condition of an expression that is a multiple of a truth value as 0 or 1."""
    if e[0] or len(e[1]) != 1 or e[1][0][0] > 0:
        return None
    atom = store.atom(e[1][0][0])
    if not isinstance(atom, Element) or store.classes[atom.cls].op != "truth":
        return None
    return e[1][0][1], read(store, store.expand(Term(1, atom.cls, atom.access))[0][0])


def quotient(store: Store, a: Expr, b: Expr) -> Expr:
    """Division truncated toward zero (HLO: by zero gives -1)."""
    low, high = store.range(a)
    if not b[1] and b[0] > 0 and low is not None and low >= 0 and high is not None:
        return store.digit(a, b[0], high // b[0] + 1)
    if not b[1] and b[0] == 1:
        return a
    terms = [Term(1, store.POSITION, (x,)) for x in (a, b)]
    return store.expression(pointwise(store, "divide", ("truncate",), "int", terms))


def remainder(store: Store, a: Expr, b: Expr) -> Expr:
    """The remainder with the sign of the dividend."""
    low, _ = store.range(a)
    if not b[1] and b[0] > 0 and low is not None and low >= 0:
        return store.digit(a, 1, b[0])
    terms = [Term(1, store.POSITION, (x,)) for x in (a, b)]
    return store.expression(pointwise(store, "remainder", ("truncate",), "int", terms))
