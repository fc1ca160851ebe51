"""Text of terms, conditions and statements, which parses back to an equal value.

`+`, `-`, `*` and `/` of more than two operands, which the parser never makes, are written as chains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fractions import Fraction
from hashlib import sha256
from typing import Final

from shardproof.lemmas.functions import COMPARISON_SPELLING, KEYWORDS, REDUCTION_SPELLING, SPELLING
from shardproof.lemmas.terms import (
    Apply,
    Attribute,
    Compare,
    Condition,
    Define,
    Extent,
    Fact,
    Lemma,
    NotIn,
    Number,
    Opaque,
    OpaqueDefine,
    Parameter,
    Position,
    Reduce,
    Relation,
    Statement,
    Take,
    Term,
    Variable,
)

WIDTH: Final = 100
"""Longest line of a statement where it can be broken."""

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(9)
_INFIX: Final = {
    "add": (" + ", _SUM),
    "subtract": (" - ", _SUM),
    "multiply": ("*", _PRODUCT),
    "divide": ("/", _PRODUCT),
    "and": (" and ", _AND),
    "or": (" or ", _OR),
}
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*((::|\.)[A-Za-z_0-9]+)*")


def fingerprint(statement: Statement) -> str:
    """A hash of what a statement says, as it is printed."""
    return sha256(show(statement).encode()).hexdigest()


def show(statement: Statement) -> str:
    """The statement, without a line break at its end."""
    match statement:
        case Lemma():
            return _lemma(statement)
        case Define():
            return _define(statement)
        case OpaqueDefine():
            return _opaque(statement)


def show_term(term: Term) -> str:
    return _term(term)[0]


def show_condition(condition: Condition) -> str:
    match condition:
        case NotIn(index, variable):
            return f"{index} not in {variable}"
        case Fact("finite", term):
            return f"{_inside(term, _SUM)} finite"
        case Fact(_, term, indices):
            return f"{_inside(term, _SUM)} distinct[{', '.join(indices)}]"
        case Relation(direction, left, right):
            return f"{_inside(left, _SUM)} {COMPARISON_SPELLING[direction]} {_inside(right, _SUM)}"


def show_number(value: Fraction) -> str:
    """A decimal of at most six places, else a ratio."""
    return _number(value)[0]


def _number(value: Fraction) -> tuple[str, int]:
    scaled = abs(value) * 10**6
    sign = "-" if value < 0 else ""
    if scaled.denominator != 1:
        return f"{value.numerator}/{value.denominator}", _PRODUCT
    whole, part = divmod(scaled.numerator, 10**6)
    text = f"{whole}.{part:06d}".rstrip("0").rstrip(".")
    return sign + text, _SIGN if sign else _ATOM


def _term(term: Term) -> tuple[str, int]:
    """The text and how tightly its outermost sign binds."""
    match term:
        case Number(value):
            return _number(value)
        case Variable(name) | Position(name):
            return name, _ATOM
        case Extent(index):
            return f"|{index}|", _ATOM
        case Apply(op, operands):
            return _apply(op, operands)
        case Compare(direction, left, right):
            sign = COMPARISON_SPELLING[direction]
            return f"{_inside(left, _SUM)} {sign} {_inside(right, _SUM)}", _COMPARE
        case Reduce(kind, indices, body):
            return f"{REDUCTION_SPELLING[kind]}[{', '.join(indices)}]({show_term(body)})", _ATOM
        case Take(indices, body, position):
            return f"take[{', '.join(indices)}]({_list((body, position))})", _ATOM
        case Opaque(name, inputs, outputs, operands):
            return f"{name}[{', '.join(inputs)} -> {', '.join(outputs)}]({_list(operands)})", _ATOM


def _list(terms: Sequence[Term]) -> str:
    return ", ".join(map(show_term, terms))


def _inside(term: Term, needed: int) -> str:
    """The text of an operand, in parentheses if it binds less tightly than needed."""
    text, tight = _term(term)
    return text if tight >= needed else f"({text})"


def _apply(op: str, x: tuple[Term, ...]) -> tuple[str, int]:
    match op, x:
        case "infinity", ():
            return "inf", _ATOM
        case "negate", (Number(value),) if value >= 0:
            return f"-({show_number(value)})", _SIGN
        case "negate", (a,):
            return f"-{_inside(a, _SIGN)}", _SIGN
        case "not", (a,):
            return f"not {_inside(a, _NOT)}", _NOT
        case "power", (base, Number(value)):
            text, tight = _number(value)
            return f"{_inside(base, _ATOM)}^{text if tight == _ATOM else f'({text})'}", _POWER
        case "clamp", (low, a, high):
            return f"clamp({_list((a, low, high))})", _ATOM
        case "divide", (Number() as a, Number() as b) if _numeral(a) and _numeral(b) and b.value >= 0:
            return f"({show_term(a)})/{show_term(b)}", _PRODUCT
    if op in _INFIX and len(x) > 1:
        sign, level = _INFIX[op]
        return sign.join([_inside(x[0], level), *(_inside(a, level + 1) for a in x[1:])]), level
    return f"{SPELLING.get(op, op)}({_list(x)})", _ATOM


def _numeral(number: Number) -> bool:
    """Whether the number is written as one numeral, so that a quotient of two would read as a number."""
    return "/" not in show_number(number.value)


def _lemma(lemma: Lemma) -> str:
    arrow = "<=>" if lemma.both else "=>"
    left, right = show_term(lemma.left), show_term(lemma.right)
    lines = [f"{'assume' if lemma.assumed else 'lemma'} {lemma.name}", f"  {_quoted(lemma.doc)}"]
    if len(left) + len(right) + 6 <= WIDTH:
        lines.append(f"  {left} {arrow} {right}")
    else:
        lines += [f"  {left}", f"    {arrow} {right}"]
    if lemma.conditions:
        lines.append(f"  when {', '.join(show_conditions(lemma.conditions))}")
    if lemma.triggers:
        lines.append(f"  trigger {', '.join(lemma.triggers)}")
    if lemma.claims:
        lines.append(f"  claim {', '.join(lemma.claims)}")
    return "\n".join(lines)


def show_conditions(conditions: Sequence[Condition]) -> list[str]:
    """The conditions, relations that continue one another as one chain."""
    found: list[str] = []
    before: Condition | None = None
    for condition in conditions:
        if (
            isinstance(condition, Relation)
            and isinstance(before, Relation)
            and before.right == condition.left
        ):
            found[-1] += f" {COMPARISON_SPELLING[condition.direction]} {_inside(condition.right, _SUM)}"
        else:
            found.append(show_condition(condition))
        before = condition
    return found


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def show_operator(name: str) -> str:
    """The name of an operator, in quotes where it is not made of words joined by `::` and `.`."""
    return name if _BARE.fullmatch(name) and name not in KEYWORDS else _quoted(name)


def _dims(dims: tuple[str, ...] | None) -> str:
    return "" if dims is None else f"[{', '.join(dims)}]"


def _value(value: Fraction | str | bool) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _quoted(value)
        case _:
            return show_number(value)


def _signature(name: str, parameters: Sequence[Parameter], attributes: Sequence[Attribute]) -> str:
    inside = ", ".join(f"{p.name}{'!' if p.mutated else ''}{_dims(p.dims)}" for p in parameters)
    if attributes:
        named = (a.name if a.value is None else f"{a.name} = {_value(a.value)}" for a in attributes)
        inside += f"; {', '.join(named)}"
    return f"{show_operator(name)}({inside})"


def _define(define: Define) -> str:
    head = f"define {_signature(define.name, define.parameters, define.attributes)}"
    if len(define.results) == 1 and not define.results[0].name:
        (result,) = define.results
        names = (result.dims or ("...",))[1:]
        head += _dims(names) if names else ""
        body = [f"  {show_term(result.term)}"]
    else:
        mutated = {p.name for p in define.parameters if p.mutated}
        dims = {r.name: r.dims for r in define.results}
        named = [f"{name}{_dims(dims[name])}" for name in define.outputs if name not in mutated]
        head += f" -> {', '.join(named)}" if named else ""
        body = [f"  {r.name} = {show_term(r.term)}" for r in define.results]
    return "\n".join([head, f"  {_quoted(define.doc)}", *body])


def _opaque(opaque: OpaqueDefine) -> str:
    mutated = {p.name for p in opaque.parameters if p.mutated}
    head = f"opaque {_signature(opaque.name, opaque.parameters, opaque.attributes)}"
    named = [f"{name}{_dims(dims)}" for name, dims in opaque.results if name not in mutated]
    head += f" -> {', '.join(named)}" if named else ""
    head += f" batched over {', '.join(opaque.batched)}" if opaque.batched else ""
    return f"{head}\n  {_quoted(opaque.doc)}"
