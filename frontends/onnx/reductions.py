"""Reductions along dims."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value


def dims_of(s: Lowering, n: Node) -> tuple[int, ...] | None:
    """The dims that a reduction goes over, by attribute or operand; None when it is to do nothing."""
    axes, rank = n.given(1), len(n.operand(0).type.shape)
    told = n.attrs.get("axes") if axes is None else s.integers(axes, "the axes")
    nothing = n.attrs.get("noop_with_empty_axes", 0)
    if not told and nothing:
        return None
    return s.dims(told or None, rank)


def _reduce(kind: str) -> Rule:
    def rule(s: Lowering, n: Node) -> Value:
        dims, x, keepdim = dims_of(s, n), n.operand(0), bool(n.attrs["keepdims"])
        return x if dims is None else s.reduce(x, dims, kind, keepdim=keepdim)

    return rule


def _mean(s: Lowering, n: Node) -> Value:
    dims, x, keepdim = dims_of(s, n), n.operand(0), bool(n.attrs["keepdims"])
    if dims is None:
        return x
    total = s.reduce(x, dims, "sum", keepdim=keepdim)
    return s.pair("divide", total, prod(x.type.shape[d] for d in dims))


RULES: Final[Mapping[str, Rule]] = {
    "ReduceMax": _reduce("max"),
    "ReduceMean": _mean,
    "ReduceMin": _reduce("min"),
    "ReduceProd": _reduce("prod"),
    "ReduceSum": _reduce("sum"),
}
