"""The pairs of `lemma_pairs/`: their programs, relations and inputs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardproof.ir.module import Input
from shardproof.ir.types import Array

FOLDER = Path(__file__).parent / "lemma_pairs"


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


def stated(case: Case) -> Mapping[str, Any]:
    """The content of the case's relation file."""
    return tomllib.loads(case.relation.read_text(encoding="utf-8")) if case.relation else {}
