"""Verifies a tensor-parallel Llama dump, and shows what two wrong ones look like: `python demo.py`.

The exit code is 1 if any verdict is not the expected one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import shardproof

DUMPS = Path(__file__).resolve().parent / "dumps"

PAIRS = (
    ("tp1_layer2", "tp4_layer2", "verified"),
    ("tp1_layer1", "tp4_layer1.wrong_slice", "refuted"),
    ("tp1_layer1", "tp4_layer1.missing_all_reduce", "refuted"),
)


def main() -> int:
    color = sys.stdout.isatty()
    surprises = 0
    for reference, implementation, expected in PAIRS:
        print(f"$ shardproof verify {reference}.hlo.pb.gz {implementation}.hlo.pb.gz\n")
        result = shardproof.verify(DUMPS / f"{reference}.hlo.pb.gz", DUMPS / f"{implementation}.hlo.pb.gz")
        print(result.text(color))
        if result.verdict.value != expected:
            print(f"surprise: expected {expected}, found {result.verdict.value}\n", file=sys.stderr)
            surprises += 1
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
