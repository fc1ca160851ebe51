"""What `verify` may say of mutants that the interpreter has judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import shardproof
from shardproof.ir.module import Module
from shardproof.tools.mutation import Mutant

LAYOUT: Final = {
    "reshape", "transpose", "broadcast_in_dim", "slice", "convert", "custom_call", "concatenate"
}


def judged(reference: Module, mutants: Iterable[Mutant], differs: Callable[[Mutant], bool]) -> list[bool]:
    """Whether each mutant differs by `differs`; fails when a verdict contradicts it, or its location."""
    wrong: list[str] = []
    found: list[bool] = []
    for mutant in mutants:
        bad = differs(mutant)
        found.append(bad)
        result = shardproof.verify(reference, mutant.module)
        verdict = result.verdict.value
        if bad and verdict == "verified":
            wrong.append(f"{mutant.name} differs but is verified")
        if not bad and verdict == "refuted":
            wrong.append(f"{mutant.name} is equivalent but is refuted")
        if bad and verdict == "refuted":
            assert result.location is not None, mutant.name
            if result.location.value not in near(mutant.module, mutant.value):
                wrong.append(f"{mutant.name} is refuted at {result.location.value}")
    assert not wrong, "\n".join(wrong)
    return found


def near(module: Module, value: str) -> set[str]:
    """The value, what reads it through layout operators only, and the direct readers of those."""
    same, readers = {value}, {value}
    for op in module.ops:
        if any(v.name in same for v in op.operands):
            names = {v.name for v in op.results}
            readers |= names
            if op.opcode in LAYOUT:
                same |= names
    return readers
