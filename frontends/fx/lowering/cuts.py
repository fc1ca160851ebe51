"""Operators that cut tensors, join them, and write over parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.state import Arguments, Lowering
from shardproof.ir.module import Value
from shardproof.ir.types import DType


def bounds(s: Lowering, size: int, start: Any, end: Any) -> tuple[int, int]:
    """The half-open range of a slice: negative ends count from the back, both are cut to the dim."""
    low = 0 if start is None else s.size(start)
    high = size if end is None else s.size(end)
    low = min(max(low + size if low < 0 else low, 0), size)
    high = min(max(high + size if high < 0 else high, low), size)
    return low, high


def _slice(s: Lowering, a: Arguments) -> Value:
    x: Value = a["self"]
    dim = s.dim(a["dim"], len(x.type.shape))
    low, high = bounds(s, x.type.shape[dim], a["start"], a["end"])
    step = s.size(a["step"])
    if step < 1:
        s.fail(f"slices with the step {step}")
    if (low, high, step) == (0, x.type.shape[dim], 1):
        return x
    return s.slice(x, dim, low, high, step)


def position(s: Lowering, x: Value, dim: int, index: Any) -> int:
    """A position along a dim, counted from the end if negative."""
    size, at = x.type.shape[dim], s.size(index)
    if not -size <= at < size:
        s.fail(f"reads position {at} of dim {dim} of {x.type}")
    return at % size


def selected(s: Lowering, x: Value, dim: int, index: Any) -> Value:
    """`x` at one position of `dim`, without it."""
    at = position(s, x, dim, index)
    return s.reshape(s.slice(x, dim, at, at + 1), (*x.type.shape[:dim], *x.type.shape[dim + 1 :]))


def _select(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    return selected(s, x, s.dim(a["dim"], len(x.type.shape)), a["index"])


def _narrow(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    dim = s.dim(a["dim"], len(x.type.shape))
    start = s.size(a["start"])
    start += x.type.shape[dim] if start < 0 else 0
    return s.slice(x, dim, start, start + s.size(a["length"]))


def pieces(s: Lowering, x: Value, dim: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    """`x` cut along `dim` into pieces of these sizes."""
    if sum(sizes) != x.type.shape[dim] or any(n < 0 for n in sizes):
        s.fail(f"splits dim {dim} of {x.type} into {list(sizes)}")
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return tuple(s.slice(x, dim, end - n, end) for n, end in zip(sizes, ends, strict=True))


def _split_sizes(s: Lowering, a: Arguments) -> tuple[Value, ...]:
    x = a["self"]
    return pieces(s, x, s.dim(a["dim"], len(x.type.shape)), s.shape(a["sizes"]))


def _split(s: Lowering, a: Arguments) -> tuple[Value, ...]:
    x, each = a["self"], s.size(a["size"])
    dim = s.dim(a["dim"], len(x.type.shape))
    total = x.type.shape[dim]
    if each < 1:
        s.fail(f"splits into pieces of {each}")
    count = max(-(-total // each), 1)
    return pieces(s, x, dim, [min(each, total - k * each) for k in range(count)])


def _chunk(s: Lowering, a: Arguments) -> tuple[Value, ...]:
    x, count = a["self"], s.size(a["chunks"])
    total = x.type.shape[s.dim(a["dim"], len(x.type.shape))]
    if count < 1 or total == 0:
        s.fail(f"cuts {x.type} into {count} chunks")
    return _split(s, {**a, "size": -(-total // count)})


def _unbind(s: Lowering, a: Arguments) -> tuple[Value, ...]:
    x = a["self"]
    dim = s.dim(a["dim"], len(x.type.shape))
    return tuple(selected(s, x, dim, k) for k in range(x.type.shape[dim]))


def joined(s: Lowering, parts: Sequence[Value], dim: int) -> Value:
    """The parts, in their common element type, one after the other."""
    dtype = s.result_type(*parts)
    values = [s.convert(p, dtype) for p in parts]
    return values[0] if len(values) == 1 else s.emit("concatenate", *values, dim=dim)


def _cat(s: Lowering, a: Arguments) -> Value:
    parts = [p for p in a["tensors"] if p.type.shape != (0,)] or list(a["tensors"][:1])
    if not parts:
        s.fail("joins no tensors")
    return joined(s, parts, s.dim(a["dim"], len(parts[0].type.shape)))


def _difference(s: Lowering, a: Arguments) -> Value:
    """Each element less the one before it along `dim`, `n` times; of booleans whether they differ."""
    ends = [v for v in (a["prepend"], a["self"], a["append"]) if v is not None]
    dim = s.dim(a["dim"], len(a["self"].type.shape))
    x = joined(s, ends, dim)
    for _ in range(s.size(a["n"])):
        last = x.type.shape[dim]
        later, earlier = s.slice(x, dim, min(1, last), last), s.slice(x, dim, 0, max(last - 1, 0))
        x = s.pair("xor" if x.type.dtype.kind == "bool" else "subtract", later, earlier)
    return x


def _stack(s: Lowering, a: Arguments) -> Value:
    first = a["tensors"][0].type.shape
    dim = s.dim(a["dim"], len(first) + 1)
    return joined(s, [s.reshape(p, (*first[:dim], 1, *first[dim:])) for p in a["tensors"]], dim)


def _roll(s: Lowering, a: Arguments) -> Value:
    x, flat = a["self"], a["dims"] == ()
    shape = x.type.shape
    if flat:
        x = s.reshape(x, (x.type.size,))
    shifts, dims = ((v if isinstance(v, tuple) else (v,)) for v in (a["shifts"], (0,) if flat else a["dims"]))
    if len(shifts) != len(dims):
        s.fail(f"rolls dims {dims} by {shifts}")
    for shift, named in zip(shifts, dims, strict=True):
        dim = s.dim(named, len(x.type.shape))
        size = x.type.shape[dim]
        cut = size - s.size(shift) % max(size, 1)
        if 0 < cut < size:
            x = joined(s, [s.slice(x, dim, cut, size), s.slice(x, dim, 0, cut)], dim)
    return s.reshape(x, shape)


def _pad(s: Lowering, a: Arguments) -> Value:
    x, widths = a["self"], s.shape(a["pad"])
    rank, count = len(x.type.shape), len(widths) // 2
    if len(widths) % 2 or count > rank:
        s.fail(f"pads {x.type} by {list(widths)}")
    low = [0] * (rank - count) + list(widths[::2][::-1])
    high = [0] * (rank - count) + list(widths[1::2][::-1])
    value = s.scalar(a["value"], x.type.dtype)
    return s.emit("pad", x, value, low=tuple(low), high=tuple(high), interior=(0,) * rank)


def written(s: Lowering, x: Value, update: Value, dim: int, start: int) -> Value:
    """`x` with `update` written over it from `start` along `dim`."""
    zero = s.scalar(0, DType.S64)
    starts = [s.scalar(start, DType.S64) if d == dim else zero for d in range(len(x.type.shape))]
    return s.emit("dynamic_update_slice", x, update, *starts)


def _slice_scatter(s: Lowering, a: Arguments) -> Value:
    x: Value = a["self"]
    update = s.convert(a["src"], x.type.dtype)
    dim = s.dim(a["dim"], len(x.type.shape))
    size, step = x.type.shape[dim], s.size(a["step"])
    low, high = bounds(s, size, a["start"], a["end"])
    count = -(-(high - low) // step) if step > 0 else -1
    if update.type.shape != (*x.type.shape[:dim], count, *x.type.shape[dim + 1 :]):
        s.fail(f"writes {update.type} over {count} positions of dim {dim} of {x.type}")
    if count == size:
        return update
    if count == 0:
        return x
    return written(s, x, update, dim, low) if step == 1 else strided(s, x, update, dim, low, step)


def strided(s: Lowering, x: Value, update: Value, dim: int, start: int, step: int) -> Value:
    """`x` with `update` written over every `step`-th position from `start` along `dim`."""
    spread = spaced(s, update, x.type.shape, dim, start, step)
    at = s.iota(DType.S64, (x.type.shape[dim],), 0)
    count = update.type.shape[dim]
    inside = s.pair("and", s.compare("GE", at, start), s.compare("LE", at, start + (count - 1) * step))
    on_grid = s.compare("EQ", s.pair("remainder", s.pair("subtract", at, start), step), 0)
    hit = s.place(s.pair("and", inside, on_grid), (dim,), x.type.shape)
    return s.select(hit, spread, x)


def spaced(s: Lowering, x: Value, shape: Sequence[int], dim: int, start: int, step: int) -> Value:
    """Zeros of `shape` with `x` at every `step`-th position from `start` along `dim`."""
    rank, size = len(shape), x.type.shape[dim]
    covered = (size - 1) * step + 1 if size else 0

    def only(n: int) -> tuple[int, ...]:
        return tuple(n if d == dim else 0 for d in range(rank))

    zero = s.scalar(0, x.type.dtype)
    return s.emit(
        "pad", x, zero, low=only(start), high=only(shape[dim] - start - covered), interior=only(step - 1)
    )


def _slice_backward(s: Lowering, a: Arguments) -> Value:
    shape, step = s.shape(a["input_sizes"]), s.size(a["step"])
    dim = s.dim(a["dim"], len(shape))
    low, _ = bounds(s, shape[dim], a["start"], a["end"])
    return spaced(s, a["grad_output"], shape, dim, low, step)


def _select_backward(s: Lowering, a: Arguments) -> Value:
    grad, shape = a["grad_output"], s.shape(a["input_sizes"])
    dim = s.dim(a["dim"], len(shape))
    grad = s.reshape(grad, (*shape[:dim], 1, *shape[dim + 1 :]))
    return spaced(s, grad, shape, dim, s.size(a["index"]) % shape[dim], 1)


def _select_scatter(s: Lowering, a: Arguments) -> Value:
    x, update = a["self"], s.convert(a["src"], a["self"].type.dtype)
    shape = x.type.shape
    dim = s.dim(a["dim"], len(shape))
    update = s.reshape(update, (*shape[:dim], 1, *shape[dim + 1 :]))
    return written(s, x, update, dim, position(s, x, dim, a["index"]))


TABLE: Final[Table] = {
    **entries("self dim=0 start=None end=None step=1", _slice, "aten.slice.Tensor", "aten.slice_copy.Tensor"),
    **entries("self dim index", _select, "aten.select.int", "aten.select_copy.int"),
    **entries("self dim start length", _narrow, "aten.narrow", "aten.narrow_copy"),
    **entries(
        "self split_sizes:sizes dim=0", _split_sizes, "aten.split_with_sizes", "aten.split_with_sizes_copy"
    ),
    **entries("self split_size:size dim=0", _split, "aten.split.Tensor", "aten.split_copy.Tensor"),
    **entries("self chunks dim=0", _chunk, "aten.chunk"),
    **entries("self dim=0", _unbind, "aten.unbind.int", "aten.unbind_copy.int"),
    **entries("tensors dim=0", _cat, "aten.cat"),
    **entries("self n=1 dim=-1 prepend=None append=None", _difference, "aten.diff"),
    **entries("tensors dim=0", _stack, "aten.stack"),
    **entries("self shifts dims=()", _roll, "aten.roll"),
    **entries("self pad value=0", _pad, "aten.constant_pad_nd"),
    **entries("self src dim=0 start=None end=None step=1", _slice_scatter, "aten.slice_scatter"),
    **entries("self src dim index", _select_scatter, "aten.select_scatter"),
    **entries("grad_output input_sizes dim start end step", _slice_backward, "aten.slice_backward"),
    **entries("grad_output input_sizes dim index", _select_backward, "aten.select_backward"),
}
