"""Whether the rounding of constants may be why two programs differ (soundness V1).

Literals are rounded to their type, and an exporter folds what is made of constants alone at every step in the
program's own precision. A difference refutes only if it stays about as large when both programs do that, and
when their constants are a few units in the last place off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.ir.evaluate import apply
from shardproof.ir.module import Module, Op, Value
from shardproof.ir.numpy_meaning import InterpretError, Unsupported
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Array, DType
from shardproof.solver.replay.outcome import Difference, number
from shardproof.solver.sweep import Composed

LIMIT: Final = 1 << 22
"""Elements of the largest constant that is folded or changed."""
BITS: Final = 12
"""Numbers of so few significant bits are meant as they are."""
ULPS: Final = {True: 4, False: 0.5}
"""By how many units in the last place constants of wide types, and of others, may be off."""
WIDE: Final = 20
PLAIN: Final = 1e-2
"""The least part of the larger value that no rounding of constants explains."""
STEADY: Final = 0.5
"""The least part of a difference that must be left."""
IMPURE: Final = frozenset({"random", "collective", "effect"})


def beyond_rounding(
    composed: Composed, seen: Difference, again: Callable[[Composed], Difference | None]
) -> bool:
    """Whether a difference stays when constants are rounded otherwise; `again` looks for one.

    Only one that is small beside the values themselves is looked for again.
    """
    if _gap(seen) >= PLAIN * max(_size(seen.implementation), _size(seen.reference)):
        return True
    modules = [_rounded(m) for m in (composed.reference, composed.implementation, composed.expected)]
    if not any(changed for _, changed in modules):
        return True
    (first, _), (second, _), (expected, _) = modules
    other = again(replace(composed, reference=first, implementation=second, expected=expected))
    if other is None:
        return False
    before, now = _gap(seen), _gap(other)
    return not np.isfinite(before) or bool(now >= STEADY * before)


def _size(value: Any) -> float:
    return float(abs(number(np.asarray(value))))


def _gap(found: Difference) -> float:
    return float(abs(number(np.asarray(found.implementation)) - number(np.asarray(found.reference))))


def _rounded(module: Module) -> tuple[Module, bool]:
    """The program with its constants folded and a little off, and whether that changed any."""
    known: dict[Value, Array] = {}
    ops: list[Op] = []
    changed = False
    for op in module.ops:
        results = _folded(op, known)
        if results is None:
            ops.append(op)
            continue
        for value, array in zip(op.results, results, strict=True):
            known[value] = array
            moved = _moved(array, value.type.dtype)
            changed = changed or moved is not array
            ops.append(Op("constant", (), (value,), {"value": moved}))
    return replace(module, ops=tuple(ops)), changed


def _folded(op: Op, known: dict[Value, Array]) -> list[Array] | None:
    """The results of an operator on constants, each in its own precision; None for any other operator."""
    traits = TABLE[op.opcode].traits if op.opcode in TABLE else IMPURE
    pure = not traits & IMPURE and op.opcode not in ("opaque", "custom_call", "rank_id", "scan")
    if not pure or any(v not in known for v in op.operands):
        return None
    if any(prod(v.type.shape) > LIMIT for v in op.results):
        return None
    try:
        with np.errstate(all="ignore"):
            results = apply(op, [known[v] for v in op.operands])
    except (InterpretError, Unsupported):
        return None
    return [np.asarray(a).astype(v.type.dtype.storage) for v, a in zip(op.results, results, strict=True)]


def _moved(array: Any, dtype: DType) -> Array:
    """Reals a little off, equal ones alike; numbers of few bits, infinities and NaN as they are."""
    if dtype.kind != "real":
        return np.asarray(array)
    wide = array.astype(np.float64)
    mantissa, _ = np.frexp(wide)
    rounded = np.isfinite(wide) & (mantissa * (1 << BITS) != np.rint(mantissa * (1 << BITS)))
    if not rounded.any():
        return np.asarray(array)
    size = ULPS[dtype.mantissa >= WIDE] * 2.0**-dtype.mantissa
    most = float(np.abs(wide[rounded]).max())
    moved = np.clip(wide * (1 + size * np.sin(1e4 * mantissa)), -most, most)
    return np.asarray(np.where(rounded, moved, wide).astype(array.dtype))
