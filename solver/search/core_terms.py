"""The few operators that the search knows, and terms of the language in them.

A core term is a nested tuple `(operator, argument, ...)`. Spelling is removed: a difference is a sum, a
quotient a product with a power, a minimum the negative of a maximum, a disjunction the negation of a
conjunction. Operators of reals, integers and booleans differ (soundness L8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any, Final

from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Extent,
    Number,
    Position,
    Reduce,
    Variable,
)
from shardproof.lemmas.terms import Term as Written

Core = tuple[Any, ...]

OPERATORS: Final[dict[str, str]] = {
    "Num": "q",
    "At": "i",
    "Add": "TT",
    "Mul": "TT",
    "Pow": "Tq",
    "PowOf": "TT",
    "Max": "TT",
    "Sel": "TTT",
    "Ind": "T",
    "Real": "T",
    "Fn": "sT",
    "Sum": "iT",
    "Prod": "iT",
    "Top": "iT",
    "All": "iT",
    "And": "TT",
    "Not": "T",
    "Xor": "TT",
    "Lt": "TT",
    "Le": "TT",
    "Eq": "TT",
    "ILe": "TT",
    "IEq": "TT",
    "True": "",
    "False": "",
    "INum": "i",
    "IPos": "i",
    "IAdd": "TT",
    "IMul": "TT",
    "IMax": "TT",
    "IMin": "TT",
}
"""The arguments of each operator: a term, a rational, an integer (an index by number) or a name."""
BINDERS: Final = frozenset({"Sum", "Prod", "Top", "All"})
REDUCED: Final = {"sum": "Sum", "prod": "Prod", "max": "Top", "and": "All"}
BACK: Final = {"Sum": "sum", "Prod": "prod", "Top": "max", "All": "and"}
UNARY: Final = frozenset(
    {
        *("exponential", "log", "tanh", "logistic", "erf", "sine", "cosine", "tan", "cbrt"),
        *("floor", "ceil", "round_even", "round_away", "abs", "sign"),
    }
)
ZERO: Final[Core] = ("Num", Fraction(0))
ONE: Final[Core] = ("Num", Fraction(1))


class Unknown(Exception):
    """The term has no core form; the message says why."""


def negative(x: Core) -> Core:
    return ("Num", -x[1]) if x[0] == "Num" else ("Mul", ("Num", Fraction(-1)), x)


def inverse(x: Core) -> Core:
    return ("Num", 1 / x[1]) if x[0] == "Num" and x[1] else ("Pow", x, Fraction(-1))


def opposite(x: Core) -> Core:
    known = {"True": ("False",), "False": ("True",)}.get(x[0])
    return known or (x[1] if x[0] == "Not" else ("Not", x))


def multiplied(x: Core, y: Core) -> Core:
    if x[0] == "Num" and y[0] == "Num":
        return ("Num", x[1] * y[1])
    return x if y == ONE else y if x == ONE else ("Mul", x, y)


def powered(x: Core, exponent: Fraction) -> Core:
    if exponent.denominator == 1 and 1 <= exponent <= 8:
        return reduce(lambda a, b: ("Mul", a, b), [x] * int(exponent))
    return inverse(x) if exponent == -1 else ("Pow", x, exponent)


class Reader:
    """Terms of one statement as core terms: `kinds` of its variables, what they and its extents are."""

    def __init__(
        self,
        kinds: Mapping[str, str],
        variable: Callable[[str], Core],
        index: Callable[[str], Any],
        extent: Callable[[str], Core],
    ) -> None:
        self.kinds = kinds
        self.variable = variable
        self.index = index
        self.extent = extent

    def kind(self, term: Written) -> str | None:
        """The kind of a term; None for numbers, extents and positions, which take any number's."""
        match term:
            case Variable(name):
                return self.kinds[name]
            case Compare() | Apply("and" | "or" | "not" | "xor"):
                return "bool"
            case Apply("select", (_, a, b)):
                return self.kind(a) or self.kind(b)
            case Apply("convert"):
                return "real"
            case Apply(op, operands):
                known = next((k for x in operands if (k := self.kind(x)) is not None), None)
                real = op in UNARY or op in ("divide", "power", "sqrt", "rsqrt", "expm1", "log1p")
                return known or ("real" if real else None)
            case Reduce(_, _, body):
                return self.kind(body)
            case _:
                return None

    def read(self, term: Written, kind: str | None = None) -> Core:
        """The core form; `kind` is what the surroundings need of a number. Raises Unknown."""
        match term:
            case Number(value):
                if kind == "int":
                    if value.denominator != 1:
                        raise Unknown("a fraction among integers")
                    return ("INum", int(value))
                return ("Num", value)
            case Extent(k):
                if kind == "int":
                    raise Unknown("an extent among integers")
                return self.extent(k)
            case Position(k):
                place: Core = ("IPos", self.index(k))
                return ("Real", place) if kind == "real" else place
            case Variable(name):
                return self.variable(name)
            case Compare(direction, a, b):
                return self._compare(direction, a, b)
            case Reduce(kind_, indices, body):
                return self._reduce(kind_, indices, body)
            case Apply(op, operands):
                return self._apply(op, operands, kind)
            case _:
                raise Unknown("a binder that binds in order")

    def _compare(self, direction: str, a: Written, b: Written) -> Core:
        own = self.kind(a) or self.kind(b) or "int"
        x, y = self.read(a, own), self.read(b, own)
        if own == "int":
            if x[0] == y[0] == "INum":
                truth = {"EQ": x == y, "NE": x != y}.get(direction)
                if truth is not None:
                    return ("True",) if truth else ("False",)
            more: Core = ("INum", 1)
            return {
                "EQ": ("IEq", x, y),
                "NE": opposite(("IEq", x, y)),
                "LE": ("ILe", x, y),
                "GE": ("ILe", y, x),
                "LT": ("ILe", ("IAdd", x, more), y),
                "GT": ("ILe", ("IAdd", y, more), x),
            }[direction]
        if own == "bool":
            return {"EQ": opposite(("Xor", x, y)), "NE": ("Xor", x, y)}[direction]
        return {
            "EQ": ("Eq", x, y),
            "NE": opposite(("Eq", x, y)),
            "LE": ("Le", x, y),
            "GE": ("Le", y, x),
            "LT": ("Lt", x, y),
            "GT": ("Lt", y, x),
        }[direction]

    def _reduce(self, kind: str, indices: tuple[str, ...], body: Written) -> Core:
        own = self.kind(body) or "real"
        x = self.read(body, own)
        if own == "int":
            raise Unknown("a reduction of integers")
        turned = kind in ("min", "or")
        if turned:
            x = negative(x) if kind == "min" else opposite(x)
        op = REDUCED[{"min": "max", "or": "and"}.get(kind, kind)]
        for k in reversed(indices):
            x = (op, self.index(k), x)
        return x if not turned else negative(x) if kind == "min" else opposite(x)

    def _apply(self, op: str, operands: tuple[Written, ...], kind: str | None) -> Core:
        if op == "select":
            own = self.kind(operands[1]) or self.kind(operands[2]) or kind
            p, a, b = self.read(operands[0]), self.read(operands[1], own), self.read(operands[2], own)
            if own == "int":
                raise Unknown("a selection of integers")
            if own == "bool":
                return opposite(("And", opposite(("And", p, a)), opposite(("And", opposite(p), b))))
            return ("Ind", p) if (a, b) == (ONE, ZERO) else ("Sel", p, a, b)
        if op == "convert":
            own = self.kind(operands[0]) or "int"
            return ("Ind" if own == "bool" else "Real", self.read(operands[0], own))
        own = next((k for x in operands if (k := self.kind(x)) is not None), None) or kind or "real"
        x = [self.read(o, own) for o in operands]
        if own == "bool":
            return _boolean(op, x)
        if own == "int":
            made = {"add": "IAdd", "multiply": "IMul", "maximum": "IMax", "minimum": "IMin"}.get(op)
            if made is None:
                raise Unknown(f"`{op}` of integers")
            return (made, *x)
        if op in UNARY:
            return ("Fn", op, x[0])
        if op not in REAL:
            raise Unknown(f"`{op}`")
        return REAL[op](x)


