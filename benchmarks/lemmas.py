"""Figures of proofs by lemmas: `python benchmarks/lemmas.py`.

Runs every pair of tests/solver/lemma_pairs, written as IR text and traced from JAX: pairs that are equal by
algebra, and their nearest false twins. Prints per pair the verdict, how long the attempt that proved it took
(both programs normalised while lemmas rewrite them, rules loaded), and which lemmas it used; then how long
the library takes to load in a fresh process, imports excluded and parsed before; what is known of the
library's lemmas, and how many of a file of false ones are rejected; how long queries to the saturation
take, an adversarial one among them; and what becomes of corrupted certificates (this needs pytest, whose
tests make them). The last line is one JSON object whose `ok` tells whether all figures are within
their limits; the exit code is 0 only then.
"""

from __future__ import annotations

import importlib
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
from shardproof.solver.attempts import BY_LEMMAS, theory_of, without_lemmas
from shardproof.solver.programs import read_program
from shardproof.solver.prove import Attempt, Clock, Proof, prove
from shardproof.solver.relations import relation_file
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import Composed, compose

PAIRS: Final = Path(__file__).resolve().parent.parent / "tests" / "solver" / "lemma_pairs"
REPEATS: Final = 5
QUERY_MILLISECONDS: Final = 5.0
LOAD_SECONDS: Final = 0.150
SEARCH_MILLISECONDS: Final = 60.0
CORRUPTIONS: Final = 300
SEARCHED: Final = (
    "(x + y)*(x - y) => x*x - y*y",
    "x*(y + z) + w => x*y + w + x*z",
    "sigmoid(-x) + sigmoid(x) => 1",
    "exp(x - c)/sum[k](exp(x - c)) => exp(x)/sum[k](exp(x)) when k not in c",
    "log(sum[k](exp(x - c))) + c => log(sum[k](exp(x))) when k not in c",
    "sum[k](sum[j](x*y)*z) => sum[j](x*sum[k](y*z)) when k not in x, j not in z",
    "max[k](x + c) => max[k](x) + c when k not in c",
)

LOAD: Final = """
import json, time
from shardproof.solver.attempts import theory_of
import shardproof.solver.search.theory, shardproof.lemmas.load, shardproof.solver.search.pattern
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
    resolved = relation_file.resolve(declared, first, second)
    return compose(first, second, infer(first, second, resolved).relation)


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
            named = [f"{n} {k}" if n > 1 else k for k, n in sorted(count.items())]
            used = ", ".join(named) or "only the algebra"
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
    for name, lemma in theory.statements.lemmas.items():
        themes.setdefault(lemma.theme, Counter())[status[name]["status"]] += 1
    print(f"\n{'theme':16s} {'proved':>7s} {'tested':>7s} {'assumed':>8s}")
    for theme, count in sorted(themes.items()):
        print(f"{theme:16s} {count['proved']:7d} {count['tested']:7d} {count['assumed']:8d}")
    return {theme: dict(count) for theme, count in themes.items()}


def false_lemmas() -> tuple[int, int]:
    """How many of the false lemmas are rejected with a counterexample, and how many there are."""
    from shardproof.lemmas.check import check
    from shardproof.lemmas.load import statements_of

    file = PAIRS.parent.parent / "lemmas" / "false.lemma"
    found = check(statements_of(file))
    return sum(x.status == "false" and x.counterexample is not None for x in found), len(found)


def searches() -> tuple[list[float], float, str]:
    """Milliseconds of queries to the saturation, seconds of an adversarial one and its answer.

    Each is asked after one of the same operators, for which the rules were loaded.
    """
    from shardproof.lemmas.parse import parse
    from shardproof.lemmas.terms import Lemma
    from shardproof.lemmas.typing import check
    from shardproof.passes.normalise import new_store
    from shardproof.solver.certificates.instance import Binding, left, right
    from shardproof.solver.search.equality import Saturation

    def asked(search: Saturation, text: str, least: int) -> tuple[float, str]:
        """Extents from `least` on make it another question with the same rules."""
        (statement,) = parse(f'lemma it "." {text}', "it.lemma")
        lemma = check(statement)
        assert isinstance(lemma, Lemma)
        store = new_store(folding=True)
        digits = {k: store.fresh(least + n) for n, k in enumerate(lemma.indices)}
        variables = {}
        for name, _ in lemma.variables:
            own = [digits[k] for k in lemma.reads(name)]
            cls = store.leaf("input", (name,), "real", tuple(store.sizes[i] for i in own))
            variables[name] = store.whole(cls, own)
        binding = Binding(variables, {k: (i,) for k, i in digits.items()})
        a, b = left(store, lemma, binding), right(store, lemma, binding)
        start = time.perf_counter()
        answer = search.prove_equal(store, a, b)
        return time.perf_counter() - start, answer.reason

    spent = []
    with Saturation(theory_of(()).statements.lemmas.values()) as search:
        for text in SEARCHED:
            sides, when, conditions = text.partition(" when ")
            a, _, b = sides.partition(" => ")
            asked(search, f"({a})*g => g*({b}){when}{conditions}", 3)
            seconds, reason = asked(search, f"({a})*g*g => g*({b})*g{when}{conditions}", 4)
            print(f"search {reason:8s} {1000 * seconds:6.1f} ms  {text}")
            spent.append(1000 * seconds)
        names = [f"x{n}" for n in range(14)]
        chain = "*".join(f"({a} + {b})" for a, b in zip(names[::2], names[1::2], strict=True))
        seconds, reason = asked(search, f"{chain} + 1 => {chain} + 2*x0", 3)
    print(f"search {reason:8s} {seconds:6.1f} s   a product of {len(names) // 2} sums that differs")
    return spent, seconds, reason


def corruptions() -> dict[str, int] | None:
    """How corrupted certificates were judged; None without pytest."""
    sys.path.insert(0, str(PAIRS.parent))
    try:
        corrupted = importlib.import_module("test_certificate_corruptions").corrupted
    except ImportError:
        print("certificates: not corrupted, pytest is not installed")
        return None
    found: Counter[str] = Counter()
    for (_, what), n in corrupted(CORRUPTIONS, seed=3).items():
        found[what] += n
    print(f"certificates: {CORRUPTIONS} corruptions, " + ", ".join(f"{n} {k}" for k, n in found.items()))
    return dict(found)


def main() -> int:
    """Prints all figures; 0 when they are within their limits."""
    surprises: list[str] = []
    queries = measured(surprises)
    rejected, false = false_lemmas()
    print(f"\nfalse lemmas: {rejected} of {false} rejected with a counterexample\n")
    spent, adversarial, answer = searches()
    corrupted = corruptions()
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
        "false": rejected == false >= 20,
        "search": statistics.median(spent) <= SEARCH_MILLISECONDS,
        "adversarial": answer != "proved" and adversarial <= 10.0,
        "corruptions": corrupted is None or set(corrupted) <= {"rejected", "same"},
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
        "false_lemmas": [rejected, false],
        "search_milliseconds": [round(x, 2) for x in spent],
        "adversarial": [answer, round(adversarial, 2)],
        "corruptions": corrupted,
        "surprises": surprises,
        "within": within,
        "ok": all(within.values()),
    }
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
