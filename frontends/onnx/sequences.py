"""Sequences of tensors, as far as their number is known: exporters split a tensor into one and take items."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

from shardproof.frontends.onnx.state import Items, Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType

READERS: Final = ("ConcatFromSequence", "SequenceAt", "SequenceLength")
"""Operators whose operand 0 is a sequence."""


def _given(s: Lowering, n: Node) -> tuple[Value, ...]:
    if n.items is None:
        s.fail("reads a tensor as a sequence")
    return n.items.values


def _construct(s: Lowering, n: Node) -> Items:
    return Items(tuple(n.operand(k) for k in range(len(n.inputs))))


def _split(s: Lowering, n: Node) -> Items:
    """Parts of the extents that `split` lists, or of one extent, the last of which may be less; else of 1."""
    x, told = n.operand(0), n.given(1)
    dim, keepdims = s.dim(n.attrs["axis"], len(x.type.shape)), n.attrs["keepdims"]
    extent = x.type.shape[dim]
    sizes = s.integers(told, "the sizes") if told is not None else (1,)
    if told is None or not told.type.shape:
        (size,) = sizes
        if size < 1:
            s.fail(f"splits into parts of extent {size}")
        sizes = tuple(min(size, extent - start) for start in range(0, extent, size))
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        s.fail(f"splits {x.type} along dim {dim} into {list(sizes)}")
    ends = accumulate(sizes)
    parts = [s.slice(x, dim, end - size, end) for end, size in zip(ends, sizes, strict=True)]
    if told is None and not keepdims:
        rest = [m for d, m in enumerate(x.type.shape) if d != dim]
        parts = [s.reshape(p, rest) for p in parts]
    return Items(tuple(parts))


def _at(s: Lowering, n: Node) -> Value:
    items, at = _given(s, n), s.integer(n.operand(1), "the position")
    if not -len(items) <= at < len(items):
        s.fail(f"takes item {at} of a sequence of {len(items)}")
    return items[at]


def _length(s: Lowering, n: Node) -> Value:
    return s.literal(len(_given(s, n)), DType.S64)


def _concatenate(s: Lowering, n: Node) -> Value:
    """The items along a dim; along a new one with `new_axis`."""
    items, new = _given(s, n), n.attrs["new_axis"]
    if not items:
        s.fail("joins no tensors")
    dim = s.dim(n.attrs["axis"], len(items[0].type.shape) + bool(new))
    if new:
        items = tuple(s.reshape(v, (*v.type.shape[:dim], 1, *v.type.shape[dim:])) for v in items)
    return items[0] if len(items) == 1 else s.emit("concatenate", *items, dim=dim)


RULES: Final[Mapping[str, Rule]] = {
    "ConcatFromSequence": _concatenate,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
