"""Figures of XLA's SPMD partitioner: `python benchmarks/xla.py [--gspmd] [NAME...]`.

Lets the installed XLA partition the programs of xla_programs.py, verifies each against its trace, then
changes one instruction of what XLA made, several times over, and verifies that. Prints a table (program,
verdict, seconds of XLA and of the proof, the operator that stops a proof; of the mutants that compute
something else how many are refuted, and how many compute the same), and as its last line one JSON object
whose `ok` tells whether all is as it should be. The exit code is 0 only then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from xla_mutants import Judge, chosen  # type: ignore[import-not-found,unused-ignore]
from xla_programs import PROGRAMS  # type: ignore[import-not-found,unused-ignore]

from shardproof.solver.verdict import Verdict
from shardproof.solver.xla import Partitioned, partition

MUTANTS: Final = 8
"""Most mutants of a program."""
VERIFIED: Final = 20
"""Least number of programs that are verified."""
REFUTED: Final = 0.9
"""Least part of the mutants that compute something else that are refuted."""
SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """One program; `mutants` counts (whether it computes something else, verdict)."""

    name: str
    verdict: Verdict
    xla: float
    proof: float
    place: str
    mutants: Counter[tuple[bool, Verdict]]

    @property
    def as_it_should_be(self) -> bool:
        wrong = self.mutants[True, Verdict.VERIFIED] + self.mutants[False, Verdict.REFUTED]
        return self.verdict is not Verdict.REFUTED and not wrong


def measured(name: str, partitioner: str | None) -> Row:
    function, inputs, mesh, in_shardings, out_shardings, ranges = PROGRAMS[name]()
    start = time.perf_counter()
    programs = partition(
        function, inputs, mesh, in_shardings, out_shardings, ranges=ranges, partitioner=partitioner
    )
    middle = time.perf_counter()
    result = programs.verify(timeout=SECONDS)
    end = time.perf_counter()
    place = "" if result.location is None else f"{result.location.value} ({result.location.op})"
    return Row(name, result.verdict, middle - start, end - middle, place, mutated(programs))


def mutated(programs: Partitioned) -> Counter[tuple[bool, Verdict]]:
    judge, found = Judge(programs), Counter[tuple[bool, Verdict]]()
    for mutant in chosen(programs.implementation, MUTANTS):
        verdict = replace(programs, implementation=mutant.module).verify(timeout=SECONDS).verdict
        found[judge.differs(mutant.module), verdict] += 1
    return found


def figures(rows: list[Row]) -> dict[str, Any]:
    total: Counter[tuple[bool, Verdict]] = sum((r.mutants for r in rows), Counter())
    different = sum(n for (bad, _), n in total.items() if bad)
    refuted = total[True, Verdict.REFUTED]
    verified = sum(r.verdict is Verdict.VERIFIED for r in rows)
    intact = [r.name for r in rows if not r.mutants]
    unnamed = [r.name for r in rows if r.verdict is Verdict.UNKNOWN and not r.place]
    return {
        "programs": len(rows),
        "verified": verified,
        "unknown": {r.name: r.place for r in rows if r.verdict is Verdict.UNKNOWN},
        "mutants": different,
        "mutants_refuted": refuted,
        "equivalent_mutants": sum(total.values()) - different,
        "seconds": round(sum(r.xla + r.proof for r in rows), 1),
        "ok": all(r.as_it_should_be for r in rows)
        and not (unnamed or intact)
        and verified >= min(VERIFIED, len(rows))
        and refuted >= REFUTED * different,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gspmd", action="store_true", help="XLA's other partitioner")
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs; all without")
    arguments = parser.parse_args()
    print(f"{'program':34} {'verdict':9} {'XLA':>6} {'proof':>6}  {'mutants':>8} {'same':>4}  stopped at")
    rows = []
    for name in arguments.names or PROGRAMS:
        row = measured(name, "gspmd" if arguments.gspmd else None)
        rows.append(row)
        bad = sum(n for (differs, _), n in row.mutants.items() if differs)
        of = f"{row.mutants[True, Verdict.REFUTED]}/{bad}"
        print(
            f"{name:34} {row.verdict.value:9} {row.xla:6.2f} {row.proof:6.2f}  {of:>8} "
            f"{sum(row.mutants.values()) - bad:4}  {row.place}{'' if row.as_it_should_be else '  WRONG'}",
            flush=True,
        )
    found = figures(rows)
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
