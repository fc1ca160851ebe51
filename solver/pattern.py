"""Left sides of lemmas as patterns over classes, and matching them modulo the normal form.

A pattern is the lemma's left side normalised in a store of its own, with a free input for each metavariable
and a large prime as the extent of each index, so that extents can be recognised in coefficients. Sums,
products and maxima are matched as multisets. Matching only proposes instances: `solver.rewriting` rebuilds
both sides of each one and compares, so a wrong proposal costs time, never soundness.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby, islice, permutations, product
from typing import Any, Final

from shardproof.lemmas.terms import Compare, Extent, Lemma, Number, Relation, Variable, children
from shardproof.passes.access import Expr, index, scale
from shardproof.passes.arithmetic import scaled, simplest
from shardproof.passes.classes import NONNEGATIVE, POSITIVE, Coefficient, Store, Term
from shardproof.passes.logic import negate
from shardproof.passes.normalise import new_store
from shardproof.passes.pieces import read
from shardproof.solver.install import JOINED
from shardproof.solver.instance import Binding, NoInstance, left, right

PRIMES: Final = (10007, 10037, 10061, 10079, 10093, 10111, 10133, 10141, 10159, 10169, 10193, 10211)
ORDERS: Final = 24
INTEGERS: Final = frozenset({"position", "step", "match", "real"})


@dataclass(frozen=True, slots=True)
class Hole:
    """A metavariable times a coefficient, read at indices of the pattern."""

    name: str
    coef: Coefficient
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """An operator with patterns for its operands; `bound` are its bound indices."""

    op: str
    attrs: tuple[Any, ...]
    coef: Coefficient
    operands: tuple[Node, ...]
    bound: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Whole:
    """A class of an integer expression, of which one may be unknown: `stride * hole + rest`."""

    op: str
    coef: Coefficient
    rest: Expr
    hole: str | None
    stride: int
    indices: tuple[int, ...] = ()


Node = Hole | Shape | Whole


@dataclass(frozen=True, slots=True)
class Pattern:
    """A lemma read from left to right. `plain` when no other lemma rewrites its left side."""

    lemma: Lemma
    root: Shape
    outer: Mapping[str, int]
    sizes: Mapping[int, str]
    plain: bool

    @property
    def head(self) -> str:
        return self.root.op


Recipe = tuple[str, tuple[Term, ...]]
"""A term, or several joined by an operator, which are put together only when that is needed."""


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


# patterns


def compiled(lemma: Lemma, *, algebra: bool = True) -> Pattern | str:
    """The pattern of a lemma, or why it can't be one; `algebra` as in the store that it is matched in."""
    try:
        return _rooted(lemma, new_store(folding=True, algebra=algebra))
    except NoInstance as e:
        return str(e)


def among(pattern: Pattern, rewriting: Store) -> Pattern | str:
    """The pattern in a store that other lemmas rewrite, or why none is left."""
    try:
        other = _rooted(pattern.lemma, rewriting)
    except NoInstance as e:
        return str(e)
    return other if isinstance(other, str) else replace(other, plain=_alike(pattern.root, other.root))


def _rooted(lemma: Lemma, store: Store) -> Pattern | str:
    if len(lemma.indices) > len(PRIMES):
        return "more index variables than patterns have extents"
    digits = {k: store.fresh(p) for k, p in zip(lemma.indices, PRIMES, strict=False)}
    binding = Binding(
        {name: _input(store, lemma, name, kind, digits) for name, kind in lemma.variables},
        {k: (i,) for k, i in digits.items()},
    )
    term = left(store, lemma, binding)
    if term == right(store, lemma, binding):
        return "the normal form has it"
    node = _node(store, term)
    if not isinstance(node, Shape):
        return "its left side is a single variable or a constant"
    return Pattern(lemma, node, digits, dict(zip(PRIMES, lemma.indices, strict=False)), True)


