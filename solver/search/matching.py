"""Matching patterns of lemmas against classes, modulo the normal form.

Sums, products and maxima are matched as multisets. Matching only proposes instances: `solver.rewriting`
rebuilds both sides of each one and compares, so a wrong proposal costs time, never soundness.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby, islice, permutations, product
from typing import Any, Final

from shardproof.passes.access import Expr, index, scale
from shardproof.passes.arithmetic import scaled, simplest
from shardproof.passes.classes import Coefficient, Store, Term
from shardproof.passes.logic import negate
from shardproof.passes.pieces import read
from shardproof.solver.certificates.install import JOINED
from shardproof.solver.search.pattern import Hole, Node, Pattern, Recipe, Shape, Whole

ORDERS: Final = 24


@dataclass(frozen=True, slots=True)
class State:
    """What is matched: metavariables as (pattern indices, recipe), pattern indices as digits."""

    holes: Mapping[str, tuple[tuple[int, ...], Recipe]] = field(default_factory=dict)
    at: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    bound: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Found:
    """A proposed instance: what each metavariable is, and the operands of the class that it leaves out."""

    state: State
    lead: Coefficient
    rest: tuple[Term, ...]


def _fits(p: Shape, heads: Collection[str]) -> bool:
    """Whether one of these operators may be the pattern's."""
    return p.op in heads or (p.op == "select" and "indicator" in heads)


