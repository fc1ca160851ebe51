"""Results made by hand, and a stand-in for the solver, so that these tests need no proof."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from shardproof.ir.types import Frame
from shardproof.solver.verdict import (
    Assumption,
    Blocked,
    Counterexample,
    OutputVerdict,
    Place,
    Result,
    Stats,
    Verdict,
)

STATS = Stats({"load": 0.1, "normalise": 0.05, "sweep": 0.25}, 4200, 180)


def verified(**changes: Any) -> Result:
    parts: dict[str, Any] = {
        "verdict": Verdict.VERIFIED,
        "code": "V02",
        "message": "tp8.pb refines tp1.pb",
        "mesh": "tp=8",
        "outputs": (
            OutputVerdict("logits", "shards of dim 0 over tp", Verdict.VERIFIED),
            OutputVerdict("k0", "shards of dim 2 over tp", Verdict.VERIFIED),
            OutputVerdict("v0", "shards of dim 2 over tp", Verdict.VERIFIED),
        ),
        "inferred_relation": {
            "p0": "replicate",
            "p1": "replicate",
            "p2": "shard(1) over tp",
            "p9": "[q 2048 | k 512 | v 512] each sharded over tp on dim 1",
        },
        "assumptions": (Assumption("inferred_relation", "p9 is laid out in three segments", "p9"),),
        "lemmas": (),
        "stats": STATS,
    }
    return Result(**{**parts, **changes})


def refuted(**changes: Any) -> Result:
    parts: dict[str, Any] = {
        "verdict": Verdict.REFUTED,
        "code": "R03",
        "message": "`slice.54` reads columns 0:256, the reference needs 1024:1280",
        "outputs": (OutputVerdict("logits", "shards of dim 0 over tp", Verdict.REFUTED),),
        "location": Place(
            "slice.54",
            "slice",
            "layers/attention.py",
            124,
            (Frame("model.py", 9, "forward"), Frame("layers/attention.py", 124, "split")),
        ),
        "reference_location": Place("slice.54", "slice", "layers/attention.py", 126),
        "expected": "columns 1024:1280",
        "found": "columns 0:256",
        "counterexample": Counterexample(7, 0, "logits", (5, 0, 1), -0.412, 1.893, {"s": 4}),
        "repair": "shifting the start by 1024 proves all outputs",
        "stats": STATS,
    }
    return Result(**{**parts, **changes})


def unknown(**changes: Any) -> Result:
    parts: dict[str, Any] = {
        "verdict": Verdict.UNKNOWN,
        "code": "U02",
        "message": "nothing relates `cumsum.9` across a split of its own dim",
        "outputs": (
            OutputVerdict("y", "equal on every rank", Verdict.UNKNOWN),
            OutputVerdict("z", "equal on every rank", Verdict.VERIFIED),
        ),
        "location": Place("cumsum.9", "cumsum", "moe_ep.py", 52),
        "blocked": (Blocked("cumsum.9", "cumsum_of_shards", "needs `k not in x`, but x varies over k"),),
        "tested_equal": 200,
        "help": ("declare it in a relation file or accept it with --assume cumsum.9",),
        "stats": STATS,
    }
    return Result(**{**parts, **changes})


@dataclass
class Solver:
    """Stands in for `shardproof.solver.verify`: gives `result` or raises it, and keeps the arguments."""

    result: Result | BaseException = field(default_factory=verified)
    programs: tuple[Any, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    before: Callable[[dict[str, Any]], None] = lambda options: None

    def verify(self, reference: Any, implementation: Any, **options: Any) -> Result:
        self.programs, self.options = (reference, implementation), options
        self.before(options)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def solver(monkeypatch: pytest.MonkeyPatch) -> Solver:
    stub = Solver()
    module = ModuleType("shardproof.solver.verify")
    module.verify = stub.verify  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return stub
