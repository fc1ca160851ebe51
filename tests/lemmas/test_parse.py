"""The lemma language is read as its documentation says, and errors say where and what was expected."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.parse import parse
from shardproof.lemmas.terms import (
    Apply,
    Attribute,
    Compare,
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
    Span,
    Take,
    Term,
    Variable,
)

X, Y, Z = Variable("x"), Variable("y"), Variable("z")


def left(text: str) -> Term:
    """The left side of a lemma that says `text => 7`."""
    (lemma,) = parse(f'lemma a "doc" {text} => 7', "theme.lemma")
    assert isinstance(lemma, Lemma)
    return lemma.left


def lemma(text: str) -> Lemma:
    (found,) = parse(text, "theme.lemma")
    assert isinstance(found, Lemma)
    return found


def define(text: str) -> Define:
    (found,) = parse(text, "theme.lemma")
    assert isinstance(found, Define)
    return found


def test_a_lemma_with_all_its_parts() -> None:
    found = lemma(
        """
        # look-ups
        lemma vocab_parallel_take
          "Each rank looks up "  # a comment
          "its own block."
          sum[r](where(ids < r*|v|, 0, take[v](w, ids - r*|v|))) <=> take[r,v](w, ids)
          when r not in ids, 0 <= ids < |r|*|v|, w finite, ids distinct[v]
          trigger late
        """
    )
    start = Apply("multiply", (Position("r"), Extent("v")))
    ids, zero = Variable("ids"), Number(Fraction(0))
    own = Take(("v",), Variable("w"), Apply("subtract", (ids, start)))
    assert found.left == Reduce("sum", ("r",), Apply("select", (Compare("LT", ids, start), zero, own)))
    assert found.right == Take(("r", "v"), Variable("w"), ids)
    assert found.both and not found.assumed and found.triggers == ("late",)
    assert found.doc == "Each rank looks up  its own block." and found.theme == "theme"
    assert found.span == Span("theme.lemma", 3, 9)
    assert found.conditions == (
        NotIn("r", "ids"),
        Relation("LE", zero, ids),
        Relation("LT", ids, Apply("multiply", (Extent("r"), Extent("v")))),
        Fact("finite", Variable("w")),
        Fact("distinct", ids, ("v",)),
    )


def test_layout_means_nothing_but_keywords_start_statements() -> None:
    text = 'lemma a "d" x + y => y + x assume b "d" x => y define f(x) "d" -x opaque g(x) -> y "d"'
    spread = text.replace(" ", "\n  ")
    assert parse(text, "t") == parse(spread, "t")
    assert [s.name for s in parse(text, "t")] == ["a", "b", "f", "g"]
    assert [getattr(s, "assumed", None) for s in parse(text, "t")] == [False, True, None, None]


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("x + y*z", Apply("add", (X, Apply("multiply", (Y, Z))))),
        ("x - y - z", Apply("subtract", (Apply("subtract", (X, Y)), Z))),
        ("x/y/z", Apply("divide", (Apply("divide", (X, Y)), Z))),
        ("-x^2", Apply("negate", (Apply("power", (X, Number(Fraction(2)))),))),
        ("x^(-1/2)", Apply("power", (X, Number(Fraction(-1, 2))))),
        ("x^-1.5", Apply("power", (X, Number(Fraction(-3, 2))))),
        ("-3", Number(Fraction(-3))),
        ("-(3)", Apply("negate", (Number(Fraction(3)),))),
        ("1/3*x", Apply("multiply", (Number(Fraction(1, 3)), X))),
        ("x*1/3", Apply("divide", (Apply("multiply", (X, Number(Fraction(1)))), Number(Fraction(3))))),
        ("(1)/3", Apply("divide", (Number(Fraction(1)), Number(Fraction(3))))),
        ("1e-5", Number(Fraction(1, 100000))),
        ("0.1", Number(Fraction(1, 10))),
        ("-inf", Apply("negate", (Apply("infinity", ()),))),
        ("clamp(x, y, z)", Apply("clamp", (Y, X, Z))),
        ("max(x, y, z)", Apply("maximum", (Apply("maximum", (X, Y)), Z))),
        ("relu(x)", Apply("maximum", (X, Number(Fraction(0))))),
        ("silu(x)", Apply("multiply", (X, Apply("logistic", (X,))))),
        ("x < y and not y >= z or x != z", None),
        ("|r|*|v|", Apply("multiply", (Extent("r"), Extent("v")))),
        ("mean[k](x)", Apply("divide", (Reduce("sum", ("k",), X), Extent("k")))),
        ("all[k](x == y)", Reduce("and", ("k",), Compare("EQ", X, Y))),
        ("max[i, j](x)", Reduce("max", ("i", "j"), X)),
        ("sort[k -> o](x, y)", Opaque("sort", ("k",), ("o",), (X, Y))),
        ("aten::sort.default[k -> ](x)", Opaque("aten::sort.default", ("k",), (), (X,))),
    ],
)
def test_terms(text: str, term: Term | None) -> None:
    if term is None:
        negated = Apply("not", (Compare("GE", Y, Z),))
        term = Apply("or", (Apply("and", (Compare("LT", X, Y), negated)), Compare("NE", X, Z)))
    assert left(text) == term


def test_a_name_is_an_index_if_the_statement_uses_it_as_one() -> None:
    assert left("where(i == j, |i|, x)") == Apply(
        "select", (Compare("EQ", Position("i"), Variable("j")), Extent("i"), X)
    )
    found = lemma('lemma a "d" i + x => x + i when i not in x')
    assert found.left == Apply("add", (Position("i"), X))


def test_define_with_dims_guards_and_results() -> None:
    found = define(
        'define AwsNorm(x[k, ...], w[k], eps[]; config = 0, mode = "a", on = true) -> y[k, ...] "d" y = x*w'
    )
    assert found.parameters == (
        Parameter("x", ("k", "...")),
        Parameter("w", ("k",)),
        Parameter("eps", ()),
    )
    assert found.attributes == (
        Attribute("config", Fraction(0)),
        Attribute("mode", "a"),
        Attribute("on", True),
    )
    assert found.indices == ("k",) and found.outputs == ("y",)
    assert [(r.name, r.dims) for r in found.results] == [("y", ("k", "..."))]


def test_define_shorthand_has_one_unnamed_result() -> None:
    found = define('define norm(x, w)[k] "d" x*w/sum[k](x)')
    assert [p.dims for p in found.parameters] == [None, None]
    assert [(r.name, r.dims) for r in found.results] == [("", ("...", "k"))]
    assert found.indices == ("k",) and found.outputs == ("",)


def test_mutated_parameters_are_outputs_in_the_order_of_the_parameters() -> None:
    found = define(
        """
        define _C::fused_add.default(input![..., k], residual![..., k]; epsilon) "d"
          residual = input + residual
          half = residual/2
          input = half*half*epsilon
        """
    )
    assert found.name == "_C::fused_add.default" and found.outputs == ("input", "residual")
    assert [r.name for r in found.results] == ["residual", "input"]
    half = Apply("divide", (Variable("residual"), Number(Fraction(2))))
    squared = Apply("multiply", (half, half))
    assert found.results[1].term == Apply("multiply", (squared, Variable("epsilon")))


def test_opaque_with_its_batch_dims() -> None:
    text = "opaque vllm::attention(q[t, h, d], out![t, h, d]; layer) -> lse[h, t] {} {}"
    for parts in (('"d"', "batched over t, h"), ("batched over t, h", '"d"')):
        (found,) = parse(text.format(*parts), "t")
        assert isinstance(found, OpaqueDefine)
        assert found.batched == ("t", "h")
        assert found.results == (("lse", ("h", "t")), ("out", ("t", "h", "d")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "a.lemma:1:1: found `x`, expected the next statement"),
        ("lemma a exp(x) => x", 'a.lemma:1:9: found `exp`, expected a doc string in "quotes"'),
        ('lemma a\n"d"\n  x +\n  => y', "a.lemma:4:3: found `=>`, expected a term"),
        ('lemma a "d" x => y + lemma b', "a.lemma:1:22: found `lemma`, expected a term"),
        ('lemma a "d" x => y when k in x', "a.lemma:1:25: found a condition `in`, only `k not in x`"),
        ('lemma a "d" x < y < z => y', "a.lemma:1:19: found `<`, expected"),
        ('lemma a "d" x => ', "a.lemma:1:18: found the end of the file, expected a term"),
        ('lemma a "d', 'a.lemma:1:9: found `"`, the string does not end on its line'),
        ('lemma a "d" x $ y', "a.lemma:1:15: found the character '$'"),
        ('lemma a "d" soft(x) => x', "a.lemma:1:13: found the unknown function `soft`, one of abs,"),
        ('lemma a "d" soft[k](x) => x', "a.lemma:1:13: found the unknown binder `soft`"),
        ('lemma a "d" sum(x) => x', "a.lemma:1:13: found `sum(`, write `sum[k](`"),
        ('lemma a "d" exp(x, y) => x', "a.lemma:1:13: found 2 arguments of `exp`, 1 argument needed"),
        ('lemma a "d" sum + x => x', "a.lemma:1:13: found `sum` as a name"),
        ('lemma a "d" sum[exp](x) => x', "a.lemma:1:17: found `exp` as an index"),
        ('lemma a "d" sum[k -> o](x) => x', "a.lemma:1:13: found `sum` as an opaque binder"),
        ('lemma a "d" x/0 + 1/0 => x', "a.lemma:1:21: found a division by 0"),
        ('lemma a "\\q" x => y', "a.lemma:1:9: found an unknown escape"),
        ('lemma a "d" |x| => x when k not in x', "a.lemma:1:36: found the index `x` after `not in`"),
        ('lemma a "d" 1e99999 => x', "a.lemma:1:13: found a number of too many digits"),
        ('define f(x) "d" y = x', "a.lemma:1:17: found assignments without results"),
        ('define f(x[k]) -> x[k] "d" x + 1', "a.lemma:1:1: found the result `x`, also a parameter"),
        ('define f(x, x) "d" x', "a.lemma:1:13: found a second `x`"),
        ('define f(x[k]) -> y[k] "d" x = x y = x', "a.lemma:1:28: found an assignment to `x`"),
        ('define f(x![k]) "d" y = x', "a.lemma:1:21: found no assignment to `x`"),
        ('define f(x[k]; a) -> y[k] "d" a = x y = x', "a.lemma:1:31: found an assignment to `a`"),
        ('opaque f(x[k]) "d"', "a.lemma:1:1: found an opaque operator without a result"),
    ],
)
def test_errors_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(LemmaError) as error:
        parse(text, "a.lemma")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        'lemma a "d" ' + "(" * 5000 + "x" + ")" * 5000 + " => x",
        'lemma a "d" ' + "-" * 20000 + "x => x",
        'lemma a "d" x' + " + x" * 20000 + " => x",
        'lemma a "d" ' + "(" * 900_000,
        'lemma a "d" ' + "exp(" * 3000 + "x" + ")" * 3000 + " => x",
        'define f(x[k]) -> y[k] "d" a0 = x + x '
        + " ".join(f"a{i + 1} = a{i} + a{i}" for i in range(60))
        + " y = a60",
        'define f(x[k]) -> y[k] "d" a0 = x '
        + " ".join(f"a{i + 1} = exp(a{i})" for i in range(500))
        + " y = a500",
        "#" * 1_000_001,
    ],
)
def test_size_and_depth_have_limits(text: str) -> None:
    with pytest.raises(LemmaError):
        parse(text, "a.lemma")


def test_a_hundred_levels_are_read() -> None:
    assert isinstance(left("-" * 90 + "x"), Apply)


def test_a_clamp_of_a_position_is_to_the_extent_that_is_taken() -> None:
    short, long = "take[r, v](w, clamp(e))", "take[r, v](w, clamp(e, 0, |r|*|v| - 1))"
    heads = [parse(f'lemma a "." {t} => w when r not in w, v not in w', "t")[0] for t in (short, long)]
    assert heads[0] == heads[1]
    with pytest.raises(LemmaError, match="found 1 argument of `clamp`"):
        parse('lemma a "." clamp(e) => e', "t")
