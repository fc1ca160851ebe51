"""Proofs of lemmas for all extents, by Z3.

`prove` says that the negation of a lemma is unsatisfiable: for all extents of at least 1, all
functions that the conditions allow and all choices of the values that the functions leave open. The
two sides are brought to a normal form (`check_z3_normal`), denominators are cleared, and what remains
is given to Z3 with instances of the laws of the symbols that occur in it. A search that ends early
proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product
from typing import Final

import z3

from shardproof.lemmas.check_z3_encode import (
    EXP,
    INVERSE,
    RSQRT,
    SQRT,
    Binder,
    Encoder,
    Expr,
    Unencodable,
    compare,
    subterms,
)
from shardproof.lemmas.check_z3_normal import Normal, Polynomial, add, scaled
from shardproof.lemmas.terms import Fact, Lemma, Relation, Variable

STEPS: Final = 400_000
"""Z3's own unit of work per question, so that answers do not depend on the machine."""
FINAL_STEPS: Final = 4_000_000
ROUNDS: Final = 3
"""How often facts about the terms of facts are added."""
QUESTIONS: Final = 1000
"""Questions per lemma after which none is answered."""
OCCURRENCES: Final = 40
"""Binders in one question at which it is given up."""


def prove(lemma: Lemma, seconds: float = 10.0) -> bool:
    """Whether Z3 proves the lemma, with so many seconds per question. False means nothing."""
    try:
        return Prover(lemma, seconds).prove()
    except (Unencodable, z3.Z3Exception, RecursionError):
        return False