def _input(store: Store, lemma: Lemma, name: str, kind: str, digits: Mapping[str, int]) -> Term:
    own = [digits[k] for k in lemma.reads(name)]
    facts = _facts(lemma, name, kind, {k: store.sizes[i] for k, i in digits.items()})
    cls = store.leaf("input", (name,), kind, tuple(store.sizes[i] for i in own), **facts)  # type: ignore[arg-type]
    return store.whole(cls, own)


def _facts(lemma: Lemma, name: str, kind: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for c in lemma.conditions:
        if not isinstance(c, Relation):
            continue
        for direction, a, b in ((c.direction, c.left, c.right), (_mirrored(c.direction), c.right, c.left)):
            if a != Variable(name):
                continue
            bound = _value(b, sizes)
            if kind == "int" and bound is not None:
                if direction in ("LT", "LE"):
                    facts["high"] = int(bound) - (direction == "LT")
                if direction in ("GT", "GE"):
                    facts["low"] = int(bound) + (direction == "GT")
            elif kind == "real" and bound == 0:
                facts["sign"] = {"GT": POSITIVE, "GE": NONNEGATIVE, "NE": POSITIVE}.get(direction, 0)
    return facts


def _mirrored(direction: str) -> str:
    return {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}.get(direction, direction)


def _value(term: Any, sizes: Mapping[str, int]) -> Fraction | None:
    """The number of a closed term of extents."""
    if isinstance(term, Number):
        return term.value
    if isinstance(term, Extent):
        return Fraction(sizes[term.index])
    inner = [_value(x, sizes) for x in children(term)]
    op = getattr(term, "op", "")
    if isinstance(term, Compare) or not inner or any(x is None for x in inner):
        return None
    known = [x for x in inner if x is not None]
    if op == "multiply":
        return known[0] * known[1]
    if op in ("add", "subtract"):
        return known[0] + (known[1] if op == "add" else -known[1])
    return None


def _node(store: Store, t: Term) -> Node:
    c = store.classes[t.cls]
    if c.op in INTEGERS:
        return _whole(store, c.op, t.coef, t.access[0])
    if c.op == "input":
        if c.kind == "int":
            return _whole(store, "position", 1, store.expression(t))
        return Hole(str(c.attrs[0]), t.coef, _plain(t.access))
    operands, bound = store.expand(t)
    coef = t.coef
    if c.op == "add":
        operands = [scaled(x, coef) for x in operands]
        coef = 1
    attrs = c.attrs if c.operands else (*c.attrs, c.extents)
    return Shape(c.op, attrs, coef, tuple(_node(store, x) for x in operands), tuple(bound))


def _plain(access: Sequence[Expr]) -> tuple[int, ...]:
    out = []
    for e in access:
        if e[0] or len(e[1]) != 1 or e[1][0][1] != 1 or e[1][0][0] < 0:
            raise NoInstance("a variable is read elsewhere than at the lemma's own indices")
        out.append(e[1][0][0])
    return tuple(out)


def _whole(store: Store, op: str, coef: Coefficient, e: Expr) -> Whole:
    holes = [(t, s) for t, s in e[1] if t < 0]
    if not holes:
        return Whole(op, coef, e, None, 1)
    (t, stride), *more = holes
    atom = store.atom(t)
    cls = getattr(atom, "cls", None)
    if more or cls is None or store.classes[cls].op != "input":
        raise NoInstance("an integer of more than one unknown")
    rest = (e[0], tuple(x for x in e[1] if x[0] > 0))
    return Whole(op, coef, rest, str(store.classes[cls].attrs[0]), stride, _plain(store.inner(t)))


def _alike(a: Node, b: Node) -> bool:
    if isinstance(a, Shape) and isinstance(b, Shape):
        same = (a.op, a.attrs, a.coef) == (b.op, b.attrs, b.coef) and len(a.operands) == len(b.operands)
        return same and all(map(_alike, a.operands, b.operands))
    return type(a) is type(b) and getattr(a, "name", "") == getattr(b, "name", "") and a.coef == b.coef


def _fits(p: Shape, heads: Collection[str]) -> bool:
    """Whether one of these operators may be the pattern's."""
    return p.op in heads or (p.op == "select" and "indicator" in heads)


# matching


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
