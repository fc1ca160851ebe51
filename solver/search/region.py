"""Terms of a store as terms of the lemma language over named indices, and back.

A region holds two terms down to the classes that both sides share; what is left there, and what has no
form in the language, is an atom: a metavariable with a term of the store. Names of bound indices are shared
between binders that read alike, but never with an index in scope or one that the body reads (soundness S4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Kind,
    Lemma,
    Number,
    Position,
    Reduce,
    ReduceKind,
    Variable,
    children,
)
from shardproof.lemmas.terms import Term as Written
from shardproof.passes.access import Digit, Element, Expr, index
from shardproof.passes.classes import Store, Term
from shardproof.passes.pieces import read
from shardproof.solver.certificates.instance import Binding, left
from shardproof.solver.locate.descent import below

UNARY: Final = {
    **{f: f for f in ("exponential", "logistic", "tanh", "tan", "sine", "cosine", "erf", "sign", "floor")},
    **{f: f for f in ("ceil", "round_even", "round_away", "cbrt")},
    "absolute": "abs",
}
"""Classes of real functions of one value, and their operator in the language."""
NAMED: Final = frozenset({"log"})
"""Operators that are classes `function` of their name alone."""
REDUCED: Final[Mapping[str, ReduceKind]] = {"sum": "sum", "max": "max", "prod": "prod", "all": "and"}
MOST: Final = 400
"""Most nodes of a region; what is left then is atoms."""
DEEPEST: Final = 60
"""Deepest nesting of a region."""
SIGNATURE: Final = 16
"""Most places of leaves that tell what a bound index reads."""

Place = tuple[int, int]
"""A leaf class and one of its slots."""


@dataclass(frozen=True, slots=True)
class Region:
    """Two terms over the atoms `atoms` and the indices `indices` (name to index of the store).

    A bound name stands for its index in the terms of atoms; free names are those of `free`.
    """

    left: Written
    right: Written
    atoms: Mapping[str, Term]
    indices: Mapping[str, int]
    free: frozenset[str]

    def reads(self, store: Store, atom: str) -> frozenset[str]:
        """The names that an atom reads."""
        own = store.term_indices(self.atoms[atom])
        return frozenset(k for k, i in self.indices.items() if i in own)


def region(
    store: Store, a: Term, b: Term, *, beyond: int = 0, limit: int = MOST, keep: frozenset[int] | None = None
) -> Region:
    """Both terms down to shared classes, these `beyond` operators further, at most `limit` nodes in all.

    `keep` gives the classes that are shared; None finds them.
    """
    a, b = read(store, a), read(store, b)
    if keep is None:
        keep = frozenset(below(store, a.cls) & below(store, b.cls))
    work = _Expander(store, keep, limit)
    free = [work.free(i) for t in (a, b) for i in _in_order(store, t)]
    left_, right_ = work.expand(a, beyond, ()), work.expand(b, beyond, ())
    return Region(left_, right_, dict(work.atoms), dict(work.indices), frozenset(free))


def build(
    store: Store, term: Written, atoms: Mapping[str, Term], indices: Mapping[str, Sequence[int]]
) -> Term:
    """The term of the store that a term of the language denotes over these atoms and indices.

    Raises NoInstance where it has none.
    """
    used = {t.name for t in _walked(term) if isinstance(t, Variable)}
    kinds = tuple((name, _kind(store, t)) for name, t in atoms.items() if name in used)
    own = Lemma("", "", term, term, variables=kinds, indices=tuple(indices))
    binding = Binding({name: atoms[name] for name, _ in kinds}, {k: tuple(i) for k, i in indices.items()})
    return read(store, left(store, own, binding))


def weight(*terms: Written) -> int:
    """How many operators, numbers and variables the terms have, those of shared parts counted each time."""
    known: dict[int, int] = {}
    total = 0
    for term in terms:
        stack = [term]
        while stack:
            t = stack[-1]
            missing = [x for x in children(t) if id(x) not in known]
            if missing:
                stack += missing
            else:
                known[id(t)] = 1 + sum(known[id(x)] for x in children(t))
                stack.pop()
        total += known[id(term)]
    return total


def _kind(store: Store, t: Term) -> Kind:
    kind = store.kind(t)
    return "int" if kind == "uint" else kind  # type: ignore[return-value]


def _walked(term: Written) -> list[Written]:
    found, stack = [], [term]
    while stack:
        t = stack.pop()
        found.append(t)
        stack += children(t)
    return found


def _in_order(store: Store, t: Term) -> list[int]:
    """The indices a term reads, in the order of its slots."""
    return list(dict.fromkeys(i for e in t.access for i in _expr_order(store, e)))


def _expr_order(store: Store, e: Expr) -> list[int]:
    found = []
    for t, _ in sorted(e[1], key=lambda x: (-abs(x[1]), x[0])):
        if t > 0:
            found.append(t)
        else:
            found += [i for inner in store.inner(t) for i in _expr_order(store, inner)]
    return found


@dataclass(slots=True)
class _Bound:
    """A name of bound indices: its index of the store and what bound indices of the name read."""

    name: str
    index: int
    reads: set[Place]


class _Expander:
    def __init__(self, store: Store, keep: frozenset[int], limit: int) -> None:
        self.store = store
        self.keep = keep
        self.limit = limit
        self.count = 0
        self.atoms: dict[str, Term] = {}
        self.named: dict[Term, str] = {}
        self.indices: dict[str, int] = {}
        self.bound: list[_Bound] = []
        self.done: dict[tuple[Term, int], list[tuple[Written, frozenset[str]]]] = {}
        self.inside: set[str] = set()
        self.places: dict[int, tuple[frozenset[Place], ...]] = {}

    def free(self, i: int) -> str:
        """The name of an index that is bound nowhere in the region."""
        for name, j in self.indices.items():
            if i == j:
                return name
        name = f"i{len(self.indices)}"
        self.indices[name] = i
        return name

    def atom(self, t: Term) -> Written:
        """A metavariable for the term, its coefficient left outside."""
        coef, t = t.coef, Term(1, t.cls, t.access)
        name = self.named.get(t)
        if name is None:
            name = self.named[t] = f"x{len(self.named)}"
            self.atoms[name] = t
            for i in _in_order(self.store, t):
                self.free(i)
        return _times(coef, Variable(name))

    def expand(self, t: Term, beyond: int, scope: tuple[str, ...], depth: int = 0) -> Written:
        """The term in the language; `scope` are the names bound around it."""
        store = self.store
        t = read(store, t)
        if t.cls == store.ONE:
            return Number(Fraction(t.coef))
        if t.coef not in (0, 1):
            return _times(t.coef, self.expand(Term(1, t.cls, t.access), beyond, scope, depth))
        c = store.classes[t.cls]
        shared = t.cls in self.keep
        if shared and c.operands and beyond <= 0:
            return self.atom(t)
        for made, names in self.done.get((t, beyond), ()):
            if names.isdisjoint(scope):
                self.inside |= names
                return made
        self.count += 1
        if self.count > self.limit or depth > DEEPEST or t.coef == 0:
            return self.atom(t)
        outside, self.inside = self.inside, set()
        written = self._made(t, beyond - shared, scope, depth + 1)
        known = self.atom(t) if written is None else written
        self.done.setdefault((t, beyond), []).append((known, frozenset(self.inside)))
        self.inside |= outside
        return known

    def _made(self, t: Term, beyond: int, scope: tuple[str, ...], depth: int) -> Written | None:
        store = self.store
        c = store.classes[t.cls]
        if t.cls in (store.STEP, store.MATCH):
            return self._comparison(t)
        if t.cls == store.REAL:
            return Apply("convert", (self._integer(t.access[0]),))
        if t.cls in (store.TRUE, store.FALSE):
            zero = Number(Fraction(0))
            return Compare("EQ" if t.cls == store.TRUE else "NE", zero, zero)
        if c.bound:
            return self._reduction(t, beyond, scope, depth)
        if not c.operands or c.kind not in ("real", "bool") or c.op in ("concat", "opaque"):
            return None
        form = _form(c.op, c.attrs, c.kind, [store.kind(x) for x in c.operands])
        if form is None:
            return None
        operands, _ = store.expand(t)
        x = [self.expand(o, beyond, scope, depth) for o in operands]
        match form:
            case "power":
                exponent = x[1] if c.op == "power_of" else Number(Fraction(c.attrs[0]))
                return Apply("power", (x[0], exponent))
            case "indicator":
                return Apply("convert", (x[0],))
            case "EQ" | "LT" | "LE":
                return Compare(form, x[0], x[1])
            case "add" | "multiply" | "maximum" | "and":
                return _joined(form, x)
            case _:
                return Apply(form, tuple(x))

    def _reduction(self, t: Term, beyond: int, scope: tuple[str, ...], depth: int) -> Written | None:
        store = self.store
        c = store.classes[t.cls]
        if c.op not in REDUCED or c.attrs or c.groups or c.kind not in ("real", "bool"):
            return None
        operands, bound = store.expand(t)
        names: list[str] = []
        by: dict[int, Expr] = {}
        outside = store.term_indices(t)
        for i in bound:
            name = self._name(i, operands[0], outside, (*scope, *names))
            by[i] = index(self.indices[name])
            names.append(name)
            self.inside.add(name)
        body = self.expand(store.substitute_term(operands[0], by), beyond, (*scope, *names), depth)
        return Reduce(REDUCED[c.op], tuple(names), body)

    def _name(self, i: int, body: Term, outside: set[int], taken: Sequence[str]) -> str:
        """A name for a bound index: one whose indices read some of the same leaves, or a new one."""
        size = self.store.sizes[i]
        reads = self._reads(body, i)
        best, most = None, 0
        for b in self.bound:
            common = len(b.reads & reads)
            if (
                common > most
                and self.store.sizes[b.index] == size
                and b.name not in taken
                and b.index not in outside
            ):
                best, most = b, common
        if best is None:
            best = _Bound(f"k{len(self.bound)}", i, set())
            self.bound.append(best)
            self.indices[best.name] = i
        if len(best.reads) < SIGNATURE:
            best.reads |= reads
        return best.name

    def _reads(self, t: Term, i: int) -> set[Place]:
        slots = self._places(t.cls)
        found: set[Place] = set()
        for e, own in zip(t.access, slots, strict=True):
            if i in self.store.indices(e):
                found |= own
                for u, _ in e[1]:
                    atom = self.store.atom(u) if u < 0 else None
                    if isinstance(atom, Element):
                        found.add((atom.cls, 0))
        return found

    def _places(self, cls: int) -> tuple[frozenset[Place], ...]:
        """Per slot of a class, the slots of leaves at which it is read."""
        known = self.places.get(cls)
        if known is not None:
            return known
        c = self.store.classes[cls]
        if not c.operands:
            found = tuple(frozenset({(cls, n)}) for n in range(len(c.extents)))
        else:
            slots: dict[int, set[Place]] = {i: set() for i in c.free}
            for t in c.operands:
                inner = self._places(t.cls)
                for e, own in zip(t.access, inner, strict=True):
                    for i in self.store.indices(e):
                        if i in slots and len(slots[i]) < SIGNATURE:
                            slots[i] |= own
            found = tuple(frozenset(slots[i]) for i in c.free)
        self.places[cls] = found
        return found

    # integers

    def _comparison(self, t: Term) -> Written:
        """`e >= 0` or `e == 0`, what is subtracted on the other side."""
        e = t.access[0]
        above = (max(e[0], 0), tuple((u, s) for u, s in e[1] if s > 0))
        below = (max(-e[0], 0), tuple((u, -s) for u, s in e[1] if s < 0))
        direction: Literal["GE", "EQ"] = "GE" if t.cls == self.store.STEP else "EQ"
        return Compare(direction, self._integer(above), self._integer(below))

    def _integer(self, e: Expr) -> Written:
        parts: list[Written] = []
        for t, s in sorted(e[1], key=lambda x: (-abs(x[1]), x[0])):
            part: Written = Position(self.free(t)) if t > 0 else self._element(t)
            parts.append(part if s == 1 else Apply("multiply", (Number(Fraction(s)), part)))
        if e[0] or not parts:
            parts.append(Number(Fraction(e[0])))
        return _joined("add", parts)

    def _element(self, t: int) -> Written:
        store = self.store
        atom = store.atom(t)
        if isinstance(atom, Digit):
            return self.atom(Term(1, store.POSITION, ((0, ((t, 1),)),)))
        c = store.classes[atom.cls]
        own = Term(1, atom.cls, atom.access)
        if c.op in ("maximum", "minimum", "multiply") and not c.attrs and not c.bound:
            self.count += 1
            if self.count <= self.limit:
                operands, _ = store.expand(own)
                return _joined(c.op, [self._integer(store.expression(x)) for x in operands])
        return self.atom(own)


def _form(op: str, attrs: tuple[object, ...], kind: str, kinds: Sequence[str]) -> str | None:
    """What a class without bound indices is in the language."""
    reals = all(k == "real" for k in kinds)
    if op == "indicator":
        return op
    if kind == "real" and reals:
        if op == "power":
            return op
        if op == "power_of":
            return "power"
        if op in ("add", "multiply", "maximum") and not attrs:
            return op
        if op in UNARY and not attrs:
            return UNARY[op]
        if op == "function" and len(attrs) == 1 and attrs[0] in NAMED:
            return str(attrs[0])
    if op == "select" and kinds[1:] == [kind] * 2:
        return op
    if kind == "bool":
        if op == "compare" and reals:
            return str(attrs[0]) if attrs in (("EQ",), ("LT",), ("LE",)) else None
        if op in ("not", "and", "xor"):
            return op
    return None


def _times(coef: Fraction | int, t: Written) -> Written:
    return t if coef == 1 else Apply("multiply", (Number(Fraction(coef)), t))


def _joined(op: str, parts: Sequence[Written]) -> Written:
    done = parts[-1]
    for t in reversed(parts[:-1]):
        done = Apply(op, (t, done))
    return done
