"""What the rounding of constants may cause refutes nothing; what is more does."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import Graph

from shardproof.ir.module import Module
from shardproof.solver.prove import Clock
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import Relation, compose
from shardproof.solver.replay.refute import replay
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

FREQUENCIES = (1.0 / 10000 ** (np.arange(0, 8, 2) / 8)).astype(np.float32)
POSITIONS = np.arange(90000, 90005)
ANGLES = (POSITIONS[:, None] * FREQUENCIES).astype(np.float32)
"""Far from zero, where the rounding of an angle changes its cosine by much more than that of the cosine."""


def computed() -> Module:
    """A function of an input times the cosines of positions times frequencies."""
    g = Graph()
    x = g.input("x", 5, 4)
    positions = g.const(POSITIONS.astype(np.float32)).spread((5, 4), (0,))
    angles = positions * g.const(FREQUENCIES).spread((5, 4), (1,))
    g.output("y", (x * angles.apply("cosine")).apply("tanh"))
    return g.module()


def folded(angles: np.ndarray, function: str = "tanh") -> Module:
    g = Graph()
    x = g.input("x", 5, 4)
    g.output("y", (x * g.const(np.cos(angles).astype(np.float32))).apply(function))
    return g.module()


def test_folded_constants_refute_nothing() -> None:
    exact = np.cos(POSITIONS[:, None] * FREQUENCIES.astype(np.float64))
    assert np.abs(exact - np.cos(ANGLES.astype(np.float64))).max() > 1e-5
    for own, other in ((computed(), folded(ANGLES)), (folded(ANGLES), computed())):
        relation = infer(own, other, Relation({}, {}, {})).relation
        assert replay(compose(own, other, relation), Clock(None)).difference is None


def test_other_positions_are_refuted() -> None:
    assert verify(computed(), folded((ANGLES + FREQUENCIES).astype(np.float32))).verdict is Verdict.REFUTED


def test_another_function_of_folded_constants_is_refuted() -> None:
    assert verify(computed(), folded(ANGLES, "logistic")).verdict is Verdict.REFUTED


@pytest.mark.parametrize(("epsilon", "verdict"), [(1.1e-2, Verdict.REFUTED), (1e-2 * (1 + 2**-22), None)])
def test_constants_themselves(epsilon: float, verdict: Verdict | None) -> None:
    def added(number: float) -> Module:
        g = Graph()
        x = g.input("x", 5)
        g.output("y", (x * x + g.const(np.full(5, number, np.float32))).apply("rsqrt"))
        return g.module()

    found = verify(added(1e-2), added(epsilon)).verdict
    assert found is verdict if verdict is not None else found is not Verdict.REFUTED
