"""Statements as JSON and back: lists and strings only, nothing that runs.

`from_json` accepts exactly what `to_json` makes and raises `ValueError` for anything else; it does not
check the rules of the language, which is `shardproof.lemmas.typing.check`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Final, TypeVar, get_args

from shardproof.lemmas.terms import (
    Apply,
    Attribute,
    Compare,
    Condition,
    Define,
    Direction,
    Extent,
    Fact,
    Kind,
    Lemma,
    NotIn,
    Number,
    Opaque,
    OpaqueDefine,
    Parameter,
    Position,
    Reduce,
    ReduceKind,
    Relation,
    Result,
    Span,
    Statement,
    Take,
    Term,
    Variable,
)

Json = Any
_T = TypeVar("_T")
_DIRECTIONS: Final = frozenset(get_args(Direction))
_REDUCTIONS: Final = frozenset(get_args(ReduceKind))
_KINDS: Final = frozenset(get_args(Kind))


def term_to_json(term: Term) -> Json:
    match term:
        case Variable(name):
            return name
        case Number(value):
            return ["n", str(value)]
        case Position(index):
            return ["i", index]
        case Extent(index):
            return ["e", index]
        case Apply(op, operands):
            return ["a", op, *map(term_to_json, operands)]
        case Compare(direction, left, right):
            return ["c", direction, term_to_json(left), term_to_json(right)]
        case Reduce(kind, indices, body):
            return ["r", kind, list(indices), term_to_json(body)]
        case Take(indices, body, position):
            return ["t", list(indices), term_to_json(body), term_to_json(position)]
        case Opaque(name, inputs, outputs, operands):
            return ["o", name, list(inputs), list(outputs), *map(term_to_json, operands)]


def term_from_json(data: Json) -> Term:
    match data:
        case str():
            return Variable(data)
        case ["n", str(value)]:
            return Number(Fraction(value))
        case ["i", str(index)]:
            return Position(index)
        case ["e", str(index)]:
            return Extent(index)
        case ["a", str(op), *operands]:
            return Apply(op, tuple(map(term_from_json, operands)))
        case ["c", str(direction), left, right]:
            return Compare(_one_of(direction, _DIRECTIONS), term_from_json(left), term_from_json(right))
        case ["r", str(kind), indices, body]:
            return Reduce(_one_of(kind, _REDUCTIONS), _words(indices), term_from_json(body))
        case ["t", indices, body, position]:
            return Take(_words(indices), term_from_json(body), term_from_json(position))
        case ["o", str(name), inputs, outputs, *operands]:
            return Opaque(name, _words(inputs), _words(outputs), tuple(map(term_from_json, operands)))
        case _:
            raise _wrong(data)


def condition_to_json(condition: Condition) -> Json:
    match condition:
        case NotIn(index, variable):
            return ["not in", index, variable]
        case Fact(kind, term, indices):
            return [kind, term_to_json(term), list(indices)]
        case Relation(direction, left, right):
            return [direction, term_to_json(left), term_to_json(right)]


def condition_from_json(data: Json) -> Condition:
    match data:
        case ["not in", str(index), str(variable)]:
            return NotIn(index, variable)
        case [("finite" | "distinct") as kind, term, indices]:
            return Fact(kind, term_from_json(term), _words(indices))
        case [str(direction), left, right]:
            return Relation(_one_of(direction, _DIRECTIONS), term_from_json(left), term_from_json(right))
        case _:
            raise _wrong(data)


def to_json(statement: Statement) -> Json:
    """The statement as lists, strings, numbers, true, false and null."""
    span = statement.span
    place = None if span is None else [span.file, span.line, span.column]
    head = [statement.name, statement.doc, statement.theme, place]
    match statement:
        case Lemma():
            return [
                "lemma",
                *head,
                term_to_json(statement.left),
                term_to_json(statement.right),
                statement.both,
                statement.assumed,
                [condition_to_json(c) for c in statement.conditions],
                list(statement.triggers),
                list(statement.claims),
                [list(v) for v in statement.variables],
                list(statement.indices),
            ]
        case Define():
            return [
                "define",
                *head,
                *_signature_to_json(statement.parameters, statement.attributes),
                list(statement.indices),
                [[r.name, _dims_to_json(r.dims), term_to_json(r.term)] for r in statement.results],
                list(statement.outputs),
            ]
        case OpaqueDefine():
            return [
                "opaque",
                *head,
                *_signature_to_json(statement.parameters, statement.attributes),
                [[name, _dims_to_json(dims)] for name, dims in statement.results],
                list(statement.batched),
            ]


def from_json(data: Json, file: str | None = None) -> Statement:
    """The statement; with `file` its theme and its place are in that file instead of the recorded one."""
    match data:
        case [("lemma" | "define" | "opaque") as what, str(name), str(doc), str(theme), place, *rest]:
            span = _span(place, file)
            theme = theme if file is None else PurePath(file).stem
        case _:
            raise _wrong(data)
    match what, rest:
        case "lemma", [left, right, bool(both), bool(assumed), conditions, triggers, claims, kinds, indices]:
            return Lemma(
                name=name,
                doc=doc,
                left=term_from_json(left),
                right=term_from_json(right),
                both=both,
                assumed=assumed,
                conditions=_each(conditions, condition_from_json),
                triggers=_words(triggers),
                claims=_words(claims),
                theme=theme,
                span=span,
                variables=_each(kinds, _kind),
                indices=_words(indices),
            )
        case "define", [parameters, attributes, indices, results, outputs]:
            return Define(
                name=name,
                doc=doc,
                parameters=_each(parameters, _parameter),
                attributes=_each(attributes, _attribute),
                indices=_words(indices),
                results=_each(results, _result),
                outputs=_words(outputs),
                theme=theme,
                span=span,
            )
        case "opaque", [parameters, attributes, results, batched]:
            return OpaqueDefine(
                name=name,
                doc=doc,
                parameters=_each(parameters, _parameter),
                attributes=_each(attributes, _attribute),
                results=_each(results, _named_dims),
                batched=_words(batched),
                theme=theme,
                span=span,
            )
        case _:
            raise _wrong(data)


def _wrong(data: Json) -> ValueError:
    return ValueError(f"found {str(data)[:60]!r}, which is no part of a statement")


def _one_of(word: str, words: frozenset[Any]) -> Any:
    if word not in words:
        raise _wrong(word)
    return word


def _each(data: Json, read: Callable[[Json], _T]) -> tuple[_T, ...]:
    if not isinstance(data, list):
        raise _wrong(data)
    return tuple(map(read, data))


def _words(data: Json) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(word, str) for word in data):
        raise _wrong(data)
    return tuple(data)


def _span(place: Json, file: str | None) -> Span | None:
    match place:
        case None:
            return None
        case [str(recorded), int(line), int(column)]:
            return Span(recorded if file is None else file, line, column)
        case _:
            raise _wrong(place)


def _kind(data: Json) -> tuple[str, Kind]:
    match data:
        case [str(name), str(kind)]:
            return name, _one_of(kind, _KINDS)
        case _:
            raise _wrong(data)


def _dims_to_json(dims: tuple[str, ...] | None) -> Json:
    return None if dims is None else list(dims)


def _dims(data: Json) -> tuple[str, ...] | None:
    return None if data is None else _words(data)


def _signature_to_json(parameters: tuple[Parameter, ...], attributes: tuple[Attribute, ...]) -> list[Json]:
    return [
        [[p.name, _dims_to_json(p.dims), p.mutated] for p in parameters],
        [[a.name, {"n": str(a.value)} if isinstance(a.value, Fraction) else a.value] for a in attributes],
    ]


def _parameter(data: Json) -> Parameter:
    match data:
        case [str(name), dims, bool(mutated)]:
            return Parameter(name, _dims(dims), mutated)
        case _:
            raise _wrong(data)


def _attribute(data: Json) -> Attribute:
    match data:
        case [str(name), {"n": str(value)}]:
            return Attribute(name, Fraction(value))
        case [str(name), str() | bool() | None as value]:
            return Attribute(name, value)
        case _:
            raise _wrong(data)


def _named_dims(data: Json) -> tuple[str, tuple[str, ...] | None]:
    match data:
        case [str(name), dims]:
            return name, _dims(dims)
        case _:
            raise _wrong(data)


def _result(data: Json) -> Result:
    match data:
        case [str(name), dims, term]:
            return Result(name, _dims(dims), term_from_json(term))
        case _:
            raise _wrong(data)
