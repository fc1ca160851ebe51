"""Cases: a reference, a wrong SPMD body and its repair, in one file; and what is found of them.

A file has `META` with `expect_buggy` ("refuted", "precision" for programs that are equal over the reals, None
for ones that are right), `MESH`, `INPUTS`, `IN_SPECS`, `OUT_SPECS`, perhaps `RANGES`, and the functions
`reference`, `buggy` and `fixed`.
"""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bug_equations import Program, flattened
from bug_places import accepted, on_line, placed

import shardproof
from shardproof.solver.verdict import Result

OWN = Path(__file__).parent / "cases"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "bugs" / "public"
_LACKING = re.compile(r"module 'jax[\w.]*' has no attribute '\w+'")


class Unavailable(Exception):
    """The installed JAX lacks a name that the case uses; the message says which."""


@dataclass(frozen=True, slots=True)
class Found:
    """The verdicts on both bodies, and of a refuted one whether the place is right: to the operator, to the
    line, and whether its stack has a frame of the body; None where nothing was refuted."""

    fixed: Result
    buggy: Result
    operator: bool | None
    line: bool | None
    frame: bool | None
    seconds: float


def load(path: Path) -> Any:
    """The module of a case. Raises Unavailable."""
    spec = importlib.util.spec_from_file_location(f"bug_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _available(lambda: spec.loader.exec_module(module) if spec.loader is not None else None)
    return module


def judge(path: Path) -> Found:
    """Verify both bodies of a case, and see where the wrong one is said to be wrong. Raises Unavailable."""
    case = load(path)
    start = time.perf_counter()
    fixed, buggy = (_available(lambda body=body: _verify(case, body)) for body in (case.fixed, case.buggy))
    seconds = time.perf_counter() - start
    if buggy.verdict != "refuted":
        return Found(fixed, buggy, None, None, None, seconds)
    place = buggy.location
    if place is None:
        return Found(fixed, buggy, False, False, False, seconds)
    wrong, right = _program(case, case.buggy), _program(case, case.fixed)
    numbers = accepted(wrong, right)
    frame = any(f.function.split(".")[0] == "buggy" and f.file == str(path) for f in place.stack)
    line = any(on_line(place, wrong.steps[n]) for n in numbers)
    return Found(fixed, buggy, placed(place, wrong, numbers), line, frame, seconds)


def _verify(case: Any, body: Callable[..., Any]) -> Result:
    return shardproof.verify_jax(
        case.reference,
        body,
        mesh=case.MESH,
        inputs=case.INPUTS,
        in_specs=case.IN_SPECS,
        out_specs=case.OUT_SPECS,
        ranges=getattr(case, "RANGES", None),
    )


def _program(case: Any, body: Callable[..., Any]) -> Program:
    from shardproof.frontends.jaxpr.tracing import sharded, trace

    mapped = sharded(body, case.MESH, case.INPUTS, case.IN_SPECS, case.OUT_SPECS)
    return flattened(trace(mapped, case.INPUTS).closed)


def _available(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except AttributeError as error:
        if _LACKING.fullmatch(str(error)):
            raise Unavailable(str(error)) from None
        raise
