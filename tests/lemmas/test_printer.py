"""Statements survive being written as text, and as JSON."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.lemmas.codec import from_json, to_json
from shardproof.lemmas.functions import ARITY, COMPARISON_SPELLING, REDUCTION_SPELLING
from shardproof.lemmas.parse import parse
from shardproof.lemmas.printer import show, show_condition, show_term
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
    Result,
    Span,
    Statement,
    Take,
    Term,
    Variable,
)
from shardproof.lemmas.typing import check

INDICES = ("i", "j", "k")
METAVARIABLES = ("x", "y", "w2", "_z")
index = st.sampled_from(INDICES)
some_indices = st.lists(index, min_size=1, max_size=3, unique=True).map(tuple)
maybe_indices = st.lists(index, max_size=3, unique=True).map(tuple)
fractions = st.one_of(
    st.integers(-4, 12).map(Fraction),
    st.fractions(),
    st.sampled_from(["0.044715", "1e-6", "-0.5", "1e-9", "1e20"]).map(Fraction),
)
numbers = fractions.map(Number)
names = st.sampled_from(["sort", "aten::top_k.default", "f"])
direction = st.sampled_from(sorted(COMPARISON_SPELLING))


def applied(terms: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    def of(op: str) -> st.SearchStrategy[Term]:
        return st.tuples(*([terms] * ARITY[op])).map(lambda x: Apply(op, x))

    return st.sampled_from(sorted(ARITY)).flatmap(of)


def larger(terms: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    return st.one_of(
        applied(terms),
        applied(terms),
        st.builds(lambda x, c: Apply("power", (x, c)), terms, numbers),
        st.builds(Compare, direction, terms, terms),
        st.builds(Reduce, st.sampled_from(sorted(REDUCTION_SPELLING)), some_indices, terms),
        st.builds(Take, some_indices, terms, terms),
        st.builds(Opaque, names, maybe_indices, maybe_indices, st.lists(terms, max_size=2).map(tuple)),
    )


leaves: st.SearchStrategy[Term] = st.one_of(
    numbers, st.sampled_from(METAVARIABLES).map(Variable), index.map(Position), index.map(Extent)
)
terms = st.recursive(leaves, larger, max_leaves=12)
conditions: st.SearchStrategy[Condition] = st.one_of(
    st.builds(NotIn, index, st.sampled_from(METAVARIABLES)),
    terms.map(lambda t: Fact("finite", t)),
    st.builds(lambda t, i: Fact("distinct", t, i), terms, some_indices),
    st.builds(Relation, direction, terms, terms),
)
docs = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
EVERY = Reduce("sum", INDICES, Number(Fraction(1)))
"""Makes i, j and k indices of the statement that holds it."""


@st.composite
def lemmas(draw: st.DrawFn) -> Lemma:
    chain = draw(st.lists(conditions, max_size=3))
    if chain and isinstance(chain[-1], Relation):
        chain.append(Relation(draw(direction), chain[-1].right, draw(terms)))
    return Lemma(
        name=draw(st.sampled_from(["a", "softmax_shift"])),
        doc=draw(docs),
        left=Apply("add", (EVERY, draw(terms))),
        right=draw(terms),
        both=draw(st.booleans()),
        assumed=draw(st.booleans()),
        conditions=tuple(chain),
        triggers=draw(st.sampled_from([(), ("late",)])),
        theme="theme",
    )


operators = st.sampled_from(["f", "_C::fused_add.default", "when", "aten::add-2", 'a "b"'])
dims = st.permutations(["...", "i", "j"]).map(tuple)
values = st.one_of(fractions, st.text(max_size=5), st.booleans(), st.none())


@st.composite
def defines(draw: st.DrawFn) -> Define:
    """Of two parameters, the second mutated in half of the cases, and up to two results."""
    mutated = draw(st.booleans())
    parameters = (Parameter("x", ("i", "j", "k")), Parameter("y", draw(dims), mutated))
    attributes = tuple(
        Attribute(name, v)
        for name, v in zip(("eps", "mode"), draw(st.lists(values, max_size=2)), strict=False)
    )
    results = [
        Result(name, draw(dims), Apply("add", (EVERY, draw(terms)))) for name in draw(st.permutations("pq"))
    ]
    declared = draw(st.permutations("pq"))
    if mutated:
        place = draw(st.integers(0, 2))
        results.insert(place, Result("y", parameters[1].dims, draw(terms)))
    explicit = [d for p in parameters for d in p.dims or ()] + [
        d for n in declared for r in results if r.name == n for d in r.dims or ()
    ]
    return Define(
        name=draw(operators),
        doc=draw(docs),
        parameters=parameters,
        attributes=attributes,
        indices=tuple(dict.fromkeys(d for d in explicit if d != "...")),
        results=tuple(results),
        outputs=(*declared, *(["y"] if mutated else [])),
        theme="theme",
    )


@st.composite
def opaques(draw: st.DrawFn) -> OpaqueDefine:
    parameters = (Parameter("x", draw(dims)), Parameter("y", draw(st.none() | dims), True))
    return OpaqueDefine(
        name=draw(operators),
        doc=draw(docs),
        parameters=parameters,
        attributes=(Attribute("layer"),),
        results=(("o", draw(st.none() | dims)), ("y", parameters[1].dims)),
        batched=draw(st.sampled_from([(), ("i",), ("...", "j")])),
        theme="theme",
    )


def read_back(term: Term) -> Term:
    """The term as the parser reads its text."""
    (lemma,) = parse(
        f'lemma a "doc" {show_term(Apply("add", (EVERY, Number(Fraction(1)))))} => {show_term(term)}', "t"
    )
    assert isinstance(lemma, Lemma)
    return lemma.right


@given(terms)
@settings(max_examples=300, deadline=None)
def test_terms_read_back(term: Term) -> None:
    assert read_back(term) == term


def number(text: str) -> Number:
    return Number(Fraction(text))


@pytest.mark.parametrize("a", [number(n) for n in ["3", "0", "-3", "1/3", "-1/3", "0.5"]])
@pytest.mark.parametrize("b", [number(n) for n in ["3", "-3", "1/3", "-1/3", "0.5"]])
def test_signs_between_numbers_are_kept(a: Term, b: Term) -> None:
    """A sign or a quotient of numerals is a number only where it is one."""
    for op in ("divide", "multiply", "subtract", "power"):
        assert read_back(Apply(op, (a, b))) == Apply(op, (a, b))
        assert read_back(Apply(op, (Apply("negate", (a,)), b))) == Apply(op, (Apply("negate", (a,)), b))
        assert read_back(Apply("negate", (Apply(op, (a, b)),))) == Apply("negate", (Apply(op, (a, b)),))
    assert read_back(Apply("negate", (a,))) == Apply("negate", (a,))


@given(st.one_of(lemmas(), defines(), opaques()))
@settings(max_examples=200, deadline=None)
def test_statements_read_back(statement: Statement) -> None:
    assert parse(show(statement), "theme.lemma") == (statement,)


@given(st.one_of(lemmas(), defines(), opaques()))
@settings(max_examples=100, deadline=None)
def test_statements_survive_json(statement: Statement) -> None:
    assert from_json(json.loads(json.dumps(to_json(statement)))) == statement


def test_shorthand_reads_back() -> None:
    for text in ('define f(x, w)[k] "d" x*w', 'define f(x) "d" -x', 'define f(x; a)[j, k] "d" a*x'):
        found = parse(text, "t")
        assert parse(show(found[0]), "t") == found


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("((x*y)+(z))", "x*y + z"),
        ("x - (y - z)", "x - (y - z)"),
        ("(x/y)/z*(1/3)", "x/y/z*(1/3)"),
        ("(-x)^2 - (x^2)", "(-x)^2 - x^2"),
        ("rsqrt(sum[k](x*x)/|k| + 0.00001)", "rsqrt(sum[k](x*x)/|k| + 0.00001)"),
        ("where((x < y) and (not (p)), 1, -2)", "where(x < y and not p, 1, -2)"),
        ("clamp(x, 0, |v| - 1)", "clamp(x, 0, |v| - 1)"),
        ("x^(-1/2) + x^0.5", "x^(-0.5) + x^0.5"),
        ("1/3*x + 2/4", "1/3*x + 0.5"),
        ("take[i, j](w, r*|i|)", "take[i, j](w, r*|i|)"),
    ],
)
def test_parentheses_are_minimal(term: str, text: str) -> None:
    (lemma,) = parse(f'lemma a "d" {term} => 7', "t")
    assert isinstance(lemma, Lemma)
    assert show_term(lemma.left) == text


def test_relations_that_continue_are_one_chain() -> None:
    text = 'lemma a\n  "d"\n  x + i => i + x\n  when 0 <= i < |r|*|v|, i not in x, x finite'
    (lemma,) = parse(text, "t")
    assert show(lemma) == text
    assert isinstance(lemma, Lemma)
    assert [show_condition(c) for c in lemma.conditions][:2] == ["0 <= i", "i < |r|*|v|"]


def test_json_keeps_kinds_and_may_move_to_another_file() -> None:
    (lemma,) = map(check, parse('lemma a "d"\n x*y => y*x', "here/theme.lemma"))
    back = from_json(to_json(lemma))
    assert back == lemma and back.span == lemma.span == Span("here/theme.lemma", 1, 1)
    moved = from_json(to_json(lemma), "there/other.lemma")
    assert moved.theme == "other" and moved.span == Span("there/other.lemma", 1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d[:-1],
        lambda d: ["lemmas", *d[1:]],
        lambda d: [*d[:5], ["q", "x"], *d[6:]],
        lambda d: [*d[:5], ["n", "1/0"], *d[6:]],
        lambda d: [*d[:5], ["c", "LESS", "x", "y"], *d[6:]],
        lambda d: [*d[:5], ["r", "mean", ["k"], "x"], *d[6:]],
        lambda d: [*d[:5], ["r", "sum", "k", "x"], *d[6:]],
        lambda d: [*d[:7], "true", *d[8:]],
        lambda d: [*d[:4], "line 1", *d[5:]],
        lambda d: [*d[:11], [["x", "complex"]], *d[12:]],
        lambda d: {"lemma": d},
    ],
)
def test_other_json_is_rejected(change: Any) -> None:
    (lemma,) = map(check, parse('lemma a "d"\n x*y => y*x', "t"))
    with pytest.raises((ValueError, ZeroDivisionError)):
        from_json(change(to_json(lemma)))
