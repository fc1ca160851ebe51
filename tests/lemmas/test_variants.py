"""Variants of lemmas: true wherever the lemma is, and named after it."""

from __future__ import annotations

import pytest
from lemma_sides import lemma

from shardproof.lemmas.check_samples import search
from shardproof.lemmas.load import load
from shardproof.lemmas.printer import show_term
from shardproof.lemmas.terms import Lemma
from shardproof.lemmas.variants import VARIANTS, resolve

LIBRARY = load(entry_points=False).lemmas
WAYS = (*VARIANTS, "back.within", "back.among", "reverse.among", "back.below", "back.beside")
SOME = [name for n, name in enumerate(LIBRARY) if n % 3 == 0 and not LIBRARY[name].assumed]


@pytest.mark.parametrize("name", SOME)
def test_variants_of_true_lemmas_are_true(name: str) -> None:
    for way in WAYS:
        own = resolve(LIBRARY, f"{name}.{way}")
        if own is not None:
            for infinite in (False, True):
                assert search(own, own.conditions, 12, infinite=infinite).counterexample is None, own.name


def variant(text: str, way: str) -> Lemma | None:
    return resolve({"own": lemma(text)}, f"own.{way}")


def test_contexts_are_put_around_both_sides() -> None:
    own = variant("exp(x + y) => exp(x)*exp(y)", "within")
    assert own is not None
    assert show_term(own.left) == "sum[within.k](within.c*exp(x + y)) + within.w"
    assert show_term(own.right) == "sum[within.k](within.c*(exp(x)*exp(y))) + within.w"
    spread = variant("x*(y - z) => x*y - x*z when x finite", "among")
    assert spread is not None
    assert show_term(spread.right) == "within.c*(x*y) + (within.c*-(x*z) + within.w)"


def test_only_what_holds_both_ways_is_reversed() -> None:
    assert variant("max(x, y) => max(y, x)", "reverse") is None
    turned = variant("exp(x + y) <=> exp(x)*exp(y)", "reverse")
    assert turned is not None and show_term(turned.left) == "exp(x)*exp(y)"


def test_each_kind_has_its_own_contexts() -> None:
    real, truth = "sqrt(x*x) => abs(x)", "x < y and x < y => x < y"
    assert variant(real, "beside") is None and variant(real, "below") is not None
    assert variant(truth, "within") is None and variant(truth, "among") is None
    assert variant(truth, "beside") is not None


@pytest.mark.parametrize("way", ["", "x", "within.within", "within.back", "reverse.back", "back.back.within"])
def test_other_names_are_no_lemmas(way: str) -> None:
    assert variant("exp(x + y) <=> exp(x)*exp(y)", way) is None
