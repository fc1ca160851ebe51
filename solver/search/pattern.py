"""Left sides of lemmas as patterns over classes.

A pattern is the lemma's left side normalised in a store of its own, with a free input for each metavariable
and a large prime as the extent of each index, so that extents can be recognised in coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from shardproof.lemmas.terms import Compare, Extent, Lemma, Number, Relation, Variable, children
from shardproof.passes.access import Expr
from shardproof.passes.arithmetic import scaled
from shardproof.passes.classes import NONNEGATIVE, POSITIVE, Coefficient, Store, Term
from shardproof.passes.normalise import new_store
from shardproof.solver.certificates.instance import Binding, NoInstance, left, right

PRIMES: Final = (10007, 10037, 10061, 10079, 10093, 10111, 10133, 10141, 10159, 10169, 10193, 10211)
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
    return other if isinstance(other, str) else replace(other, plain=alike(pattern.root, other.root))


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


# matching


def alike(a: Node, b: Node) -> bool:
    if isinstance(a, Shape) and isinstance(b, Shape):
        same = (a.op, a.attrs, a.coef) == (b.op, b.attrs, b.coef) and len(a.operands) == len(b.operands)
        return same and all(map(alike, a.operands, b.operands))
    return type(a) is type(b) and getattr(a, "name", "") == getattr(b, "name", "") and a.coef == b.coef
