"""Operators that give as many elements as their data say; the data must be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from shardproof.frontends.onnx.indexing import taken
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import Array, DType

_MOVES: Final = frozenset(
    {"constant", "reshape", "broadcast_in_dim", "transpose", "slice", "reverse", "concatenate", "gather"}
)


def exact(s: Lowering, x: Value, what: str) -> Array:
    """The elements of `x`, which must be known and not rounded: reals that the file holds, and what integers,
    comparisons and moves make of them."""
    found = s.array(x, what)
    pending, seen = [x], {x}
    while pending:
        op = s.maker(pending.pop())
        if op is None:
            continue
        if op.opcode not in _MOVES and any(v.type.dtype.kind in ("real", "complex") for v in op.results):
            s.fail(f"{what} is computed from constants in reals, of which a rounding may decide")
        new = [v for v in op.operands if v not in seen]
        seen.update(new)
        pending += new
    return found


def _numbers(s: Lowering, array: Any) -> Value:
    return s.literal(np.asarray(array, dtype=np.int64), DType.S64)


def _compress(s: Lowering, n: Node) -> Value:
    x, axis = n.operand(0), n.attrs.get("axis")
    if axis is None:
        x = s.reshape(x, (x.type.size,))
    dim = s.dim(axis or 0, len(x.type.shape))
    kept = np.flatnonzero(exact(s, n.operand(1), "the condition"))
    if kept.size and kept[-1] >= x.type.shape[dim]:
        s.fail(f"selects position {kept[-1]} of dim {dim} of {x.type}")
    return taken(s, x, _numbers(s, kept), dim)


def _non_zero(s: Lowering, n: Node) -> Value:
    found: Any = exact(s, n.operand(0), "what is searched")
    if not found.ndim:
        return _numbers(s, np.zeros((0, int(found != 0))))
    return _numbers(s, np.stack(np.nonzero(found)))


def _unique(s: Lowering, n: Node) -> list[Value]:
    """Elements, or slices along a dim, once each, with the first place, number and count of each."""
    x, axis = n.operand(0), n.attrs.get("axis")
    found = exact(s, x, "what is searched")
    if axis is None:
        x, found = s.reshape(x, (x.type.size,)), found.reshape(-1)
    dim = s.dim(axis or 0, found.ndim)
    _, first, inverse, counts = np.unique(
        found, axis=dim, return_index=True, return_inverse=True, return_counts=True
    )
    inverse = inverse.reshape(-1)
    if not n.attrs["sorted"]:
        order = np.argsort(first)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return [taken(s, x, _numbers(s, first), dim), *(_numbers(s, a) for a in (first, inverse, counts))]


Corners = tuple[Fraction, Fraction, Fraction, Fraction]


def _non_max_suppression(s: Lowering, n: Node) -> Value:
    """(batch, class, box) of the boxes kept, by falling score; overlaps are compared in exact arithmetic."""
    boxes, scores = (exact(s, n.operand(k), what) for k, what in enumerate(("the boxes", "the scores")))
    limits = [exact(s, v, "a limit").reshape(-1) if (v := n.given(k)) is not None else () for k in (2, 3, 4)]
    most, overlap, least = (next(iter(found), None) for found in limits)
    threshold = Fraction(float(overlap)) if overlap is not None else Fraction(0)
    if not (np.all(np.isfinite(boxes)) and np.all(np.isfinite(scores))):
        s.fail("has boxes or scores that are not finite")
    found = []
    for batch, own in enumerate(boxes):
        corners = [_corners(box, centred=bool(n.attrs["center_point_box"])) for box in own]
        for number, row in enumerate(scores[batch]):
            order = [k for k in np.argsort(-row, kind="stable") if least is None or row[k] > least]
            kept: list[int] = []
            for k in order:
                if len(kept) >= max(int(most or 0), 0):
                    break
                if not any(_overlap(corners[k], corners[other]) > threshold for other in kept):
                    kept.append(int(k))
            found += [(batch, number, k) for k in kept]
    return _numbers(s, np.reshape(found, (len(found), 3)))


def _corners(box: Sequence[Any], *, centred: bool) -> Corners:
    """The least and greatest coordinates along both dims."""
    a, b, c, d = (Fraction(float(v)) for v in box)
    if centred:
        return a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return min(a, c), min(b, d), max(a, c), max(b, d)


def _overlap(x: Corners, y: Corners) -> Fraction:
    """The area of the intersection over that of the union; 0 where one has no area."""
    sides = [min(x[k + 2], y[k + 2]) - max(x[k], y[k]) for k in range(2)]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (x, y)]
    if min(sides) <= 0 or min(areas) <= 0:
        return Fraction(-1)
    common = sides[0] * sides[1]
    return common / (sum(areas) - common)


RULES: Final[Mapping[str, Rule]] = {
    "Compress": _compress,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
    "Unique": _unique,
}
