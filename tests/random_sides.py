"""Sides of lemmas, true and slightly wrong ones, as parts of random programs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod
from random import Random
from typing import Any, Final

import numpy as np
from random_graphs import Graph

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.lemmas import terms as language
from shardproof.lemmas.kinds import kind_of
from shardproof.lemmas.terms import Lemma

POSITIVE_ONLY: Final = frozenset({"log", "sqrt", "rsqrt"})
LARGEST: Final = 100
"""Exponentials of what is larger, apart, would leave the range of floats."""
LEAST_DIVISOR: Final = 1e-3


class LemmaGraph(Graph):
    """A program whose integer inputs have ranges; functions are only applied within their domain."""

    def __init__(self, draw: Random, mesh: Mesh, *, special: bool = False) -> None:
        super().__init__(draw, mesh, special=special)
        self.ranges: dict[str, tuple[int, int]] = {}

    def ranged(self, shape: tuple[int, ...], low: int, high: int) -> Value:
        """An integer input of values `low <= x < high`."""
        value = self.input(DType.S32, shape)
        array = np.array([self.draw.randrange(low, high) for _ in range(prod(shape))], np.int32)
        self.values[value.name] = [array.reshape(shape)] * self.mesh.size
        self.ranges[value.name] = (low, high - 1)
        return value

    def add(
        self, opcode: str, operands: tuple[Value, ...], *declared: TensorType, **attrs: Any
    ) -> Value | None:
        if opcode in POSITIVE_ONLY and not self.least(operands[0], LEAST_DIVISOR):
            return None
        if opcode == "divide" and any(
            v.type.dtype.kind == "real" and (np.abs(a) < LEAST_DIVISOR).any()
            for v in operands[1:]
            for a in self.values[v.name]
        ):
            return None
        if opcode == "exponential" and any(
            (a[np.isfinite(a)] > 4.5).any() for a in self.values[operands[0].name]
        ):
            return None
        return super().add(opcode, operands, *declared, **attrs)

    def _exact(self, a: Any) -> bool:
        small = a.dtype.kind != "f" or not (np.abs(a[np.isfinite(a)]) > LARGEST).any()
        return small and super()._exact(a)

    def least(self, v: Value, least: float) -> bool:
        return all(np.isfinite(a).all() and (a >= least).all() for a in self.values[v.name])

    def spread(self, v: Value, shape: tuple[int, ...], dims: tuple[int, ...]) -> Value | None:
        """`broadcast_in_dim`."""
        if v.type.shape == shape:
            return v
        return self.add("broadcast_in_dim", (v,), TensorType(v.type.dtype, shape), dims=dims)

    def number(self, value: float, shape: tuple[int, ...], dtype: DType = DType.F64) -> Value | None:
        c = self.constant(np.asarray(value), dtype)
        return None if c is None else self.spread(c, shape, ())


DTYPES: Final[Mapping[str, DType]] = {"real": DType.F64, "int": DType.S32, "bool": DType.BOOL}


# sides of lemmas


class Sides:
    """Both sides of a lemma as values of a program: metavariables are values of it, or new inputs.

    With `obedient` what a condition excludes is not read; else it sometimes is.
    """

    def __init__(self, g: LemmaGraph, lemma: Lemma, *, obedient: bool) -> None:
        self.g, self.lemma = g, lemma
        draw = g.draw
        self.sizes = {k: draw.choice([1, 2, 2, 3, 3, 4]) for k in lemma.indices}
        for c in lemma.conditions:
            if isinstance(c, language.Relation) and isinstance(c.left, language.Extent):
                self.sizes[c.left.index] = self._closed(c.right)
        self.known: dict[str, tuple[Value, tuple[str, ...]]] = {}
        self.obedient = obedient
        self.kinds = dict(lemma.variables)

    def _closed(self, term: language.Term) -> int:
        match term:
            case language.Extent(k):
                return self.sizes[k]
            case language.Apply("multiply", (a, b)):
                return self._closed(a) * self._closed(b)
        return self.g.draw.choice([1, 2, 3])

    def build(self, term: language.Term, scope: tuple[str, ...], kind: str = "real") -> Value | None:
        """The term as a tensor with one dim per index in scope."""
        g = self.g
        shape = tuple(self.sizes[k] for k in scope)
        match term:
            case language.Number(value):
                return g.number(float(value), shape, DTYPES[kind])
            case language.Extent(k):
                return g.number(self.sizes[k], shape, DTYPES[kind])
            case language.Position(k):
                if k not in scope:
                    return None
                own = g.add("iota", (), TensorType(DType.S32, (self.sizes[k],)), dim=0)
                wide = None if own is None else g.spread(own, shape, (scope.index(k),))
                if wide is None or kind == "int":
                    return wide
                return g.add("convert", (wide,), TensorType(DType.F64, shape))
            case language.Variable(name):
                return self._variable(name, scope)
            case language.Compare(direction, a, b):
                own_kind = self._kind(a) or self._kind(b) or "int"
                x, y = self.build(a, scope, own_kind), self.build(b, scope, own_kind)
                if x is None or y is None:
                    return None
                return g.add("compare", (x, y), direction=direction, total=False)
            case language.Reduce(reduction, indices, body):
                inner = self.build(body, (*scope, *indices), self._kind(body) or kind)
                return self._reduce(reduction, inner, range(len(scope), len(scope) + len(indices)))
            case language.Take(indices, body, position):
                return self._take(indices, body, position, scope, kind)
            case language.Apply(op, operands):
                return self._apply(op, operands, scope, kind)
        return None

    def _kind(self, term: language.Term) -> str | None:
        return kind_of(term, self.kinds)

    def _apply(
        self, op: str, operands: tuple[language.Term, ...], scope: tuple[str, ...], kind: str
    ) -> Value | None:
        g = self.g
        shape = tuple(self.sizes[k] for k in scope)
        if op == "infinity":
            return g.number(np.inf, shape) if g.special else None
        own = next((k for x in operands if (k := self._kind(x)) is not None), None) or kind
        kinds = [own] * len(operands)
        if op == "select":
            of_cases = self._kind(operands[1]) or self._kind(operands[2]) or kind
            kinds = ["bool", of_cases, of_cases]
        if op == "convert":
            kinds = [self._kind(operands[0]) or "int"]
        built = [self.build(x, scope, k) for x, k in zip(operands, kinds, strict=True)]
        if any(x is None for x in built):
            return None
        known = tuple(x for x in built if x is not None)
        if op == "convert":
            return g.add("convert", known, TensorType(DType.F64, shape))
        return g.add(op, known)

    def _reduce(self, kind: str, body: Value | None, dims: Any) -> Value | None:
        g = self.g
        if body is None:
            return None
        start: float = {"sum": 0, "prod": 1, "and": 1, "or": 0, "max": -np.inf, "min": np.inf}[kind]
        if body.type.dtype.kind != "real" and not np.isfinite(start):
            return None
        before, g.special = g.special, True
        c = g.constant(np.asarray(start), body.type.dtype)
        g.special = before
        if c is None:
            return None
        if not np.isfinite(start):
            g.pool.remove(c)
        return g.add("reduce", (body, c), dims=tuple(dims), kind=kind)

    def _take(
        self,
        indices: tuple[str, ...],
        body: language.Term,
        position: language.Term,
        scope: tuple[str, ...],
        kind: str,
    ) -> Value | None:
        g = self.g
        e = self.build(position, scope, "int")
        outer = tuple(k for k in scope if k not in indices)
        w = self.build(body, (*indices, *outer), kind)
        if e is None or w is None:
            return None
        shape = tuple(self.sizes[k] for k in scope)
        count = prod(self.sizes[k] for k in indices)
        flat = g.add(
            "reshape", (w,), TensorType(w.type.dtype, (count, *(self.sizes[k] for k in outer)))
        )
        wide = None if flat is None else g.spread(
            flat, (count, *shape), (0, *(1 + scope.index(k) for k in outer))
        )
        n = len(scope)
        if wide is None:
            return None
        return g.add(
            "gather",
            (wide, e),
            offset_dims=(),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            index_vector_dim=n,
            slice_sizes=(1,) * (n + 1),
            operand_batching_dims=tuple(range(1, n + 1)),
            start_indices_batching_dims=tuple(range(n)),
        )

    def _variable(self, name: str, scope: tuple[str, ...]) -> Value | None:
        if name not in self.known:
            self.known[name] = self._new(name, scope)
        value, reads = self.known[name]
        if not set(reads) <= set(scope):
            return None
        shape = tuple(self.sizes[k] for k in scope)
        order = sorted(range(len(reads)), key=lambda n: scope.index(reads[n]))
        if order != list(range(len(reads))):
            turned = self.g.add("transpose", (value,), permutation=tuple(order))
            if turned is None:
                return None
            value = turned
        return self.g.spread(value, shape, tuple(sorted(scope.index(k) for k in reads)))

    def _new(self, name: str, scope: tuple[str, ...]) -> tuple[Value, tuple[str, ...]]:
        g, draw = self.g, self.g.draw
        if draw.random() < 0.85:
            given = self._given(name, scope)
            if given is not None:
                return given
        allowed = self.lemma.reads(name) if self.obedient or draw.random() < 0.8 else self.lemma.indices
        reads = tuple(k for k in scope if k in allowed and draw.random() < 0.85)
        shape = tuple(self.sizes[k] for k in reads)
        kind = self.kinds[name]
        if kind == "int":
            low, high = self._range(name)
            if draw.random() < 0.15:
                low, high = low - draw.randrange(2), high + draw.randrange(2)
            return g.ranged(shape, low, max(low + 1, high)), reads
        if kind == "bool":
            fit = [v for v in g.pool if v.type.dtype is DType.BOOL and v.type.shape == shape]
            return (draw.choice(fit) if fit and draw.random() < 0.5 else g.input(DType.BOOL, shape)), reads
        positive = any(
            isinstance(c, language.Relation) and c.left == language.Variable(name)
            for c in self.lemma.conditions
        )
        fit = [v for v in g.pool if v.type.dtype is DType.F64 and v.type.shape == shape]
        made: Value | None = None
        if fit and draw.random() < 0.4:
            made = draw.choice(fit)
        else:
            made = g.input(DType.F64, shape)
            if positive and draw.random() < 0.85:
                made = self._positive(made) or made
            elif g.special and draw.random() < 0.4:
                made = masked(g, made) or made
        return made, reads

    def _given(self, name: str, scope: tuple[str, ...]) -> tuple[Value, tuple[str, ...]] | None:
        """What a condition says that the variable is, or integers that are distinct."""
        for c in self.lemma.conditions:
            match c:
                case language.Relation("EQ", language.Variable(of), term) if of == name:
                    reads = tuple(k for k in scope if k not in bound_indices(term))
                    value = self.build(term, reads)
                    return None if value is None else (value, reads)
                case language.Fact("distinct", language.Variable(of), (k,)) if of == name and k in scope:
                    size = self.sizes[k]
                    own = self.g.add("iota", (), TensorType(DType.S32, (size,)), dim=0)
                    return None if own is None else (own, (k,))
        return None

    def _positive(self, v: Value) -> Value | None:
        g, style = self.g, self.g.draw.randrange(3)
        if style == 0:
            return g.add("exponential", (v,))
        if style == 1:
            return g.add("logistic", (v,))
        square, one = g.add("multiply", (v, v)), g.number(1, v.type.shape)
        return g.add("add", (square, one)) if square and one else None

    def _range(self, name: str) -> tuple[int, int]:
        low, high = -2, 4
        for c in self.lemma.conditions:
            if isinstance(c, language.Relation):
                if c.right == language.Variable(name) and c.direction == "LE":
                    low = 0
                if c.left == language.Variable(name) and c.direction == "LT":
                    high = self._closed(c.right)
                if c.left == language.Variable(name) and c.direction == "GE":
                    low = 0
        return low, max(high, low + 1)


def masked(g: LemmaGraph, v: Value) -> Value | None:
    """The value with minus infinity (seldom plus) where a mask says so."""
    p = g.like(v, "bool", same=False) or g.input(DType.BOOL, v.type.shape)
    inf = g.number(g.draw.choice([-np.inf, -np.inf, -np.inf, np.inf]), v.type.shape, v.type.dtype)
    if inf is None:
        return None
    return g.add("select", (p, v, inf) if g.draw.random() < 0.7 else (p, inf, v))


def free_indices(term: language.Term) -> set[str]:
    """Index variables that occur outside of a binder for them, in positions or binders."""
    match term:
        case language.Position(k):
            return {k}
        case language.Reduce(_, indices, body):
            return free_indices(body) - set(indices)
        case language.Take(indices, body, position):
            return (free_indices(body) - set(indices)) | free_indices(position)
    return {k for x in language.children(term) for k in free_indices(x)}


def bound_indices(term: language.Term) -> set[str]:
    found: set[str] = set()
    for x in language.walk(term):
        if isinstance(x, language.Reduce | language.Take):
            found |= set(x.indices)
    return found


def add_lemma(g: LemmaGraph, lemma: Lemma) -> tuple[Value, Value] | None:
    """The lemma's left side, then its right side; the pair if both were made."""
    obedient = g.draw.random() < 0.75
    sides = Sides(g, lemma, obedient=obedient)
    bound = bound_indices(lemma.left)
    free = [k for k in lemma.indices if k not in bound or k in free_indices(lemma.left)]
    also = [k for k in lemma.indices if k in bound and k not in free and g.draw.random() < 0.5]
    scope = tuple(free + also)
    left = lemma.left if g.draw.random() < 0.7 else mutated(g.draw, lemma.left)
    a = sides.build(left, scope)
    b = sides.build(lemma.right, scope)
    return (a, b) if a is not None and b is not None else None


