"""Figures of PyTorch dumps: `python benchmarks/fx.py [DUMPS]`, DUMPS holding folders gpt, qwen2 and bug_*.

Without DUMPS those in ../shared/real/py beside the repository are taken; without these nothing is measured.

Verifies each distributed dump of a GPT (tensor and sequence parallel) and of Qwen2 against the sequential
one, each in a fresh process, and prints the verdict, the seconds from start to end, the kinds of
assumptions, and how much longer the reading of a further rank takes than that of the first. Then bugs of
programs with gradients, their repaired twins, and edits of one operator, with the value they are found at.
The last line is one JSON object whose `ok` tells whether all is as it should be, and within the limits; the
exit code is 0 only then.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

CAPTURED: Final = Path(__file__).resolve().parents[2] / "shared" / "real" / "py"
RELATIONS: Final = Path(__file__).resolve().parent.parent / "tests" / "solver" / "fx_relations"
SECONDS: Final = 3.0
"""Limit for the largest pair."""
FURTHER_RANK: Final = 0.15
"""Limit for reading a further rank, as a part of reading the first."""
KINDS: Final = frozenset(
    {
        *("inferred_relation", "rng_aligned", "ids_in_range", "group_guess", "constant_guess"),
        *("opaque_batched", "cast_exact", "mask_value"),
    }
)


def pairs(dumps: Path) -> Iterator[tuple[str, Path, list[Path], Path]]:
    """(name, reference, implementation, relation) of each pair, the largest last."""
    for ranks in (2, 4):
        relation = RELATIONS / f"qwen2_tp{ranks}.toml"
        yield f"qwen2 tp{ranks}", *_files(dumps / "qwen2", ranks, 1), relation
    for layers in (1, 2, 4, 8):
        for ranks in (2, 4, 6, 8):
            yield f"gpt tp{ranks} L{layers}", *_files(dumps / "gpt", ranks, layers), RELATIONS / "gpt.toml"


def _files(folder: Path, ranks: int, layers: int) -> tuple[Path, list[Path]]:
    (reference,) = (folder / f"paral1_layer{layers}").glob("fw.g0.r*")
    return reference, sorted((folder / f"paral{ranks}_layer{layers}").glob("fw.g0.r*"))


def wrong(dumps: Path, to: Path) -> Iterator[tuple[str, Path, list[Path], Path, Collection[str]]]:
    """(name, reference, implementation, relation, the values of which one is at fault) of each pair.

    No value is at fault in a right one.
    """
    sys.path.insert(0, str(RELATIONS.parent.parent))
    edits: Any = importlib.import_module("fx_edits")
    for folder, faults in edits.FAULTS.items():
        reference = dumps / folder / "tp1" / "both.g0.r0.py.gz"
        ranks = sorted((dumps / folder / "tp2.bug").glob("both.g0.r*"))
        yield folder, reference, ranks, RELATIONS / "joint.toml", faults
        if folder == edits.LAYER_NORM:
            whole = edits.repaired(ranks, [*edits.NORMS, *edits.BOTH_NORMS], to)
            yield f"{folder}, repaired", reference, whole, RELATIONS / "joint.toml", ()
    reference, ranks = _files(dumps / "gpt", 2, 1)
    for name, (old, new, value) in edits.EDITS.items():
        own = edits.edited(ranks, old, new, to)
        yield f"gpt tp2: {name}", reference, own, RELATIONS / "gpt.toml", [value]


def measured(reference: Path, implementation: list[Path], relation: Path) -> tuple[float, dict[str, Any]]:
    """Seconds of wall time from a cold start, and the answer."""
    command = [sys.executable, "-m", "shardproof", "verify", str(reference), *map(str, implementation)]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--relation", str(relation), "--format", "json"], capture_output=True, text=True
    )
    return time.perf_counter() - start, json.loads(done.stdout)


def further_rank(paths: list[Path]) -> float:
    """Seconds that a further rank adds to the reading of the first, as a part of these."""
    from shardproof.frontends.fx.code.lines import MAX_TEXT
    from shardproof.frontends.fx.code.ranks import read_texts
    from shardproof.frontends.source import contents

    texts = [(contents(path, MAX_TEXT).decode(), path.name) for path in paths]

    def seconds(count: int) -> float:
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            read_texts(texts[:count])
            best = min(best, time.perf_counter() - start)
        return best

    one = seconds(1)
    return (seconds(len(texts)) - one) / (len(texts) - 1) / one


def main(arguments: list[str]) -> int:
    dumps = Path(arguments[0]) if arguments else CAPTURED
    if not dumps.is_dir():
        print(json.dumps({"pairs": [], "skipped": f"no dumps in {dumps.name}", "ok": True}))
        return 0
    rows, ok = [], True
    print(f"{'pair':14} {'verdict':10} {'seconds':>8}  assumptions")
    for name, reference, implementation, relation in pairs(dumps):
        seconds, answer = measured(reference, implementation, relation)
        kinds = {a["kind"] for a in answer["assumptions"]}
        ok &= answer["verdict"] == "verified" and kinds <= KINDS
        rows.append({"pair": name, "verdict": answer["verdict"], "seconds": round(seconds, 2)})
        print(f"{name:14} {answer['verdict']:10} {seconds:8.2f}  {', '.join(sorted(kinds))}")
    part = further_rank(implementation)
    print(f"a further rank takes {part:.1%} of the reading of the first")
    ok &= seconds <= SECONDS and part <= FURTHER_RANK
    print(f"\n{'wrong or repaired program':46} {'verdict':10} {'seconds':>8}  found at")
    with tempfile.TemporaryDirectory() as folder:
        for name, reference, implementation, relation, faults in wrong(dumps, Path(folder)):
            seconds, answer = measured(reference, implementation, relation)
            place = (answer.get("location") or {}).get("value", "")
            ok &= answer["verdict"] == ("refuted" if faults else "verified")
            ok &= not faults or place in faults
            rows.append({"pair": name, "verdict": answer["verdict"], "seconds": round(seconds, 2)})
            print(f"{name:46} {answer['verdict']:10} {seconds:8.2f}  {place}")
    print(json.dumps({"pairs": rows, "further_rank": round(part, 3), "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
