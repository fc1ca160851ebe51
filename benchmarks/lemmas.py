"""Figures of proofs by lemmas: `python benchmarks/lemmas.py`.

Runs every pair of tests/solver/lemma_pairs, written as IR text and traced from JAX: pairs that are equal by
algebra, and their nearest false twins. Prints per pair the verdict, how long the attempt that proved it took
(both programs normalised while lemmas rewrite them, rules loaded), and which lemmas it used; then how long
the library takes to load in a fresh process, imports excluded and parsed before; what is known of the
library's lemmas; and how long queries to the saturation take. The last line is one JSON object whose `ok`
tells whether all figures are within their limits; the exit code is 0 only then.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import shardproof
from shardproof.passes.mesh_axes import mesh_axes
from shardproof.solver import relation_file
from shardproof.solver.attempts import BY_LEMMAS, theory_of, without_lemmas
from shardproof.solver.infer import infer
from shardproof.solver.programs import read_program
from shardproof.solver.prove import Attempt, Clock, Proof, prove
from shardproof.solver.relation import Composed, compose

PAIRS: Final = Path(__file__).resolve().parent.parent / "tests" / "solver" / "lemma_pairs"
REPEATS: Final = 5
QUERY_MILLISECONDS: Final = 5.0
LOAD_SECONDS: Final = 0.150

LOAD: Final = """
import json, time
from shardproof.solver.attempts import theory_of
import shardproof.solver.theory, shardproof.lemmas.load, shardproof.solver.pattern
start = time.perf_counter()
theory_of(()).rules("early")
print(time.perf_counter() - start)
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs and whether they are equal."""

    name: str
    reference: Path
    implementation: Path
    relation: Path | None
    equal: bool


def pairs() -> Iterator[Pair]:
    """Those of the table."""
    table = tomllib.loads((PAIRS / "pairs.toml").read_text(encoding="utf-8"))
    for name, row in table.items():
        for part, suffix in ((row, ".spf"), (row.get("traced", {}), ".hlo.txt")):
            folder = PAIRS / name / ("traced" if suffix != ".spf" else "")
            for equal, key in ((True, "equal"), (False, "wrong")):
                for stem in part.get(key, ()):
                    file = stem if equal else f"wrong_{stem}"
                    other = part.get("relations", {}).get(file)
                    candidates = [folder / f"{other}.toml"] if other else [folder / "relation.toml"]
                    relation = next((c for c in candidates if c.exists()), None)
                    implementation = folder / f"{file}{suffix}"
                    yield Pair(
                        str(implementation.relative_to(PAIRS)).removesuffix(suffix),
                        folder / f"reference{suffix}",
                        implementation,
                        relation,
                        equal,
                    )


def composed(pair: Pair) -> Composed:
    """Both programs over free tensors, as the relation says."""
    declared = relation_file.read(pair.relation) if pair.relation else relation_file.Declared()
    first = mesh_axes(read_program(pair.reference, None), None)
    second = mesh_axes(read_program(pair.implementation, None), declared.mesh)
    return compose(first, second, infer(first, second, relation_file.resolve(declared, first, second)).relation)


def proving(programs: Composed) -> tuple[Attempt, Proof] | None:
    """The first attempt with lemmas that is a proof."""
    theory = theory_of(())
    for attempt in BY_LEMMAS:
        proof = prove(programs, Clock(60), attempt, rules=theory.rules(attempt.lemmas))
        if proof.complete:
            return attempt, proof
    return None


def milliseconds(programs: Composed, attempt: Attempt) -> float:
    """The median time of an attempt."""
    rules = theory_of(()).rules(attempt.lemmas)
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        prove(programs, Clock(60), attempt, rules=rules)
        found.append(time.perf_counter() - start)
    return 1000 * statistics.median(found)


def measured(surprises: list[str]) -> dict[str, float]:
    """Prints the table of pairs; the milliseconds of those that lemmas prove."""
    queries: dict[str, float] = {}
    refuted = 0
    wrong = 0
    print(f"{'pair':58s} {'verdict':9s} {'ms':>6s}  lemmas")
    for pair in pairs():
        result = shardproof.verify(pair.reference, pair.implementation, relation=pair.relation)
        if (result.verdict == "verified") is not pair.equal:
            surprises.append(f"{pair.name}: {result.verdict}")
        if not pair.equal:
            wrong += 1
            refuted += result.verdict == "refuted"
            continue
        programs = composed(pair)
        plain = without_lemmas(programs, Clock(60), {}).complete
        found = None if plain else proving(programs)
        used = ""
        if found is not None:
            queries[pair.name] = milliseconds(programs, found[0])
            count = Counter(i.lemma for i in found[1].instances)
            used = ", ".join(f"{n} {k}" if n > 1 else k for k, n in sorted(count.items())) or "only the algebra"
        cost = f"{queries[pair.name]:6.1f}" if found is not None else "      "
        print(f"{pair.name:58s} {result.verdict:9s} {cost}  {used}")
    print(f"{wrong} false twins: {refuted} refuted, {wrong - refuted} unknown")
    return queries


def load_seconds() -> float:
    """The least of some fresh processes, the first of which fills the cache."""
    runs = [
        subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True).stdout
        for _ in range(REPEATS + 1)
    ]
    return min(map(float, runs[1:]))


def known_of_library() -> dict[str, dict[str, int]]:
    """How many lemmas of each theme have which status."""
    theory = theory_of(())
    status = json.loads((Path(shardproof.__file__).parent / "lemmas/library/status.json").read_text("utf-8"))
    themes: dict[str, Counter[str]] = {}
    for name, lemma in theory.library.lemmas.items():
        themes.setdefault(lemma.theme, Counter())[status[name]["status"]] += 1
    print(f"\n{'theme':16s} {'proved':>7s} {'tested':>7s} {'assumed':>8s}")
    for theme, count in sorted(themes.items()):
        print(f"{theme:16s} {count['proved']:7d} {count['tested']:7d} {count['assumed']:8d}")
    return {theme: dict(count) for theme, count in themes.items()}


def main() -> int:
    """Prints all figures; 0 when they are within their limits."""
    surprises: list[str] = []
    queries = measured(surprises)
    median = statistics.median(queries.values())
    load = load_seconds()
    library = known_of_library()
    proved = sum(c.get("proved", 0) for c in library.values())
    counted = sum(n for c in library.values() for status, n in c.items() if status != "assumed")
    within = {
        "verdicts": not surprises,
        "query": median <= QUERY_MILLISECONDS,
        "load": load <= LOAD_SECONDS,
        "proved": proved >= 0.6 * counted,
    }
    print(f"\nquery: median {median:.1f} ms, longest {max(queries.values()):.1f} ms of {len(queries)}")
    print(f"library: {1000 * load:.0f} ms to load, {proved} of {counted} lemmas proved for all extents")
    for text in surprises:
        print("unexpected:", text)
    figures: dict[str, Any] = {
        "query_milliseconds": {k: round(v, 2) for k, v in queries.items()},
        "query_median": round(median, 2),
        "load_seconds": round(load, 4),
        "library": library,
        "surprises": surprises,
        "within": within,
        "ok": all(within.values()),
    }
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
