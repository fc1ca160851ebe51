"""Classes: canonical functions of indices to a scalar, interned in one store for both programs.

A class is an operator applied to *terms* (coefficient, class, access) over its own free and bound
indices. Equal keys are equal functions: the key holds the operator with every attribute, the kind,
the extents of all free and bound indices in order, and every operand's coefficient, class and access.

Kinds follow `ir.types.Kind`. Integers are carried by accesses: the class POSITION has one slot and its
value is what the access says, so `2*i + ids[j] - 3` is a view of POSITION. STEP (`e >= 0`) and
MATCH (`e == 0`) are the comparisons of integers, REAL is the integer as a real number. These four are
total on all integers; their slot has the extent None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite, isnan
from typing import Any, Final, NamedTuple

from shardproof.ir.types import Kind
from shardproof.passes.access import Accesses, Element, Expr, Range, constant, index
from shardproof.passes.folding import fold, fold_digit
from shardproof.passes.plans import Plan

Coefficient = Fraction | int

POSITIVE_INFINITY: Final = 1
NEGATIVE_INFINITY: Final = 2
NOT_A_NUMBER: Final = 4

UNKNOWN_SIGN: Final = 0
NONNEGATIVE: Final = 1
POSITIVE: Final = 2


class Term(NamedTuple):
    """`coef * cls[access]`; the coefficient is 1 unless the class is real."""

    coef: Coefficient
    cls: int
    access: tuple[Expr, ...]


@dataclass(slots=True, eq=False)
class Class:
    """What a class is: `op(operands)` with `free` slots of `extents`, over `bound` indices.

    `bound` lists placeholder indices: a set for reductions; for every other binder ordered lists, one
    per bound dim, whose lengths are `groups`. `out` counts the trailing slots that are output positions
    of an ordered binder. `special` are the infinities and NaN that a value may have, `sign` what is known
    of it; `partial` says that a part of it may be outside its domain, so that its value there is not known;
    `low`, `high` bound integers.
    `symmetries` are permutations of the slots that leave the function unchanged.
    """

    op: str
    attrs: tuple[Any, ...]
    kind: Kind
    extents: tuple[int | None, ...]
    free: tuple[int, ...] = ()
    bound: tuple[int, ...] = ()
    out: int = 0
    operands: tuple[Term, ...] = ()
    groups: tuple[int, ...] = ()
    special: int = 0
    sign: int = UNKNOWN_SIGN
    low: int | None = None
    high: int | None = None
    closed: bool = False
    partial: bool = False
    symmetries: set[tuple[int, ...]] = field(default_factory=set)


class Rewritten(NamedTuple):
    """A term that equals a class, over one index per slot of the class."""

    slots: tuple[int, ...]
    term: Term


class Store(Accesses):
    """All classes, and the assumptions that merging them has used so far."""

    def __init__(
        self,
        *,
        folding: bool = False,
        lenient: bool = False,
        reading: bool = False,
        algebra: bool = False,
        inside: bool = False,
    ) -> None:
        super().__init__()
        self.folding = folding
        self.lenient = lenient
        self.reading = reading
        self.algebra = algebra
        self.inside = inside
        self.rewrite: Callable[[int], Rewritten | None] | None = None
        self.rewritten: dict[int, Rewritten | None] = {}
        self.tables: dict[tuple[int, ...], list[Any]] = {}
        self.computed: dict[tuple[int, ...], list[Any]] = {}
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.classes: list[Class] = []
        self.assumptions: dict[tuple[str, str], Any] = {}
        self.wishes: dict[str, tuple[int, int]] = {}
        self._keys: dict[tuple[Any, ...], int] = {}
        self._places: dict[tuple[str, int, int], int] = {}
        self.check: Callable[[], None] = lambda: None
        self.builders: dict[str, Callable[..., Term]] = {}
        self.loops: list[Any] = []
        self._draws = 0
        self.element_range = self._element_range
        self.ONE = self.leaf("one", (), "real", (), sign=POSITIVE, closed=True)
        self.POSITION = self.leaf("position", (), "int", (None,), closed=True)
        self.STEP = self.leaf("step", (), "bool", (None,), closed=True)
        self.MATCH = self.leaf("match", (), "bool", (None,), closed=True)
        self.REAL = self.leaf("real", (), "real", (None,), closed=True)
        self.TRUE = self.leaf("true", (), "bool", (), closed=True)
        self.FALSE = self.leaf("false", (), "bool", (), closed=True)

    def _element_range(self, cls: int) -> Range:
        c = self.classes[cls]
        return c.low, c.high

    def assume(self, kind: str, text: str, value: Any = None) -> None:
        """Record an assumption; every verdict from this store lists it."""
        self.assumptions.setdefault((kind, text), value)

    def wish(self, e: Expr, low: int, high: int) -> None:
        """Note that `low <= e <= high` would help, where `e` reads an integer input."""
        if len(e[1]) != 1 or e[1][0][0] > 0 or e[1][0][1] != 1:
            return
        atom = self.atom(e[1][0][0])
        if isinstance(atom, Element) and self.classes[atom.cls].op == "input":
            name = str(self.classes[atom.cls].attrs[0])
            before = self.wishes.get(name, (low - e[0], high - e[0] + 1))
            self.wishes[name] = (max(before[0], low - e[0]), min(before[1], high - e[0] + 1))

    # rewriting

    def settled(self, t: Term) -> Term:
        """The term, its class replaced by what `rewrite` gives for it; each class is asked for once.

        While a class is being rewritten it stands for itself.
        """
        if self.rewrite is None:
            return t
        if t.cls not in self.rewritten:
            self.rewritten[t.cls] = None
            self.rewritten[t.cls] = self.rewrite(t.cls)
        found = self.rewritten[t.cls]
        if found is None:
            return t
        by = dict(zip(found.slots, t.access, strict=True))
        coef, cls, access = self.substitute_term(found.term, by)
        return Term(coef if t.coef == 1 else t.coef * coef, cls, access)

    def mark(self) -> tuple[int, ...]:
        """The state to which `undo` goes back."""
        return (self._draws, *(len(d) for d in self._grown()), *(len(x) for x in self._lists()))

    def undo(self, mark: tuple[int, ...]) -> None:
        """Forget every class, index, atom and assumption made since `mark`."""
        self._draws = mark[0]
        grown = self._grown()
        for made, size in zip(grown, mark[1:], strict=False):
            while len(made) > size:
                made.popitem()
        for kept, size in zip(self._lists(), mark[1 + len(grown) :], strict=True):
            del kept[size:]
        for seen in self.tables.values():
            seen[:] = [x for x in seen if x[0].cls < len(self.classes)]
        sizes = self.extent()
        for views in self.computed.values():
            views[:] = [x for x in views if all(a <= b for a, b in zip(x[0], sizes, strict=True))]

    def extent(self) -> tuple[int, ...]:
        """The number of classes, indices, ...: what was made of so many is valid until `undo` takes some."""
        return tuple(map(len, self._lists()))

    def _grown(self) -> tuple[dict[Any, Any], ...]:
        return self._keys, self._places, self._ids, self.rewritten, self.assumptions, self.wishes, self.plans

    def _lists(self) -> tuple[list[Any], ...]:
        return self.classes, self.sizes, self._atoms, self._support, self.loops

    # interning

    def intern(self, key: tuple[Any, ...], make: Callable[[], Class]) -> int:
        """The class of `key`, made if it is new; making it may intern other classes."""
        found = self._keys.get(key)
        if found is None:
            made = make()
            found = self._keys[key] = len(self.classes)
            self.classes.append(made)
        return found

    def leaf(
        self, op: str, attrs: tuple[Any, ...], kind: Kind, extents: tuple[int | None, ...], **facts: Any
    ) -> int:
        """The class of an input, literal or other function without operands."""
        key = (op, attrs, kind, extents)
        return self.intern(key, lambda: Class(op, attrs, kind, extents, **facts))

    def draw(self, name: str, kind: Kind, extents: tuple[int, ...], **facts: Any) -> int:
        """A class equal to nothing else: a random draw, an uninitialised buffer, an unknown effect."""
        self._draws += 1
        return self.leaf("draw", (name, self._draws), kind, extents, **facts)

    def place(self, role: str, number: int, size: int) -> int:
        """The placeholder index number `number` of `size` in class bodies."""
        key = (role, number, size)
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = self.fresh(size)
        return found

    def element(self, cls: int, access: tuple[Expr, ...]) -> Expr:
        """The value of integer class `cls` at `access`; pieces of concatenations are entered, closed reads of
        tables folded."""
        if self.classes[cls].op == "concat":
            inner = self.builders["read"](self, Term(1, cls, access))
            if inner.cls != cls:
                return self.expression(inner)
        folded = fold(self, cls, access)
        return folded if folded is not None else super().element(cls, access)

    def digit(self, e: Expr, div: int, mod: int) -> Expr:
        """`(e // div) % mod`; a digit of what tables hold is a table, or simpler."""
        made = super().digit(e, div, mod)
        return fold_digit(self, made) if any(t < 0 for t, _ in e[1]) else made

    # constants

    def real(self, value: Coefficient) -> Term:
        """A real constant."""
        return Term(value, self.ONE, ())

    def integer(self, e: Expr, kind: Kind = "int") -> Term:
        """The integer `e` as a term of its own class where it is one."""
        if e[0] == 0 and len(e[1]) == 1 and e[1][0][1] == 1 and e[1][0][0] < 0:
            atom = self.atom(e[1][0][0])
            if isinstance(atom, Element):
                return Term(1, atom.cls, atom.access)
        return Term(1, self.POSITION, (e,))

    def expression(self, t: Term) -> Expr:
        """The integer term as an expression."""
        if t.cls == self.POSITION:
            return t.access[0]
        return self.element(t.cls, t.access)

    def truth(self, value: bool) -> Term:
        """A boolean constant."""
        return Term(1, self.TRUE if value else self.FALSE, ())

    def literal(self, value: float) -> Term:
        """A real literal at its exact value; infinities and NaN are uninterpreted constants."""
        if isfinite(value):
            return self.real(int(value) if value == int(value) else Fraction(value))
        special = NOT_A_NUMBER if isnan(value) else POSITIVE_INFINITY if value > 0 else NEGATIVE_INFINITY
        return Term(1, self.leaf("literal", (repr(value),), "real", (), special=special, closed=True), ())

    # reading

    def kind(self, t: Term) -> Kind:
        return self.classes[t.cls].kind

    def special(self, t: Term) -> int:
        """The infinities and NaN that the term may have; 0 means finite."""
        flags = self.classes[t.cls].special
        if flags & 3 in (1, 2) and t.coef < 0:
            flags ^= 3
        return flags

    def sign(self, t: Term) -> int:
        """What is known of the sign of the term."""
        known = self.classes[t.cls].sign
        if t.coef > 0:
            return known
        return NONNEGATIVE if t.coef == 0 else UNKNOWN_SIGN

    def nonzero(self, t: Term) -> bool:
        """Whether the term is provably nonzero everywhere."""
        return t.coef != 0 and self.classes[t.cls].sign == POSITIVE

    def substitute_term(self, t: Term, by: dict[int, Expr]) -> Term:
        """The term with indices replaced."""
        return Term(t.coef, t.cls, tuple([self.substitute(e, by) for e in t.access]))

    def term_indices(self, t: Term) -> set[int]:
        """Every index the term depends on."""
        return {i for e in t.access for i in self.indices(e)}

    def expand(self, t: Term) -> tuple[list[Term], list[int]]:
        """The operands of the term's class read at its access, and fresh bound indices.

        Bound indices are renamed apart from every index in use, so nothing is captured.
        """
        c = self.classes[t.cls]
        by = dict(zip(c.free, t.access, strict=True))
        bound = []
        for b in c.bound:
            i = self.fresh(self.sizes[b])
            by[b] = index(i)
            bound.append(i)
        read = {x.access: x.access for x in c.operands}
        for access in read:
            read[access] = tuple([self.substitute(e, by) for e in access])
        return [Term(x.coef, x.cls, read[x.access]) for x in c.operands], bound

    def whole(self, cls: int, indices: Sequence[int]) -> Term:
        """The class read at one whole index per slot."""
        return Term(1, cls, tuple(index(i) if i else constant(0) for i in indices))
