"""NeuronX dumps against Hugging Face's Llama: `python benchmarks/neuron_vs_torch.py`.

The references are those that examples/neuron_vs_torch exported from `transformers`, or exports that the
interpreter named by --torch makes now. They are compared with the captured dumps in ../shared/real/hlo beside
the repository, if these are there, and the small model with the dumps that the example traced. Prints a table
(pair, verdict, seconds, kinds of assumption) and, as its last line, one JSON object whose `ok` tells whether
every pair came out as it must. The exit code is 0 only then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import shardproof

HERE: Final = Path(__file__).resolve().parent
EXAMPLE: Final = HERE.parent / "examples" / "neuron_vs_torch"
CAPTURED: Final = HERE.parent.parent / "shared" / "real" / "hlo"
REPEATS: Final = 3
MOST_LINES: Final = 25
ALLOWED: Final = frozenset(
    {"mask_value", "row_not_fully_masked", "ids_in_range", "constant_tolerance", "cast_exact"}
)
"""Kinds of assumption that a proof about the captured dumps may rest on."""
SHIPPED_ALLOWED: Final = ALLOWED | {"literal_rounding"}
"""The shipped dumps divide by a root that half precision rounds."""
SECONDS: Final = 20.0
"""Most seconds of one pair."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A reference and a dump, and the verdict that must come out; where it is known, the value at fault."""

    name: str
    reference: Path
    implementation: Path
    relation: Path
    verdict: str = "verified"
    location: str | None = None
    allowed: frozenset[str] = ALLOWED


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a pair came to; seconds are the median of several runs."""

    pair: Pair
    verdict: str
    location: str | None
    kinds: tuple[str, ...]
    seconds: float

    @property
    def as_expected(self) -> bool:
        if self.verdict != self.pair.verdict or self.seconds > SECONDS:
            return False
        if self.pair.location is not None and self.location != self.pair.location:
            return False
        return self.verdict != "verified" or self.pair.allowed.issuperset(self.kinds)


def export(folder: Path, torch: str) -> None:
    """Export the published model anew with the interpreter `torch`."""
    command = [torch, str(EXAMPLE / "reference.py"), "--only", "full", "-o", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def captured_pairs(folder: Path) -> Iterator[Pair]:
    relation = EXAMPLE / "relations" / "captured.toml"

    def reference(layers: int) -> Path:
        return folder / f"full_layer{layers}.pt2"

    for layers in (1, 2, 4, 8):
        for degree in (1, 2, 4, 8):
            dump = CAPTURED / f"tp{degree}_layer{layers}.hlo.pb.gz"
            yield Pair(f"tp{degree} layers {layers}", reference(layers), dump, relation)
    broken = CAPTURED / "tp2_layer1.broken.hlo.pb.gz"
    yield Pair("tp2 layers 1 broken", reference(1), broken, relation, "refuted", "slice.54")


def shipped_pairs() -> Iterator[Pair]:
    """The pairs of the example: right ones, and one for each mistake."""
    relation, folder = EXAMPLE / "relations" / "traced.toml", EXAMPLE / "programs"
    for dump in sorted(folder.glob("*.hlo.pb.gz")):
        stem = dump.name.removesuffix(".hlo.pb.gz")
        degree, layers = stem.partition(".")[0].split("_layer")
        mistake = stem.partition(".")[2]
        right = not mistake or (mistake, degree) == ("tiled_heads", "tp4")
        reference = folder / f"small_layer{layers}.pt2"
        name = f"shipped {degree} layers {layers} {mistake}".strip()
        verdict = "verified" if right else "refuted"
        yield Pair(name, reference, dump, relation, verdict, allowed=SHIPPED_ALLOWED)


def measure(pair: Pair) -> Measurement:
    runs = [
        shardproof.verify(pair.reference, pair.implementation, relation=pair.relation) for _ in range(REPEATS)
    ]
    first = runs[0]
    return Measurement(
        pair,
        first.verdict.value,
        None if first.location is None else first.location.value,
        tuple(sorted({a.kind for a in first.assumptions})),
        statistics.median(r.stats.total for r in runs),
    )


def print_table(measurements: list[Measurement]) -> None:
    print(f"{'pair':44} {'verdict':9} {'seconds':>8}  assumptions, or the value at fault")
    for m in measurements:
        what = m.location or "" if m.verdict == "refuted" else " ".join(m.kinds)
        wanted = f"{m.pair.verdict} {m.pair.location or ''}".strip()
        mark = "" if m.as_expected else f"  EXPECTED {wanted}"
        print(f"{m.pair.name:44} {m.verdict:9} {m.seconds:8.3f}  {what}{mark}")


def lines_of(relation: Path) -> int:
    """Lines that say something."""
    lines = relation.read_text(encoding="utf-8").splitlines()
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", metavar="PYTHON", help="export anew with this interpreter")
    arguments = parser.parse_args()
    captured = CAPTURED.is_dir()
    with tempfile.TemporaryDirectory() as made:
        folder = EXAMPLE / "programs"
        if arguments.torch is not None:
            folder = Path(made)
            export(folder, arguments.torch)
        if not captured:
            print("the captured dumps are absent: only the programs of examples/neuron_vs_torch")
        pairs = [*(captured_pairs(folder) if captured else ()), *shipped_pairs()]
        measurements = [measure(pair) for pair in pairs]
    print_table(measurements)
    surprises = [m.pair.name for m in measurements if not m.as_expected]
    relations = {r.name: lines_of(r) for r in sorted({p.relation for p in pairs})}
    figures: dict[str, Any] = {
        "captured": captured,
        "pairs": len(measurements),
        "seconds": {m.pair.name: round(m.seconds, 3) for m in measurements},
        "relation_lines": relations,
        "kinds": sorted({k for m in measurements for k in m.kinds}),
        "surprises": surprises,
        "ok": not surprises and max(relations.values()) <= MOST_LINES,
    }
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
