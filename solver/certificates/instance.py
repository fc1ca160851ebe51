"""Ground instances of lemmas: both sides as terms of a store, and whether the conditions hold.

A binding gives every metavariable a term over the instance's own indices and every index variable of the
lemma its digits. Sides are built with the same functions that normalise programs, and conditions are
derived from the terms, so an instance can be checked by whoever holds the lemma, the binding and the store
(soundness L1 to L9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf, prod
from typing import Final

from shardproof.ir.types import DType
from shardproof.lemmas import terms as language
from shardproof.lemmas.kinds import kind_of
from shardproof.lemmas.terms import Extent, Fact, Lemma, NotIn, Number, Position, Reduce, Relation, Take
from shardproof.passes import arithmetic as real
from shardproof.passes import elementwise, logic, selection
from shardproof.passes.access import Expr, constant, index, scale
from shardproof.passes.classes import NONNEGATIVE, POSITIVE, Store, Term
from shardproof.passes.pieces import read
from shardproof.passes.reduction import reduce
from shardproof.passes.views import split_into


class NoInstance(Exception):
    """The lemma does not apply under this binding; the message says which condition failed."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Metavariables as terms, index variables as digits, most significant first.

    A term may read the digits of the index variables that its metavariable may read, and indices that
    belong to no index variable.
    """

    variables: Mapping[str, Term]
    indices: Mapping[str, tuple[int, ...]]


Scope = Mapping[str, tuple[int, ...]]


def left(store: Store, lemma: Lemma, binding: Binding) -> Term:
    """The left side as a term."""
    return _Builder(store, lemma, binding).build(lemma.left, binding.indices)


def right(store: Store, lemma: Lemma, binding: Binding) -> Term:
    """The right side as a term."""
    return _Builder(store, lemma, binding).build(lemma.right, binding.indices)


def admit(store: Store, lemma: Lemma, binding: Binding) -> None:
    """Raises NoInstance unless the binding is well formed and every condition of the lemma holds."""
    digits = [i for own in binding.indices.values() for i in own]
    if len(set(digits)) != len(digits):
        raise NoInstance("two index variables share an index")
    names = {name for name, _ in lemma.variables}
    if set(binding.indices) != set(lemma.indices) or set(binding.variables) != names:
        raise NoInstance("the binding does not name the lemma's variables")
    kinds = dict(lemma.variables)
    for name, term in binding.variables.items():
        if store.kind(term) != kinds[name]:
            raise NoInstance(f"`{name}` is {kinds[name]}, not {store.kind(term)}")
        read_ = store.term_indices(term)
        for k in lemma.excluded(name):
            if not read_.isdisjoint(binding.indices[k]):
                raise NoInstance(f"needs `{k} not in {name}`, but {name} varies over {k}")
    builder = _Builder(store, lemma, binding)
    rewrite, store.rewrite = store.rewrite, None
    try:
        for condition in lemma.conditions:
            builder.require(condition)
    finally:
        store.rewrite = rewrite


class _Builder:
    def __init__(self, store: Store, lemma: Lemma, binding: Binding) -> None:
        self.store = store
        self.lemma = lemma
        self.binding = binding

    def size(self, k: str) -> int:
        return prod(self.store.sizes[i] for i in self.binding.indices[k])

    # terms

    def build(self, term: language.Term, scope: Scope, kind: str | None = None) -> Term:
        """The term over the digits in `scope`; `kind` is what the surroundings need of a number."""
        store = self.store
        match term:
            case Number(value):
                return store.real(real.simplest(value)) if kind != "int" else self._whole(value)
            case Extent(k):
                n = self.size(k)
                return store.integer(constant(n)) if kind == "int" else store.real(n)
            case Position(k):
                e = store.flatten(scope[k])
                return logic.real_of(store, e) if kind == "real" else store.integer(e)
            case language.Variable(name):
                return self._variable(name, scope)
            case language.Apply(op, operands):
                return self._apply(op, operands, scope, kind)
            case language.Compare(direction, a, b):
                return self._compare(direction, a, b, scope)
            case Reduce(reduction, indices, body):
                inner, bound = self._bind(indices, scope)
                return reduce(store, reduction, set(bound), self.build(body, inner, kind))
            case Take(indices, body, position):
                return self._take(indices, body, position, scope, kind)
            case language.Opaque(name):
                raise NoInstance(f"`{name}` binds its operands as an unknown function")

    def _whole(self, value: Fraction) -> Term:
        if value.denominator != 1:
            raise NoInstance(f"{value} is no integer")
        return self.store.integer(constant(value.numerator))

    def _variable(self, name: str, scope: Scope) -> Term:
        t = self.binding.variables[name]
        by: dict[int, Expr] = {}
        for k, own in self.binding.indices.items():
            if scope[k] != own:
                by.update(zip(own, map(index, scope[k]), strict=True))
        return read(self.store, self.store.substitute_term(t, by)) if by else t

    def _bind(self, indices: Sequence[str], scope: Scope) -> tuple[dict[str, tuple[int, ...]], list[int]]:
        inner = dict(scope)
        for k in indices:
            inner[k] = tuple(self.store.fresh(self.store.sizes[i]) for i in self.binding.indices[k])
        return inner, [i for k in indices for i in inner[k]]

    def kind(self, term: language.Term) -> str | None:
        """The kind of a term; None for numbers, extents and positions, which take the one that is needed."""
        return kind_of(term, dict(self.lemma.variables))

    def _apply(
        self, op: str, operands: tuple[language.Term, ...], scope: Scope, kind: str | None
    ) -> Term:
        store = self.store
        if op == "infinity":
            return store.literal(inf)
        if op == "negate" and operands == (language.Apply("infinity", ()),):
            return store.literal(-inf)
        if op == "select":
            own = self.kind(operands[1]) or self.kind(operands[2]) or kind
            p, a, b = operands
            return selection.select(
                store, self.build(p, scope), self.build(a, scope, own), self.build(b, scope, own)
            )
        if op == "convert":
            x = self.build(operands[0], scope, self.kind(operands[0]) or "int")
            source = {"real": DType.F64, "bool": DType.BOOL, "int": DType.S64}[store.kind(x)]
            return elementwise.convert(store, x, source, DType.F64)
        own = next((k for x in operands if (k := self.kind(x)) is not None), None) or kind or "real"
        built = [self.build(o, scope, own) for o in operands]
        if own == "int":
            return store.integer(self._integer(op, [store.expression(t) for t in built]))
        dtype = DType.BOOL if own == "bool" else DType.F64
        return elementwise.apply(store, op, built, dtype, dtype, {})

    def _integer(self, op: str, e: Sequence[Expr]) -> Expr:
        store = self.store
        if op == "clamp":
            return logic.smallest(store, logic.largest(store, e[0], e[1]), e[2])
        if op == "negate":
            return scale(e[0], -1)
        if op not in INTEGER:
            raise NoInstance(f"`{op}` of integers is not known here")
        return INTEGER[op](store, *e)

    def _compare(
        self, direction: language.Direction, a: language.Term, b: language.Term, scope: Scope
    ) -> Term:
        own = self.kind(a) or self.kind(b) or "int"
        x, y = self.build(a, scope, own), self.build(b, scope, own)
        if own == "int":
            store = self.store
            return logic.compare_integers(store, direction, store.expression(x), store.expression(y))
        dtype = DType.BOOL if own == "bool" else DType.F64
        return elementwise.apply(self.store, "compare", [x, y], dtype, DType.BOOL, {"direction": direction})

    def _take(
        self,
        indices: tuple[str, ...],
        body: language.Term,
        position: language.Term,
        scope: Scope,
        kind: str | None,
    ) -> Term:
        store = self.store
        e = store.expression(self.build(position, scope, "int"))
        inner, bound = self._bind(indices, scope)
        t = self.build(body, inner, kind)
        extent = prod(self.size(k) for k in indices)
        if not store.within(e, 0, extent):
            raise NoInstance(f"a position is not known to be at least 0 and less than {extent}")
        by: dict[int, Expr] = {}
        split_into(store, bound, e, by)
        return read(store, store.substitute_term(t, by))

    # conditions

    def require(self, condition: language.Condition) -> None:
        """Raises NoInstance unless the condition provably holds, or a lenient store may assume it."""
        match condition:
            case NotIn():
                return
            case Fact("finite", term):
                t = self.build(term, self.binding.indices)
                if self.store.special(t):
                    raise NoInstance(f"needs {_named(term)} to be finite")
            case Fact("distinct", term, indices):
                self._distinct(term, indices)
            case Relation():
                self._relation(condition)

    def _distinct(self, term: language.Term, indices: tuple[str, ...]) -> None:
        store = self.store
        e = store.expression(self.build(term, self.binding.indices, "int"))
        digits = {i for k in indices for i in self.binding.indices[k]}
        own = sorted(((abs(s), i) for i, s in e[1] if i in digits), reverse=False)
        hidden = any(i < 0 and not digits.isdisjoint(store.indices((0, ((i, 1),)))) for i, _ in e[1])
        grows = all(s * store.sizes[i] <= t for (s, i), (t, _) in pairwise(own))
        if hidden or len(own) != len(digits) or not grows:
            raise NoInstance(f"needs {_named(term)} to be distinct along {', '.join(indices)}")

    def _relation(self, c: Relation) -> None:
        own = self.kind(c.left) or self.kind(c.right) or "int"
        scope = self.binding.indices
        store = self.store
        a, b = self.build(c.left, scope, own), self.build(c.right, scope, own)
        if own == "int":
            p = logic.compare_integers(store, c.direction, store.expression(a), store.expression(b))
            if p.cls != store.TRUE:
                raise NoInstance(f"needs {_stated(c)}")
            return
        if not self._ordered(c.direction, a, b):
            raise NoInstance(f"needs {_stated(c)}")

    def _ordered(self, direction: str, a: Term, b: Term) -> bool:
        store = self.store
        if direction in ("LT", "LE"):
            a, b = b, a
            direction = {"LT": "GT", "LE": "GE"}[direction]
        difference = real.add(store, [a, real.scaled(b, -1)])
        if difference.cls == store.ONE:
            value = difference.coef
            return {"GT": value > 0, "GE": value >= 0, "NE": value != 0, "EQ": value == 0}[direction]
        sign = store.sign(difference)
        if direction == "GT":
            return sign == POSITIVE
        if direction == "GE":
            return sign >= NONNEGATIVE
        if direction == "NE":
            if store.nonzero(difference):
                return True
            if store.lenient and b == store.real(0) and not store.classes[a.cls].closed:
                text = f"a divisor that is cancelled is never 0 ({real.describe(store, a)})"
                store.assume("nonzero_divisor", text)
                return True
        return False


INTEGER: Final[Mapping[str, Callable[..., Expr]]] = {
    "add": lambda s, a, b: s.add(a, b),
    "subtract": lambda s, a, b: s.add(a, scale(b, -1)),
    "multiply": logic.times,
    "maximum": logic.largest,
    "minimum": logic.smallest,
}


def _named(term: language.Term) -> str:
    return f"`{term.name}`" if isinstance(term, language.Variable) else "a term"


def _stated(c: Relation) -> str:
    from shardproof.lemmas.printer import show_condition

    return f"`{show_condition(c)}`"
