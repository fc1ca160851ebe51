"""Reductions, running sums, and operators that order elements."""

from __future__ import annotations

from math import prod
from typing import Any, Final

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.state import Arguments, Lowering, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType


def _accumulated(s: Lowering, x: Value, dtype: Any) -> Value:
    """The operand of a sum or product: integers and bools are added as s64 unless told otherwise."""
    if dtype is None:
        dtype = x.type.dtype if x.type.dtype.kind in ("real", "complex") else DType.S64
    return s.convert(x, dtype)


def _sum(kind: str) -> Rule:
    def rule(s: Lowering, a: Arguments) -> Value:
        x = _accumulated(s, a["self"], a.get("dtype"))
        dims = s.dims(a.get("dim"), len(x.type.shape))
        return s.reduce(x, dims, kind, keepdim=a.get("keepdim", False))

    return rule


def _mean(s: Lowering, a: Arguments) -> Value:
    x = a["self"] if a["dtype"] is None else s.convert(a["self"], a["dtype"])
    if x.type.dtype.kind != "real":
        s.fail(f"takes the mean of {x.type}, reals are needed")
    return s.mean(x, s.dims(a.get("dim"), len(x.type.shape)), keepdim=a.get("keepdim", False))


def _extreme(kind: str) -> Rule:
    """`amax`, `amin`, `max` and `min` without positions."""

    def rule(s: Lowering, a: Arguments) -> Value:
        x = a["self"]
        dims = s.dims(a.get("dim"), len(x.type.shape))
        if any(x.type.shape[d] == 0 for d in dims):
            s.fail(f"takes an extreme of {x.type}, which is empty")
        return s.reduce(x, dims, kind, keepdim=a.get("keepdim", False))

    return rule


def _logical(kind: str) -> Rule:
    def rule(s: Lowering, a: Arguments) -> Value:
        x = s.convert(a["self"], DType.BOOL)
        dims = s.dims(a.get("dim"), len(x.type.shape), empty_is_all=False)
        result = s.reduce(x, dims, kind, keepdim=a.get("keepdim", False))
        return s.convert(result, DType.U8) if a["self"].type.dtype is DType.U8 else result

    return rule


def extreme_at(s: Lowering, x: Value, dim: int, kind: str) -> tuple[Value, Value]:
    """The extreme along `dim` and its first position, without `dim`.

    A dim of size 1 has its extreme at 0 whatever the element is.
    """
    shape = (*x.type.shape[:dim], *x.type.shape[dim + 1 :])
    if x.type.shape[dim] == 1:
        return s.reshape(x, shape), s.full(0, DType.S64, shape)
    types = TensorType(x.type.dtype, shape), TensorType(DType.S64, shape)
    value, position = s.emit_many("argreduce", (x,), types, dim=dim, kind=kind)
    return value, position


def _extreme_with_position(kind: str) -> Rule:
    """`max.dim` and `min.dim`: values and positions."""

    def rule(s: Lowering, a: Arguments) -> tuple[Value, ...]:
        x = a["self"]
        if not x.type.shape:
            return x, s.full(0, DType.S64, ())
        dim = s.dim(a["dim"], len(x.type.shape))
        found = extreme_at(s, x, dim, kind)
        if a["keepdim"]:
            shape = [1 if d == dim else n for d, n in enumerate(x.type.shape)]
            return tuple(s.reshape(v, shape) for v in found)
        return found

    return rule


def _position(kind: str) -> Rule:
    """`argmax` and `argmin`; without a dim, of the elements in row-major order."""

    def rule(s: Lowering, a: Arguments) -> Value:
        x = a["self"]
        shape = x.type.shape
        if a["dim"] is None:
            found = extreme_at(s, s.reshape(x, (x.type.size,)), 0, kind)[1]
            return s.reshape(found, (1,) * len(shape)) if a["keepdim"] else found
        if not shape:
            return s.full(0, DType.S64, ())
        dim = s.dim(a["dim"], len(shape))
        found = extreme_at(s, x, dim, kind)[1]
        return (
            s.reshape(found, [1 if d == dim else n for d, n in enumerate(shape)]) if a["keepdim"] else found
        )

    return rule


