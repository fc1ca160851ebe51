"""Operators that move or repeat elements, and conversions of the element type."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from shardproof.frontends.fx.lowering.call import Table, entries, overloads
from shardproof.frontends.fx.lowering.state import Arguments, Lowering, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType


def wanted_shape(s: Lowering, x: Value, sizes: Any) -> tuple[int, ...]:
    """The sizes of a reshape, one of which may be -1."""
    shape = list(s.shape(sizes))
    if shape.count(-1) > 1 or any(n < -1 for n in shape):
        s.fail(f"reshapes to {shape}, at most one size may be open")
    if -1 in shape:
        rest = prod(n for n in shape if n != -1)
        if rest == 0 or x.type.size % rest:
            s.fail(f"reshapes {x.type} to {shape}, which does not divide it")
        shape[shape.index(-1)] = x.type.size // rest
    if prod(shape) != x.type.size:
        s.fail(f"reshapes {x.type} to {shape}, which has another number of elements")
    return tuple(shape)


def _view(s: Lowering, a: Arguments) -> Value:
    return s.reshape(a["self"], wanted_shape(s, a["self"], a["size"]))


def _view_dtype(s: Lowering, a: Arguments) -> Value:
    x: Value = a["self"]
    dtype = a["dtype"]
    if not isinstance(dtype, DType) or dtype.bits != x.type.dtype.bits:
        s.fail(f"reads {x.type} as elements of another width, which is not supported")
    if x.type.dtype is dtype:
        return x
    return s.emit("bitcast_convert", x, type=TensorType(dtype, x.type.shape))


def swapped(s: Lowering, x: Value, first: int, second: int) -> Value:
    """`x` with two dims exchanged."""
    order = list(range(len(x.type.shape)))
    if order:
        order[first], order[second] = order[second], order[first]
    return s.transpose(x, order)


def _transpose(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    rank = len(x.type.shape)
    return swapped(s, x, s.dim(a["dim0"], rank), s.dim(a["dim1"], rank))


def _t(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    if len(x.type.shape) > 2:
        s.fail(f"transposes {x.type}, at most two dims are needed")
    return swapped(s, x, 0, 1) if len(x.type.shape) == 2 else x


def _permute(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    order = s.dims(a["dims"], len(x.type.shape), empty_is_all=False)
    if len(order) != len(x.type.shape):
        s.fail(f"permutes {x.type} by {a['dims']}")
    return s.transpose(x, order)


def _movedim(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    rank = len(x.type.shape)
    source, target = (s.dims(a[n], rank, empty_is_all=False) for n in ("source", "destination"))
    if len(source) != len(target):
        s.fail(f"moves dims {source} to {target}")
    rest = iter(d for d in range(rank) if d not in source)
    return s.transpose(x, [source[target.index(d)] if d in target else next(rest) for d in range(rank)])


def _expand(s: Lowering, a: Arguments) -> Value:
    x, sizes = a["self"], s.shape(a["size"])
    extra = len(sizes) - len(x.type.shape)
    shape = [x.type.shape[d - extra] if n == -1 and d >= extra else n for d, n in enumerate(sizes)]
    if any(n < 0 for n in shape):
        s.fail(f"expands {x.type} to {list(sizes)}")
    return s.spread(x, shape)


def _expand_as(s: Lowering, a: Arguments) -> Value:
    return s.spread(a["self"], a["other"].type.shape)


def _squeeze(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    gone = s.dims(a.get("dim"), len(x.type.shape), empty_is_all=False)
    return s.reshape(x, [n for d, n in enumerate(x.type.shape) if d not in gone or n != 1])


def _unsqueeze(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    at = s.dim(a["dim"], len(x.type.shape) + 1)
    return s.reshape(x, (*x.type.shape[:at], 1, *x.type.shape[at:]))


def _flatten(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    shape = x.type.shape
    if not shape:
        return s.reshape(x, (1,))
    first, last = (s.dim(a[n], len(shape)) for n in ("start_dim", "end_dim"))
    return s.reshape(x, (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]))


def _unflatten(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    at = s.dim(a["dim"], len(x.type.shape))
    sizes = list(s.shape(a["sizes"]))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.type.shape[at] // max(prod(n for n in sizes if n != -1), 1)
    return s.reshape(x, wanted_shape(s, x, (*x.type.shape[:at], *sizes, *x.type.shape[at + 1 :])))


def _flip(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    return s.emit("reverse", x, dims=s.dims(a["dims"], len(x.type.shape), empty_is_all=False))


def _repeat(s: Lowering, a: Arguments) -> Value:
    x, times = a["self"], s.shape(a["repeats"])
    shape = (1,) * (len(times) - len(x.type.shape)) + x.type.shape
    if len(shape) != len(times):
        s.fail(f"repeats {x.type} by {times}")
    whole = [n for pair in zip(times, shape, strict=True) for n in pair]
    spread = s.place(s.reshape(x, shape), range(1, len(whole), 2), whole)
    return s.reshape(spread, [n * m for n, m in zip(times, shape, strict=True)])


def repeated(s: Lowering, x: Value, dim: int, times: int) -> Value:
    """Each element `times` in a row along `dim`."""
    shape = x.type.shape
    whole = (*shape[: dim + 1], times, *shape[dim + 1 :])
    spread = s.place(x, [d + (d > dim) for d in range(len(shape))], whole)
    return s.reshape(spread, (*shape[:dim], shape[dim] * times, *shape[dim + 1 :]))


def _repeat_interleave(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    if a["dim"] is None:
        x = s.reshape(x, (x.type.size,))
    dim = 0 if a["dim"] is None else s.dim(a["dim"], len(x.type.shape))
    return repeated(s, x, dim, s.size(a["repeats"]))


def triangle(s: Lowering, shape: Sequence[int], diagonal: int, *, lower: bool) -> Value:
    """Whether an element of the last two dims is not above (lower) or not below that diagonal."""
    row, column = (s.iota(DType.S64, shape[-2:], d) for d in (0, 1))
    return s.compare("LE" if lower else "GE", column, s.pair("add", row, diagonal))


def _triangular(*, lower: bool) -> Rule:
    def rule(s: Lowering, a: Arguments) -> Value:
        x = a["self"]
        if len(x.type.shape) < 2:
            s.fail(f"takes a triangle of {x.type}")
        inside = triangle(s, x.type.shape, s.size(a["diagonal"]), lower=lower)
        return s.select(inside, x, s.like(x, 0))

    return rule


def _same(s: Lowering, a: Arguments) -> Any:
    return a["self"]


def _to_dtype(s: Lowering, a: Arguments) -> Value:
    x, dtype = a["self"], a["dtype"]
    if dtype is not None and not isinstance(dtype, DType):
        s.fail(f"converts to {dtype!r}, an element type is needed")
    return x if dtype is None else s.convert(x, dtype)


def _copy(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    return s.spread(s.convert(a["src"], x.type.dtype), x.type.shape)


def _type_as(s: Lowering, a: Arguments) -> Value:
    return s.convert(a["self"], a["other"].type.dtype)


def _refused(reason: str) -> Rule:
    def rule(s: Lowering, a: Arguments) -> Value:
        s.fail(f"{reason}, which is not supported")

    return rule


TABLE: Final[Table] = {
    **entries(
        "self size",
        _view,
        "aten.view",
        "aten._unsafe_view",
        "aten.view_copy",
        "aten._reshape_copy",
    ),
    **overloads("self dtype", _view_dtype, "aten.view", "dtype"),
    **entries("self shape:size", _view, "aten.reshape"),
    **entries("self dim0 dim1", _transpose, "aten.transpose.int", "aten.transpose_copy.int"),
    **entries("self axis0:dim0 axis1:dim1", _transpose, "aten.swapaxes"),
    **entries("self", _t, "aten.t", "aten.t_copy", "aten.numpy_T"),
    **entries("self dims", _permute, "aten.permute", "aten.permute_copy"),
    **entries("self source destination", _movedim, "aten.movedim.int", "aten.movedim.intlist"),
    **entries("self size implicit=False", _expand, "aten.expand", "aten.expand_copy"),
    **entries("self other", _expand_as, "aten.expand_as"),
    **entries("self", _squeeze, "aten.squeeze", "aten.squeeze_copy"),
    **entries(
        "self dim",
        _squeeze,
        "aten.squeeze.dim",
        "aten.squeeze.dims",
        "aten.squeeze_copy.dim",
        "aten.squeeze_copy.dims",
    ),
    **entries("self dim", _unsqueeze, "aten.unsqueeze", "aten.unsqueeze_copy"),
    **entries("self start_dim=0 end_dim=-1", _flatten, "aten.flatten.using_ints"),
    **entries("self dim sizes", _unflatten, "aten.unflatten.int"),
    **entries("self dims", _flip, "aten.flip"),
    **entries("self repeats", _repeat, "aten.repeat"),
    **entries(
        "self repeats dim=None output_size=None", _repeat_interleave, "aten.repeat_interleave.self_int"
    ),
    **entries("self diagonal=0", _triangular(lower=True), "aten.tril"),
    **entries("self diagonal=0", _triangular(lower=False), "aten.triu"),
    **entries(
        "self",
        _same,
        "aten.clone",
        "aten.detach",
        "aten.alias",
        "aten.contiguous",
        "aten.lift_fresh",
        "aten.lift_fresh_copy",
        "aten.lift",
        "aten.alias_copy",
        "aten.detach_copy",
    ),
    **entries("self dtype=None", _to_dtype, "aten._to_copy"),
    **entries("self dtype non_blocking=False copy=False memory_format=None", _to_dtype, "aten.to.dtype"),
    **entries(
        "self dtype=None layout=None device=None pin_memory=None non_blocking=False copy=False "
        "memory_format=None",
        _to_dtype,
        "aten.to.dtype_layout",
    ),
    **entries(
        "self device dtype non_blocking=False copy=False memory_format=None", _to_dtype, "aten.to.device"
    ),
    **entries("a:self dtype", _to_dtype, "prims.convert_element_type"),
    **entries("self other", _type_as, "aten.type_as"),
    **entries("self src", _copy, "aten.copy"),
    **entries(
        "self size stride storage_offset=None",
        _refused("reads memory by strides"),
        "aten.as_strided",
        "aten.as_strided_copy",
    ),
    **entries(
        "self src size stride storage_offset=None",
        _refused("writes memory by strides"),
        "aten.as_strided_scatter",
    ),
}
