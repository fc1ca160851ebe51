"""Random programs in which lemmas and algebra apply often: sides of lemmas, true and slightly wrong ones,
softmax fragments, blocks, rings, masks and one-hot sums, some with infinities."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod
from random import Random
from typing import Any, Final

import numpy as np
from evaluated import agree, equal_views, ranks_of, text
from random_graphs import Graph
from random_operators import MAKERS

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.lemmas import terms as language
from shardproof.lemmas.kinds import kind_of
from shardproof.lemmas.terms import Lemma
from shardproof.passes.access import index
from shardproof.passes.classes import Store
from shardproof.passes.evaluate import Evaluation
from shardproof.passes.normalise import Normalised, input_view, new_store, normalise
from shardproof.solver.rewriting import Rules, Search

MESHES: Final = (Mesh(), Mesh(), Mesh((("tp", 2),)), Mesh((("tp", 3),)), Mesh((("tp", 4),)))
POSITIVE_ONLY: Final = frozenset({"log", "sqrt", "rsqrt"})
LARGEST: Final = 100
"""Exponentials of what is larger, apart, would leave the range of floats."""
LEAST_DIVISOR: Final = 1e-3
SECONDS: Final = 10.0
"""A program that takes longer to normalise has blown up."""


class Slow(Exception):
    """Normalising took longer than it may."""


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
        if opcode == "divide" and operands[1].type.dtype.kind == "real":
            if any((np.abs(a) < LEAST_DIVISOR).any() for a in self.values[operands[1].name]):
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
        return kind_of(term, self.kinds)  # type: ignore[arg-type]

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
            isinstance(c, language.Relation) and c.left == language.Variable(name) for c in self.lemma.conditions
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
                return language.Number(v + draw.choice([1, -1, Fraction(1, 2)]))
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
            case language.Compare(direction, a, b):
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


# fragments


def _function(g: LemmaGraph) -> None:
    v = g.pick("real")
    if v:
        g.add(
            g.draw.choice(["exponential", "exponential", "log", "logistic", "tanh", "sqrt", "rsqrt", "negate"]),
            (v,),
        )


def _combine(g: LemmaGraph) -> None:
    v = g.pick("real")
    w = g.like(v) if v else None
    if v and w:
        names = ["add", "subtract", "subtract", "multiply", "multiply", "divide", "maximum", "minimum"]
        g.add(g.draw.choice(names), (v, w))


def _like_inputs(g: LemmaGraph) -> None:
    v = g.pick("real")
    if v:
        g.input(v.type.dtype, v.type.shape)


def _small(g: LemmaGraph) -> None:
    v = g.pick("real", least=1)
    if v:
        c = g.number(g.draw.choice([0.5, 0.25, 2, -1, -0.5, 3]), v.type.shape, v.type.dtype)
        if c:
            g.add("multiply", (v, c))


def reduced(g: LemmaGraph, v: Value, dims: tuple[int, ...], kind: str) -> Value | None:
    """The sum, maximum or minimum over `dims`."""
    start = {"sum": 0.0, "max": -np.inf, "min": np.inf}[kind]
    before, g.special = g.special, True
    c = g.constant(np.asarray(start), v.type.dtype)
    g.special = before
    if c is None:
        return None
    if kind != "sum":
        g.pool.remove(c)
    return g.add("reduce", (v, c), dims=dims, kind=kind)


def _softmax(g: LemmaGraph) -> None:
    """A softmax or part of it, shifted by a maximum, by something constant, or by something that is not."""
    v = g.pick("real", least=1)
    if v is None:
        return
    if g.special and g.draw.random() < 0.5:
        v = masked(g, v) or v
    n = len(v.type.shape)
    d = g.draw.randrange(n)
    kept = tuple(k for k in range(n) if k != d)
    style = g.draw.randrange(5)
    shift: Value | None = None
    if style <= 1:
        m = reduced(g, v, (d,), g.draw.choice(["max", "max", "min", "sum"]))
        shift = g.spread(m, v.type.shape, kept) if m else None
    elif style == 2:
        shape = tuple(v.type.shape[k] for k in kept)
        fit = [w for w in g.pool if w.type.dtype is v.type.dtype and w.type.shape == shape]
        shift = g.spread(g.draw.choice(fit), v.type.shape, kept) if fit else None
    elif style == 3:
        shift = g.like(v)
    x = g.add("subtract", (v, shift)) if shift else v
    e = g.add("exponential", (x,)) if x else None
    if e is None:
        return
    if g.draw.random() < 0.3:
        w = g.like(e)
        e = (g.add("multiply", (e, w)) if w else None) or e
    s = reduced(g, e, (d,), "sum")
    if s is None:
        return
    if g.draw.random() < 0.3:
        log = g.add("log", (s,))
        m = g.pool[-1]
        if log and shift is not None and style <= 1:
            same = [w for w in g.pool if w.type.shape == log.type.shape and w.type.dtype is log.type.dtype]
            g.add("add", (log, g.draw.choice(same)))
        return
    wide = g.spread(s, v.type.shape, kept)
    if wide:
        g.add("divide", (e, wide))


def _blocks(g: LemmaGraph) -> None:
    """Slices of one value, each reduced or mapped, combined again."""
    v = g.pick("real", "int", "bool", least=1)
    if v is None:
        return
    n = len(v.type.shape)
    d = g.draw.randrange(n)
    size = v.type.shape[d]
    cuts = sorted({0, size, *(g.draw.randint(0, size) for _ in range(g.draw.randint(1, 3)))})
    parts: list[Value] = []
    how = g.draw.choice(["sum", "max", "exp", "none"])
    if how in ("sum", "max", "exp") and v.type.dtype.kind != "real":
        how = "none"
    for a, b in zip(cuts, cuts[1:], strict=False):
        starts, limits = [0] * n, list(v.type.shape)
        starts[d], limits[d] = a, b
        p = g.add("slice", (v,), starts=tuple(starts), limits=tuple(limits), strides=(1,) * n)
        if p is None:
            return
        q: Value | None = p
        if how in ("sum", "max"):
            q = reduced(g, p, (d,), how)
        elif how == "exp":
            e = g.add("exponential", (p,))
            q = reduced(g, e, (d,), "sum") if e else None
        if q is None:
            return
        parts.append(q)
    if g.draw.random() < 0.3:
        g.draw.shuffle(parts)
    if not parts:
        return
    if how == "none":
        g.add("concatenate", tuple(parts), dim=d)
        return
    total = parts[0]
    for p in parts[1:]:
        joined = g.add("maximum" if how == "max" else "add", (total, p))
        if joined is None:
            return
        total = joined


def _ring(g: LemmaGraph) -> None:
    """What the ranks hold, passed around and combined at each turn; or read from a copy by the rank."""
    n = g.mesh.size
    v = g.pick("real")
    if v is None or n == 1:
        return
    step = g.draw.choice([1, 1, 1, -1, 2])
    turns = g.draw.choice([n, n, n, n - 1])
    weigh = g.draw.random() < 0.4
    total: Value | None = None
    x: Value | None = v
    kind = g.draw.choice(["add", "add", "maximum"])
    for _ in range(turns):
        if x is None:
            return
        y: Value | None = x
        if weigh:
            y = g.add("multiply", (x, v))
        elif g.draw.random() < 0.1:
            y = g.add("exponential", (x,))
        if y is None:
            return
        total = y if total is None else g.add(kind, (total, y))
        if total is None:
            return
        x = g.add("collective_permute", (x,), pairs=tuple((r, (r + step) % n) for r in range(n)))


def _turned(g: LemmaGraph) -> None:
    """Blocks of a copy read at (rank + t) % n or rank - t, combined."""
    n = g.mesh.size
    v = g.pick("real", least=1)
    if v is None or n == 1:
        return
    dims = [d for d, m in enumerate(v.type.shape) if m and m % n == 0]
    if not dims:
        return
    d = g.draw.choice(dims)
    m = v.type.shape[d] // n
    r = g.add("rank_id", (), TensorType(DType.S32, ()))
    zero = g.constant(0, DType.S32)
    if r is None or zero is None:
        return
    total: Value | None = None
    scale = g.draw.choice([m, m, m, 1])
    kind = g.draw.choice(["add", "add", "maximum"])
    for t in range(n):
        c, size, k = g.constant(t, DType.S32), g.constant(n, DType.S32), g.constant(scale, DType.S32)
        s = g.add("add", (r, c)) if c else None
        if g.draw.random() < 0.95:
            s = g.add("remainder", (s, size)) if s and size else None
        start = g.add("multiply", (s, k)) if s and k else None
        if start is None:
            return
        sizes = [m if j == d else x for j, x in enumerate(v.type.shape)]
        part = g.add("dynamic_slice", (v, *(start if j == d else zero for j in range(len(sizes)))), sizes=tuple(sizes))
        if part is not None and g.draw.random() < 0.5:
            part = reduced(g, part, (d,), "sum")
        if part is None:
            return
        total = part if total is None else g.add(kind, (total, part))
        if total is None:
            return


def _collected(g: LemmaGraph) -> None:
    v = g.pick("real")
    if v is None or g.mesh.size == 1:
        return
    groups = (tuple(range(g.mesh.size)),)
    n = len(v.type.shape)
    match g.draw.randrange(4):
        case 0 | 1:
            g.add("all_reduce", (v,), kind=g.draw.choice(["sum", "sum", "max"]), groups=groups)
        case 2 if n:
            w = g.add("all_gather", (v,), dim=g.draw.randrange(n), groups=groups)
            if w:
                reduced(g, w, (g.draw.randrange(n),), g.draw.choice(["sum", "max"]))
        case 3 if n:
            g.add(
                "all_to_all", (v,), split_dim=g.draw.randrange(n), concat_dim=g.draw.randrange(n), groups=groups
            )


def _positions(g: LemmaGraph) -> None:
    """A mask of positions, with constants, each other or the rank; then a selection, nested sometimes."""
    v = g.pick("real", least=1)
    if v is None:
        return
    shape = v.type.shape
    wide = TensorType(DType.S32, shape)
    a = g.add("iota", (), wide, dim=g.draw.randrange(len(shape)))
    style = g.draw.randrange(4)
    if style == 0:
        b = g.add("iota", (), wide, dim=g.draw.randrange(len(shape)))
    elif style == 1:
        r = g.add("rank_id", (), TensorType(DType.S32, ()))
        c = g.constant(g.draw.choice([1, 2]), DType.S32)
        s = g.add("multiply", (r, c)) if r and c else None
        b = g.spread(s, shape, ()) if s else None
    else:
        b = g.number(g.draw.randint(-1, 3), shape, DType.S32)
    if a is None or b is None:
        return
    if g.draw.random() < 0.3:
        shifted = g.add("add", (a, b))
        a = g.add(g.draw.choice(["maximum", "minimum"]), (a, b)) or a
        a = shifted or a
    p = g.add("compare", (a, b), direction=g.draw.choice(["EQ", "LT", "LE", "NE", "GE", "GT"]), total=False)
    if p is None:
        return
    q = g.like(v, "bool", same=False)
    if q and g.draw.random() < 0.4:
        p = g.add(g.draw.choice(["and", "or"]), (p, q)) or p
    zero = g.number(g.draw.choice([0, 0, 0, 1, -50]), shape, v.type.dtype)
    w = g.like(v) if g.draw.random() < 0.3 else zero
    if g.draw.random() < 0.4:
        one = g.add("convert", (p,), v.type)
        if one:
            g.add("multiply", (one, v))
    elif w:
        made = g.add("select", (p, v, w) if g.draw.random() < 0.6 else (p, w, v))
        if made and g.draw.random() < 0.5:
            again = g.add("select", (p, made, v))
            if again:
                reduced(g, again, (g.draw.randrange(len(shape)),), g.draw.choice(["sum", "max"]))


def _infinite(g: LemmaGraph) -> None:
    v = g.pick("real", least=1)
    if v and g.special:
        m = masked(g, v)
        if m and g.draw.random() < 0.5:
            reduced(g, m, (g.draw.randrange(len(v.type.shape)),), g.draw.choice(["max", "sum", "max"]))


def _again(g: LemmaGraph) -> None:
    """A value computed twice, as a difference or a quotient of equal things."""
    v = g.pick("real")
    w = g.like(v) if v else None
    if v is None or w is None:
        return
    x, y = g.add("add", (v, w)), g.add("add", (w, v))
    if x and y:
        z = g.add("subtract", (x, y))
        if z:
            g.add("add", (z, v))


def _distributed(g: LemmaGraph) -> None:
    """`a*b + a*c`, sums of products along a dim with factors that do not read it."""
    v = g.pick("real", least=1)
    w = g.like(v) if v else None
    u = g.like(v) if v else None
    if v is None or w is None or u is None:
        return
    a, b = g.add("multiply", (v, w)), g.add("multiply", (v, u))
    s = g.add(g.draw.choice(["add", "subtract"]), (a, b)) if a and b else None
    if s:
        d = g.draw.randrange(len(v.type.shape))
        t = reduced(g, s, (d,), "sum")
        kept = tuple(k for k in range(len(v.type.shape)) if k != d)
        wide = g.spread(t, v.type.shape, kept) if t else None
        if wide:
            g.add("multiply", (wide, v))


FRAGMENTS: Final[tuple[Callable[[LemmaGraph], Any], ...]] = (
    *(_function, _function, _combine, _combine, _combine, _like_inputs, _small, _softmax, _softmax),
    *(_blocks, _blocks, _ring, _turned, _collected, _positions, _positions, _again, _distributed, _infinite),
)

SHAPES: Final = ((2,), (3,), (4,), (6,), (2, 3), (3, 2), (4, 3), (2, 4), (1, 3), (2, 2, 3), (4, 4))


def random_lemma_graph(draw: Random, lemmas: list[Lemma], *, size: int = 24) -> LemmaGraph:
    """A program of about `size` operators with a few sides of `lemmas` in it."""
    g = LemmaGraph(draw, draw.choice(MESHES), special=draw.random() < 0.35)
    g.input(DType.F64, draw.choice(SHAPES))
    g.input(DType.F64, draw.choice(SHAPES))
    if g.mesh.size > 1:
        v = g.input(DType.F64, (g.mesh.size, *draw.choice(SHAPES)))
        r = g.add("rank_id", (), TensorType(DType.S32, ()))
        zero = g.constant(0, DType.S32)
        if r and zero:
            rest = v.type.shape[1:]
            row = g.add("dynamic_slice", (v, r, *[zero] * len(rest)), sizes=(1, *rest))
            if row:
                g.add("reshape", (row,), TensorType(v.type.dtype, rest))
    favoured = [draw.choice(FRAGMENTS) for _ in range(3)]
    tries = 0
    while len(g.ops) < size and tries < 4 * size:
        tries += 1
        style = draw.random()
        if lemmas and style < 0.25:
            add_lemma(g, draw.choice(lemmas))
        elif style < 0.55:
            draw.choice(favoured)(g)
        elif style < 0.9:
            draw.choice(FRAGMENTS)(g)
        else:
            draw.choice(MAKERS)(g)
    return g


# checking


def check_lemma_graph(
    g: LemmaGraph, rules: Rules | None, *, lenient: bool = False, algebra: bool = True
) -> Counter[str]:
    """Every value and every rewritten class equals plain interpretation; how often each lemma was used.

    Raises AssertionError with the program, or Slow.
    """
    store = new_store(folding=True, lenient=lenient, algebra=algebra)
    end = time.monotonic() + SECONDS

    def check() -> None:
        if time.monotonic() > end:
            raise Slow(text(g))

    store.check = check
    search = Search(store, rules) if rules is not None else None
    if search is not None:
        search.begin()
    inputs = {}
    for x in g.inputs:
        low, high = g.ranges.get(x.name, (None, None))
        inputs[x.name] = input_view(store, x.value, low=low, high=high)
    state = normalise(store, g.module(), inputs)
    used = Counter(i.lemma for i in search.instances) if search is not None else Counter()
    if any(kind in ("index_range", "distinct_indices", "finite_value") for kind, _ in store.assumptions):
        return used
    if lenient and g.special:
        return used
    _check_values(g, store, state)
    return used


def _check_values(g: LemmaGraph, store: Store, state: Normalised) -> None:
    evaluation = Evaluation(store, {x.name: g.values[x.name][0] for x in g.inputs})
    drawn: set[str] = set()
    for op in g.ops:
        names = {v.name for v in op.results}
        if names & state.opaque.keys() or drawn & {v.name for v in op.operands}:
            drawn |= names
    places = list(ranks_of(state))
    for v in g.pool:
        if v.name in drawn:
            continue
        for rank, at in enumerate(places):
            found = evaluation.view(state.views[v.name], at)
            wanted = g.values[v.name][rank]
            message = f"{v.name} on rank {rank}: {found.tolist()} is not {wanted.tolist()}\n{text(g)}"
            assert agree(found, wanted), message
    _check_rewritten(g, store, evaluation)
    for n, a in enumerate(g.pool):
        for b in g.pool[:n]:
            x, y = state.views[a.name], state.views[b.name]
            if x.shape != y.shape or 0 in x.shape or x.dtype is not y.dtype or x.term.cls != y.term.cls:
                continue
            if equal_views(store, x, y):
                for p, q in zip(g.values[a.name], g.values[b.name], strict=True):
                    assert agree(p, q), f"{a.name} and {b.name} have equal views\n{text(g)}"


def _check_rewritten(g: LemmaGraph, store: Store, evaluation: Evaluation) -> None:
    for cls, made in list(store.rewritten.items()):
        if made is None or cls >= len(store.classes):
            continue
        c = store.classes[cls]
        table = evaluation.table(cls)
        at = {
            i: np.arange(n).reshape([n if k == d else 1 for k in range(len(made.slots))])
            for d, (i, n) in enumerate(zip(made.slots, table.shape, strict=True))
        }
        with np.errstate(all="ignore"):
            new = np.broadcast_to(evaluation.term(made.term, at), table.shape)
        finite = np.isfinite(table.astype(np.float64)) & np.isfinite(new.astype(np.float64))
        ok = np.isclose(table, new, rtol=1e-6, atol=1e-5) | ~finite if not c.special else np.isclose(
            table, new, rtol=1e-6, atol=1e-5, equal_nan=True
        )
        message = f"class {cls} {c.op}: {table.tolist()} is rewritten to {new.tolist()}\n{text(g)}"
        assert bool(np.all(ok)), message
