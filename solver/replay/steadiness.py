"""Whether rounding may have decided a branch.

A jump (a comparison, a floor, an order) turns a rounding error into a whole unit. Where an operand
lies next to a jump, but not exactly on it, what float64 computed says nothing about the reals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Module, Op
from shardproof.ir.types import Array

MARGIN: Final = 1e-9
"""How near to a jump, relative to the largest magnitude of the operands, is too near."""


def rounding_decides(op: Op, arrays: Sequence[Array]) -> bool:
    """Whether some element of the operands of `op` is within rounding of a jump of `op`."""
    rule = _RULES.get(op.opcode)
    if rule is None or not arrays or op.operands[0].type.dtype.kind != "real" or not arrays[0].size:
        return False
    if op.opcode == "convert" and op.result.type.dtype.kind in ("real", "complex"):
        return False
    with np.errstate(all="ignore"):
        return rule(op, arrays)


def can_jump(module: Module) -> bool:
    """Whether a module has an operator that `rounding_decides` looks at."""
    return any(op.opcode in _RULES and op.operands[0].type.dtype.kind == "real" for op in module.ops)


def rounding_decided(module: Module, store: Mapping[str, Sequence[Array]]) -> bool:
    """`rounding_decides` of any operator on any rank; `store` holds all values by name."""
    return any(
        rounding_decides(op, [store[v.name][rank] for v in op.operands])
        for op in module.ops
        if op.opcode in _RULES
        for rank in range(module.mesh.size)
    )


def _near(gap: Any, *operands: Any) -> bool:
    """Whether a gap is tiny but not zero, against the largest finite operand."""
    sizes = [np.abs(x[np.isfinite(x)]) for x in operands]
    scale = max((float(s.max()) for s in sizes if s.size), default=0.0)
    size = np.abs(gap)
    return bool(np.any((size > 0) & (size < MARGIN * scale)))


def _between(op: Op, arrays: Sequence[Array]) -> bool:
    x, y = (np.asarray(a, np.longdouble) for a in arrays)
    return _near(x - y, x, y)


def _at_integers(op: Op, arrays: Sequence[Array]) -> bool:
    x: Any = arrays[0]
    return _near(x - np.rint(x), np.maximum(np.abs(x), 1))


def _at_halves(op: Op, arrays: Sequence[Array]) -> bool:
    x: Any = arrays[0]
    return _near(x - 0.5 - np.rint(x - 0.5), np.maximum(np.abs(x), 1))


def _at_zero(op: Op, arrays: Sequence[Array]) -> bool:
    return _near(arrays[0], arrays[0])


def _conversion(op: Op, arrays: Sequence[Array]) -> bool:
    return (_at_zero if op.result.type.dtype.kind == "bool" else _at_integers)(op, arrays)


def _quotient(op: Op, arrays: Sequence[Array]) -> bool:
    x, y = (np.asarray(a, np.longdouble) for a in arrays)
    quotient = x / y
    return _near(quotient - np.rint(quotient), np.maximum(np.abs(quotient), 1))


def _order(op: Op, arrays: Sequence[Array]) -> bool:
    dim = op.attrs.get("dim", arrays[0].ndim - 1)
    return any(_near(np.diff(np.sort(x, axis=dim), axis=dim), x) for x in arrays if x.dtype.kind == "f")


_RULES: Final[Mapping[str, Callable[[Op, Sequence[Array]], bool]]] = {
    "compare": _between,
    "floor": _at_integers,
    "ceil": _at_integers,
    "round_even": _at_halves,
    "round_away": _at_halves,
    "sign": _at_zero,
    "convert": _conversion,
    "remainder": _quotient,
    "sort": _order,
    "top_k": _order,
    "argreduce": _order,
}