def variance(s: Lowering, x: Value, dims: tuple[int, ...], correction: float) -> tuple[Value, Value]:
    """The variance and the mean, both with the reduced dims of size 1."""
    mean = s.mean(x, dims, keepdim=True)
    centred = s.pair("subtract", x, mean)
    squares = s.reduce(s.pair("multiply", centred, centred), dims, "sum", keepdim=True)
    count = prod(x.type.shape[d] for d in dims) - correction
    if count <= 0:
        s.fail(f"divides by {count} when it takes the variance of {x.type}")
    return s.pair("divide", squares, count), mean


def _variance(*results: str) -> Rule:
    """`var`, `std`, `var_mean` or `std_mean` along dims; the correction is 1 unless told."""

    def rule(s: Lowering, a: Arguments) -> Any:
        x = a["self"]
        if x.type.dtype.kind != "real":
            s.fail(f"takes the variance of {x.type}, reals are needed")
        dims = s.dims(a["dim"], len(x.type.shape))
        spread, mean = variance(s, x, dims, 1 if a["correction"] is None else a["correction"])
        found = {"var": spread, "mean": mean}
        if "std" in results:
            found["std"] = s.emit("sqrt", spread)
        if not a["keepdim"]:
            shape = [n for d, n in enumerate(x.type.shape) if d not in dims]
            found = {name: s.reshape(v, shape) for name, v in found.items() if name in results}
        values = tuple(found[name] for name in results)
        return values[0] if len(values) == 1 else values

    return rule


