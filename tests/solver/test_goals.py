"""Goals: what a proof lacks, as lemmas that the checker reads."""

from __future__ import annotations

import pytest
from lemma_sides import sides

from shardproof.lemmas.check import check
from shardproof.lemmas.parse import parse
from shardproof.lemmas.terms import Lemma
from shardproof.lemmas.typing import check as check_typing
from shardproof.solver.search.goals import goal


def stated(text: str, sizes: dict[str, int] | None = None) -> tuple[str, Lemma]:
    store, wanted, found = sides(text, sizes)
    before = len(store.classes), len(store.sizes)
    written = goal(store, wanted, found, "%out.1", "model.py:12")
    assert (len(store.classes), len(store.sizes)) == before
    (statement,) = parse(written, "goals.lemma")
    lemma = check_typing(statement)
    assert isinstance(lemma, Lemma)
    return written, lemma


TRUE = {
    "exp(x - m)/sum[k](exp(x - m)) => exp(x)/sum[k](exp(x)) when k not in m": "k not in m",
    "exp(x)/sum[k](exp(x)) => exp(x - max[k](x))/sum[k](exp(x - max[k](x)))": "",
    "exp(tanh(x) + y)*w => w*exp(2*sigmoid(2*x) - 1 + y)": "tanh(x)",
    "log(x*y) + w => log(x) + log(y) + w when x > 0, y > 0": "x > 0, y > 0",
    "sum[k](sqrt(x*x)*y) => sum[k](y*abs(x))": "abs(x)",
    "sum[k](sum[j](x*y)*z) => sum[j](x*sum[k](y*z)) when k not in x, j not in z": "j not in z, k not in x",
    "where(p, exp(x), exp(y)) => exp(where(p, x, y))": "where(p, x, y)",
}


@pytest.mark.parametrize("text", TRUE)
def test_a_goal_of_equal_terms_is_a_true_lemma(text: str) -> None:
    written, lemma = stated(text)
    (result,) = check([lemma], prove=False)
    assert result.status == "tested", (written, result)
    assert TRUE[text] in written


def test_a_goal_names_the_value_and_its_place() -> None:
    written, lemma = stated("tanh(x) => sigmoid(x)")
    assert "`%out.1` at model.py:12" in lemma.doc
    assert lemma.name == "goal_out_1"
    assert "x" in written


def test_what_both_sides_share_is_left_out() -> None:
    written, lemma = stated("exp(v*tanh(x) + y)*w => w*exp(v*(2*sigmoid(2*x) - 1) + y)")
    assert {name for name, _ in lemma.variables} == {"x"}, written


def test_a_goal_of_different_terms_is_a_false_lemma() -> None:
    _, lemma = stated("exp(x - m)/sum[k](exp(x)) => exp(x)/sum[k](exp(x)) when k not in m")
    (result,) = check([lemma], prove=False)
    assert result.status == "false"
    assert result.counterexample is not None
