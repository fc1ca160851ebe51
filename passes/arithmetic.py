"""Real arithmetic on terms: linear form, products, powers, extrema, pointwise functions.

Rules N4, A1, A2, A4 of the soundness text: coefficients pass +, -, sum, product and mean; 0*X and X-X
vanish only when X is finite; a quotient cancels only when the divisor is provably nonzero, or, in a
lenient store, under a listed assumption.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt
from typing import Any, Final

from shardproof.ir.types import Kind
from shardproof.passes.access import Expr
from shardproof.passes.canonical import node
from shardproof.passes.classes import NEGATIVE_INFINITY, NONNEGATIVE, POSITIVE, Coefficient, Store, Term
from shardproof.passes.pieces import Rebuild, read

FACTORS: Final = 64
"""Most factors of one product; repeated squaring nests beyond it."""
SMALL_PRIMES: Final = 1000
"""Repeated prime factors below this leave a square root."""


def scaled(t: Term, by: Coefficient, *, inverse: bool = False) -> Term:
    """`by * t`, or `t / by`."""
    if by == 1:
        return t
    if t.coef == 1 and not inverse:
        return Term(simplest(by), t.cls, t.access)
    return Term(simplest(Fraction(t.coef) / by if inverse else t.coef * by), t.cls, t.access)


def magnitude(by: Coefficient) -> Coefficient:
    """The absolute value."""
    return by if by >= 0 else -by


def simplest(c: Coefficient) -> Coefficient:
    """An integral fraction as an int."""
    return c.numerator if isinstance(c, Fraction) and c.denominator == 1 else c


def pointwise(
    store: Store,
    op: str,
    attrs: tuple[Any, ...],
    kind: Kind,
    operands: Sequence[Term],
    *,
    commutative: bool = False,
) -> Term:
    """An elementwise operator about which nothing more is known."""
    return node(
        store,
        op,
        attrs,
        kind,
        operands,
        commutative=commutative,
        rebuild=Rebuild(lambda ts, _: pointwise(store, op, attrs, kind, ts, commutative=commutative)),
    )


def add(store: Store, operands: Sequence[Term]) -> Term:
    """The sum of real terms in linear form."""
    total: dict[tuple[int, tuple[Expr, ...], int], Coefficient] = {}
    for t in operands:
        inner = addends_of(store, t)
        if store.algebra:
            inner = [y for x in inner for y in _positive(store, x)]
        for x in inner:
            side = 0
            if store.special(x):
                if not store.lenient:
                    side = 1 if x.coef > 0 else -1
                elif total.get((x.cls, x.access, 0), 0) * x.coef < 0:
                    text = "a difference of equal values that may be infinite is finite"
                    store.assume("finite_value", text)
            key = (x.cls, x.access, side)
            before = total.get(key)
            total[key] = x.coef if before is None else simplest(before + x.coef)
    terms = [Term(coef, cls, access) for (cls, access, _), coef in total.items() if coef]
    if not terms:
        return store.real(0)
    if len(terms) == 1:
        return terms[0]
    if store.algebra:
        opposite = _opposite(store, terms)
        if opposite is not None:
            return opposite
        simpler = _gathered(store, terms)
        if simpler is not None:
            return simpler
    elif store.reading:
        shared, rest = _shared_factors(store, terms, constants=True)
        if shared:
            return multiply(store, [*shared, add(store, rest)])
    return node(
        store,
        "add",
        (),
        "real",
        terms,
        commutative=True,
        scaled=True,
        rebuild=Rebuild(lambda ts, _: add(store, ts)),
    )


def _positive(store: Store, t: Term) -> list[Term]:
    """An addend; the indicator of what does not hold is 1 less that of what does."""
    if store.classes[t.cls].op == "indicator":
        (p,), _ = store.expand(t)
        if store.classes[p.cls].op == "not":
            from shardproof.passes.selection import indicator

            (q,), _ = store.expand(p)
            return [store.real(t.coef), scaled(indicator(store, read(store, q)), -t.coef)]
    return [t]


def _opposite(store: Store, terms: Sequence[Term]) -> Term | None:
    """`c - c*[p]` as `c*[not p]`."""
    if len(terms) != 2:
        return None
    one, other = terms if terms[0].cls == store.ONE else (terms[1], terms[0])
    if one.cls != store.ONE or other.coef != -one.coef:
        return None
    masks = factors_of(store, other)
    if any(store.classes[f.cls].op != "indicator" for f in masks):
        return None
    from shardproof.passes.logic import conjunction, negate
    from shardproof.passes.selection import indicator

    held = conjunction(store, [read(store, store.expand(f)[0][0]) for f in masks])
    return scaled(indicator(store, negate(store, held)), one.coef)


def _gathered(store: Store, terms: Sequence[Term]) -> Term | None:
    """The sum with the factors that all addends share outside, or with sums over parts as one sum."""
    from shardproof.passes.rolling import roll

    shared, rest = _shared_factors(store, terms)
    if shared:
        return multiply(store, [*shared, add(store, rest)])
    rolled = roll(store, terms, "sum")
    return None if rolled is None else add(store, rolled)


def _shared_factors(
    store: Store, terms: Sequence[Term], *, constants: bool = False
) -> tuple[list[Term], list[Term]]:
    """The finite factors that every addend has, each as often as all have it, and the addends without.

    With `constants` only roots of numbers, which are coefficients but for their form.
    """
    if constants and store.classes[terms[0].cls].op not in ("multiply", "power"):
        return [], []
    products = [factors_of(store, t) for t in terms]
    shared: list[Term] = []
    for f in tuple(products[0]):
        if constants and not (store.classes[f.cls].closed and not store.classes[f.cls].extents):
            continue
        if all(f in fs for fs in products) and not store.special(f):
            shared.append(f)
            for fs in products:
                fs.remove(f)
    if not shared:
        return [], []
    return shared, [multiply(store, [store.real(t.coef), *fs]) for t, fs in zip(terms, products, strict=True)]


def addends_of(store: Store, t: Term) -> list[Term]:
    """The addends of a term."""
    if store.classes[t.cls].op != "add":
        return [t] if t.coef else []
    return [scaled(read(store, x), t.coef) for x in store.expand(t)[0]]


def factors_of(store: Store, t: Term) -> list[Term]:
    """The factors of the term's class; the coefficient is left out."""
    if t.cls == store.ONE:
        return []
    if store.classes[t.cls].op == "multiply":
        return [read(store, x) for x in store.expand(t)[0]]
    return [Term(1, t.cls, t.access)]