def _log_sum_exp(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    dims = s.dims(a["dim"], len(x.type.shape))
    return s.emit("log", s.reduce(s.emit("exponential", x), dims, "sum", keepdim=a["keepdim"]))


def _norm(s: Lowering, a: Arguments) -> Value:
    x = a["self"] if a["dtype"] is None else s.convert(a["self"], a["dtype"])
    dims = s.dims(a["dim"], len(x.type.shape))
    order, keepdim = a["ord"], a["keepdim"]
    if x.type.dtype.kind != "real":
        s.fail(f"takes the norm of {x.type}, reals are needed")
    if order == 2:
        return s.emit("sqrt", s.reduce(s.pair("multiply", x, x), dims, "sum", keepdim=keepdim))
    size = s.emit("abs", x)
    if order == 1:
        return s.reduce(size, dims, "sum", keepdim=keepdim)
    if order in (float("inf"), float("-inf")):
        return s.reduce(size, dims, "max" if order > 0 else "min", keepdim=keepdim)
    if order == 0:
        return s.reduce(s.convert(s.compare("NE", x, 0), x.type.dtype), dims, "sum", keepdim=keepdim)
    total = s.reduce(s.pair("power", size, order), dims, "sum", keepdim=keepdim)
    return s.pair("power", total, 1 / order)


def running(s: Lowering, x: Value, dim: int, kind: str) -> Value:
    """The reduction of each element and all before it along `dim`."""
    from shardproof.ir.numpy_compute import identity

    rank, size = len(x.type.shape), x.type.shape[dim]

    def only(n: int, rest: int) -> tuple[int, ...]:
        return tuple(n if d == dim else rest for d in range(rank))

    ones, zeros = only(1, 1), only(0, 0)
    return s.emit(
        "reduce_window",
        x,
        s.literal(identity(kind, x.type.dtype), x.type.dtype),
        kind=kind,
        sizes=only(max(size, 1), 1),
        strides=ones,
        base_dilations=ones,
        window_dilations=ones,
        pad_low=only(max(size, 1) - 1, 0),
        pad_high=zeros,
    )


def _running(kind: str) -> Rule:
    def rule(s: Lowering, a: Arguments) -> Value:
        x = _accumulated(s, a["self"], a["dtype"])
        if not x.type.shape or x.type.size == 0:
            return x
        return running(s, x, s.dim(a["dim"], len(x.type.shape)), kind)

    return rule


def _topk(s: Lowering, a: Arguments) -> tuple[Value, Value]:
    x, k = a["self"], s.size(a["k"])
    if a["sorted"] is not True:
        s.fail("gives the largest elements in no order, which is not supported")
    if x.type.dtype.kind not in ("real", "int") or not x.type.shape:
        s.fail(f"orders {x.type}, which is not supported")
    rank = len(x.type.shape)
    dim = s.dim(a["dim"], rank)
    order = [d for d in range(rank) if d != dim] + [dim]
    back = [order.index(d) for d in range(rank)]
    moved = s.transpose(x, order)
    if not a["largest"]:
        moved = s.emit("negate", moved)
    types = tuple(TensorType(t, (*moved.type.shape[:-1], k)) for t in (x.type.dtype, DType.S32))
    value, at = s.emit_many("top_k", (moved,), types, k=k)
    if not a["largest"]:
        value = s.emit("negate", value)
    return s.transpose(value, back), s.convert(s.transpose(at, back), DType.S64)


def _sort(s: Lowering, a: Arguments) -> tuple[Value, ...]:
    x = a["self"]
    if not x.type.shape:
        return x, s.full(0, DType.S64, ())
    dim = s.dim(a["dim"], len(x.type.shape))
    at = s.iota(DType.S64, x.type.shape, dim)
    comparator = "gt:0" if a["descending"] else "lt:0"
    return s.emit_many("sort", (x, at), (), dim=dim, comparator=comparator, stable=bool(a.get("stable")))


TABLE: Final[Table] = {
    **entries("self dtype=None", _sum("sum"), "aten.sum"),
    **entries("self dim=None keepdim=False dtype=None", _sum("sum"), "aten.sum.dim_IntList"),
    **entries("self dtype=None", _sum("prod"), "aten.prod"),
    **entries("self dim keepdim=False dtype=None", _sum("prod"), "aten.prod.dim_int"),
    **entries("self dtype=None", _mean, "aten.mean"),
    **entries("self dim=None keepdim=False dtype=None", _mean, "aten.mean.dim"),
    **entries("self dim=() keepdim=False", _extreme("max"), "aten.amax"),
    **entries("self dim=() keepdim=False", _extreme("min"), "aten.amin"),
    **entries("self", _extreme("max"), "aten.max"),
    **entries("self", _extreme("min"), "aten.min"),
    **entries("self dim keepdim=False", _extreme_with_position("max"), "aten.max.dim"),
    **entries("self dim keepdim=False", _extreme_with_position("min"), "aten.min.dim"),
    **entries("self dim=None keepdim=False", _position("max"), "aten.argmax"),
    **entries("self dim=None keepdim=False", _position("min"), "aten.argmin"),
    **entries("self", _logical("or"), "aten.any"),
    **entries("self dim=None keepdim=False", _logical("or"), "aten.any.dim", "aten.any.dims"),
    **entries("self", _logical("and"), "aten.all"),
    **entries("self dim=None keepdim=False", _logical("and"), "aten.all.dim", "aten.all.dims"),
    **entries("self dim=None correction=None keepdim=False", _variance("var"), "aten.var.correction"),
    **entries("self dim=None correction=None keepdim=False", _variance("std"), "aten.std.correction"),
    **entries(
        "self dim=None correction=None keepdim=False", _variance("var", "mean"), "aten.var_mean.correction"
    ),
    **entries("self dim keepdim=False", _log_sum_exp, "aten.logsumexp"),
    **entries("self ord=2 dim=None keepdim=False dtype=None", _norm, "aten.linalg_vector_norm"),
    **entries("self dim dtype=None", _running("sum"), "aten.cumsum"),
    **entries("self dim dtype=None", _running("prod"), "aten.cumprod"),
    **entries("self k dim=-1 largest=True sorted=True", _topk, "aten.topk"),
    **entries("self dim=-1 descending=False", _sort, "aten.sort"),
    **entries("self stable=None dim=-1 descending=False", _sort, "aten.sort.stable"),
    **entries("self dim=-1 descending=False", lambda s, a: _sort(s, a)[1], "aten.argsort"),
}
