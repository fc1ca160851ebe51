"""Replay with scores so large that the finite constants which mask them matter.

A mask of -10000 or less has weight zero by assumption (`mask_value`), so scores stay well within that. A
mask of smaller size has no such excuse: where the two programs mask by other constants, scores of about the
smaller size show it. Their exponentials are beyond float64, so everything is computed in extended precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from shardproof.ir.module import Module, Op, Value
from shardproof.ir.numpy_meaning import InterpretError
from shardproof.solver.replay.draws import Ranges
from shardproof.solver.replay.lazy import DEFAULT_BUDGET, TooLarge
from shardproof.solver.replay.outcome import Outcome
from shardproof.solver.replay.partitions import TooLong
from shardproof.solver.replay.replay import Replay
from shardproof.solver.replay.structured import LOUD, STEP, FoldedDraws, Strayed, WideRuns

EXCUSED: Final = -10000.0
"""Constants up to this one are taken for minus infinity (lemmas/library/masks.lemma)."""
_LARGEST: Final = 5000.0
"""Scores up to this size leave a mask that is excused without weight."""
_LEAST: Final = -100.0
_LEVELS: Final = 40
_MOVED: Final = frozenset({"broadcast_in_dim", "reshape", "transpose", "convert"})


def masked_scores(module: Module) -> Iterator[tuple[Value, float]]:
    """(scores, constant that replaces those that are masked) of a module's selections."""
    producers = {r: op for op in module.ops for r in op.results}
    for op in module.ops:
        if op.opcode == "select" and op.result.type.dtype.kind == "real":
            for mask, scores in (op.operands[1:], op.operands[:0:-1]):
                constant = _constant(mask, producers)
                if constant is not None and -np.inf < constant <= _LEAST:
                    yield scores, constant


def _constant(value: Value, producers: dict[Value, Op]) -> float | None:
    op = producers.get(value)
    while op is not None and op.opcode in _MOVED:
        op = producers.get(op.operands[0])
    if op is None or op.opcode != "constant" or op.result.type.size != 1:
        return None
    return float(np.asarray(op.attrs["value"]).reshape(()))


def compare_loud(
    reference: Module,
    implementation: Module,
    expected: Module,
    *,
    seed: int,
    ranges: Ranges | None = None,
    trials: int = 1,
    budget: int = DEFAULT_BUDGET,
    check: Callable[[], None] = lambda: None,
) -> Replay | None:
    """`compare_folded` with louder inputs; None when the programs mask alike, or no inputs are loud enough.

    The difference must persist when the inputs are nudged in two ways, each by far more than extended
    precision rounds.
    """
    own, other = ({c for _, c in masked_scores(m)} for m in (reference, implementation))
    weak = [c for c in own ^ other if c > EXCUSED]
    scores = {v.name for v, _ in masked_scores(reference)}
    if not weak or not scores:
        return None
    tested = 0
    try:
        draws = FoldedDraws(reference, implementation, ranges)
        for trial in range(seed, seed + trials):
            for level in range(_LEVELS):
                drawn_from = LOUD + level * STEP + trial
                runs = WideRuns(reference, implementation, expected, draws, drawn_from, budget, check)
                size = runs.largest(scores)
                if size > -1.5 * min(weak):
                    break
            if not -1.5 * min(weak) < size < _LARGEST:
                continue
            outcome = Outcome(runs)
            found = outcome.confirmed(drawn_from)[0] if outcome.candidates else []
            if found:
                return Replay(tuple(found), tested, outcome.skipped, 0)
            tested += outcome.compared > 0
    except (InterpretError, TooLarge, TooLong, Strayed):
        return None
    return Replay((), tested, 0, 0) if tested else None