class Prover:
    """The questions about one lemma; answers are kept."""

    def __init__(self, lemma: Lemma, seconds: float = 10.0) -> None:
        self.lemma = lemma
        self.milliseconds = max(1, int(1000 * seconds))
        self.encoder = Encoder(lemma)
        self.normal = Normal(self.encoder, self)
        self.left = self.encoder.term(lemma.left)
        self.right = self.encoder.term(lemma.right)
        self.relations = [
            compare(c.direction, self.encoder.term(c.left), self.encoder.term(c.right))
            for c in lemma.conditions
            if isinstance(c, Relation)
        ]
        self.distinct = [c for c in lemma.conditions if isinstance(c, Fact) and c.kind == "distinct"]
        self._answers: dict[int, bool] = {}
        self._asked: list[Expr] = []
        self._open: set[int] = set()
        self._questions = 0

    def prove(self) -> bool:
        left, right = self.left, self.right
        if not z3.is_bool(left) and left.sort() != right.sort():
            left, right = (
                z3.ToReal(left) if z3.is_int(left) else left,
                (z3.ToReal(right) if z3.is_int(right) else right),
            )
        if z3.is_int(left):
            left, right = z3.ToReal(left), z3.ToReal(right)
        if z3.is_bool(left):
            return self._valid(self.normal.tidy(left) == self.normal.tidy(right), FINAL_STEPS)
        difference = add(self.normal.normal(left), scaled(self.normal.normal(right), -1))
        difference = self._cleared(difference)
        return self._valid(self.normal.rebuilt(difference) == 0, FINAL_STEPS)

    def _cleared(self, p: Polynomial) -> Polynomial:
        """The polynomial times nonzero factors, without inverses of nonzero terms."""
        for _ in range(12):
            number = next(
                (n for m in p for n, e in m if e < 0 or self._inverse_of_nonzero(self.normal.atoms[n])),
                None,
            )
            if number is None:
                break
            atom = self.normal.atoms[number]
            exponents = [dict(m).get(number, 0) for m in p]
            if atom.decl().eq(INVERSE) and max(exponents) > 0:
                base, top, sign = self.normal.normal(atom.arg(0)), max(exponents), 1
            else:
                base, top, sign = {((number, 1),): Fraction(1)}, max(-e for e in exponents), -1
            parts = []
            for monomial, c in p.items():
                rest = tuple(f for f in monomial if f[0] != number)
                count = top - sign * dict(monomial).get(number, 0)
                parts.append(self.normal.multiply({rest: c}, *([base] * count)))
            p = add(*parts)
        return p

    def _inverse_of_nonzero(self, atom: Expr) -> bool:
        return bool(atom.decl().eq(INVERSE)) and self.holds(z3.Not(atom.arg(0) == 0))

    def holds(self, condition: Expr) -> bool:
        """Whether a condition is proved for all positions in range of the constants in it."""
        key = condition.get_id()
        if key not in self._answers:
            if key in self._open:
                return False
            self._open.add(key)
            self._asked.append(condition)
            self._answers[key] = self._valid(condition, STEPS)
            self._open.discard(key)
        return self._answers[key]

    def _valid(self, goal: Expr, steps: int) -> bool:
        self._questions += 1
        if self._questions > QUESTIONS:
            return False
        simple = z3.simplify(goal)
        if z3.is_true(simple):
            goal = simple
        solver = z3.Solver()
        solver.set("rlimit", steps)
        solver.set("timeout", self.milliseconds)
        formulas = [z3.Not(goal), *(n >= 1 for n in self.encoder.sizes.values())]
        known = {f.get_id() for f in formulas}
        for _ in range(ROUNDS):
            new = [f for f in self._facts(formulas) if f.get_id() not in known]
            if not new:
                break
            for f in new:
                if f.get_id() not in known:
                    known.add(f.get_id())
                    formulas.append(f)
        solver.add(*formulas)
        return bool(solver.check() == z3.unsat)

    def _facts(self, formulas: Sequence[Expr]) -> list[Expr]:
        """What is true of the terms in some formulas, for positions in range."""
        terms = sorted(subterms(*formulas), key=lambda t: t.get_id())
        facts: list[Expr] = []
        applications = []
        for term in terms:
            index = self.encoder.index_of.get(term.get_id())
            if index is not None:
                facts.append(self.encoder.in_range(term, index))
            elif z3.is_app_of(term, z3.Z3_OP_UNINTERPRETED):
                facts += _law(term)
                if term.decl().name() in self.encoder.binders:
                    applications.append(term)
            elif z3.is_app_of(term, z3.Z3_OP_MOD):
                value, size = term.children()
                facts.append(z3.Implies(size >= 1, term == value - size * (value / size)))
            elif z3.is_app_of(term, z3.Z3_OP_IDIV):
                facts += self._division(term, terms)
        facts += self._instances(terms)
        if len(applications) <= OCCURRENCES:
            for application in applications:
                facts += self._binder_facts(application, terms)
            for a, b in combinations(applications, 2):
                if self._same(a, b):
                    facts.append(a == b)
        return facts

    def _division(self, term: Expr, terms: Sequence[Expr]) -> Iterator[Expr]:
        """Euclid's division, and that blocks before and after the quotient's do not hold the dividend."""
        value, size = term.children()
        rest = value - size * term
        yield z3.Implies(size >= 1, z3.And(rest >= 0, rest < size))
        for c in terms:
            if c.get_id() in self.encoder.index_of:
                yield z3.Implies(z3.And(size >= 1, c < term), c * size + size <= term * size)
                yield z3.Implies(z3.And(size >= 1, c > term), c * size >= term * size + size)

    def _instances(self, terms: Sequence[Expr]) -> list[Expr]:
        """The conditions at the arguments at which their functions occur."""
        facts: list[Expr] = []
        names = {f.name(): f for f in self.encoder.variables.values()}
        used = [t for t in terms if z3.is_app_of(t, z3.Z3_OP_UNINTERPRETED) and t.decl().name() in names]
        for condition in self.relations:
            facts.append(self._at(condition, []))
            for inside in subterms(condition):
                if not (z3.is_app(inside) and inside.decl().name() in names and inside.children()):
                    continue
                for use in used:
                    if use.decl().eq(inside.decl()) and not use.eq(inside):
                        pairs = list(zip(inside.children(), use.children(), strict=True))
                        facts.append(self._at(condition, pairs))
        for fact in self.distinct:
            if isinstance(fact.term, Variable):
                facts += self._apart(fact, [u for u in used if u.decl().name() == fact.term.name])
        return facts

    def _at(self, condition: Expr, pairs: list[tuple[Expr, Expr]]) -> Expr:
        """A condition where constants stand at other positions, if those are in range."""
        guards = [self.encoder.in_range(new, self.encoder.index_of[old.get_id()]) for old, new in pairs]
        there = z3.substitute(condition, *pairs) if pairs else condition
        return z3.Implies(z3.And(*guards), self.normal.tidy(there))

    def _apart(self, fact: Fact, uses: Sequence[Expr]) -> Iterator[Expr]:
        assert isinstance(fact.term, Variable)
        reads = self.lemma.reads(fact.term.name)
        for a, b in combinations(uses, 2):
            same, guards = [], []
            for index, x, y in zip(reads, a.children(), b.children(), strict=True):
                same.append(x == y)
                guards += [self.encoder.in_range(x, index), self.encoder.in_range(y, index)]
                if index not in fact.indices:
                    guards.append(x == y)
            yield z3.Implies(z3.And(a == b, *guards), z3.And(*same))

    def _binder_facts(self, application: Expr, terms: Sequence[Expr]) -> Iterator[Expr]:
        binder = self.encoder.binders[application.decl().name()]
        if binder.kind == "sum":
            yield from self._sum_facts(application, binder)
        elif binder.kind in ("max", "min", "and", "or"):
            yield from self._extremum_facts(application, binder, terms)

    def _sum_facts(self, application: Expr, binder: Binder) -> Iterator[Expr]:
        body = self._body(application, binder)
        for holds, fact in (
            (body > 0, application > 0),
            (body >= 0, application >= 0),
            (body < 0, application < 0),
            (body == 0, application == 0),
        ):
            if self.holds(holds):
                yield fact
                break

    def _body(self, application: Expr, binder: Binder) -> Expr:
        """The body at constants of its own."""
        name = application.decl().name()
        at = [self.encoder.constant(f"{i}*{n}{name}", i) for n, i in enumerate(binder.indices)]
        return self.normal.tidy(self.encoder.unfold(application, at))

    def _extremum_facts(self, application: Expr, binder: Binder, terms: Sequence[Expr]) -> Iterator[Expr]:
        """The value is attained at some position, and no other goes beyond it."""
        arguments = application.children()
        name = application.decl().name()
        witness = []
        for n, index in enumerate(binder.indices):
            symbol = z3.Function(f"witness {name} {n}", *(a.sort() for a in arguments), z3.IntSort())
            place = symbol(*arguments) if arguments else z3.Int(f"witness {name} {n}")
            witness.append(place)
            yield self.encoder.in_range(place, index)
        yield self.normal.tidy(self.encoder.unfold(application, witness)) == application
        places = [t for t in terms if z3.is_int(t) and self._place(t)]
        for candidate in list(product(*[places] * len(binder.indices)))[:30]:
            inside = [self.encoder.in_range(c, i) for c, i in zip(candidate, binder.indices, strict=True)]
            value = self.normal.tidy(self.encoder.unfold(application, candidate))
            beyond = _BEYOND[binder.kind](application, value)
            yield z3.Implies(z3.And(*inside), beyond)

    def _place(self, term: Expr) -> bool:
        return term.get_id() in self.encoder.index_of or term.decl().name().startswith("witness ")

    def _same(self, a: Expr, b: Expr) -> bool:
        """Whether two binders are proved to have equal values at their arguments."""
        one = self.encoder.binders[a.decl().name()]
        two = self.encoder.binders[b.decl().name()]
        if one.kind != two.kind or a.sort() != b.sort() or a.eq(b):
            return False
        extra_a, extra_b = a.children()[len(one.parameters) :], b.children()[len(two.parameters) :]
        if any(not x.eq(y) for x, y in zip(extra_a, extra_b, strict=True)):
            return False
        sizes = self.encoder.sizes
        at = [self.encoder.constant(f"{i}~{n}", i) for n, i in enumerate(two.indices)]
        if len(one.indices) == len(two.indices):
            equal = [sizes[i] == sizes[j] for i, j in zip(one.indices, two.indices, strict=True) if i != j]
            places = at
        elif len(one.indices) == 1 and len(two.indices) == 2 and one.kind == "sum":
            return self._same(b, a)
        elif len(one.indices) == 2 and len(two.indices) == 1 and one.kind == "sum":
            return any(self._blocks(a, b, one, at[0], order) for order in (one.indices, one.indices[::-1]))
        else:
            return False
        if equal and not self.holds(z3.And(*equal)):
            return False
        x, y = self.encoder.unfold(a, places), self.encoder.unfold(b, at)
        return self.holds(self.normal.tidy(x) == self.normal.tidy(y))

    def _blocks(self, a: Expr, b: Expr, one: Binder, at: Expr, order: tuple[str, ...]) -> bool:
        """Whether a sum over blocks and positions within them is the sum over all positions."""
        sizes = self.encoder.sizes
        outer, inner = order
        whole = self.encoder.index_of[at.get_id()]
        if outer == inner or not self.holds(sizes[whole] == sizes[outer] * sizes[inner]):
            return False
        digit = {outer: at / sizes[inner], inner: at % sizes[inner]}
        x = self.encoder.unfold(a, [digit[i] for i in one.indices])
        y = self.encoder.unfold(b, [at])
        return self.holds(self.normal.tidy(x) == self.normal.tidy(y))


_BEYOND: Final[dict[str, Callable[[Expr, Expr], Expr]]] = {
    "max": lambda whole, value: value <= whole,
    "min": lambda whole, value: whole <= value,
    "and": z3.Implies,
    "or": lambda whole, value: z3.Implies(value, whole),
}
"""How the value of a binder stands to its body at each position."""


def _law(term: Expr) -> Iterator[Expr]:
    """The law of a function symbol at its argument."""
    symbol = term.decl()
    if symbol.eq(EXP):
        yield term > 0
        yield z3.Implies(term.arg(0) == 0, term == 1)
    elif symbol.eq(INVERSE):
        yield z3.Or(term.arg(0) == 0, term.arg(0) * term == 1)
    elif symbol.eq(SQRT):
        yield z3.Or(term.arg(0) < 0, z3.And(term * term == term.arg(0), term >= 0))
    elif symbol.eq(RSQRT):
        yield z3.Or(term.arg(0) <= 0, z3.And(term * term * term.arg(0) == 1, term > 0))
