"""Time, memory and verdicts on tensor-parallel Llama dumps of NeuronX: `python benchmarks/neuron.py`.

Uses the captured dumps in ../shared/real/hlo beside the repository; without them it traces programs of
the same kind with examples/neuron_llama, and says so. Prints a table (pair, verdict, seconds by phase,
peak memory of the process that ran the pair) and, as its last line, one JSON object whose `ok` tells
whether every figure is within its limit. The exit code is 0 only then. Cold seconds are the least wall
time of five runs, since other processes only add to it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
EXAMPLE: Final = HERE.parent / "examples" / "neuron_llama"
CAPTURED: Final = HERE.parent.parent / "shared" / "real" / "hlo"
REPEATS: Final = 5

COLD_SECONDS: Final = 1.0
COLD_MEGABYTES: Final = 300.0
DEGREE_RATIO: Final = 1.15
LAYER_RATIO: Final = 9.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two dumps, the relation file if any, and the verdict that must come out."""

    name: str
    reference: Path
    implementation: Path
    expected: str
    relation: Path | None = None
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Medians over the repeats; `seconds` without imports, memory of the whole process."""

    pair: Pair
    verdict: str
    code: str
    location: str | None
    phases: dict[str, float]
    seconds: float
    megabytes: float

    @property
    def as_expected(self) -> bool:
        located = self.pair.location is None or self.pair.location == self.location
        return self.verdict == self.pair.expected and located


def captured_pairs(folder: Path) -> Iterator[Pair]:
    def dump(stem: str) -> Path:
        return folder / f"{stem}.hlo.pb.gz"

    padded = HERE / "neuron_tp6.toml"
    for layers in (1, 2, 4, 8):
        one = dump(f"tp1_layer{layers}")
        for degree in (2, 4, 8):
            name = f"tp1 tp{degree} layers {layers}"
            yield Pair(name, one, dump(f"tp{degree}_layer{layers}"), "verified")
        two, eight, six = (dump(f"tp{degree}_layer{layers}") for degree in (2, 8, 6))
        yield Pair(f"tp2 tp8 layers {layers}", two, eight, "verified")
        yield Pair(f"tp1 tp6 layers {layers} relation", one, six, "verified", padded)
        yield Pair(f"tp1 tp6 layers {layers}", one, six, "unknown")
    broken = dump("tp2_layer1.broken")
    yield Pair("tp1 tp2 broken", dump("tp1_layer1"), broken, "refuted", location="slice.54")


def own_pairs(folder: Path) -> Iterator[Pair]:
    """The same table over programs traced by the example, whose MLP and vocabulary divide by 8."""

    def dump(stem: str) -> Path:
        return folder / f"{stem}.hlo.pb.gz"

    script = str(EXAMPLE / "make_dumps.py")
    subprocess.run(
        [sys.executable, script, "-o", str(folder), "--scaling"], check=True, stdout=subprocess.DEVNULL
    )
    for layers in (1, 2, 4, 8):
        one = dump(f"scaling_tp1_layer{layers}")
        for degree in (2, 4, 8):
            name = f"tp1 tp{degree} layers {layers}"
            yield Pair(name, one, dump(f"scaling_tp{degree}_layer{layers}"), "verified")
        two, eight = dump(f"scaling_tp2_layer{layers}"), dump(f"scaling_tp8_layer{layers}")
        yield Pair(f"tp2 tp8 layers {layers}", two, eight, "verified")
    one, few = dump("tp1_layer1"), dump("tp1_layer1.few_heads")
    padded = EXAMPLE / "relations" / "tp3_few_heads.toml"
    yield Pair("tp1 tp4 wrong slice", one, dump("tp4_layer1.wrong_slice"), "refuted")
    yield Pair("tp1 tp3 padded relation", few, dump("tp3_layer1.few_heads"), "verified", padded)
    yield Pair("tp1 tp3 padded", few, dump("tp3_layer1.few_heads"), "unknown")


@dataclass(frozen=True, slots=True)
class Child:
    """One process that has ended: what it printed, what it cost."""

    output: str
    wall: float
    cpu: float
    megabytes: float


def run_child(command: list[str]) -> Child:
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    return Child(output, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def measure(pair: Pair) -> Measurement:
    command = [sys.executable, str(Path(__file__)), "--pair", str(pair.reference), str(pair.implementation)]
    if pair.relation is not None:
        command += ["--relation", str(pair.relation)]
    child = run_child(command)
    answer: dict[str, Any] = json.loads(child.output) if child.output else {}
    return Measurement(
        pair=pair,
        verdict=answer.get("verdict", "crashed"),
        code=answer.get("code", ""),
        location=answer.get("location"),
        phases=answer.get("phases", {}),
        seconds=answer.get("seconds", 0.0),
        megabytes=child.megabytes,
    )


def answer_pair(reference: str, implementation: str, relation: str | None) -> None:
    """In the child: verifies one pair several times and prints the answer and its median times."""
    import shardproof
    import shardproof.solver.verify

    runs = [shardproof.verify(reference, implementation, relation=relation) for _ in range(REPEATS)]
    first = runs[0]
    phases = {p: statistics.median(r.stats.seconds.get(p, 0.0) for r in runs) for p in first.stats.seconds}
    answer = {
        "verdict": first.verdict.value,
        "code": first.code,
        "location": None if first.location is None else first.location.value,
        "phases": phases,
        "seconds": statistics.median(sum(r.stats.seconds.values()) for r in runs),
    }
    print(json.dumps(answer))


def ratio(above: Pair, below: Pair) -> float:
    """How many times the seconds of `below` those of `above` are, both run in turn in one process."""
    files = [str(f) for pair in (above, below) for f in (pair.reference, pair.implementation)]
    answer: float = json.loads(run_child([sys.executable, str(Path(__file__)), "--ratio", *files]).output)
    return answer


def answer_ratio(files: list[str]) -> None:
    """In the child: alternating runs, so that what else the machine does slows both alike."""
    import shardproof
    import shardproof.solver.verify

    pairs = [(files[0], files[1]), (files[2], files[3])]
    runs = [[shardproof.verify(*pair).stats.total for pair in pairs] for _ in range(REPEATS)]
    above, below = (statistics.median(times) for times in zip(*runs, strict=True))
    print(json.dumps(above / max(below, 1e-9)))


def cold_start(pair: Pair) -> list[Child]:
    """Runs of the command line on one pair, imports included."""
    command = [sys.executable, "-m", "shardproof", "verify", str(pair.reference), str(pair.implementation)]
    return [run_child([*command, "--format", "json"]) for _ in range(REPEATS)]


def print_table(measurements: list[Measurement]) -> None:
    print(f"{'pair':28} {'verdict':12} {'seconds':>8} {'MB':>5}  by phase")
    for m in measurements:
        phases = "  ".join(f"{name} {seconds:.3f}" for name, seconds in m.phases.items())
        mark = "" if m.as_expected else f"  EXPECTED {m.pair.expected} {m.pair.location or ''}"
        verdict = f"{m.verdict} {m.code}"
        print(f"{m.pair.name:28} {verdict:12} {m.seconds:8.3f} {m.megabytes:5.0f}  {phases}{mark}")


def summary(source: str, measurements: list[Measurement]) -> dict[str, Any]:
    pairs = {m.pair.name: m.pair for m in measurements}
    deep = {d: pairs[f"tp1 tp{d} layers 8"] for d in (2, 4, 8)}
    degree = ratio(deep[8], deep[2])
    depth = {f"tp{d}": ratio(pair, pairs[f"tp1 tp{d} layers 1"]) for d, pair in deep.items()}
    cold = cold_start(deep[8])
    cold_seconds, cold_megabytes = min(c.wall for c in cold), max(c.megabytes for c in cold)
    surprises = [m.pair.name for m in measurements if not m.as_expected]
    within = {
        "verdicts": not surprises,
        "cold_seconds": cold_seconds <= COLD_SECONDS,
        "cold_megabytes": cold_megabytes <= COLD_MEGABYTES,
        "tp8_over_tp2": degree <= DEGREE_RATIO,
        "layers8_over_layers1": max(depth.values()) <= LAYER_RATIO,
    }
    return {
        "dumps": source,
        "seconds": {m.pair.name: round(m.seconds, 4) for m in measurements},
        "cold_seconds": round(cold_seconds, 3),
        "cold_cpu_seconds": round(min(c.cpu for c in cold), 3),
        "cold_megabytes": round(cold_megabytes, 1),
        "tp8_over_tp2": round(degree, 3),
        "layers8_over_layers1": {name: round(times, 2) for name, times in depth.items()},
        "surprises": surprises,
        "within": within,
        "ok": all(within.values()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--own", action="store_true", help="use the project's own dumps in any case")
    parser.add_argument("--pair", nargs=2, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--ratio", nargs=4, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--relation", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.pair is not None:
        reference, implementation = arguments.pair
        answer_pair(reference, implementation, arguments.relation)
        return 0
    if arguments.ratio is not None:
        answer_ratio(arguments.ratio)
        return 0
    captured = CAPTURED.is_dir() and not arguments.own
    with tempfile.TemporaryDirectory() as folder:
        if captured:
            pairs = list(captured_pairs(CAPTURED))
        else:
            print("the captured dumps are absent or not wanted: programs of examples/neuron_llama instead")
            pairs = list(own_pairs(Path(folder)))
        measurements = [measure(pair) for pair in pairs]
        print_table(measurements)
        figures = summary("captured" if captured else "own", measurements)
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