def _boolean(op: str, x: list[Core]) -> Core:
    match op:
        case "and":
            return ("And", *x)
        case "or":
            return opposite(("And", opposite(x[0]), opposite(x[1])))
        case "not":
            return opposite(x[0])
        case "xor":
            return ("Xor", *x)
        case _:
            raise Unknown(f"`{op}` of booleans")


def _power(x: list[Core]) -> Core:
    return powered(x[0], x[1][1]) if x[1][0] == "Num" else ("PowOf", *x)


def _clamp(x: list[Core]) -> Core:
    low, value, high = x
    return negative(("Max", negative(("Max", low, value)), negative(high)))


REAL: Final[Mapping[str, Callable[[list[Core]], Core]]] = {
    "add": lambda x: ("Add", *x),
    "subtract": lambda x: ("Add", x[0], negative(x[1])),
    "multiply": lambda x: multiplied(x[0], x[1]),
    "divide": lambda x: multiplied(x[0], inverse(x[1])),
    "negate": lambda x: negative(x[0]),
    "maximum": lambda x: ("Max", *x),
    "minimum": lambda x: negative(("Max", negative(x[0]), negative(x[1]))),
    "sqrt": lambda x: ("Pow", x[0], Fraction(1, 2)),
    "rsqrt": lambda x: ("Pow", x[0], Fraction(-1, 2)),
    "power": _power,
    "expm1": lambda x: ("Add", ("Fn", "exponential", x[0]), ("Num", Fraction(-1))),
    "log1p": lambda x: ("Fn", "log", ("Add", x[0], ONE)),
    "clamp": _clamp,
}

