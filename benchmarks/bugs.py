"""Mistakes of distributed training programs: `python benchmarks/bugs.py [KEY ...]`. Needs JAX.

Runs the cases of tests/bugs/cases, and the public ones of ../shared/bugs/public where that is there: for each
the verdict on the repaired and on the wrong body, whether the place that is reported is right (`yes`; `line`
where it is another operator of the right line), and the seconds of both. Cases that the installed JAX lacks
a name for are left out. The last line is one JSON object whose `ok` tells whether every repair is verified,
every mistake refuted in the right place with a frame of the body, and nothing else; the exit code is 0
only then.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "bugs"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
corpus = importlib.import_module("bug_corpus")

SECONDS: Final = 300.0
EXPECTED: Final = {"refuted": ("refuted",), "precision": ("verified", "unknown"), None: ("verified",)}
"""The verdicts on a wrong body that are right, by what its case expects."""


def place(found: Any) -> str:
    """Whether the reported place is right, in a word."""
    if found.operator is None:
        return ""
    if not found.frame:
        return "no frame"
    return "yes" if found.operator else "line" if found.line else "no"


def main(keys: list[str]) -> int:
    rows: list[dict[str, Any]] = []
    lacking = []
    ok, start = True, time.perf_counter()
    print(f"{'case':38} {'fixed':10} {'buggy':10} {'located':8} {'seconds':>8}")
    for path in (*sorted(corpus.SHARED.glob("*.py")), *sorted(corpus.OWN.glob("*.py"))):
        if keys and path.stem not in keys:
            continue
        try:
            wanted = EXPECTED[corpus.load(path).META["expect_buggy"]]
            found = corpus.judge(path)
        except corpus.Unavailable as name:
            lacking.append(path.stem)
            print(f"{path.stem:38} left out: {name}")
            continue
        fixed, buggy, located = str(found.fixed.verdict), str(found.buggy.verdict), place(found)
        ok &= fixed == "verified" and buggy in wanted and located in ("", "yes")
        rows.append({"case": path.stem, "fixed": fixed, "buggy": buggy, "located": located})
        print(f"{path.stem:38} {fixed:10} {buggy:10} {located:8} {found.seconds:8.2f}", flush=True)
    seconds = time.perf_counter() - start
    ok &= bool(rows) and seconds <= SECONDS
    places = [row["located"] for row in rows if row["located"]]
    summary = {
        "cases": len(rows),
        "left_out": lacking,
        "fixed_verified": sum(row["fixed"] == "verified" for row in rows),
        "buggy_refuted": sum(row["buggy"] == "refuted" for row in rows),
        "located": {word: places.count(word) for word in sorted(set(places))},
        "public": corpus.SHARED.is_dir(),
        "seconds": round(seconds, 1),
        "ok": ok,
    }
    print(json.dumps(summary))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
