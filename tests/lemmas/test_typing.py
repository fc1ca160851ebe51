"""Each well-formedness rule accepts a statement that obeys it and rejects one that does not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.kinds import kind_of
from shardproof.lemmas.parse import parse
from shardproof.lemmas.terms import Define, Extent, Lemma, Number, Opaque, Position, Statement, Variable
from shardproof.lemmas.typing import check


def checked(text: str) -> Statement:
    (statement,) = parse(text, "a.lemma")
    return check(statement)


def lemma(body: str, word: str = "lemma") -> Lemma:
    found = checked(f'{word} a "doc" {body}')
    assert isinstance(found, Lemma)
    return found


ACCEPTED = [
    "exp(x - c)/sum[k](exp(x - c)) => exp(x)/sum[k](exp(x)) when k not in c, c finite",
    "|k|*x => sum[k](x) when k not in x",
    "sum[k](x) <=> |k|*x when k not in x",
    "sum[r](take[v](w, ids - r*|v|)) => take[r, v](w, ids) when r not in ids, 0 <= ids < |r|*|v|",
    "sum[j](where(i == j, x, 0)) => take[j](x, i) when j not in i, 0 <= i < |j|",
    "where(i == j, x, 0) => where(j == i, x, 0) when |i| <= |j|",
    "top[k -> o](x) + 0*y => top[k -> o](x)",
    "0*x => 0",
    "sum[k](x - sum[k](x)/|k|) => 0",
    "sum[k](x)*sum[k](y) => sum[k](y)*sum[k](x)",
]


@pytest.mark.parametrize("body", ACCEPTED)
def test_accepted(body: str) -> None:
    found = lemma(body)
    assert check(found) == found


REJECTED = [
    # L1
    ("sum[k, k](x) => sum[k](x)", "found `k` twice in one binder"),
    ("top[k -> o, o](x) + x => x + top[k -> o, o](x)", "output indices must be distinct"),
    ("x + y => y + x when x + y distinct[k, k]", "indices must be distinct"),
    # L3
    ("x*y => y*x when z > 0", "found `z` only in the condition `z > 0`"),
    ("x*y => y*x when k not in x", "found the index `k` only in the condition"),
    ("x*y => y*x when x < inf", "say nothing in a condition"),
    ("x*y => y*x when f[ -> ](x) > 0", "say nothing in a condition"),
    # L5
    ("|k|*x => sum[k](x)", "the condition `k not in x` is needed"),
    ("k*x => sum[k](k*x)", "the condition `k not in x` is needed"),
    ("sum[k](x) => k*x", "found the position `k` outside of a binder only on the right side"),
    ("x => sum[k](x)/|k| when k not in x", "found the index `k` only on the right side"),
    # L6
    ("x => x + 0*y", "found `y` only on the right side"),
    ("0*x <=> 0", "found `x` only on the left side"),
    ("sum[k](0*x) <=> 0*x", "found the index `k` only on the left side"),
    # L8
    ("i*exp(x) => exp(x)*i when |i| > 0", "found int and real where one kind is needed: `i` and `exp(x)`"),
    ("x + (x < 1) => 1", "where one kind is needed"),
    ("take[k](x, 1/2) => 0.5", "found real where int is needed"),
    ("i/2 + |i| => |i| + i/2", "found int where real is needed: `i`, write `real(...)`"),
    ("where(x, 1, 0) + exp(x) => 1", "is needed: `x`"),
    ("all[k](x + 1) => x == x", "found a number where a bool is needed"),
    ("sum[k](x < 1) => |k|", "found a bool where a number is needed"),
    ("(x < y) < (y < x) => x < y", "truth values have no order"),
    ("real(exp(x)) => exp(x)", "which is real already"),
    ("exp(x)*real(x) => real(x)*exp(x)", "found `real` of `x`, which is real already"),
    ("x < y => x + y", "found bool and"),
    # L10
    ("top[k -> o](x + c) => top[k -> o](x) when k not in c", "no lemma moves through it"),
    ("0*top[k -> o](x) => 0*x", "no lemma moves through it"),
    # L12
    ("max(x, -inf) => x", "found `inf`, which only an `assume` may use"),
    # L13
    ("x + y => y + x trigger often", "found the trigger `often`, one of late is needed"),
    # sides
    ("x + y => x + y", "found the same term `x + y` on both sides"),
]


@pytest.mark.parametrize(("body", "message"), REJECTED)
def test_rejected(body: str, message: str) -> None:
    with pytest.raises(LemmaError) as error:
        lemma(body)
    assert message in str(error.value)
    assert str(error.value).startswith("a.lemma:1:1: `a`: ") or ": found" in str(error.value)


def test_infinities_are_for_assume() -> None:
    assert lemma("max(x, -inf) => x", "assume").assumed


def test_a_name_is_not_an_index_and_a_metavariable() -> None:
    clash = Lemma("a", "doc", Opaque("f", (), (), (Variable("k"), Extent("k"))), Number(Fraction(1)))
    with pytest.raises(LemmaError, match="found `k` as an index and as a metavariable"):
        check(clash)


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("x*y => y*x", {"x": "real", "y": "real"}),
        ("sum[k](x)/|k| => y*x - y*x + sum[k](x/|k|)", None),
        ("|k|*x => sum[k](x) when k not in x", {"x": "real"}),
        ("take[v](w, ids + j) => take[v](w, j + ids)", {"w": "real", "ids": "int", "j": "int"}),
        ("where(ids < |v|, x, y) => where(not ids >= |v|, x, y)", {"ids": "int", "x": "real", "y": "real"}),
        ("where(exp(t) < |v|, t, y) => where(|v| > exp(t), t, y)", {"t": "real", "y": "real"}),
        (
            "where(p, x, where(p, y, z)) => where(p, x, z)",
            {"p": "bool", "x": "real", "y": "real", "z": "real"},
        ),
        ("any[k](p and q) => any[k](q and p)", {"p": "bool", "q": "bool"}),
        ("real(i)*x => x*real(i)", {"i": "int", "x": "real"}),
        ("real(p)*x => where(p, x, 0)", {"p": "bool", "x": "real"}),
        ("x + r => r + x when |r| > 1", {"x": "int"}),
        ("where(0.5 < x, y, z) => where(x > 0.5, y, z)", {"x": "real", "y": "real", "z": "real"}),
    ],
)
def test_kinds(body: str, kinds: dict[str, str] | None) -> None:
    if kinds is None:
        with pytest.raises(LemmaError):
            lemma(body)
    else:
        assert dict(lemma(body).variables) == kinds


def test_indices_are_in_order_of_first_occurrence() -> None:
    found = lemma("sum[j](take[i](x, j + |m|)) => sum[j](take[i](x, |m| + j))")
    assert found.indices == ("j", "i", "m")


def test_kind_of_a_term() -> None:
    found = lemma("where(i < j, exp(x), 0) => where(j > i, exp(x), 0) when |i| <= |j|")
    kinds = dict(found.variables)
    assert kind_of(found.left, kinds) == "real"
    assert kind_of(Position("i"), kinds) == "int"
    assert kind_of(Extent("i"), kinds) is None


DEFINES = [
    ('define f(x[k]) -> y[k] "d" y = x*z', "found `z` in the body, which is no parameter"),
    ('define f(x[k]) -> y[k] "d" y = sum[j](x)', "found the index `j` in the body"),
    ('define f(x[k]) -> y[k] "d" y = x*j*|j|', "found the index `j` in the body"),
    ('define f(x[k, k]) -> y[k] "d" y = x', "found the dim `k` twice in `x`"),
    ('define f(x[k, ..., ...]) -> y[k] "d" y = x', "found the dim `...` twice in `x`"),
    ('define f(x[k]) -> y[j] "d" y = x', "found the dim `j` of a result, which no parameter has"),
    ('define f(x[k]) -> y "d" y = x', "found the result `y` without dims"),
    ('define f(x[k]) -> y[k] "d" y = f[k -> k](x)', "a define is not recursive"),
    ('define f(x[k]) -> y[k] "d" y = sort[k -> k](x)', "a define is made of known operators"),
    ('define f(x[k]; a = 1) -> y[k] "d" y = x*a', "found the attribute `a` in the body, it has one value"),
    ('define f(x[k], b[k]) -> y[k] "d" y = x', "found `b` nowhere in the body"),
    ('define f(x[k]; beta) -> y[k] "d" y = x', "found `beta` nowhere in the body"),
    ('define f(x[k]) -> y[k] "d" y = x and 1 < x', "found a number where a bool is needed"),
    ('define f(x[k], k[k]) -> y[k] "d" y = x*k', "found `k` as a dim and as a parameter"),
    ('opaque f(x[t]) -> y[t, d] batched over d "d"', "`batched over d`, which is no dim of a parameter"),
    ('opaque f(x[t, d]) -> y[t] batched over d "d"', "`batched over d`, which is no dim of the result `y`"),
    ('opaque f(x[t]) -> y[t] batched over t, t "d"', "found a dim twice after `batched over`"),
    ('opaque f(x[t, t]) -> y[t] "d"', "found the dim `t` twice in `x`"),
]


@pytest.mark.parametrize(("text", "message"), DEFINES)
def test_rejected_defines(text: str, message: str) -> None:
    with pytest.raises(LemmaError) as error:
        checked(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        'define f(x[k, ...], w[k]; eps, config = 0) -> y[k, ...] "d" y = x/(sum[k](x*x) + eps)*w',
        'define f(x, w)[k] "d" exp(x - max[k](x))/sum[k](exp(x - max[k](x)))*w',
        'define f(out![..., k], x[..., k]) "d" out = exp(x)',
        'define f(m[k], x[k]) -> y[k], z[] "d" y2 = x z = sum[k](y2) y = where(m, -inf, x)',
        'opaque f(x[t, ...], y[d]; layer) -> y2[..., t] batched over t, ... "d"',
    ],
)
def test_accepted_defines(text: str) -> None:
    found = checked(text)
    assert check(found) == found


def test_outputs_must_be_what_is_assigned() -> None:
    found = checked('define f(x![k], y[k]) -> z[k] "d" x = y z = x')
    assert isinstance(found, Define)
    for outputs in (("z",), ("x", "z"), ("z", "x", "x")):
        with pytest.raises(LemmaError):
            check(replace(found, outputs=outputs))