def mutated(draw: Random, term: language.Term) -> language.Term:
    """A term that differs from this one in one place."""
    places = list(language.walk(term))
    at = draw.choice(places)
    others = [x for x in places if x != at and type(x) is not language.Number]
    names = [x for x in places if isinstance(x, language.Variable)]

    def change(x: language.Term) -> language.Term:
        match x:
            case language.Number(v):
                return language.Number(v + draw.choice([Fraction(1), Fraction(-1), Fraction(1, 2)]))
            case language.Variable():
                return draw.choice(names)
            case language.Apply(op, (a, b)) if op in ("subtract", "divide"):
                return language.Apply(op, (b, a))
            case language.Apply("add", (a, b)):
                return language.Apply(draw.choice(["subtract", "maximum"]), (a, b))
            case language.Apply("multiply", (a, b)):
                return language.Apply("add", (a, b))
            case language.Apply("exponential", (a,)):
                return language.Apply("exponential", (language.Apply("negate", (a,)),))
            case language.Compare(_, a, b):
                return language.Compare(draw.choice(["LT", "LE", "EQ", "GE"]), a, b)
            case language.Reduce("sum", indices, body):
                return language.Reduce("max", indices, body)
            case language.Extent():
                return language.Number(Fraction(draw.choice([1, 2, 3])))
        return draw.choice(others) if others else x

    done = False

    def copy(x: language.Term) -> language.Term:
        nonlocal done
        if x is at and not done:
            done = True
            return change(x)
        match x:
            case language.Apply(op, operands):
                return language.Apply(op, tuple(copy(y) for y in operands))
            case language.Compare(direction, a, b):
                return language.Compare(direction, copy(a), copy(b))
            case language.Reduce(kind, indices, body):
                return language.Reduce(kind, indices, copy(body))
            case language.Take(indices, body, position):
                return language.Take(indices, copy(body), copy(position))
        return x

    return copy(term)
