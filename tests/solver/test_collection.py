"""The garbage collector runs seldom during a proof, and as before after it."""

from __future__ import annotations

import gc

import pytest

from shardproof.solver.collection import YOUNG, rare_collection


def test_thresholds_are_raised_and_restored() -> None:
    before = gc.get_threshold()
    with rare_collection():
        assert gc.get_threshold() == (YOUNG, *before[1:])
        with rare_collection():
            assert gc.get_threshold()[0] == YOUNG
    assert gc.get_threshold() == before


def test_a_collector_that_is_off_stays_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with pytest.raises(KeyError), rare_collection():
            assert gc.get_threshold()[0] == 0
            raise KeyError
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
