"""Verifies the tensor-parallel decoder and its gradients, and refutes seven wrong ones: `python demo.py`.

Everything is traced on abstract arrays: no device is used. The exit code is 1 if any verdict is not the
expected one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pairs
from model import Config
from pairs import Pair
from parallel import BUGS, Bug, Plan

import shardproof

STEP = Plan(Config(remat=True), {"dp": 2, "tp": 2})
DEEP = Plan(Config(layers=32, form="scanned"), {"tp": 4})
SHARED = Plan(Config(layers=1, kv_heads=2), {"tp": 4})


def cases() -> Iterator[tuple[str, Pair, str]]:
    """(what is verified, the functions, the expected verdict)."""
    yield "logits, tp4", pairs.forward(Plan(Config(), {"tp": 4})), "verified"
    yield "logits, tp4, 32 layers by lax.scan", pairs.forward(DEEP), "verified"
    yield "loss, dp2 tp2", pairs.loss(STEP), "verified"
    yield "jax.grad around shard_map, dp2 tp2, remat", pairs.outer_gradients(STEP), "verified"
    yield "jax.grad in shard_map, dp2 tp2, remat", pairs.inner_gradients(STEP), "verified"
    yield "jax.grad in shard_map, fewer kv heads than ranks", pairs.inner_gradients(SHARED), "verified"
    for bug in BUGS:
        yield f"wrong: {bug}", wrong(bug), "refuted"


def wrong(bug: Bug) -> Pair:
    """The loss with a mistake in it, or the gradients where the loss is right."""
    make = pairs.inner_gradients if bug == "norm_gradient_not_summed" else pairs.loss
    return make(replace(SHARED, bug=bug))


def main() -> int:
    color = sys.stdout.isatty()
    surprises = 0
    for name, pair, expected in cases():
        start = time.perf_counter()
        result = shardproof.verify_jax(
            pair.reference, pair.implementation, inputs=pair.inputs, ranges=pair.ranges
        )
        found = result.verdict.value
        print(f"{name:52} {found:10} {time.perf_counter() - start:6.2f} s", flush=True)
        if found != "verified" or found != expected:
            print(result.text(color))
        if found != expected:
            print(f"surprise: expected {expected}, found {found}\n", file=sys.stderr)
            surprises += 1
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