WRITTEN: Final = {
    "Add": "add", "Mul": "multiply", "Max": "maximum", "Sel": "select", "Ind": "convert",
    "Real": "convert", "PowOf": "power", "And": "and", "Not": "not", "Xor": "xor",
    "IAdd": "add", "IMul": "multiply", "IMax": "maximum", "IMin": "minimum",
}


def written(term: Core, atom: Callable[[int], str], index: Callable[[int], str]) -> Written:
    """The core term in the language."""
    op, *x = term
    if op in WRITTEN:
        return Apply(WRITTEN[op], tuple(written(t, atom, index) for t in x))
    if op in BACK:
        names, body = [index(x[0])], x[1]
        while body[0] == op and index(body[1]) not in names:
            names.append(index(body[1]))
            body = body[2]
        return Reduce(BACK[op], tuple(names), written(body, atom, index))  # type: ignore[arg-type]
    match op:
        case "Num" | "INum":
            return Number(Fraction(x[0]))
        case "At":
            return Variable(atom(x[0]))
        case "IPos":
            return Position(index(x[0]))
        case "Pow":
            return Apply("power", (written(x[0], atom, index), Number(x[1])))
        case "Fn":
            return Apply(x[0], (written(x[1], atom, index),))
        case "True" | "False":
            zero = Number(Fraction(0))
            return Compare("EQ" if op == "True" else "NE", zero, zero)
        case _:
            a, b = (written(t, atom, index) for t in x)
            return Compare({"Lt": "LT", "Le": "LE", "Eq": "EQ", "ILe": "LE", "IEq": "EQ"}[op], a, b)  # type: ignore[arg-type]


def parts(term: Core) -> tuple[Core, ...]:
    """The terms directly inside a core term."""
    return tuple(x for x, sort in zip(term[1:], OPERATORS[term[0]], strict=True) if sort == "T")


def every(term: Core) -> Iterator[Core]:
    """The term and all terms inside it."""
    yield term
    for x in parts(term):
        yield from every(x)
