"""Every pair of `lemma_pairs/` that needs algebra is verified, its nearest false twins never are."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardproof
from shardproof.frontends.load import load
from shardproof.ir.interpret import run
from shardproof.ir.module import Input
from shardproof.ir.types import Array
from shardproof.solver.verdict import Verdict

FOLDER = Path(__file__).parent / "lemma_pairs"
RELATIVE = 1e-9
"""Equal programs agree within this part of the largest magnitude, in float64; false twins don't."""
DRAWS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """Two programs, the relation file between them if they need one, and whether they are equal."""

    reference: Path
    implementation: Path
    relation: Path | None
    equal: bool


def listed(folder: Path, pair: Mapping[str, Any], ending: str, stems: Mapping[str, Any]) -> Iterator[Case]:
    for stem in (*stems["equal"], *(f"wrong_{s}" for s in stems["wrong"])):
        relation = folder / f"{pair.get('relations', {}).get(stem, 'relation')}.toml"
        yield Case(
            folder / f"reference.{ending}",
            folder / f"{stem}.{ending}",
            relation if relation.exists() else None,
            not stem.startswith("wrong_"),
        )


def cases() -> dict[str, Case]:
    """Every case of the table, by the path of its implementation."""
    found: list[Case] = []
    for name, pair in tomllib.loads((FOLDER / "pairs.toml").read_text(encoding="utf-8")).items():
        found += listed(FOLDER / name, pair, "spf", pair)
        found += listed(FOLDER / name / "traced", pair, "hlo.txt", pair["traced"])
    return {str(c.implementation.relative_to(FOLDER)).partition(".")[0]: c for c in found}


CASES = cases()


def layout(stated: Mapping[str, str], *names: str) -> int | None:
    """The dim that a relation file shards, by the first name that it states; None for copies."""
    text = next((stated[n] for n in names if n in stated), "replicate")
    return None if text == "replicate" else int(text.removeprefix("shard(").removesuffix(")"))


def parts(whole: Array, dim: int | None, ranks: int) -> list[Array]:
    """What each rank holds of a tensor."""
    return [whole] * ranks if dim is None else list(np.split(whole, ranks, axis=dim))


def draw(item: Input, ranges: Mapping[str, list[int]], rng: np.random.Generator) -> Array:
    """Values of an input; the first two of integers are the ends of their range."""
    kind, shape = item.value.type.dtype.kind, item.value.type.shape
    if kind == "real":
        return rng.normal(0, 1.5, shape)
    if kind == "bool":
        return rng.random(shape) < 0.5
    low, high = next(ranges[n] for n in (item.name, f"p{item.number}") if n in ranges)
    made = rng.integers(low, high, shape, dtype=item.value.type.dtype.storage)
    made.flat[:2] = low, high - 1
    return made


def gap(case: Case, seed: int) -> float:
    """The largest difference of any output on any rank, relative to the output's magnitude."""
    reference, implementation = load(case.reference), load(case.implementation)
    stated = tomllib.loads(case.relation.read_text(encoding="utf-8")) if case.relation else {}
    rng, ranks = np.random.default_rng(seed), implementation.mesh.size
    whole = {i.number: draw(i, stated.get("ranges", {}), rng) for i in reference.inputs}
    held = {
        i.name: parts(whole[i.number], layout(stated.get("inputs", {}), i.name, f"p{i.number}"), ranks)
        for i in implementation.inputs
    }
    goal = run(reference, {i.name: whole[i.number] for i in reference.inputs})
    got = run(implementation, held)
    assert len(goal) == len(got)
    worst = 0.0
    for n, (name, values) in enumerate(got.items()):
        (value,) = list(goal.values())[n]
        assert value.dtype == np.float64
        wanted = parts(value, layout(stated.get("outputs", {}), name, f"o{n}"), ranks)
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
