"""Normal forms of real Z3 terms: sums of products of atoms, with what finite sums, exp and log allow.

Each step is an identity of total real functions: sums and products of reals, linearity of finite
sums, factors that do not read a bound index, `exp(a + b) = exp(a)*exp(b)`, `log` of positive factors,
inverses and roots of factors known to be nonzero or not negative, a function of `where` as a `where`
of functions. What a step needs (a sign) is asked of Z3 through `Signs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import isqrt
from typing import Final, Protocol

import z3

from shardproof.lemmas.check_z3_encode import (
    EXP,
    INVERSE,
    LOG,
    POWER,
    RSQRT,
    SQRT,
    Encoder,
    Expr,
    Unencodable,
    rational,
    subterms,
)

Monomial = tuple[tuple[int, int], ...]
"""(atom number, exponent) in ascending order of atoms."""
Polynomial = dict[Monomial, Fraction]

ONE: Final[Monomial] = ()
LARGEST: Final = 400
"""Monomials at which the normal form is given up."""
CASES: Final = 3
"""Conditions of `where` over which a function is expanded."""


class Signs(Protocol):
    """What is known of real terms; each answer True is a proof."""

    def holds(self, condition: Expr) -> bool: ...


def constant(x: Fraction | int) -> Polynomial:
    return {ONE: Fraction(x)} if x else {}


def add(*terms: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for term in terms:
        for monomial, coefficient in term.items():
            total = result.get(monomial, Fraction(0)) + coefficient
            if total:
                result[monomial] = total
            else:
                result.pop(monomial, None)
    return result


def scaled(p: Polynomial, c: Fraction | int) -> Polynomial:
    return {m: x * c for m, x in p.items()} if c else {}


class Normal:
    """The normal forms of the terms of one lemma."""

    def __init__(self, encoder: Encoder, signs: Signs) -> None:
        self.encoder = encoder
        self.signs = signs
        self.atoms: list[Expr] = []
        self.nonzero: list[bool] = []
        self._numbers: dict[int, int] = {}
        self._known: dict[int, Polynomial] = {}
        self._kept: list[Expr] = []
        self._fresh = 0

    def atom(self, term: Expr, *, nonzero: bool = False) -> Polynomial:
        """The term as one factor; `nonzero` says that it never is 0, so its powers may be negative."""
        number = self._numbers.get(term.get_id())
        if number is None:
            number = self._numbers[term.get_id()] = len(self.atoms)
            self.atoms.append(term)
            self.nonzero.append(nonzero)
        return {((number, 1),): Fraction(1)}

    def rebuilt(self, p: Polynomial) -> Expr:
        """A polynomial as a Z3 term."""
        terms = []
        for monomial, coefficient in p.items():
            factors = [rational(coefficient)] if coefficient != 1 or not monomial else []
            for number, exponent in monomial:
                base = self.atoms[number] if exponent > 0 else INVERSE(self.atoms[number])
                factors += [base] * abs(exponent)
            terms.append(factors[0] if len(factors) == 1 else z3.Product(factors))
        return rational(Fraction(0)) if not terms else terms[0] if len(terms) == 1 else z3.Sum(terms)

    def multiply(self, *factors: Polynomial) -> Polynomial:
        result = constant(1)
        for factor in factors:
            if len(result) * len(factor) > LARGEST:
                raise Unencodable("a product of too many terms")
            result = add(*(dict(self._times(a, b)) for a, b in _pairs(result, factor)))
        return result

    def _times(
        self, a: tuple[Monomial, Fraction], b: tuple[Monomial, Fraction]
    ) -> Iterator[tuple[Monomial, Fraction]]:
        exponents = dict(a[0])
        rest: Polynomial | None = None
        for number, exponent in b[0]:
            total = exponents.get(number, 0) + exponent
            term = self.atoms[number]
            if _indicator(term):
                total = min(total, 1)
            elif _is(term, SQRT) and abs(total) >= 2 and self._at_least_zero(term.arg(0)):
                square = self.normal(term.arg(0))
                power = square if total > 0 else self.inverse(square)
                rest = power if rest is None else self.multiply(rest, power)
                total -= 2 if total > 0 else -2
            exponents[number] = total
        monomial = tuple(sorted((n, e) for n, e in exponents.items() if e))
        product = {monomial: a[1] * b[1]}
        yield from (self.multiply(product, rest) if rest is not None else product).items()

    def power(self, p: Polynomial, exponent: int) -> Polynomial:
        base = p if exponent >= 0 else self.inverse(p)
        return self.multiply(*([base] * abs(exponent)))

    def normal(self, term: Expr) -> Polynomial:
        """The normal form of a real term."""
        known = self._known.get(term.get_id())
        if known is None:
            known = self._known[term.get_id()] = self._normal(term)
            self._kept.append(term)
        return known

    def tidy(self, term: Expr) -> Expr:
        """The term with every largest real part in normal form."""
        if z3.is_real(term):
            return self.rebuilt(self.normal(term))
        children = term.children()
        if not children:
            return term
        if z3.is_int(term):
            return term
        if z3.is_eq(term) and z3.is_real(children[0]):
            return self.rebuilt(add(self.normal(children[0]), scaled(self.normal(children[1]), -1))) == 0
        parts = [self.tidy(c) for c in children]
        if z3.is_and(term) or z3.is_or(term):
            return (z3.And if z3.is_and(term) else z3.Or)(*parts)
        return term.decl()(*parts)

    def _normal(self, term: Expr) -> Polynomial:
        children = term.children()
        if z3.is_rational_value(term):
            return constant(Fraction(term.numerator_as_long(), term.denominator_as_long()))
        kind = term.decl().kind()
        if kind == z3.Z3_OP_ADD:
            return add(*map(self.normal, children))
        if kind == z3.Z3_OP_SUB:
            return add(self.normal(children[0]), *(scaled(self.normal(c), -1) for c in children[1:]))
        if kind == z3.Z3_OP_UMINUS:
            return scaled(self.normal(children[0]), -1)
        if kind == z3.Z3_OP_MUL:
            return self.multiply(*map(self.normal, children))
        if kind == z3.Z3_OP_TO_REAL:
            return self._integer(z3.simplify(children[0], som=True))
        if kind == z3.Z3_OP_ITE:
            case = self.indicator(children[0])
            other = add(constant(1), scaled(case, -1))
            yes = self.multiply(case, self.normal(children[1])) if case else {}
            no = self.multiply(other, self.normal(children[2])) if other else {}
            return add(yes, no)
        if kind != z3.Z3_OP_UNINTERPRETED:
            raise Unencodable(f"the Z3 operator {term.decl().name()}")
        return self._applied(term, children)

    def _applied(self, term: Expr, children: list[Expr]) -> Polynomial:
        binder = self.encoder.binders.get(term.decl().name())
        if binder is not None and binder.kind == "sum":
            return self._sum(term, binder.indices)
        if _is(term, EXP):
            return self._by_cases(self.normal(children[0]), self._exp)
        if _is(term, INVERSE):
            return self._by_cases(self.normal(children[0]), self.inverse)
        if _is(term, LOG):
            return self._by_cases(self.normal(children[0]), self._log)
        if _is(term, SQRT):
            return self._by_cases(self.normal(children[0]), self._sqrt)
        if _is(term, RSQRT):
            return self._by_cases(self.normal(children[0]), self._rsqrt)
        if _is(term, POWER):
            return self.atom(POWER(*(self.rebuilt(self.normal(c)) for c in children)))
        if children and z3.is_real(children[0]) and len(children) == 1 and binder is None:
            symbol = term.decl()
            return self._by_cases(self.normal(children[0]), lambda p: self.atom(symbol(self.rebuilt(p))))
        arguments = [self.tidy(c) if not z3.is_int(c) else z3.simplify(c, som=True) for c in children]
        return self.atom(term.decl()(*arguments) if arguments else term)

    def _integer(self, term: Expr) -> Polynomial:
        """An integer term as a real polynomial."""
        children = term.children()
        if z3.is_int_value(term):
            return constant(term.as_long())
        kind = term.decl().kind()
        if kind == z3.Z3_OP_ADD:
            return add(*map(self._integer, children))
        if kind == z3.Z3_OP_MUL:
            return self.multiply(*map(self._integer, children))
        if kind == z3.Z3_OP_UMINUS:
            return scaled(self._integer(children[0]), -1)
        if kind == z3.Z3_OP_SUB:
            return add(self._integer(children[0]), *(scaled(self._integer(c), -1) for c in children[1:]))
        if kind == z3.Z3_OP_ITE:
            return self.normal(z3.If(children[0], z3.ToReal(children[1]), z3.ToReal(children[2])))
        if kind == z3.Z3_OP_TO_INT and self._sum_of_integers(children[0]):
            return self.normal(children[0])
        size = any(term.eq(n) for n in self.encoder.sizes.values())
        return self.atom(z3.ToReal(term), nonzero=size)

    def _sum_of_integers(self, term: Expr) -> bool:
        """Whether a real term is a sum of integer values over indices."""
        binder = self.encoder.binders.get(term.decl().name())
        return binder is not None and binder.kind == "sum" and z3.is_app_of(binder.body, z3.Z3_OP_TO_REAL)

    def indicator(self, p: Expr) -> Polynomial:
        """1 where a condition holds and 0 elsewhere."""
        children = p.children()
        if z3.is_true(p):
            return constant(1)
        if z3.is_false(p):
            return {}
        if z3.is_not(p):
            return add(constant(1), scaled(self.indicator(children[0]), -1))
        if z3.is_and(p):
            return self.multiply(*map(self.indicator, children))
        if z3.is_or(p):
            none = self.multiply(*(add(constant(1), scaled(self.indicator(c), -1)) for c in children))
            return add(constant(1), scaled(none, -1))
        if self.signs.holds(p):
            return constant(1)
        if self.signs.holds(z3.Not(p)):
            return {}
        kind = p.decl().kind()
        if kind == z3.Z3_OP_LE:
            return add(constant(1), scaled(self._choice(children[1] < children[0]), -1))
        if kind == z3.Z3_OP_GE:
            return add(constant(1), scaled(self._choice(children[0] < children[1]), -1))
        if kind == z3.Z3_OP_GT:
            return self._choice(children[1] < children[0])
        return self._choice(p)

    def _choice(self, p: Expr) -> Polynomial:
        return self.atom(z3.If(self.tidy(p), rational(Fraction(1)), rational(Fraction(0))))

    def _by_cases(self, p: Polynomial, function: object) -> Polynomial:
        """A function of a polynomial, expanded over the conditions that occur in it."""
        assert callable(function)
        found = sorted({n for m in p for n, _ in m if _indicator(self.atoms[n])})
        if not found or len(found) > CASES:
            result: Polynomial = function(p)
            return result
        case = found[0]
        yes = add(*({tuple(f for f in m if f[0] != case): c} for m, c in p.items()))
        no = {m: c for m, c in p.items() if all(n != case for n, _ in m)}
        chosen: Polynomial = {((case, 1),): Fraction(1)}
        other = add(constant(1), scaled(chosen, -1))
        return add(
            self.multiply(chosen, self._by_cases(yes, function)),
            self.multiply(other, self._by_cases(no, function)),
        )

    def _positive(self, term: Expr) -> bool:
        return self.signs.holds(term > 0)

    def _at_least_zero(self, term: Expr) -> bool:
        return self.signs.holds(term >= 0)

    def _nonzero_monomial(self, m: Monomial) -> bool:
        return all(self._known_nonzero(n) for n, _ in m)

    def _known_nonzero(self, number: int) -> bool:
        if not self.nonzero[number]:
            self.nonzero[number] = self.signs.holds(z3.Not(self.atoms[number] == 0))
        return self.nonzero[number]

    def _exp(self, p: Polynomial) -> Polynomial:
        result = constant(1)
        for monomial, coefficient in p.items():
            factor = self._exp_of(monomial, coefficient)
            result = self.multiply(result, factor)
        return result

    def _exp_of(self, monomial: Monomial, c: Fraction) -> Polynomial:
        if len(monomial) == 1 and monomial[0][1] == 1 and c.denominator == 1:
            base = self.atoms[monomial[0][0]]
            if _is(base, LOG) and self._positive(base.arg(0)):
                return self.power(self.normal(base.arg(0)), int(c))
        part = {monomial: Fraction(1, c.denominator)}
        atom = self.atom(EXP(self.rebuilt(part)), nonzero=True)
        ((number, _),) = next(iter(atom))
        return {((number, int(c.numerator)),): Fraction(1)}

    def _split(self, p: Polynomial) -> tuple[Polynomial, Polynomial]:
        """A product (content, rest) whose content is a multiple of a product of nonzero atoms."""
        first = next(iter(p))
        common = {n: e for n, e in first if self._known_nonzero(n)}
        for monomial in p:
            exponents = dict(monomial)
            common = {n: min(e, exponents.get(n, 0)) for n, e in common.items()}
            for n, e in monomial:
                if e < 0 and n not in common:
                    common[n] = e
        lowest = {n: min(dict(m).get(n, 0) for m in p) for n in common}
        content = tuple(sorted((n, e) for n, e in lowest.items() if e))
        inverse = {tuple((n, -e) for n, e in content): Fraction(1)}
        rest = self.multiply(p, inverse)
        lead = rest[min(rest, key=self._order)]
        return {content: lead}, scaled(rest, 1 / lead)

    def _order(self, m: Monomial) -> tuple[int, Monomial]:
        return (sum(e for _, e in m), m)

    def inverse(self, p: Polynomial) -> Polynomial:
        """1/p; outside the factors known to be nonzero it stays an atom."""
        if p == constant(1):
            return p
        if len(p) == 1:
            ((monomial, c),) = p.items()
            if self._nonzero_monomial(monomial):
                return {tuple((n, -e) for n, e in monomial): 1 / c}
        whole = self.rebuilt(p)
        if p and self.signs.holds(z3.Not(whole == 0)):
            content, rest = self._split(p)
            ((monomial, c),) = content.items()
            outside: Polynomial = {tuple((n, -e) for n, e in monomial): 1 / c}
            if rest == constant(1):
                return outside
            return self.multiply(outside, self.atom(INVERSE(self.rebuilt(rest)), nonzero=True))
        return self.atom(INVERSE(whole))

    def _log(self, p: Polynomial) -> Polynomial:
        if p == constant(1):
            return {}
        whole = self.rebuilt(p)
        if not p or not self._positive(whole):
            return self.atom(LOG(whole))
        if len(p) > 1:
            content, rest = self._split(p)
            if content != constant(1) and self._positive(self.rebuilt(content)):
                return add(self._log(content), self._log(rest))
            return self.atom(LOG(whole))
        ((monomial, c),) = p.items()
        if len(monomial) > 1 or (monomial and c != 1):
            parts = [self.rebuilt({((n, 1),): Fraction(1)}) for n, _ in monomial]
            if c > 0 and all(map(self._positive, parts)):
                logs = [scaled(self._log({((n, 1),): Fraction(1)}), e) for n, e in monomial]
                return add(self._log(constant(c)), *logs)
            return self.atom(LOG(whole))
        if monomial:
            number, exponent = monomial[0]
            base = self.atoms[number]
            if exponent != 1 and self._positive(base):
                return scaled(self._log({((number, 1),): Fraction(1)}), exponent)
            if exponent == 1 and _is(base, EXP):
                return self.normal(base.arg(0))
            if exponent == 1 and _is(base, SQRT) and self._positive(base.arg(0)):
                return scaled(self._log(self.normal(base.arg(0))), Fraction(1, 2))
            if exponent == 1 and _is(base, INVERSE) and self._positive(base.arg(0)):
                return scaled(self._log(self.normal(base.arg(0))), -1)
        return self.atom(LOG(whole))

    def _sqrt(self, p: Polynomial) -> Polynomial:
        whole = self.rebuilt(p)
        if not p:
            return {}
        if not self._at_least_zero(whole):
            return self.atom(SQRT(whole))
        if len(p) == 1:
            ((monomial, c),) = p.items()
            factors = [self.atoms[n] for n, _ in monomial]
            if c > 0 and all(map(self._at_least_zero, factors)) and (len(monomial) != 1 or c != 1):
                parts = [self.power(self._sqrt({((n, 1),): Fraction(1)}), e) for n, e in monomial]
                return self.multiply(_root(c, self), *parts)
            if c == 1 and len(monomial) == 1 and monomial[0][1] != 1 and self._at_least_zero(factors[0]):
                return self.power(self._sqrt({((monomial[0][0], 1),): Fraction(1)}), monomial[0][1])
            return self.atom(SQRT(whole), nonzero=self._positive(whole))
        content, rest = self._split(p)
        if content != constant(1) and self._positive(self.rebuilt(content)):
            return self.multiply(self._sqrt(content), self._sqrt(rest))
        return self.atom(SQRT(whole), nonzero=self._positive(whole))

    def _rsqrt(self, p: Polynomial) -> Polynomial:
        whole = self.rebuilt(p)
        if p and self._positive(whole):
            return self.inverse(self._sqrt(p))
        return self.atom(RSQRT(whole))

    def _sum(self, term: Expr, indices: tuple[str, ...]) -> Polynomial:
        """A sum, split by linearity; factors that read no bound index stand outside."""
        bound = []
        for index in indices:
            self._fresh += 1
            bound.append(self.encoder.constant(f"{index}'{self._fresh}", index))
        body = self.normal(self.encoder.unfold(term, bound))
        return self._summed(body, list(zip(bound, indices, strict=True)))

    def _summed(self, body: Polynomial, bound: list[tuple[Expr, str]]) -> Polynomial:
        """The sum of a polynomial over the bound constants."""
        groups: dict[Monomial, Polynomial] = {}
        for monomial, coefficient in body.items():
            plain = tuple(f for f in monomial if not _indicator(self.atoms[f[0]]))
            groups.setdefault(plain, {})[monomial] = coefficient
        result: Polynomial = {}
        for plain, group in groups.items():
            single = None if list(group) == [plain] else self._at_one_place(group, bound)
            if single is None:
                parts = [scaled(self._summed_product(m, bound), c) for m, c in group.items()]
                single = add(*parts)
            result = add(result, single)
        return result

    def _at_one_place(self, p: Polynomial, bound: list[tuple[Expr, str]]) -> Polynomial | None:
        """The sum of a polynomial that is 0 but where a bound constant has one position."""
        body = self.rebuilt(p)
        for b, index in bound:
            for place in self._places(b, index, body):
                if self.signs.holds(z3.Or(b == place, body == 0)):
                    there = self.normal(z3.substitute(body, (b, place)))
                    rest = [pair for pair in bound if not pair[0].eq(b)]
                    inside = self.indicator(self.encoder.in_range(place, index))
                    return self.multiply(inside, self._summed(there, rest))
        return None

    def _summed_product(self, monomial: Monomial, bound: list[tuple[Expr, str]]) -> Polynomial:
        ids = {b.get_id() for b, _ in bound}
        reads = {n: {c.get_id() for c in self.encoder.free(self.atoms[n])} & ids for n, _ in monomial}
        outside = tuple((n, e) for n, e in monomial if not reads[n])
        parts: list[Polynomial] = [{outside: Fraction(1)}]
        left = [f for f in monomial if reads[f[0]]]
        unread = [(b, i) for b, i in bound if all(b.get_id() not in r for r in reads.values())]
        parts += [self.atom(z3.ToReal(self.encoder.sizes[i]), nonzero=True) for _, i in unread]
        while left:
            group, shared = [left[0]], set(reads[left[0][0]])
            grown = True
            while grown:
                more = [f for f in left if f not in group and reads[f[0]] & shared]
                grown = bool(more)
                group += more
                shared = shared.union(*(reads[f[0]] for f in more))
            left = [f for f in left if f not in group]
            parts.append(self._component(sorted(group), [(b, i) for b, i in bound if b.get_id() in shared]))
        return self.multiply(*parts)

    def _component(self, group: list[tuple[int, int]], bound: list[tuple[Expr, str]]) -> Polynomial:
        """The sum of a connected product as one atom; an inner sum joins its bound indices."""
        for number, exponent in group:
            binder = self.encoder.binders.get(self.atoms[number].decl().name())
            if exponent == 1 and binder is not None and binder.kind == "sum":
                inner = []
                for index in binder.indices:
                    self._fresh += 1
                    inner.append((self.encoder.constant(f"{index}'{self._fresh}", index), index))
                body = self.normal(self.encoder.unfold(self.atoms[number], [b for b, _ in inner]))
                rest = tuple(f for f in group if f[0] != number)
                return self._summed(self.multiply({rest: Fraction(1)}, body), [*bound, *inner])
        product: Polynomial = {tuple(group): Fraction(1)}
        counts: dict[str, int] = {}
        names, pairs, canonical = [], [], []
        for b, index in sorted(bound, key=lambda pair: (pair[1], str(pair[0]))):
            counts[index] = counts.get(index, 0) + 1
            name = self.encoder.constant(f"{index}#{counts[index]}", index)
            names.append(index)
            canonical.append(name)
            pairs.append((b, name))
        body = z3.substitute(self.rebuilt(product), *pairs)
        return self.atom(self.encoder.binder("sum", names, canonical, body))

    def _places(self, b: Expr, index: str, body: Expr) -> list[Expr]:
        """Positions, not reading the bound constant, at which alone a body might not be 0."""
        found: list[Expr] = []
        values, sizes = [], []
        for t in sorted(subterms(body), key=str):
            sides = t.children()
            if z3.is_eq(t) and z3.is_int(sides[0]):
                gap = sides[0] - sides[1]
                found += [z3.simplify(b - gap, som=True), z3.simplify(b + gap, som=True)]
            elif z3.is_mul(t) and z3.is_int(t) and any(x.eq(b) for x in subterms(t)):
                sizes += [n for n in sides if any(n.eq(s) for s in self.encoder.sizes.values())]
            elif self.encoder.index_of.get(t.get_id()) == index:
                found.append(t)
            elif z3.is_int(t) and z3.is_app_of(t, z3.Z3_OP_UNINTERPRETED) and self._value(t):
                values.append(t)
        found += [v / n for v in values for n in sizes]
        free = [t for t in found if not any(x.eq(b) for x in subterms(t))]
        return list({t.get_id(): t for t in free}.values())[:6]

    def _value(self, t: Expr) -> bool:
        """Whether an integer term is the value of a metavariable."""
        return t.decl().name() in self.encoder.variables


def _pairs(
    a: Mapping[Monomial, Fraction], b: Mapping[Monomial, Fraction]
) -> Iterator[tuple[tuple[Monomial, Fraction], tuple[Monomial, Fraction]]]:
    for x in a.items():
        for y in b.items():
            yield x, y


def _is(term: Expr, symbol: object) -> bool:
    return bool(z3.is_app(term) and term.decl().eq(symbol))


def _indicator(term: Expr) -> bool:
    return bool(z3.is_app_of(term, z3.Z3_OP_ITE))


def _root(c: Fraction, normal: Normal) -> Polynomial:
    top, bottom = isqrt(c.numerator), isqrt(c.denominator)
    if top * top == c.numerator and bottom * bottom == c.denominator:
        return constant(Fraction(top, bottom))
    return normal.atom(SQRT(rational(c)), nonzero=True)
