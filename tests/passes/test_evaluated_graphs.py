"""Normalised views compute what plain interpretation computes; equal views are equal values."""

from __future__ import annotations

from random import Random

import pytest
from evaluated import check_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_operators import random_graph

from shardproof.solver.search.theory import theory


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_normalised_is_plain_evaluation(draw: Random) -> None:
    check_graph(random_graph(draw, size=12))


def test_many_equal_views_are_equal_values() -> None:
    pairs = sum(
        check_graph(random_graph(Random(seed), size=20), folding=seed % 3 == 0) for seed in range(300)
    )
    assert pairs > 1000


def test_positions_kept_inside_change_no_value() -> None:
    pairs = 0
    for seed in range(200):
        graph = random_graph(Random(seed), size=20)
        pairs += check_graph(graph, folding=seed % 2 == 0, algebra=seed % 3 == 0, inside=True)
    assert pairs > 600


def test_algebra_and_lemmas_change_no_value() -> None:
    rules = theory().rules("late")
    for seed in range(120):
        draw = Random(seed)
        check_graph(random_graph(draw, size=12 + seed % 20), folding=True, algebra=True)
        check_graph(random_graph(draw, size=12 + seed % 20), folding=True, rules=rules)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 10_000, 500))
def test_normalised_is_plain_evaluation_on_many_graphs(seed: int) -> None:
    for s in range(seed, seed + 500):
        rules = theory().rules("late") if s % 3 == 0 else None
        check_graph(random_graph(Random(s), size=12 + s % 20), folding=s % 2 == 1, rules=rules)
