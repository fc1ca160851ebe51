"""Lemma terms as Z3 terms over all extents.

An index is an integer constant, a metavariable a function of the indices that it may read, wherever
it stands. A binder becomes a function symbol of the indices that remain free; `Encoder.binders` says
what each symbol stands for. Nothing is simplified here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import z3

from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Direction,
    Extent,
    Lemma,
    Number,
    Opaque,
    Position,
    Reduce,
    Relation,
    Take,
    Term,
    Variable,
    walk,
)

Expr = Any
"""A Z3 term of sort Int, Real or Bool."""

REAL: Final = z3.RealSort()
INT: Final = z3.IntSort()
BOOL: Final = z3.BoolSort()
SORTS: Final = {"real": REAL, "int": INT, "bool": BOOL}

EXP: Final = z3.Function("exp", REAL, REAL)
LOG: Final = z3.Function("log", REAL, REAL)
SQRT: Final = z3.Function("sqrt", REAL, REAL)
RSQRT: Final = z3.Function("rsqrt", REAL, REAL)
INVERSE: Final = z3.Function("inverse", REAL, REAL)
POWER: Final = z3.Function("power", REAL, REAL, REAL)
UNKNOWN: Final = {
    op: z3.Function(op, REAL, REAL)
    for op in ("erf", "sine", "cosine", "tan", "cbrt", "round_even", "round_away")
}
"""Functions of which only congruence is used."""


class Unencodable(Exception):
    """The term has a part that is not modelled."""


@dataclass(frozen=True)
class Binder:
    """A symbol of the encoding: `symbol(*parameters)` is `kind` over the bound constants of `body`.

    `parameters` are all constants of the body that stand for indices and are not bound.
    """

    kind: str
    symbol: Any
    parameters: tuple[Expr, ...]
    indices: tuple[str, ...]
    bound: tuple[Expr, ...]
    body: Expr


def real(x: Expr) -> Expr:
    """An integer term as a real one."""
    return z3.ToReal(x) if z3.is_int(x) else x


def rational(x: Fraction) -> Expr:
    return z3.RealVal(x)


def subterms(*terms: Expr) -> Iterator[Expr]:
    """Every distinct term inside the given ones."""
    seen: set[int] = set()
    left = list(terms)
    while left:
        term = left.pop()
        if term.get_id() not in seen:
            seen.add(term.get_id())
            yield term
            left += term.children()


class Encoder:
    """The constants, sizes and symbols of one lemma."""

    def __init__(self, lemma: Lemma) -> None:
        self.lemma = lemma
        self.sizes: dict[str, Expr] = {i: z3.Int(f"|{i}|") for i in lemma.indices}
        self.index_of: dict[int, str] = {}
        self.constants: list[Expr] = []
        self.home = {i: self.constant(i, i) for i in lemma.indices}
        self.binders: dict[str, Binder] = {}
        self._keys: dict[tuple[object, ...], Binder] = {}
        self._kept: list[Expr] = []
        self.definitions = _definitions(lemma)
        self.variables: dict[str, Any] = {}
        for name, kind in lemma.variables:
            arity = len(lemma.reads(name))
            self.variables[name] = z3.Function(f"{name}", *([INT] * arity), SORTS[kind])

    def constant(self, name: str, index: str) -> Expr:
        """An integer constant in the range of an index."""
        result = z3.Int(name)
        if result.get_id() not in self.index_of:
            self.index_of[result.get_id()] = index
            self.constants.append(result)
        return result

    def free(self, *terms: Expr) -> list[Expr]:
        """The constants in the range of an index that occur in the terms, by name."""
        found = [t for t in subterms(*terms) if t.get_id() in self.index_of]
        return sorted(found, key=str)

    def in_range(self, term: Expr, index: str) -> Expr:
        return z3.And(term >= 0, term < self.sizes[index])

    def binder(
        self, kind: str, indices: Sequence[str], bound: Sequence[Expr], body: Expr, extra: Sequence[Expr] = ()
    ) -> Expr:
        """The application of the symbol for `kind` over the bound constants of a body.

        `extra` are further arguments: the output indices of an opaque binder, the position of a take.
        """
        hidden = {b.get_id() for b in bound}
        parameters = tuple(c for c in self.free(body) if c.get_id() not in hidden)
        key = (kind, tuple(indices), tuple(b.get_id() for b in bound), body.get_id())
        known = self._keys.get(key)
        if known is None:
            arguments = [*(p.sort() for p in parameters), *(e.sort() for e in extra)]
            sort = body.sort() if kind not in ("opaque",) else REAL
            symbol = z3.Function(f"{kind} {len(self._keys)}", *arguments, sort)
            known = Binder(kind, symbol, parameters, tuple(indices), tuple(bound), body)
            self._keys[key] = known
            self._kept.append(body)
            self.binders[symbol.name()] = known
        return known.symbol(*parameters, *extra)

    def unfold(self, application: Expr, at: Sequence[Expr]) -> Expr:
        """The body of a binder at the arguments of an application and at the given bound positions."""
        binder = self.binders[application.decl().name()]
        arguments = application.children()[: len(binder.parameters)]
        pairs = [*zip(binder.parameters, arguments, strict=True), *zip(binder.bound, at, strict=True)]
        return z3.substitute(binder.body, *pairs)

    def term(self, term: Term) -> Expr:
        """The term where each index stands at its own constant."""
        match term:
            case Number(x):
                return z3.IntVal(int(x)) if x.denominator == 1 else rational(x)
            case Variable(name) if name in self.definitions:
                return self.term(self.definitions[name])
            case Variable(name):
                return self.variables[name](*(self.home[i] for i in self.lemma.reads(name)))
            case Position(index):
                return self.home[index]
            case Extent(index):
                return self.sizes[index]
            case Compare(direction, a, b):
                return compare(direction, self.term(a), self.term(b))
            case Apply(op, operands):
                return apply(op, [self.term(x) for x in operands])
            case Reduce(kind, indices, body):
                return self._reduce(kind, indices, self.term(body))
            case Take(indices, body, position):
                return self._take(indices, self.term(body), self.term(position))
            case Opaque(name, inputs, outputs, operands):
                return self._opaque(name, inputs, outputs, [real(self.term(x)) for x in operands])

    def _reduce(self, kind: str, indices: tuple[str, ...], body: Expr) -> Expr:
        bound = [self.home[i] for i in indices]
        if z3.is_int(body) and kind in ("sum", "prod"):
            return z3.ToInt(self.binder(kind, indices, bound, z3.ToReal(body)))
        if z3.is_bool(body):
            kind = {"sum": "or", "max": "or", "prod": "and", "min": "and"}.get(kind, kind)
        return self.binder(kind, indices, bound, body)

    def _take(self, indices: tuple[str, ...], body: Expr, position: Expr) -> Expr:
        if not z3.is_int(position):
            raise Unencodable("a position that is no integer")
        bound = [self.home[i] for i in indices]
        size: Expr = z3.IntVal(1)
        pairs = []
        for n, index in enumerate(reversed(indices)):
            digit = position if n == 0 else position / size
            if n + 1 < len(indices):
                digit = digit % self.sizes[index]
            pairs.append((self.home[index], digit))
            size = self.sizes[index] if n == 0 else size * self.sizes[index]
        unknown = self.binder("take", indices, bound, body, (position,))
        inside = z3.And(position >= 0, position < size)
        return z3.If(inside, z3.substitute(body, *pairs), unknown)

    def _opaque(
        self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], operands: list[Expr]
    ) -> Expr:
        tuple_of = z3.Function(f"arrays of {name}", *(x.sort() for x in operands), REAL)
        bound = [self.home[i] for i in inputs]
        key = f"opaque {name} {len(inputs)} {[self.sizes[i] for i in (*inputs, *outputs)]}"
        return self.binder(key, inputs, bound, tuple_of(*operands), [self.home[o] for o in outputs])


def _definitions(lemma: Lemma) -> dict[str, Term]:
    """The metavariables that a condition says to be equal to a term of others."""
    found: dict[str, Term] = {}
    for c in lemma.conditions:
        if isinstance(c, Relation) and c.direction == "EQ" and isinstance(c.left, Variable):
            names = {x.name for x in walk(c.right) if isinstance(x, Variable)}
            if c.left.name not in names | found.keys() and not names & found.keys():
                found[c.left.name] = c.right
    return found


def compare(direction: Direction, a: Expr, b: Expr) -> Expr:
    """A comparison; integers become reals where the other side is real."""
    if z3.is_bool(a) and direction not in ("EQ", "NE"):
        raise Unencodable("an order of booleans")
    if not z3.is_bool(a) and a.sort() != b.sort():
        a, b = real(a), real(b)
    match direction:
        case "EQ":
            return a == b
        case "NE":
            return z3.Not(a == b)
        case "LT":
            return a < b
        case "LE":
            return a <= b
        case "GT":
            return b < a
        case "GE":
            return b <= a


def apply(op: str, x: Sequence[Expr]) -> Expr:
    """A pointwise operator. Division is multiplication by `inverse`, which is open at 0."""
    if op in ("and", "or", "not", "xor") and all(z3.is_bool(v) for v in x):
        return {"and": z3.And, "or": z3.Or, "not": z3.Not, "xor": z3.Xor}[op](*x)
    if op == "select":
        a, b = x[1:]
        return z3.If(x[0], a, b) if a.sort() == b.sort() else z3.If(x[0], real(a), real(b))
    if op == "convert":
        return z3.If(x[0], rational(Fraction(1)), rational(Fraction(0))) if z3.is_bool(x[0]) else real(x[0])
    if any(z3.is_bool(v) for v in x):
        raise Unencodable(f"`{op}` of booleans")
    if not all(z3.is_int(v) for v in x) or op not in _NUMBER:
        x = [real(v) for v in x]
    known = _NUMBER.get(op) or _REAL.get(op)
    if known is not None:
        return known(*x)
    if op in UNKNOWN:
        return UNKNOWN[op](*x)
    raise Unencodable(f"`{op}`")


def _maximum(a: Expr, b: Expr) -> Expr:
    return z3.If(b <= a, a, b)


def _minimum(a: Expr, b: Expr) -> Expr:
    return z3.If(b <= a, b, a)


def _sigmoid(x: Expr) -> Expr:
    return INVERSE(1 + EXP(-x))


def _floor(x: Expr) -> Expr:
    return z3.ToReal(z3.ToInt(x))


def _power(x: Expr, y: Expr) -> Expr:
    exponent = z3.simplify(y)
    if z3.is_rational_value(exponent):
        value = Fraction(exponent.numerator_as_long(), exponent.denominator_as_long())
        if value == Fraction(1, 2):
            return SQRT(x)
        if value == Fraction(-1, 2):
            return RSQRT(x)
        if value == -1:
            return INVERSE(x)
        if value.denominator == 1 and 0 <= value < 20:
            return z3.Product([x] * int(value)) if value else rational(Fraction(1))
        return POWER(x, exponent)
    return POWER(x, y)


_NUMBER: Final[dict[str, Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "negate": lambda a: -a,
    "maximum": _maximum,
    "minimum": _minimum,
    "clamp": lambda low, x, high: _minimum(_maximum(x, low), high),
    "abs": lambda x: z3.If(x >= 0, x, -x),
    "sign": lambda x: z3.If(x < 0, x - x - 1, z3.If(x > 0, x - x + 1, x - x)),
}
_REAL: Final[dict[str, Any]] = {
    "divide": lambda a, b: a * INVERSE(b),
    "exponential": EXP,
    "expm1": lambda x: EXP(x) - 1,
    "log": LOG,
    "log1p": lambda x: LOG(1 + x),
    "sqrt": SQRT,
    "rsqrt": RSQRT,
    "logistic": _sigmoid,
    "tanh": lambda x: 2 * _sigmoid(2 * x) - 1,
    "power": _power,
    "floor": _floor,
    "ceil": lambda x: -_floor(-x),
}
