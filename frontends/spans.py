"""What is known of integers, from constants and from the operators that give positions."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardproof.ir.build import Builder
from shardproof.ir.module import Op, Value

Span = tuple[int, int]
"""The least and the greatest integer that an element may be."""
_DEPTH: Final = 64
_KEEPS: Final = frozenset({"reshape", "broadcast_in_dim", "transpose", "slice", "reverse", "gather"})
"""Operators whose elements are elements of their first operand."""
_JOINS: Final = frozenset({"concatenate", "select"})


def span(s: Builder, x: Value) -> Span | None:
    """A range that all elements of an integer tensor lie in; None when none is known."""
    return _span(s, x, {}, _DEPTH)


def _span(s: Builder, x: Value, seen: dict[Value, Span | None], depth: int) -> Span | None:
    if x in seen:
        return seen[x]
    known = s.known(x)
    if known is not None and x.type.dtype.kind in ("int", "uint", "bool"):
        return (int(known.min()), int(known.max())) if known.size else (0, 0)
    op = s.maker(x)
    if op is None or not depth or x.type.dtype.kind not in ("int", "uint"):
        return None
    found = _of(s, op, x, seen, depth - 1)
    seen[x] = found if found is not None and _fits(found, x) else None
    return seen[x]


def _of(s: Builder, op: Op, x: Value, seen: dict[Value, Span | None], depth: int) -> Span | None:
    if op.opcode in _KEEPS:
        return _span(s, op.operands[0], seen, depth)
    if op.opcode == "convert" and op.operands[0].type.dtype.kind in ("int", "uint"):
        return _span(s, op.operands[0], seen, depth)
    if op.opcode == "top_k":
        return (0, max(op.operands[0].type.shape[-1] - 1, 0)) if x == op.results[1] else None
    if op.opcode == "argreduce":
        return (0, op.operands[0].type.shape[op.attrs["dim"]] - 1) if x == op.results[1] else None
    if op.opcode == "iota":
        return 0, max(x.type.shape[op.attrs["dim"]] - 1, 0)
    if op.opcode in _JOINS:
        spans = [_span(s, v, seen, depth) for v in op.operands[op.opcode == "select" :]]
        known = [found for found in spans if found is not None]
        if len(known) < len(spans):
            return None
        return min(low for low, _ in known), max(high for _, high in known)
    return None


def _fits(found: Span, x: Value) -> bool:
    """Whether the elements' type holds the whole range, so that none of them wraps."""
    dtype = x.type.dtype
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    return low <= found[0] and found[1] < low + (1 << dtype.bits)


def distinct(s: Builder, at: Value, dim: int, depth: int = _DEPTH) -> bool:
    """Whether integers are known not to repeat along a dim."""
    known = s.known(at)
    if known is not None:
        return not np.any(np.diff(np.sort(known, axis=dim), axis=dim) == 0)
    op = s.maker(at)
    if op is None or not depth:
        return False
    x = op.operands[0] if op.operands else None
    if op.opcode == "top_k":
        return at == op.results[1] and dim == len(at.type.shape) - 1
    if op.opcode == "transpose":
        return x is not None and distinct(s, x, op.attrs["permutation"][dim], depth - 1)
    if op.opcode in ("slice", "convert"):
        wide = x is not None and x.type.dtype.kind == "int" and at.type.dtype.bits >= x.type.dtype.bits
        return x is not None and wide and distinct(s, x, dim, depth - 1)
    return False