def exponential(store: Store, t: Term) -> Term:
    """`exp(t)`; where the algebra is wanted, `exp(c*x)` is `exp(x)**c`, and of a sum times factors that are
    finite it is the product of the exponentials."""
    if t.coef == 0:
        return store.real(1)
    if store.algebra and store.classes[t.cls].op == "multiply":
        factors = factors_of(store, t)
        sums = [f for f in factors if store.classes[f.cls].op == "add"]
        rest = list(factors)
        if sums:
            rest.remove(sums[0])
        if sums and not any(store.special(f) for f in rest):
            addends = [read(store, x) for x in store.expand(sums[0])[0]]
            outside = [store.real(t.coef * sums[0].coef), *rest]
            return multiply(store, [exponential(store, multiply(store, [*outside, x])) for x in addends])
    if store.algebra and t.coef != 1 and not store.special(t) and t.cls != store.ONE:
        return power(store, exponential(store, Term(1, t.cls, t.access)), Fraction(t.coef))
    return pointwise(store, "exponential", (), "real", [t])


def multiply(store: Store, operands: Sequence[Term]) -> Term:
    """The product of real terms."""
    coef: Coefficient = 1
    factors: list[Term] = []
    for t in operands:
        coef *= t.coef
        if t.cls == store.ONE:
            continue
        inner = store.classes[t.cls]
        if inner.op == "multiply" and len(inner.operands) + len(factors) <= FACTORS:
            for x in store.expand(t)[0]:
                x = read(store, x)
                coef *= x.coef
                if x.cls != store.ONE:
                    factors.append(Term(1, x.cls, x.access))
        else:
            factors.append(Term(1, t.cls, t.access))
    coef = simplest(coef)
    if coef == 0:
        if not any(store.special(t) for t in factors):
            return store.real(0)
        factors.append(Term(1, store.leaf("literal", ("0.0",), "real", (), closed=True), ()))
        coef = 1
    for n, t in enumerate(factors):
        if store.classes[t.cls].op == "indicator" and not store.algebra:
            rest = factors[:n] + factors[n + 1 :]
            if any(store.special(x) for x in rest):
                break
            from shardproof.passes.selection import select

            (p,), _ = store.expand(t)
            return select(store, p, multiply(store, [store.real(coef), *rest]), store.real(0))
    if store.algebra:
        factors = _distinct_indicators(store, factors)
        if any(store.classes[t.cls].op == "indicator" for t in factors):
            from shardproof.passes.given import under_masks

            simpler = under_masks(store, factors)
            if simpler is not None:
                return multiply(store, [store.real(coef), *simpler])
    factors, coef = _cancel(store, factors, coef)
    if not factors:
        return store.real(coef)
    if len(factors) == 1:
        return scaled(factors[0], coef)
    made = node(
        store,
        "multiply",
        (),
        "real",
        factors,
        commutative=True,
        rebuild=Rebuild(lambda ts, _: multiply(store, ts)),
    )
    return scaled(made, coef)


