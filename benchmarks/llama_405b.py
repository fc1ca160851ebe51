"""Llama-3.1-405B on eight ranks: seconds and memory of verification: `python benchmarks/llama_405b.py`.

The model of examples/llama_jax at the published extents, whole against tensor parallel with a divided
sequence: the forward pass and the gradients, with equal layers proved as one and with each layer by itself.
Then what 32 layers cost, scanned and one by one, in units of one layer. Only shapes are traced. Each
program has a process of its own. Prints a table and, as its last line, one JSON object whose `ok` tells
whether every figure is within its limit; the exit code is 0 only then. Limits are for seconds of the
processor, which verification keeps one of busy: what else the machine does counts for little.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

EXAMPLE: Final = Path(__file__).resolve().parent.parent / "examples" / "llama_jax"
LAYERS: Final = 126
EXTENTS: Final = {
    "hidden": 16384,
    "heads": 128,
    "kv_heads": 8,
    "head_dim": 128,
    "intermediate": 53248,
    "vocab": 128256,
    "sequence": 8192,
    "batch": 1,
}
MESH: Final = {"tp": 8}
MEGABYTES: Final = 2048
SCANNED: Final = 3.0
"""Most that a scan over 32 layers may cost, in units of one layer."""
UNROLLED: Final = 35.0
"""The same of 32 layers one by one."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program and whether equal layers are proved as one; `limit` is in seconds, None without."""

    kind: str
    layers: int
    form: str
    memo: bool
    limit: float | None = None
    repeats: int = 1

    @property
    def name(self) -> str:
        how = "layers as one" if self.memo else "each layer" if self.layers > 1 else ""
        return f"{self.kind.replace('_', ' ')} {self.layers} {self.form} {how}".rstrip()


FORWARD: Final = Case("forward", LAYERS, "list", False, 5.0, 2)
FORWARD_MEMO: Final = Case("forward", LAYERS, "list", True, 2.0, 3)
GRADIENT: Final = Case("inner_gradients", LAYERS, "list", False, 15.0, 2)
GRADIENT_MEMO: Final = Case("inner_gradients", LAYERS, "list", True, None, 2)
OUTER_MEMO: Final = Case("outer_gradients", LAYERS, "list", True, None)


def few(kind: str) -> tuple[Case, Case, Case]:
    """One layer, 32 scanned, 32 one by one."""
    return (
        Case(kind, 1, "list", False, None, 5),
        Case(kind, 32, "scanned", False, None, 5),
        Case(kind, 32, "list", False, None, 2),
    )


def cases() -> Iterator[Case]:
    yield from (FORWARD, FORWARD_MEMO, GRADIENT, GRADIENT_MEMO, OUTER_MEMO)
    yield from few("forward")
    yield from few("inner_gradients")


def equations(jaxpr: Any) -> int:
    """The equations of a jaxpr and of those in it, calls not counted."""
    return sum(sum(map(equations, inner)) if (inner := _inner(eqn)) else 1 for eqn in jaxpr.eqns)


def _inner(eqn: Any) -> list[Any]:
    lists = [value if isinstance(value, list | tuple) else [value] for value in eqn.params.values()]
    given = [v for values in lists for v in values]
    closed = [v.jaxpr for v in given if hasattr(v, "jaxpr") and hasattr(v, "consts")]
    return closed + [v for v in given if hasattr(v, "eqns")]


def answer(case: Case) -> dict[str, Any]:
    """In the child: the figures of one case; the least of its repeats."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path.insert(0, str(EXAMPLE))
    from shardproof.frontends.jaxpr.tracing import trace
    from shardproof.solver.jax_programs import verify_traced

    model, pairs, parallel = (importlib.import_module(name) for name in ("model", "pairs", "parallel"))
    config = model.Config(layers=case.layers, form=case.form, dtype="bfloat16", **EXTENTS)
    pair = getattr(pairs, case.kind)(parallel.Plan(config, MESH))
    start = time.perf_counter()
    first, second = (trace(f, pair.inputs) for f in (pair.reference, pair.implementation))
    traced = time.perf_counter() - start
    before = _megabytes()
    runs = []
    for _ in range(case.repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        result = verify_traced(first, second, ranges=pair.ranges, layers=case.memo)
        runs.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = min(runs)
    return {
        "verdict": result.verdict.value,
        "message": result.message,
        "equations": [equations(first.closed.jaxpr), equations(second.closed.jaxpr)],
        "trace": traced,
        "cpu": cpu,
        "wall": wall,
        "megabytes": _megabytes(),
        "before": before,
        "classes": result.stats.classes,
    }


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(case: Case) -> dict[str, Any]:
    """The figures of one case, from a process of its own."""
    text = json.dumps([case.kind, case.layers, case.form, case.memo, case.limit, case.repeats])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__)), "--case", text], capture_output=True, text=True
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {"verdict": "crashed", "message": done.stderr[-200:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(case: Case, found: Mapping[str, Any]) -> str:
    if "cpu" not in found:
        return f"{case.name:44} {found['verdict']}"
    a, b = found["equations"]
    return (
        f"{case.name:44} {found['verdict']:9} {a:6} {b:6} {found['trace']:8.2f} {found['cpu']:8.2f} "
        f"{found['wall']:8.2f} {found['megabytes']:6.0f} {found['classes']:8}"
    )


def within(found: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """Whether each figure is in its limit."""
    kept = {"verdicts": all(f["verdict"] == "verified" for f in found.values())}
    if not kept["verdicts"]:
        return kept
    for case in cases():
        if case.limit is not None:
            kept[case.name] = found[case.name]["cpu"] <= case.limit
    kept["megabytes"] = max(f["megabytes"] for f in found.values()) <= MEGABYTES
    for kind, (scanned, unrolled) in ratios(found).items():
        kept[f"{kind} scanned"] = scanned <= SCANNED
        kept[f"{kind} one by one"] = unrolled <= UNROLLED
    return kept


def ratios(found: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """What 32 layers cost, scanned and one by one, in units of one layer."""
    result = {}
    for kind in ("forward", "inner_gradients"):
        one, scanned, unrolled = (found[case.name]["cpu"] for case in few(kind))
        result[kind] = (scanned / one, unrolled / one)
    return result


def rounded(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
        for name, figures in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(answer(Case(*json.loads(arguments.case)))))
        return 0
    if importlib.util.find_spec("jax") is None:
        print("needs JAX: pip install 'shardproof[jax]'")
        print(json.dumps({"ok": False, "missing": "jax"}))
        return 1
    head = ("program", "verdict", "eqns", "eqns", "trace s", "cpu s", "wall s", "MB", "classes")
    print("{:44} {:9} {:>6} {:>6} {:>8} {:>8} {:>8} {:>6} {:>8}".format(*head))
    found = {}
    for case in cases():
        found[case.name] = measured(case)
        print(row(case, found[case.name]), flush=True)
    kept = within(found)
    if kept["verdicts"]:
        for kind, (scanned, unrolled) in ratios(found).items():
            print(f"{kind.replace('_', ' ')}, 32 layers in units of one layer: ", end="")
            print(f"{scanned:.2f} scanned (limit {SCANNED:g}), {unrolled:.1f} each (limit {UNROLLED:g})")
    print(json.dumps({"figures": rounded(found), "within": kept, "ok": all(kept.values())}))
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
