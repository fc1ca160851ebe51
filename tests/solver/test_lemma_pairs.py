"""Every pair of `lemma_pairs/` that needs algebra is verified, its nearest false twins never are."""

from __future__ import annotations

import numpy as np
import pytest
from lemma_cases import CASES, FOLDER, Case, draw, layout, parts, stated

import shardproof
from shardproof.frontends.load import load
from shardproof.ir.interpret import run
from shardproof.solver.verdict import Verdict

RELATIVE = 1e-9
"""Equal programs agree within this part of the largest magnitude, in float64; false twins don't."""
DRAWS = 3


def gap(case: Case, seed: int) -> float:
    """The largest difference of any output on any rank, relative to the output's magnitude."""
    reference, implementation = load(case.reference), load(case.implementation)
    relation = stated(case)
    rng, ranks = np.random.default_rng(seed), implementation.mesh.size
    whole = {i.number: draw(i, relation.get("ranges", {}), rng) for i in reference.inputs}
    held = {
        i.name: parts(whole[i.number], layout(relation.get("inputs", {}), i.name, f"p{i.number}"), ranks)
        for i in implementation.inputs
    }
    goal = run(reference, {i.name: whole[i.number] for i in reference.inputs})
    got = run(implementation, held)
    assert len(goal) == len(got)
    worst = 0.0
    for n, (name, values) in enumerate(got.items()):
        (value,) = list(goal.values())[n]
        assert value.dtype == np.float64
        wanted = parts(value, layout(relation.get("outputs", {}), name, f"o{n}"), ranks)
        for x, y in zip(wanted, values, strict=True):
            assert x.shape == y.shape and np.isfinite(x).all() and np.isfinite(y).all()
            worst = max(worst, float(np.abs(np.subtract(x, y)).max() / np.abs(value).max()))
    return worst


@pytest.mark.parametrize("name", CASES)
def test_pair_is_what_it_says(name: str) -> None:
    gaps = [gap(CASES[name], seed) for seed in range(DRAWS)]
    if CASES[name].equal:
        assert max(gaps) < RELATIVE
    else:
        assert max(gaps) > 1000 * RELATIVE


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str) -> None:
    case = CASES[name]
    result = shardproof.verify(case.reference, case.implementation, relation=case.relation)
    if case.equal:
        assert (result.verdict, result.code) == (Verdict.VERIFIED, "V01"), result.text()
        assert all(o.verdict is Verdict.VERIFIED for o in result.outputs) and not result.unchecked_outputs
    else:
        assert result.verdict is not Verdict.VERIFIED, result.text()


def test_every_program_is_in_the_table() -> None:
    known = {p for c in CASES.values() for p in (c.reference, c.implementation, c.relation) if p is not None}
    found = {p for e in ("spf", "toml", "hlo.txt") for p in FOLDER.glob(f"*/**/*.{e}")}
    assert known == found
