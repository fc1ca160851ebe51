"""Z3 proves no false lemma: by hand, and by random changes of the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Final

import pytest

from shardproof.lemmas.check_samples import search
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.parse import parse
from shardproof.lemmas.printer import show
from shardproof.lemmas.sources import shipped
from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Extent,
    Lemma,
    NotIn,
    Number,
    Position,
    Reduce,
    Take,
    Term,
    Variable,
    walk,
)
from shardproof.lemmas.typing import check as check_typing

pytest.importorskip("z3")

from shardproof.lemmas.check_z3 import prove
from shardproof.lemmas.check_z3_induction import LAWS


def lemma(text: str) -> Lemma:
    (found,) = parse(text if text.startswith("lemma") else f'lemma a "b" {text}', "test.lemma")
    checked = check_typing(found)
    assert isinstance(checked, Lemma)
    return checked


def lemmas(paths: Sequence[Path]) -> list[Lemma]:
    found = [check_typing(s) for p in paths for s in parse(p.read_text(encoding="utf-8"), p.name)]
    return [x for x in found if isinstance(x, Lemma) and not x.assumed]


@pytest.mark.parametrize("law", LAWS)
def test_the_laws_of_sums_hold_by_induction(law: str) -> None:
    assert LAWS[law]()


@pytest.mark.parametrize("false", lemmas([Path(__file__).parent / "false.lemma"]), ids=lambda x: x.name)
def test_no_false_lemma_is_proved(false: Lemma) -> None:
    assert not prove(false)


@pytest.mark.parametrize(
    "text",
    [
        "x*(1/x) => 1 when 1/x > 0",
        "1/(2*x) => 1/x/2",
        "log(x*y) => log(x) + log(y)",
        "exp(log(x)) => x",
        "sqrt(x)*sqrt(x) => x",
        "rsqrt(x) => 1/sqrt(x)",
        "x/x => 1",
        "0*(x/x) + 1 => x/x",
        "sum[k](x)*sum[k](x) => sum[k](x*x)",
        "sum[k](x*y) => sum[k](x)*sum[k](y)",
        "sum[k](sum[r](x)*y) => sum[k, r](x*y)",
        "sum[k](x) + sum[j](y) => sum[j](x) + sum[k](y)",
        "sum[k](x*c) => sum[k](x)*c when k not in x",
        "max[k](c*x) => c*max[k](x) when k not in c",
        "max[k](x + y) => max[k](x) + max[k](y)",
        "max[k](max(x, y)) => max[k](x)",
        "sum[k](where(k == i, x, 0)) => take[k](x, i) when k not in i",
        "sum[k](where(k <= i, x, 0)) => take[k](x, i) when k not in i, 0 <= i < |k|",
        "sum[k](where(k == i, x, 0)) => take[k](x, i) when 0 <= i < |k|",
        "take[k](x + y, i) => take[k](x, i) + take[k](y, i)",
        "take[k](x, i) => x when 0 <= i < |k|",
        "take[r, v](x, i) => take[v, r](x, i) when 0 <= i < |r|*|v|",
        "sum[r, v](take[j](x, r*|v| + v)) => sum[j](x) when r not in x, v not in x",
        "sum[r, v](take[j](x, v*|v| + r)) => sum[j](x) when |j| == |r|*|v|, r not in x, v not in x",
        "sum[r, v](take[j](x, r*|r| + v)) => sum[j](x) when |j| == |r|*|v|, r not in x, v not in x",
        "sum[k](1) => 1",
        "sum[k](real(k)) => |k|*(|k| + 1)/2",
        "any[k](p) => all[k](p)",
        "any[k](p and q) => any[k](p) and any[k](q)",
        "exp(x)*exp(y) => exp(x*y)",
        "sigmoid(x) => 1/(1 + exp(x))",
        "where(p, x, y) => where(p, x, x)",
        "real(floor(x) == x) => 1",
        "abs(x + y) => abs(x) + abs(y)",
        "take[v](sum[k](where(e == v, u, 0)), e) => u when e distinct[k], v not in e, v not in u",
        "take[v](sum[k](where(e == v, u, 0)), e) => u when e distinct[v], 0 <= e < |v|",
        "sum[k](x - m) => 0 when m == sum[k](x)",
    ],
)
def test_a_step_that_needs_more_is_not_proved(text: str) -> None:
    found = lemma(text)
    assert not prove(found, 2.0)
    assert search(found, found.conditions, 300).counterexample is not None


@pytest.mark.parametrize(
    "name", ["inverse", "power", "sum0", "max0", "witness", "exponential", "k1", "arrays", "unknown"]
)
def test_names_of_metavariables_meet_no_symbol_of_the_encoding(name: str) -> None:
    assert not prove(lemma(f"max[k](x) + {name} + 1/y => {name} + max[k](x)*(1/y)"))
    assert prove(lemma(f"sum[k](x) + {name} + 1/y => (1/y) + (sum[k](x) + {name})"))


SWAPS: Final = {
    "add": ("subtract", "multiply"),
    "subtract": ("add",),
    "multiply": ("add", "divide"),
    "divide": ("multiply",),
    "exponential": ("log", "tanh"),
    "log": ("exponential", "sqrt"),
    "sqrt": ("rsqrt", "abs"),
    "rsqrt": ("sqrt",),
    "maximum": ("minimum", "add"),
    "minimum": ("maximum",),
    "and": ("or",),
    "or": ("and",),
    "logistic": ("tanh",),
    "negate": ("abs",),
    "abs": ("negate",),
}


class Changes:
    """Random changes of the terms of a lemma."""

    def __init__(self, subject: Lemma, random: Random) -> None:
        self.random = random
        self.names = [v for v, _ in subject.variables] or ["x"]
        self.indices = list(subject.indices) or ["k"]

    def term(self, t: Term) -> Term:
        if self.random.random() < 1 / sum(1 for _ in walk(t)):
            return self._here(t)
        go = self.term
        match t:
            case Apply(op, x) if x:
                n = self.random.randrange(len(x))
                return Apply(op, tuple(go(y) if i == n else y for i, y in enumerate(x)))
            case Compare(d, a, b):
                return Compare(d, go(a), b) if self.random.random() < 0.5 else Compare(d, a, go(b))
            case Reduce(kind, indices, body):
                return Reduce(kind, indices, go(body))
            case Take(indices, body, p):
                return (
                    Take(indices, go(body), p) if self.random.random() < 0.5 else Take(indices, body, go(p))
                )
            case _:
                return t

    def _here(self, t: Term) -> Term:
        pick, chance = self.random.choice, self.random.random()
        match t:
            case Apply(op, x) if x:
                if op in SWAPS and chance < 0.5:
                    return Apply(pick(SWAPS[op]), x)
                return Apply(op, x[::-1]) if chance < 0.7 and len(x) == 2 else pick(x)
            case Variable():
                return Variable(pick(self.names)) if chance < 0.8 else Number(Fraction(pick((-1, 0, 1, 2))))
            case Number(v):
                return Number(v + pick((1, -1)))
            case Compare(_, a, b):
                return Compare(pick(("LT", "LE", "GT", "GE", "EQ", "NE")), a, b)
            case Reduce(kind, indices, body):
                if chance < 0.3 and kind not in ("and", "or"):
                    return Reduce(pick(("sum", "max", "min")), indices, body)
                if chance < 0.6:
                    return Reduce(kind, indices[:1], body)
                return body if chance < 0.7 else Reduce(kind, (pick(self.indices),), body)
            case Take(indices, body, p):
                return Take(indices[::-1], body, p) if chance < 0.5 else Take((pick(self.indices),), body, p)
            case Position():
                return Position(pick(self.indices))
            case Extent():
                return Extent(pick(self.indices))
            case _:
                return t

    def changed(self, m: Lemma) -> Lemma:
        chance = self.random.random()
        if chance < 0.25 and m.conditions:
            dropped = self.random.choice(m.conditions)
            return replace(m, conditions=tuple(c for c in m.conditions if c is not dropped))
        if chance < 0.3:
            extra = NotIn(self.random.choice(self.indices), self.random.choice(self.names))
            return replace(m, conditions=(*m.conditions, extra))
        return replace(m, left=self.term(m.left)) if chance < 0.6 else replace(m, right=self.term(m.right))


def unsound(seed: int, count: int) -> tuple[int, list[str]]:
    """Changed lemmas that Z3 proves, and those of them that have a counterexample."""
    random = Random(seed)
    library = lemmas(shipped())
    proved, wrong = 0, []
    for _ in range(count):
        subject = random.choice(library)
        changes = Changes(subject, random)
        mutant = replace(subject, both=False)
        for _ in range(random.choice((1, 1, 2))):
            mutant = changes.changed(mutant)
        try:
            checked = check_typing(mutant)
        except LemmaError:
            continue
        assert isinstance(checked, Lemma)
        if prove(checked, 2.0):
            proved += 1
            found = search(checked, checked.conditions, 200, seed=seed).counterexample
            if found is not None:
                wrong.append(f"{show(checked)}\n{found}")
    return proved, wrong


def test_no_changed_lemma_with_a_counterexample_is_proved() -> None:
    proved, wrong = unsound(1, 150)
    assert wrong == []
    assert proved > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 4))
def test_no_changed_lemma_of_many_is_proved_wrongly(seed: int) -> None:
    proved, wrong = unsound(seed, 1000)
    assert wrong == []
    assert proved > 100
