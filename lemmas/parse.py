"""Reads lemma files: text to the statements of `shardproof.lemmas.terms`.

The grammar is `lemma.lark`. A name is an index if the statement binds it, measures it (`|k|`), excludes
it (`k not in x`), or lists it among dims or distinct indices; every other name is a metavariable, a
parameter, an attribute or a result. Earlier assignments of a `define` that are no results are written
out where they are used. What the statements must obey is in `shardproof.lemmas.typing`.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import Final, NoReturn

from lark import Lark, Token, Tree
from lark.exceptions import LarkError, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.parse_define import read_define, read_opaque
from shardproof.lemmas.parse_terms import DEEPEST, Node, Scope, leaf, reject, rejection, text_of, trees
from shardproof.lemmas.terms import (
    Condition,
    Fact,
    Lemma,
    NotIn,
    Relation,
    Span,
    Statement,
    Term,
    Variable,
)

LARGEST: Final = 1_000_000
"""Size limit of a file, in characters."""

_NAMES: Final = {
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": 'a doc string in "quotes"',
    "EXTENT": "an extent |k|",
    "QUALIFIED": "an operator name",
    "ARROW": "`=>` or `<=>`",
    "COMPARISON": "a comparison",
    "MINUS": "`-`",
    "MUTATED": "`!`",
    "ELLIPSIS": "`...`",
    "INFINITY": "`inf`",
    "$END": "the end of the file",
}
_TERM: Final = frozenset({"NAME", "NUMBER", "EXTENT", "LPAR", "MINUS"})
_STATEMENT: Final = frozenset({"LEMMA", "ASSUME", "DEFINE", "OPAQUE", "$END"})


@cache
def _parser() -> Lark:
    text = resources.files("shardproof.lemmas").joinpath("lemma.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="basic", maybe_placeholders=False)


@cache
def _signs() -> dict[str, str]:
    """Terminal name to its text, of the terminals that are one fixed text."""
    return {t.name: f"`{t.pattern.value}`" for t in _parser().terminals if t.pattern.type == "str"}


def parse(text: str, file: str) -> tuple[Statement, ...]:
    """The statements of a file, not yet checked; `LemmaError` at the first place that is not the language.

    `theme` of each is the stem of `file`.
    """
    if len(text) > LARGEST:
        raise LemmaError(f"found {len(text)} characters, at most {LARGEST} are read", Span(file, 1))
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        _explain(error, text, file)
    except LarkError as error:
        raise LemmaError(str(error).partition("\n")[0], Span(file, 1)) from None
    return tuple(_statement(node, file) for node in trees(tree))


def _explain(error: UnexpectedInput, text: str, file: str) -> NoReturn:
    """Raises the error with what was found and what was expected in its place."""
    if isinstance(error, UnexpectedToken):
        token = error.token
        if token.type == "$END":
            lines = text.split("\n")
            span = Span(file, len(lines), len(lines[-1]) + 1)
            message = f"found the end of the file, expected {_expected(error.accepts)}"
            raise LemmaError(message, span) from None
        span = Span(file, token.line or 1, token.column or 1)
        raise LemmaError(f"found `{token}`, expected {_expected(error.accepts)}", span) from None
    line, column = max(error.line, 1), max(error.column, 1)
    if isinstance(error, UnexpectedCharacters):
        found = text[error.pos_in_stream or 0 :][:1]
        message = f"found the character {found!r}, which no part of a lemma starts with"
        if found == '"':
            message = 'found `"`, the string does not end on its line'
        raise LemmaError(message, Span(file, line, column)) from None
    raise LemmaError("found text that is no lemma", Span(file, line, column)) from None


def _expected(accepts: set[str]) -> str:
    """The terminals in words; the many that may start a term are one entry."""
    left = set(accepts)
    words = []
    if left >= _TERM:
        words.append("a term")
        left -= {*_TERM, "QUALIFIED", "INFINITY", "INF", "NOT"}
    if left >= _STATEMENT:
        words.append("the next statement")
        left -= _STATEMENT
    signs = _signs()
    words += sorted({_NAMES.get(name) or signs.get(name, name.lower()) for name in left})
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _statement(node: Node, file: str) -> Statement:
    _limit(node, file)
    match node.data:
        case "lemma":
            return _lemma(node, file)
        case "define":
            return read_define(node, file)
        case _:
            return read_opaque(node, file)


def _limit(node: Node, file: str) -> None:
    """Raises where terms are nested too deeply; visits the tree level by level."""
    level, depth = [node], 0
    while level:
        if depth > DEEPEST:
            reject("found terms nested too deeply", f"at most {DEEPEST} levels are read", level[0], file)
        level, depth = [c for n in level for c in trees(n)], depth + 1


def _lemma(node: Node, file: str) -> Lemma:
    head, name, doc = node.children[0], node.children[1], node.children[2]
    left, arrow, right = node.children[3], node.children[4], node.children[5]
    assert isinstance(head, Token) and isinstance(left, Tree) and isinstance(right, Tree)
    rest = {tree.data: tree for tree in trees(node)[3:]}
    scope = Scope(file, frozenset(_indices(node)))
    conditions: list[Condition] = []
    if "when" in rest:
        for entry in trees(rest["when"]):
            conditions += _condition(entry, scope)
    return Lemma(
        name=str(name),
        doc=text_of(doc, file),
        left=scope.term(left),
        right=scope.term(right),
        both=str(arrow) == "<=>",
        assumed=head.type == "ASSUME",
        conditions=tuple(conditions),
        triggers=tuple(map(str, rest["trigger"].children)) if "trigger" in rest else (),
        claims=tuple(map(str, rest["claim"].children)) if "claim" in rest else (),
        theme=PurePath(file).stem,
        span=Span(file, head.line or 1, head.column or 1),
    )


def _indices(node: Node) -> set[str]:
    """The names that the statement uses as indices."""
    found: set[str] = set()
    stack = [node]
    while stack:
        tree = stack.pop()
        stack += trees(tree)
        if tree.data in ("names", "inputs", "outputs"):
            found |= {str(c) for c in tree.children if isinstance(c, Token)}
        elif tree.data == "extent":
            found.add(leaf(tree).strip("| \t"))
        elif tree.data == "not_in" and trees(tree)[0].data == "name":
            found.add(leaf(trees(tree)[0]))
    return found


def _condition(node: Node, scope: Scope) -> list[Condition]:
    inside = trees(node)
    match node.data:
        case "relations":
            sides = [scope.term(side) for side in inside]
            signs = [c for c in node.children if isinstance(c, Token)]
            return [
                Relation(scope.direction(sign), a, b)
                for sign, a, b in zip(signs, sides[:-1], sides[1:], strict=True)
            ]
        case "finite":
            return [Fact("finite", scope.term(inside[0]))]
        case "distinct":
            return [Fact("distinct", scope.term(inside[0]), tuple(map(str, inside[1].children)))]
        case "not_in":
            if inside[0].data != "name":
                reject("found a term before `not in`", "an index is needed", node, scope.file)
            variable = node.children[1]
            return [NotIn(leaf(inside[0]), _metavariable(scope, variable))]
        case _:
            needed = "only `k not in x` still holds when a function is cut into slices, `k in x` may not"
            raise rejection("found a condition `in`", needed, node, scope.file)


def _metavariable(scope: Scope, token: Token | Node) -> str:
    term: Term = scope.named(token)
    if not isinstance(term, Variable):
        reject(f"found the index `{token}` after `not in`", "a metavariable is needed", token, scope.file)
    return term.name
