"""Terms of a parsed lemma file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NoReturn

from lark import Token, Tree

from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.functions import COMPARISONS, FUNCTIONS, REDUCTIONS, RESERVED
from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Direction,
    Extent,
    Number,
    Opaque,
    Position,
    Reduce,
    Span,
    Take,
    Term,
    Variable,
    children,
)

Node = Tree[Token]

WIDEST_NUMBER: Final = 400
"""Limit of the digits of a number and of its decimal exponent."""

DEEPEST: Final = 100
"""Limit of nested terms."""

LARGEST_BODY: Final = 10_000
"""Limit of the operators of a term once earlier assignments are written out."""

_INFIX: Final = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "divide": "divide",
    "conjoin": "and",
    "disjoin": "or",
    "invert": "not",
}


def trees(node: Node) -> list[Node]:
    """The children that are not tokens."""
    return [child for child in node.children if isinstance(child, Tree)]


def tokens(node: Node) -> list[Token]:
    """The children that are tokens."""
    return [child for child in node.children if isinstance(child, Token)]


def leaf(node: Node) -> str:
    """The text of the only token of a node."""
    return str(node.children[0])


def span_of(node: Node | Token, file: str) -> Span:
    """Where the first token of a node stands."""
    stack: list[Node | Token] = [node]
    while stack:
        at = stack.pop()
        if isinstance(at, Token):
            return Span(file, at.line or 1, at.column or 1)
        stack += reversed(at.children)
    return Span(file, 1)


def rejection(found: str, needed: str, at: Node | Token, file: str) -> LemmaError:
    return LemmaError(f"{found}, {needed}", span_of(at, file))


def reject(found: str, needed: str, at: Node | Token, file: str) -> NoReturn:
    raise rejection(found, needed, at, file)


def text_of(node: Node | Token, file: str) -> str:
    """The text of a string, or of a doc of several strings."""
    parts = [node] if isinstance(node, Token) else tokens(node)
    try:
        return " ".join(str(json.loads(part, strict=False)) for part in parts)
    except json.JSONDecodeError:
        reject("found an unknown escape in a string", 'write \\\\ for \\ and \\" for "', node, file)


def number(token: Token, file: str) -> Fraction:
    """The exact value of a numeral."""
    mantissa, _, exponent = token.lower().partition("e")
    if len(mantissa) > WIDEST_NUMBER or len(exponent) > 4 or abs(int(exponent or 0)) > WIDEST_NUMBER:
        reject("found a number of too many digits", f"at most {WIDEST_NUMBER} are read", token, file)
    return Fraction(str(token))


def ratio(node: Node, file: str) -> Fraction:
    """The value of a numeral, or of a ratio of two, with its sign."""
    parts = [number(t, file) for t in tokens(node) if t.type == "NUMBER"]
    if len(parts) == 2 and not parts[1]:
        reject("found a division by 0", "a number other than 0 is needed", node, file)
    value = parts[0] if len(parts) == 1 else parts[0] / parts[1]
    return -value if any(t.type == "MINUS" for t in tokens(node)) else value


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names of a statement stand for; a declared one may be a word such as `mean` or `max`."""

    file: str
    indices: frozenset[str]
    declared: frozenset[str] = frozenset()
    written_out: Mapping[str, Term] = field(default_factory=dict)

    def named(self, token: Token | Node) -> Term:
        """The term of a name: an index is its position, else a metavariable."""
        name = str(token) if isinstance(token, Token) else leaf(token)
        if name in RESERVED and name not in self.declared:
            reject(
                f"found `{name}` as a name", "it is a word of the language, choose another", token, self.file
            )
        return self.written_out.get(name) or (Position(name) if name in self.indices else Variable(name))

    def direction(self, token: Token) -> Direction:
        return COMPARISONS[str(token)]

    def term(self, node: Node) -> Term:
        """The term of an expression, at most `DEEPEST` levels deep."""
        match node.data:
            case "number":
                return Number(number(tokens(node)[0], self.file))
            case "name":
                return self.named(tokens(node)[0])
            case "extent":
                return Extent(self._index(leaf(node).strip("| \t"), node))
            case "infinity":
                return Apply("infinity", ())
            case "group":
                return self.term(trees(node)[0])
            case "negate":
                (inside,) = trees(node)
                value = self.term(inside)
                if inside.data == "number" and isinstance(value, Number) and value.value:
                    return Number(-value.value)
                return Apply("negate", (value,))
            case "compare":
                left, right = trees(node)
                return Compare(self.direction(tokens(node)[0]), self.term(left), self.term(right))
            case "power":
                base, exponent = trees(node)
                return Apply("power", (self.term(base), Number(ratio(exponent, self.file))))
            case "divide":
                return self._divide(*trees(node))
            case "call":
                return self._call(node)
            case "binder":
                return self._binder(node)
            case "opaque_binder":
                return self._opaque(node)
            case infix:
                return Apply(_INFIX[infix], tuple(self.term(side) for side in trees(node)))

    def _divide(self, over: Node, under: Node) -> Term:
        """A quotient of two numerals is the number."""
        a, b = self.term(over), self.term(under)
        numeral = over.data == "number" or (over.data == "negate" and isinstance(a, Number))
        if numeral and under.data == "number" and isinstance(a, Number) and isinstance(b, Number):
            if not b.value:
                reject("found a division by 0", "a number other than 0 is needed", under, self.file)
            return Number(a.value / b.value)
        return Apply("divide", (a, b))

    def _index(self, name: str, at: Node | Token) -> str:
        if name in RESERVED:
            reject(
                f"found `{name}` as an index", "it is a word of the language, choose another", at, self.file
            )
        return name

    def _names(self, node: Node) -> tuple[str, ...]:
        return tuple(self._index(str(t), t) for t in tokens(node))

    def _arguments(self, node: Node) -> tuple[Term, ...]:
        return tuple(self.term(a) for tree in trees(node) if tree.data == "arguments" for a in trees(tree))

    def _count(self, node: Node, name: str, arguments: Sequence[Term], needed: int) -> None:
        if len(arguments) != needed:
            plural = "" if needed == 1 else "s"
            found = f"found {len(arguments)} argument{'' if len(arguments) == 1 else 's'} of `{name}`"
            reject(found, f"{needed} argument{plural} needed", node, self.file)

    def _call(self, node: Node) -> Term:
        name, x = leaf(node), self._arguments(node)
        if name in ("relu", "silu"):
            self._count(node, name, x, 1)
            if name == "relu":
                return Apply("maximum", (x[0], Number(Fraction(0))))
            return Apply("multiply", (x[0], Apply("logistic", x)))
        if (name in REDUCTIONS and name not in FUNCTIONS) or name in ("take", "mean"):
            reject(f"found `{name}(`", f"write `{name}[k](` with the indices that it binds", node, self.file)
        function = FUNCTIONS.get(name)
        if function is None:
            known = ", ".join(sorted(FUNCTIONS))
            reject(f"found the unknown function `{name}`", f"one of {known} is needed", node, self.file)
        if name in ("max", "min") and len(x) > 2:
            first = Apply(function.op, x[:2])
            for other in x[2:]:
                first = Apply(function.op, (first, other))
            return first
        self._count(node, name, x, function.arity)
        if name == "clamp":
            x = (x[1], x[0], x[2])
        return Apply(function.op, x)

    def _binder(self, node: Node) -> Term:
        name, indices = leaf(node), self._names(trees(node)[0])
        count: Term = Extent(indices[0])
        for index in indices[1:]:
            count = Apply("multiply", (count, Extent(index)))
        if name == "take":
            return self._take(node, indices, count)
        x = self._arguments(node)
        if name == "mean":
            self._count(node, name, x, 1)
            return Apply("divide", (Reduce("sum", indices, x[0]), count))
        kind = REDUCTIONS.get(name)
        if kind is None:
            known = ", ".join(sorted(REDUCTIONS))
            needed = f"one of {known}, take, mean is needed, or `{name}[k -> o](` for an opaque one"
            reject(f"found the unknown binder `{name}`", needed, node, self.file)
        self._count(node, name, x, 1)
        return Reduce(kind, indices, x[0])

    def _take(self, node: Node, indices: tuple[str, ...], count: Term) -> Term:
        """`take[v](x, e)`; as its position `clamp(e)` is short for `clamp(e, 0, |v| - 1)`."""
        given = [a for tree in trees(node) if tree.data == "arguments" for a in trees(tree)]
        if len(given) != 2:
            self._count(node, "take", self._arguments(node), 2)
        at = given[1]
        if at.data == "call" and leaf(at) == "clamp" and len(inner := self._arguments(at)) == 1:
            last = Apply("subtract", (count, Number(Fraction(1))))
            return Take(indices, self.term(given[0]), Apply("clamp", (Number(Fraction(0)), inner[0], last)))
        return Take(indices, self.term(given[0]), self.term(at))

    def _opaque(self, node: Node) -> Term:
        name = leaf(node)
        if name in RESERVED:
            reject(
                f"found `{name}` as an opaque binder",
                "it has a meaning, choose another name",
                node,
                self.file,
            )
        inputs, outputs = (self._names(tree) for tree in trees(node)[:2])
        return Opaque(name, inputs, outputs, self._arguments(node))


def fits(term: Term) -> bool:
    """Whether a term, earlier assignments written out, is within the limits of size and depth."""
    level, found = [term], 0
    for _ in range(DEEPEST):
        found += len(level)
        if found > LARGEST_BODY:
            return False
        level = [inside for outside in level for inside in children(outside)]
        if not level:
            return True
    return False