def _distinct_indicators(store: Store, factors: list[Term]) -> list[Term]:
    """Each indicator once: its square is itself."""
    seen: set[Term] = set()
    kept = []
    for t in factors:
        if store.classes[t.cls].op == "indicator":
            if t in seen:
                continue
            seen.add(t)
        kept.append(t)
    return kept


def _cancel(store: Store, factors: list[Term], coef: Coefficient) -> tuple[list[Term], Coefficient]:
    """Powers of one base, whatever its scale, are joined where the base allows it."""
    powers: dict[Term, list[Fraction]] = {}
    scales: dict[Term, Coefficient] = {}
    for t in factors:
        base, exponent = t, Fraction(1)
        if store.classes[t.cls].op == "power":
            (base,), _ = store.expand(t)
            exponent = store.classes[t.cls].attrs[0]
        if exponent.denominator > 1:
            scales.setdefault(Term(1, base.cls, base.access), base.coef)
        powers.setdefault(base, []).append(exponent)
    if len(powers) == len(factors) and all(base not in scales or scales[base] == 1 for base in powers):
        return factors, coef
    for base, scale in scales.items():
        whole_powers = [e for e in powers.get(base, ()) if e.denominator == 1]
        if scale != 1 and whole_powers and _may_join(store, base, [Fraction(1, 2)], False):
            roots = [e for e in powers.pop(base) if e.denominator > 1]
            if roots:
                powers[base] = roots
            powers[Term(scale, base.cls, base.access)] += whole_powers
            coef = coef / Fraction(scale) ** int(sum(whole_powers))
    out: list[Term] = []
    for base, exponents in powers.items():
        whole = all(e.denominator == 1 for e in exponents)
        same = len(exponents) == 1 or all(e == 1 for e in exponents)
        if same or not _may_join(store, base, exponents, whole):
            for e in exponents:
                out.append(power(store, base, e))
            continue
        exponent = sum(exponents, Fraction(0))
        if exponent > 0 and exponent.denominator == 1:
            out += [base] * int(exponent)
        elif exponent:
            out.append(power(store, base, exponent))
    for n, t in enumerate(out):
        coef *= t.coef
        out[n] = Term(1, t.cls, t.access)
    return [t for t in out if t.cls != store.ONE], simplest(coef)


def _may_join(store: Store, base: Term, exponents: Sequence[Fraction], whole: bool) -> bool:
    if store.special(base):
        return False
    if store.sign(base) == POSITIVE or (whole and store.nonzero(base)):
        return True
    if store.sign(base) == NONNEGATIVE and all(e > 0 for e in exponents):
        return True
    if store.lenient and whole and not store.classes[base.cls].closed:
        store.assume("nonzero_divisor", f"a divisor that is cancelled is never 0 ({describe(store, base)})")
        return True
    return False