class Matcher:
    """Matches of one pattern in the classes of a store."""

    def __init__(self, pattern: Pattern, store: Store) -> None:
        self.pattern = pattern
        self.store = store

    def at(self, operands: list[Term], bound: list[int], attrs: tuple[Any, ...]) -> Iterator[Found]:
        """Proposals for a class with these operands over its slots, whose operator is the pattern's head."""
        root = self.pattern.root
        if root.op not in JOINED:
            if root.attrs == attrs and len(root.operands) == len(operands):
                lead = 1 / Fraction(root.coef) if self._certain(root.coef) else 1
                for state in self._under(root, operands, bound, State()):
                    yield Found(state, lead, ())
            return
        leads: dict[Coefficient, None] = {}
        if root.op == "add":
            first = next((p for p in root.operands if isinstance(p, Shape)), root.operands[0])
            leads = dict.fromkeys(
                (1, *(simplest(Fraction(t.coef) / first.coef) for t in operands if first.coef and t.coef))
            )
        else:
            leads[simplest(1 / Fraction(root.coef)) if self._certain(root.coef) else 1] = None
        for lead in leads:
            subjects = [scaled(t, lead, inverse=True) for t in operands] if root.op == "add" else operands
            for state, rest in self._joined(root.op, root.operands, subjects, State(), partial=True):
                kept = [scaled(t, lead) for t in rest] if root.op == "add" else rest
                yield Found(state, lead, tuple(kept))

    def match(self, p: Node, t: Term, state: State) -> Iterator[State]:
        """The ways in which a term is an instance of a pattern."""
        if isinstance(p, Hole):
            yield from self._fill(p, ("", (t,)), state)
            return
        store = self.store
        c = store.classes[t.cls]
        if isinstance(p, Whole):
            yield from self._solve(p, t, state)
            return
        if c.op == "indicator" and p.op == "select" and p.coef:
            yield from self._chosen(p, t, state)
            return
        if c.op != p.op:
            return
        if not c.operands:
            if (*c.attrs, c.extents) == p.attrs and t.coef == p.coef:
                yield state
            return
        if c.attrs != p.attrs:
            return
        operands, bound = store.expand(t)
        operands = [read(store, x) for x in operands]
        if p.op == "add":
            operands = [scaled(x, t.coef) for x in operands]
        elif p.op == "multiply":
            yield from self._product(p, operands, t.coef, state)
            return
        elif p.op == "select" and t.coef and p.coef:
            ratio = Fraction(t.coef) / Fraction(p.coef)
            operands = [operands[0], *(scaled(x, simplest(ratio)) for x in operands[1:])]
        elif self._certain(p.coef) and t.coef != p.coef:
            return
        if p.op in JOINED:
            for found, _ in self._joined(p.op, p.operands, operands, state, partial=False):
                yield found
        elif len(operands) == len(p.operands):
            yield from self._under(p, operands, bound, state)

    def _chosen(self, p: Shape, t: Term, state: State) -> Iterator[State]:
        """A number where a condition holds and 0 elsewhere, as a selection of either case."""
        store = self.store
        (q,), _ = store.expand(t)
        value, zero = scaled(store.real(t.coef), p.coef, inverse=True), store.real(0)
        for operands in ((read(store, q), value, zero), (negate(store, read(store, q)), zero, value)):
            yield from self._under(p, operands, (), state)

    def _certain(self, coef: Coefficient) -> bool:
        """Whether a coefficient of the pattern is a number, not an extent in disguise."""
        f = Fraction(coef)
        return all(f.numerator % p and f.denominator % p for p in self.pattern.sizes)

    def _under(
        self, p: Shape, operands: Sequence[Term], bound: Sequence[int], state: State
    ) -> Iterator[State]:
        for inner in self._bind(p.bound, bound, state):
            for s in self._in_turn(p.operands, operands, inner):
                yield replace(s, bound=state.bound)

    def _in_turn(self, patterns: Sequence[Node], subjects: Sequence[Term], state: State) -> Iterator[State]:
        """Each pattern with the term of its place."""
        if not patterns:
            yield state
            return
        for after in self.match(patterns[0], subjects[0], state):
            yield from self._in_turn(patterns[1:], subjects[1:], after)

    def _bind(self, own: Sequence[int], bound: Sequence[int], state: State) -> Iterator[State]:
        """Bound indices of the pattern as those of the subject: one takes all, several one each."""
        scope = state.bound | frozenset(bound)
        if not own:
            if not bound:
                yield state
            return
        if len(own) == 1:
            by_size = sorted(bound, key=lambda i: (-self.store.sizes[i], i))
            runs = [list(g) for _, g in groupby(by_size, key=lambda i: self.store.sizes[i])]
            for choice in islice(product(*map(permutations, runs)), ORDERS):
                digits = tuple(i for run in choice for i in run)
                yield State(state.holes, {**state.at, own[0]: digits}, scope)
        elif len(own) == len(bound):
            for order in islice(permutations(bound), ORDERS):
                at = {p: (i,) for p, i in zip(own, order, strict=True)}
                yield State(state.holes, {**state.at, **at}, scope)

    def _joined(
        self, op: str, patterns: Sequence[Node], subjects: list[Term], state: State, *, partial: bool
    ) -> Iterator[tuple[State, list[Term]]]:
        """Patterns as a multiset of the subjects; what is left over is given back if `partial`."""
        shapes = [p for p in patterns if not isinstance(p, Hole)]
        holes = sorted(
            (p for p in patterns if isinstance(p, Hole)),
            key=lambda p: len(p.indices),
        )
        if len(patterns) > len(subjects):
            return
        heads = {self.store.classes[t.cls].op for t in subjects}
        if any(isinstance(p, Shape) and not _fits(p, heads) for p in shapes):
            return
        for after, rest in self._each(shapes, subjects, state):
            yield from self._holes(op, holes, rest, after, partial)

    def _each(
        self, shapes: Sequence[Node], subjects: list[Term], state: State
    ) -> Iterator[tuple[State, list[Term]]]:
        if not shapes:
            yield state, subjects
            return
        first, *others = shapes
        for n, t in enumerate(subjects):
            if isinstance(first, Shape) and not _fits(first, (self.store.classes[t.cls].op,)):
                continue
            for after in self.match(first, t, state):
                yield from self._each(others, subjects[:n] + subjects[n + 1 :], after)

    def _holes(
        self, op: str, holes: Sequence[Hole], subjects: list[Term], state: State, partial: bool
    ) -> Iterator[tuple[State, list[Term]]]:
        if not holes:
            if partial or not subjects:
                yield state, subjects
            return
        hole, *others = holes
        if not others and not partial and len(subjects) > 1:
            for after in self._fill(hole, (op, tuple(subjects)), state):
                yield after, []
            return
        for n, t in enumerate(subjects):
            for after in self._fill(hole, ("", (t,)), state):
                yield from self._holes(op, others, subjects[:n] + subjects[n + 1 :], after, partial)

    def _product(
        self, p: Shape, factors: list[Term], coef: Coefficient, state: State
    ) -> Iterator[State]:
        """A product: its coefficient is the pattern's, or one variable takes what is left of it."""
        if not self._certain(p.coef) or coef == p.coef:
            for after, _ in self._joined("multiply", p.operands, factors, state, partial=False):
                yield after
            return
        for n, q in enumerate(p.operands):
            if isinstance(q, Hole):
                other = Hole(q.name, simplest(Fraction(p.coef) * q.coef / Fraction(coef)), q.indices)
                patterns = (*p.operands[:n], other, *p.operands[n + 1 :])
                for after, _ in self._joined("multiply", patterns, factors, state, partial=False):
                    yield after

    def _fill(self, p: Hole, recipe: Recipe, state: State) -> Iterator[State]:
        """The metavariable as this term, if it is in scope and agrees with what it was before."""
        store = self.store
        op, parts = recipe
        if dict(self.pattern.lemma.variables)[p.name] != store.kind(parts[0]) or not p.coef:
            return
        if p.coef != 1:
            if op == "maximum" and p.coef < 0:
                return
            first, *rest = parts
            others = rest if op == "multiply" else [scaled(x, p.coef, inverse=True) for x in rest]
            recipe = (op, (scaled(first, p.coef, inverse=True), *others))
        reads = {i for t in parts for i in store.term_indices(t)}
        allowed = {i for k in p.indices for i in state.at.get(k, ())}
        if not (reads & state.bound) <= allowed:
            return
        known = state.holes.get(p.name)
        if known is None:
            yield State({**state.holes, p.name: (p.indices, recipe)}, state.at, state.bound)
            return
        yield from self._agree(known[0], self._made(known[1]), p.indices, self._made(recipe), state)

    def _made(self, recipe: Recipe) -> Term:
        op, parts = recipe
        return JOINED[op](self.store, list(parts)) if op else parts[0]

    def _agree(
        self, before: tuple[int, ...], was: Term, now: tuple[int, ...], t: Term, state: State
    ) -> Iterator[State]:
        """Whether a variable read at other indices is this term, an index being found where it is open."""
        store = self.store
        at = dict(state.at)
        for a, b in zip(before, now, strict=True):
            if a == b or (a in at and b in at):
                continue
            if a not in at and b not in at:
                return
            open_, shut = (a, b) if a not in at else (b, a)
            side = was if open_ == a else t
            found = self._opened(at[shut], side, {i for own in at.values() for i in own} | state.bound)
            options = [*found, None]
            for option in options:
                trial = {**at, open_: option} if option is not None else at
                if option is None and not store.term_indices(side).isdisjoint(at[shut]):
                    continue
                yield from self._agree_all(before, was, now, t, trial, state)
            return
        yield from self._agree_all(before, was, now, t, at, state)

    def _opened(self, digits: tuple[int, ...], side: Term, taken: set[int]) -> list[tuple[int, ...]]:
        if len(digits) != 1:
            return []
        size = self.store.sizes[digits[0]]
        free = sorted(self.store.term_indices(side) - taken)
        return [(i,) for i in free if self.store.sizes[i] == size]

    def _agree_all(
        self,
        before: tuple[int, ...],
        was: Term,
        now: tuple[int, ...],
        t: Term,
        at: Mapping[int, tuple[int, ...]],
        state: State,
    ) -> Iterator[State]:
        store = self.store
        by: dict[int, Expr] = {}
        for a, b in zip(before, now, strict=True):
            if a == b:
                continue
            old, new = at.get(a, ()), at.get(b, ())
            if [store.sizes[i] for i in old] != [store.sizes[i] for i in new] and old and new:
                return
            by.update((i, index(j)) for i, j in zip(old, new, strict=False))
        moved = read(store, store.substitute_term(was, by)) if by else was
        if moved == t:
            yield State(state.holes, at, state.bound)

    def _solve(self, p: Whole, t: Term, state: State) -> Iterator[State]:
        """An integer expression: known indices replaced, the unknown one found by subtraction."""
        store = self.store
        c = store.classes[t.cls]
        if p.op == "position":
            if store.kind(t) not in ("int", "uint"):
                return
            e = store.expression(t)
        elif c.op != p.op or t.coef != p.coef:
            return
        else:
            e = t.access[0]
        rest = self._expression(p.rest, state)
        if rest is None:
            return
        e = store.add(e, scale(rest, -1))
        if p.hole is None:
            if e == (0, ()):
                yield state
            return
        if e[0] % p.stride or any(s % p.stride for _, s in e[1]):
            return
        value = store.integer((e[0] // p.stride, tuple((u, s // p.stride) for u, s in e[1])))
        yield from self._fill(Hole(p.hole, 1, p.indices), ("", (value,)), state)

    def _expression(self, e: Expr, state: State) -> Expr | None:
        """An expression of the pattern over the subject's digits; None where an index is open."""
        store = self.store
        offset = self._extent(e[0], state)
        if offset is None:
            return None
        total: Expr = (offset, ())
        for i, s in e[1]:
            stride = self._extent(s, state)
            if i not in state.at or stride is None:
                return None
            total = store.add(total, scale(store.flatten(state.at[i]), stride))
        return total

    def _extent(self, n: int, state: State) -> int | None:
        """A number of the pattern with extents put in for the primes that stand for them."""
        names: dict[int, int] = {}
        for prime, k in self.pattern.sizes.items():
            while n and n % prime == 0:
                size = self._size_of(k, state)
                if size is None:
                    return None
                names[prime] = names.get(prime, 0) + 1
                n //= prime
        for prime, power in names.items():
            n *= (self._size_of(self.pattern.sizes[prime], state) or 1) ** power
        return n

    def _size_of(self, k: str, state: State) -> int | None:
        own = state.at.get(self.pattern.outer[k])
        if own is None:
            for name, (indices, _) in state.holes.items():
                for j, i in zip(self.pattern.lemma.reads(name), indices, strict=True):
                    if j == k and i in state.at:
                        own = state.at[i]
        if own is None:
            return None
        size = 1
        for i in own:
            size *= self.store.sizes[i]
        return size
