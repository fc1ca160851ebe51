"""Positions of extremes, the largest elements, running sums and products, one-hot rows, dropout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.frontends.spans import span
from shardproof.ir.module import Value
from shardproof.ir.numpy_compute import identity
from shardproof.ir.types import DType, TensorType


def _position(kind: str) -> Rule:
    """The first, or the last, position of an extreme."""

    def rule(s: Lowering, n: Node) -> Value:
        x, last = n.operand(0), n.attrs["select_last_index"]
        dim = s.dim(n.attrs["axis"], len(x.type.shape))
        source = s.emit("reverse", x, dims=(dim,)) if last else x
        at = s.emit_many(
            "argreduce", (source,), (x.type, TensorType(DType.S64, ())), dim=dim, kind=kind
        )[1]
        if last:
            at = s.emit("subtract", s.like(at, x.type.shape[dim] - 1), at)
        kept = (*x.type.shape[:dim], 1, *x.type.shape[dim + 1 :])
        return s.reshape(at, kept) if n.attrs["keepdims"] else at

    return rule


def _hardmax(s: Lowering, n: Node) -> Value:
    """1 at the first greatest element along a dim, else 0."""
    x = n.operand(0)
    dim = s.dim(n.attrs["axis"], len(x.type.shape))
    types = (x.type, TensorType(DType.S64, ()))
    at = s.emit_many("argreduce", (x,), types, dim=dim, kind="max")[1]
    here = s.place(at, [d for d in range(len(x.type.shape)) if d != dim], x.type.shape)
    return s.convert(s.compare("EQ", here, s.iota(DType.S64, x.type.shape, dim)), x.type.dtype)


def _top_k(s: Lowering, n: Node) -> Sequence[Value]:
    """The largest or smallest elements in order; in no stated order they are an opaque function."""
    x, k = n.operand(0), s.integer(n.operand(1), "the number of elements")
    rank = len(x.type.shape)
    dim = s.dim(n.attrs["axis"], rank)
    if not n.attrs["sorted"] and k > 1:
        shape = (*x.type.shape[:dim], k, *x.type.shape[dim + 1 :])
        return s.opaque(n, [TensorType(t, shape) for t in (x.type.dtype, DType.S64)])
    order = [d for d in range(rank) if d != dim] + [dim]
    back = [order.index(d) for d in range(rank)]
    moved, largest = s.transpose(x, order), n.attrs["largest"]
    flip = "negate" if x.type.dtype.kind == "real" else "not"
    if not largest:
        moved = s.emit(flip, moved)
    value, at = s.emit_many("top_k", (moved,), (), k=k)
    if not largest:
        value = s.emit(flip, value)
    return s.transpose(value, back), s.convert(s.transpose(at, back), DType.S64)


def running(s: Lowering, x: Value, dim: int, kind: str, *, exclusive: bool, reverse: bool) -> Value:
    """A sum or product of all elements up to each one, or from it on; `exclusive` leaves that one out."""
    rank, extent = len(x.type.shape), x.type.shape[dim]
    if x.type.size == 0:
        return x
    start = s.literal(identity(kind, x.type.dtype), x.type.dtype)
    reach = [extent - 1 if d == dim else 0 for d in range(rank)]
    shift = [1 if d == dim and exclusive else 0 for d in range(rank)]
    ones, none = (1,) * rank, (0,) * rank
    if exclusive:
        kept = s.slice(x, dim, 1, extent) if reverse else s.slice(x, dim, 0, extent - 1)
        low, high = (none, shift) if reverse else (shift, none)
        x = s.emit("pad", kept, start, low=tuple(low), high=tuple(high), interior=none)
    return s.emit(
        "reduce_window",
        x,
        start,
        kind=kind,
        sizes=tuple(m + 1 for m in reach),
        strides=ones,
        base_dilations=ones,
        window_dilations=ones,
        pad_low=none if reverse else tuple(reach),
        pad_high=tuple(reach) if reverse else none,
    )


def _running(kind: str) -> Rule:
    def rule(s: Lowering, n: Node) -> Value:
        x = n.operand(0)
        dim = s.dim(s.integer(n.operand(1), "the axis"), len(x.type.shape))
        exclusive, reverse = bool(n.attrs["exclusive"]), bool(n.attrs["reverse"])
        return running(s, x, dim, kind, exclusive=exclusive, reverse=reverse)

    return rule


def _one_hot(s: Lowering, n: Node) -> Value:
    """A position out of range, from which negative ones count back, gives a row without a hit."""
    at, depth = n.operand(0), int(s.number(n.operand(1), "the depth"))
    values = n.operand(2)
    at = s.convert(at, DType.S64) if at.type.dtype is not DType.S64 else at
    rank = len(at.type.shape)
    dim = n.attrs["axis"] + (rank + 1 if n.attrs["axis"] < 0 else 0)
    if not 0 <= dim <= rank:
        s.fail(f"names dim {n.attrs['axis']} of a result with {rank + 1} dims")
    shape = (*at.type.shape[:dim], depth, *at.type.shape[dim:])
    here = s.place(at, [d for d in range(rank + 1) if d != dim], shape)
    column, known = s.iota(DType.S64, shape, dim), span(s, at)
    hit = s.compare("EQ", here, column)
    if known is None or known[0] < 0:
        hit = s.emit("or", hit, s.compare("EQ", s.pair("add", here, depth), column))
    told = s.known(values)
    if told is not None and told.tolist() == [0, 1]:
        return s.convert(hit, values.type.dtype)
    off, on = (s.reshape(s.slice(values, 0, k, k + 1), ()) for k in range(2))
    return s.select(hit, on, off)


def _dropout(s: Lowering, n: Node) -> tuple[Value, Value]:
    x, ratio, training = n.operand(0), n.given(1), n.given(2)
    active = training is not None and bool(s.array(training, "whether it drops elements").all())
    rate = 0.5 if ratio is None or not active else s.number(ratio, "the ratio that it drops")
    if not active or rate == 0:
        return x, s.full(True, DType.BOOL, x.type.shape)
    dtype = x.type.dtype
    kept = s.compare("GE", s.draw(dtype, x.type.shape), rate)
    grown = s.pair("divide", x, 1 - rate)
    return s.select(kept, grown, s.like(x, 0)), kept


RULES: Final[Mapping[str, Rule]] = {
    "ArgMax": _position("max"),
    "ArgMin": _position("min"),
    "CumProd": _running("prod"),
    "CumSum": _running("sum"),
    "Dropout": _dropout,
    "Hardmax": _hardmax,
    "OneHot": _one_hot,
    "TopK": _top_k,
}
