"""One decoder in four frameworks: `python benchmarks/cross_framework.py [--all-bugs] [NAME ...]`.

Needs PyTorch, JAX, `onnx` and `onnxscript`. Verifies every ordered pair of the programs of
examples/cross_framework, on one rank and on two, each with a mistake, too (`--all-bugs`: with every
mistake), then programs before and after XLA's algebraic simplifier and PyTorch's decompositions. NAMEs are
frameworks: pairs of these only. The last line is one JSON object whose `ok` tells whether all that is right
is verified, all that is wrong refuted, and no relation file has more than 15 lines; the exit code is 0
only then.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "cross_framework"))
pairs = importlib.import_module("pairs")
optimisers = importlib.import_module("optimisers")

import shardproof  # noqa: E402

LINES: Final = 15
"""Most lines of a relation file."""
RIGHT, WRONG = "verified", "refuted"


class Found:
    """Verdicts by what was asked, and how long each took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.surprises: dict[str, str] = {}
        self.counts = {RIGHT: 0, WRONG: 0}

    def judged(self, name: str, expected: str, verdict: Any) -> str:
        """The verdict that `verdict()` gives and its seconds, in a few characters."""
        start = time.perf_counter()
        result = verdict()
        self.seconds[name] = time.perf_counter() - start
        found: str = result.verdict.value
        self.counts[expected] += found == expected
        if found != expected:
            self.surprises[name] = f"{found}: {result.message}"
        return f"{found} {self.seconds[name]:.1f} s"


def matrix(title: str, cells: dict[tuple[str, str], str], frameworks: list[str]) -> Iterator[str]:
    """Rows are references, columns implementations."""
    yield ""
    yield f"{title:16}" + "".join(f"{name:34}" for name in frameworks)
    for a in frameworks:
        yield f"{a:16}" + "".join(f"{cells.get((a, b), '-'):34}" for b in frameworks).rstrip()


def compare(found: Found, frameworks: list[str], all_bugs: bool) -> int:
    """Prints the matrices; the number of pairs."""
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        programs = pairs.Programs(Path(folder))
        for tp, title in ((1, "one rank"), (pairs.RANKS, f"{pairs.RANKS} ranks")):
            right: dict[tuple[str, str], str] = {}
            wrong: dict[tuple[str, str], str] = {}
            for pair in pairs.pairs():
                place = pair.reference, pair.implementation
                if pair.tp != tp or not set(place) <= set(frameworks):
                    continue
                name = f"{place[0]} to {place[1]} on {tp}"
                programs.ready(pair)
                right[place] = found.judged(name, RIGHT, lambda p=pair: programs.verdict(p))
                for bug in pairs.BUGS if all_bugs else (pair.bug,):
                    if bug in pairs.OF_SEVERAL_RANKS and tp == 1:
                        continue
                    other = replace(pair, bug=bug)
                    programs.ready(other, wrong=True)
                    told = found.judged(
                        f"{name}, {bug}", WRONG, lambda p=other: programs.verdict(p, wrong=True)
                    )
                    wrong[place] = f"{bug} {told}"
                count += 1
            print("\n".join(matrix(title, right, frameworks)))
            print("\n".join(matrix("with a mistake", wrong, frameworks)), flush=True)
    return count


def optimised(found: Found) -> int:
    """Prints a line per program; their number."""
    count = 0
    print()
    with tempfile.TemporaryDirectory() as folder:
        for cases in (optimisers.simplified(Path(folder)), optimisers.decomposed()):
            for case in cases:
                right = found.judged(
                    case.name, RIGHT, lambda c=case: shardproof.verify(c.before, c.after)
                )
                wrong = found.judged(
                    f"{case.name}, exchanged", WRONG, lambda c=case: shardproof.verify(c.before, c.wrong)
                )
                print(f"{case.name:44}{right:20}one operator exchanged: {wrong}", flush=True)
                count += 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all-bugs", action="store_true", help="every mistake in every pair")
    parser.add_argument("names", nargs="*", metavar="NAME", help="frameworks; all without")
    arguments = parser.parse_args()
    unknown = set(arguments.names).difference(pairs.FRAMEWORKS)
    if unknown:
        parser.error(f"no framework {min(unknown)}: there are {', '.join(pairs.FRAMEWORKS)}")
    frameworks = [f for f in pairs.FRAMEWORKS if not arguments.names or f in arguments.names]
    found, start = Found(), time.perf_counter()
    count = compare(found, frameworks, arguments.all_bugs)
    cases = optimised(found) if not arguments.names else 0
    lines = {p.name: len(p.read_text().splitlines()) for p in sorted(pairs.RELATIONS.glob("*.toml"))}
    for name, told in found.surprises.items():
        print(f"surprise: {name}: {told}", file=sys.stderr)
    ok = not found.surprises and count > 0 and max(lines.values()) <= LINES
    summary = {
        "pairs": count,
        "optimised": cases,
        "verified": found.counts[RIGHT],
        "refuted": found.counts[WRONG],
        "surprises": sorted(found.surprises),
        "relation_lines": max(lines.values()),
        "slowest": round(max(found.seconds.values(), default=0.0), 1),
        "seconds": round(time.perf_counter() - start, 1),
        "ok": ok,
    }
    print(json.dumps(summary))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