def power(store: Store, t: Term, exponent: Fraction) -> Term:
    """`t ** exponent`; outside its domain a power is a fixed unknown value."""
    if exponent == 0:
        return store.real(1)
    if exponent == 1:
        return t
    whole = exponent.denominator == 1
    if whole and 0 < exponent <= 8:
        return multiply(store, [t] * int(exponent))
    coef: Coefficient = 1
    if t.coef == 0:
        return pointwise(store, "power", (exponent,), "real", [t])
    if whole:
        coef = simplest(Fraction(t.coef) ** int(exponent))
        t = Term(1, t.cls, t.access)
    elif exponent.denominator == 2 and t.coef > 0:
        outside, inside = rational_root(Fraction(t.coef))
        if inside == 1 or t.cls == store.ONE:
            coef = outside**exponent.numerator
            if exponent.numerator != 1 and inside != 1:
                coef *= Fraction(inside) ** ((exponent.numerator - 1) // 2)
                exponent = Fraction(1, 2)
            coef = simplest(coef)
            t = Term(inside, t.cls, t.access)
    if t.cls == store.ONE and t.coef == 1:
        return store.real(coef)
    c = store.classes[t.cls]
    if c.op == "power" and t.coef == 1:
        (base,), _ = store.expand(t)
        if store.sign(base) == POSITIVE:
            return scaled(power(store, base, c.attrs[0] * exponent), coef)
    if c.op == "multiply" and t.coef == 1:
        factors = [read(store, x) for x in store.expand(t)[0]]
        if all(store.sign(x) == POSITIVE for x in factors):
            return scaled(multiply(store, [power(store, x, exponent) for x in factors]), coef)
    made = node(
        store,
        "power",
        (exponent,),
        "real",
        [t],
        rebuild=Rebuild(lambda ts, _: power(store, ts[0], exponent)),
    )
    return scaled(made, coef)


def rational_root(x: Fraction) -> tuple[Fraction, int]:
    """(a, s) with `sqrt(x) == a * sqrt(s)`; s is an integer, 1 when the root is rational."""
    a, s = square_part(x.numerator * x.denominator)
    return Fraction(a, x.denominator), s


def square_part(n: int) -> tuple[int, int]:
    """(a, s) with n == a*a*s; s is square-free for numbers whose repeated primes are small."""
    a, s, p = 1, n, 2
    while p * p <= s and p < SMALL_PRIMES:
        while s % (p * p) == 0:
            s //= p * p
            a *= p
        p += 1
    root = isqrt(s)
    return (a * root, 1) if root * root == s else (a, s)


def divide(store: Store, a: Term, b: Term) -> Term:
    """`a / b`; division by the constant 0 stays an operator."""
    if b.cls == store.ONE and b.coef == 0:
        return pointwise(store, "divide", (), "real", [a, b])
    return multiply(store, [a, power(store, b, Fraction(-1))])


def maximum(store: Store, operands: Sequence[Term]) -> Term:
    """The largest of real terms; a common positive factor moves outside."""
    seen: dict[tuple[int, tuple[Expr, ...], Coefficient], Term] = {}
    best: Coefficient | None = None
    lowest: Term | None = None
    for t in operands:
        inner = [t]
        if store.classes[t.cls].op == "maximum" and t.coef > 0:
            inner = [scaled(read(store, x), t.coef) for x in store.expand(t)[0]]
        for x in inner:
            if x.cls == store.ONE:
                best = x.coef if best is None else max(best, x.coef)
            elif store.classes[x.cls].op == "literal" and store.special(x) == NEGATIVE_INFINITY:
                lowest = x
            else:
                seen[x.cls, x.access, x.coef] = x
    terms = list(seen.values())
    if best is not None:
        terms.append(store.real(best))
    if not terms and lowest is not None:
        return lowest
    if len(terms) == 1:
        return terms[0]
    if store.algebra:
        from shardproof.passes.rolling import roll

        rolled = roll(store, terms, "max")
        if rolled is not None:
            return maximum(store, rolled)
    first = min((t for t in terms if t.coef), key=lambda t: (t.cls or 1 << 60, abs(t.coef)), default=None)
    unit = magnitude(first.coef) if first is not None else 1
    made = node(
        store,
        "maximum",
        (),
        "real",
        [scaled(t, unit, inverse=True) for t in terms],
        commutative=True,
        rebuild=Rebuild(lambda ts, _: maximum(store, ts)),
    )
    return scaled(made, unit)


def minimum(store: Store, operands: Sequence[Term]) -> Term:
    """The smallest of real terms."""
    return scaled(maximum(store, [scaled(t, -1) for t in operands]), -1)


def absolute(store: Store, t: Term) -> Term:
    """The absolute value."""
    if store.sign(Term(1, t.cls, t.access)) >= NONNEGATIVE:
        return scaled(Term(1, t.cls, t.access), magnitude(t.coef))
    made = pointwise(store, "absolute", (), "real", [Term(1, t.cls, t.access)])
    return scaled(made, magnitude(t.coef))


def describe(store: Store, t: Term) -> str:
    """A short name for a term in messages: the operator and the inputs nearest to it."""
    c = store.classes[t.cls]
    if c.op in ("input", "draw"):
        return str(c.attrs[0])
    names = {describe(store, Term(1, x.cls, x.access)) for x in c.operands[:3]}
    inside = ", ".join(sorted(names))
    return f"{c.op}({inside})" if len(inside) < 60 else f"{c.op}(...)"
