"""Pairs of programs with their certificates, for the tests of certificates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shardproof.frontends.load import load
from shardproof.ir.interpret import run
from shardproof.ir.module import Module
from shardproof.lemmas.load import Library
from shardproof.lemmas.load import load as load_lemmas
from shardproof.passes.mesh_axes import mesh_axes
from shardproof.solver.certificates.certificate import Certificate, Claim
from shardproof.solver.certificates.certificate_file import from_bytes, unpacked
from shardproof.solver.certificates.recheck import check
from shardproof.solver.meaning import meant
from shardproof.solver.search.statuses import statuses_of
from shardproof.solver.sweep import joined
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

FOLDER = Path(__file__).parent / "lemma_pairs"
RELATIVE = 1e-6
HEAD = (
    'module "m" mesh() {{\n  %x = input(0) : f64[4,3]\n  %y = input(1) : f64[4,3]\n{body}'
    '  output "o" = %p\n}}\n'
)
SEARCHED = {
    "difference_of_squares": (
        "  %a = add(%x, %y) : f64[4,3]\n  %b = subtract(%x, %y) : f64[4,3]\n"
        "  %p = multiply(%a, %b) : f64[4,3]\n",
        "  %a = multiply(%x, %x) : f64[4,3]\n  %b = multiply(%y, %y) : f64[4,3]\n"
        "  %p = subtract(%a, %b) : f64[4,3]\n",
    ),
}
"""Programs that only the search for equalities makes one: what they compute of `x` and `y`."""


@dataclass(frozen=True)
class Certified:
    """Two programs as they were proved, and the content of their certificate."""

    reference: Module
    implementation: Module
    content: bytes

    @property
    def body(self) -> Any:
        """A fresh copy of the certificate's data."""
        return unpacked(self.content)

    @property
    def certificate(self) -> Certificate:
        return from_bytes(self.content)


@cache
def library() -> Library:
    return load_lemmas(entry_points=False)


@cache
def certified(pair: str, implementation: str) -> Certified:
    """A pair of `lemma_pairs/`, or of SEARCHED, verified."""
    folder = FOLDER / pair
    relation = folder / "relation.toml"
    files = folder / "reference.spf", folder / f"{implementation}.spf"
    with TemporaryDirectory() as place:
        path = Path(place) / "proof.cert"
        if pair == "searched":
            files = Path(place) / "a.spf", Path(place) / "b.spf"
            for file, body in zip(files, SEARCHED[implementation], strict=True):
                file.write_text(HEAD.format(body=body), encoding="utf-8")
        stated = relation if relation.exists() else None
        result = verify(*files, relation=stated, certificate=path)
        assert result.verdict is Verdict.VERIFIED, result.text()
        assert result.certificate == str(path)
        content = path.read_bytes()
        first, second = (m.module for m in meant([mesh_axes(load(f)) for f in files]))
    return Certified(first, second, content)


def checked(certificate: Certificate, pair: Certified) -> Claim:
    lemmas = library().lemmas
    statuses = statuses_of(lemmas[u.name] for u in certificate.lemmas if u.name in lemmas)
    return check(certificate, pair.reference, pair.implementation, lemmas, statuses)


def holds(claim: Claim, pair: Certified, seed: int) -> bool:
    """Whether the programs agree on random base tensors, run as they are and read as the claim says."""
    ranges = {name: (low, high) for name, low, high in claim.ranges}
    whole = joined(
        pair.reference, pair.implementation, claim.layouts, claim.expected, ranges, claim.even, claim.assumed
    )
    draw = np.random.default_rng(seed)
    base = {i.name: _drawn(draw, i.value.type, ranges.get(i.name)) for i in whole.implementation.inputs}
    wanted = run(whole.reference, {i.name: base[i.name] for i in whole.reference.inputs})
    held: Mapping[str, Any] = {
        f"{name}@": np.stack(values) if whole.reference.mesh.size > 1 else values[0]
        for name, values in wanted.items()
    }
    goal, own = run(whole.expected, held), run(whole.implementation, base)
    return all(
        np.allclose(x, y, rtol=RELATIVE, atol=RELATIVE * float(np.max(np.abs(x), initial=0.0)))
        for name in goal
        for x, y in zip(goal[name], own[name], strict=True)
    )


def _drawn(draw: np.random.Generator, type: Any, bounds: tuple[int, int] | None) -> Any:
    kind = type.dtype.kind
    if kind == "real":
        return draw.normal(0, 1, type.shape)
    if kind == "bool":
        return draw.random(type.shape) < 0.5
    low, high = bounds or (0, 2)
    return draw.integers(low, high, type.shape).astype(type.dtype.storage)
