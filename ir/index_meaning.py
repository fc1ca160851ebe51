"""What operators mean for views: each function states an operator in the few terms of `Algebra`.

Layout operators and collectives only change which element is read; the rest are pointwise functions,
reductions, reads at computed positions, and opaque functions. An operator without an entry, or one
whose meaning raises, is an opaque function that binds every dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from shardproof.ir.module import Op
from shardproof.ir.types import Array, TensorType

View = Any
Groups = tuple[tuple[int, ...], ...]


class Algebra(Protocol):
    """What the normaliser offers; dims and extents are checked by the type rules before."""

    def literal(self, value: Array, type: TensorType) -> View: ...
    def iota(self, type: TensorType, dim: int) -> View: ...
    def rank(self, type: TensorType) -> View: ...
    def elementwise(
        self, opcode: str, x: Sequence[View], type: TensorType, attrs: Mapping[str, Any]
    ) -> View: ...
    def broadcast(self, x: View, dims: Sequence[int], shape: tuple[int, ...]) -> View: ...
    def reshape(self, x: View, shape: tuple[int, ...]) -> View: ...
    def transpose(self, x: View, permutation: Sequence[int]) -> View: ...
    def slice(
        self, x: View, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]
    ) -> View: ...
    def reverse(self, x: View, dims: Sequence[int]) -> View: ...
    def pad(
        self, x: View, value: View, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
    ) -> View: ...
    def join(self, x: Sequence[View], dim: int) -> View: ...
    def reduce(self, x: View, dims: Sequence[int], kind: str) -> View: ...
    def combine(self, kind: str, x: View, y: View) -> View: ...
    def window(self, x: View, dim: int, size: int, stride: int, dilation: int, extent: int) -> View: ...
    def dot(
        self,
        x: View,
        y: View,
        contracting: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]],
    ) -> View: ...
    def gather(self, x: View, starts: View, attrs: Mapping[str, Any], shape: tuple[int, ...]) -> View: ...
    def scatter(self, x: View, starts: View, update: View, attrs: Mapping[str, Any]) -> View: ...
    def read_at(self, x: View, starts: Sequence[View], sizes: Sequence[int]) -> View: ...
    def write_at(self, x: View, update: View, starts: Sequence[View]) -> View: ...
    def opaque(
        self,
        name: str,
        x: Sequence[View],
        types: Sequence[TensorType],
        free: Sequence[tuple[Sequence[int], Sequence[int]]],
    ) -> tuple[View, ...]: ...
    def draw(self, name: str, type: TensorType) -> View: ...
    def all_reduce(self, x: View, kind: str, groups: Groups) -> View: ...
    def all_gather(self, x: View, dim: int, groups: Groups) -> View: ...
    def own_shard(self, x: View, dim: int, groups: Groups) -> View: ...
    def all_to_all(self, x: View, split: int, join: int, groups: Groups) -> View: ...
    def permute(self, x: View, pairs: Sequence[tuple[int, int]]) -> View: ...
    def from_first(self, x: View, groups: Groups) -> View: ...
    def agreed(self, x: View, groups: Groups) -> View: ...


Meaning = Callable[[Any, Op, Sequence[View]], Any]


def elementwise(k: Algebra, op: Op, x: Sequence[View]) -> View:
    shape = op.result.type.shape
    full = [v if v.shape == shape else k.broadcast(v, (), shape) for v in x]
    return k.elementwise(op.opcode, full, op.result.type, op.attrs)


def reduce(k: Algebra, op: Op, x: Sequence[View]) -> View:
    """The initial value takes part once, whatever it is."""
    reduced = k.reduce(x[0], op.attrs["dims"], op.attrs["kind"])
    first = k.broadcast(x[1], (), op.result.type.shape)
    return k.combine(op.attrs["kind"], first, reduced)


def argreduce(k: Algebra, op: Op, x: Sequence[View]) -> tuple[View, View]:
    """The value is a reduction; the position is an ordered function (first occurrence)."""
    dim, kind = op.attrs["dim"], op.attrs["kind"]
    shape = x[0].shape
    free = [((d,), (d - (d > dim),)) for d in range(len(shape)) if d != dim]
    (position,) = k.opaque(f"arg{kind}", x, (op.results[1].type,), free)
    return k.reduce(x[0], (dim,), kind), position


def sort(k: Algebra, op: Op, x: Sequence[View]) -> tuple[View, ...]:
    dim = op.attrs["dim"]
    free = [((d,) * len(x), (d,) * len(x)) for d in range(len(x[0].shape)) if d != dim]
    name = f"sort {op.attrs['comparator']} {op.attrs['stable']}"
    return k.opaque(name, x, [r.type for r in op.results], free)


def top_k(k: Algebra, op: Op, x: Sequence[View]) -> tuple[View, ...]:
    free = [((d,), (d, d)) for d in range(len(x[0].shape) - 1)]
    return k.opaque(f"top_k {op.attrs['k']}", x, [r.type for r in op.results], free)


def pad(k: Algebra, op: Op, x: Sequence[View]) -> View:
    a = op.attrs
    return k.pad(x[0], x[1], a["low"], a["high"], a["interior"])


def accumulated(k: Algebra, op: Op, x: Sequence[View]) -> list[View]:
    """Operands of a contraction as elements of its result, which may be a wider integer type."""
    dtype = op.result.type.dtype
    return [
        v
        if v.dtype is dtype or dtype.kind == "real"
        else k.elementwise("convert", [v], TensorType(dtype, v.shape), {})
        for v in x
    ]


def dot_general(k: Algebra, op: Op, x: Sequence[View]) -> View:
    a, x = op.attrs, accumulated(k, op, x)
    return k.dot(x[0], x[1], (a["lhs_contracting"], a["rhs_contracting"]), (a["lhs_batch"], a["rhs_batch"]))


def reduce_window(k: Algebra, op: Op, x: Sequence[View]) -> View:
    """Pad with the initial value, then reduce over one index per window dim."""
    a = op.attrs
    rank = len(a["sizes"])
    v = k.pad(x[0], x[1], a["pad_low"], a["pad_high"], [n - 1 for n in a["base_dilations"]])
    for d in range(rank):
        v = k.window(v, d, a["sizes"][d], a["strides"][d], a["window_dilations"][d], op.result.type.shape[d])
    v = k.reduce(v, tuple(range(rank, 2 * rank)), a["kind"])
    return k.combine(a["kind"], k.broadcast(x[1], (), op.result.type.shape), v)


def convolution(k: Algebra, op: Op, x: Sequence[View]) -> View | None:
    """A dot over (input feature, window positions), one per feature group."""
    a = op.attrs
    if a["batch_groups"] != 1:
        return None
    x = accumulated(k, op, x)
    lhs = k.transpose(x[0], a["lhs_dims"])
    rhs = k.transpose(x[1], a["rhs_dims"])
    spatial = len(a["lhs_dims"]) - 2
    rhs = k.reverse(rhs, [2 + d for d in range(spatial) if a["reversal"][d]])
    dtype = op.result.type.dtype
    zero = k.literal(np.zeros((), dtype.storage), TensorType(dtype, ()))
    low, high = (0, 0, *a["pad_low"]), (0, 0, *a["pad_high"])
    lhs = k.pad(lhs, zero, low, high, (0, 0, *(n - 1 for n in a["lhs_dilation"])))
    out = tuple(op.result.type.shape[d] for d in a["out_dims"])
    for d in range(spatial):
        lhs = k.window(lhs, 2 + d, rhs.shape[2 + d], a["strides"][d], a["rhs_dilation"][d], out[2 + d])
    groups = a["feature_groups"]
    windows = rhs.shape[2:]
    lhs = k.reshape(lhs, (out[0], groups, lhs.shape[1] // groups, *out[2:], *windows))
    rhs = k.reshape(rhs, (rhs.shape[0], groups, rhs.shape[1] // groups, *windows))
    contracting = (
        (2, *range(3 + spatial, 3 + 2 * spatial)),
        (0, *range(3, 3 + spatial)),
    )
    y = k.dot(lhs, rhs, contracting, ((1,), (1,)))
    y = k.transpose(y, (1, 0, 2 + spatial, *range(2, 2 + spatial)))
    y = k.reshape(y, out)
    return k.transpose(y, [a["out_dims"].index(d) for d in range(len(out))])


def reduce_scatter(k: Algebra, op: Op, x: Sequence[View]) -> View:
    whole = k.all_reduce(x[0], op.attrs["kind"], op.attrs["groups"])
    return k.own_shard(whole, op.attrs["dim"], op.attrs["groups"])


def opaque(k: Algebra, op: Op, x: Sequence[View]) -> tuple[View, ...]:
    name = f"{op.attrs['name']} {op.attrs['free']}"
    return k.opaque(name, x, [r.type for r in op.results], op.attrs["free"])


def custom_call(k: Algebra, op: Op, x: Sequence[View]) -> tuple[View, ...]:
    name = f"custom call {op.attrs['target']} {op.attrs['config']}"
    return k.opaque(name, x, [r.type for r in op.results], ())


ELEMENTWISE: Final = (
    *("negate", "abs", "exponential", "expm1", "log", "log1p", "logistic", "tanh", "tan", "sine", "cosine"),
    *("acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh", "sqrt", "rsqrt", "cbrt", "sign", "floor"),
    *("ceil", "round_even", "round_away", "not", "is_finite", "erf", "popcnt", "clz", "real", "imag", "add"),
    *("subtract", "multiply", "divide", "remainder", "maximum", "minimum", "power", "atan2", "and", "or"),
    *("xor", "shift_left", "shift_right_logical", "shift_right_arithmetic", "complex", "compare", "select"),
    *("clamp", "convert", "bitcast_convert"),
)

MEANING: Final[Mapping[str, Meaning]] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "constant": lambda k, op, x: k.literal(op.attrs["value"], op.result.type),
    "iota": lambda k, op, x: k.iota(op.result.type, op.attrs["dim"]),
    "rank_id": lambda k, op, x: k.rank(op.result.type),
    "broadcast_in_dim": lambda k, op, x: k.broadcast(x[0], op.attrs["dims"], op.result.type.shape),
    "reshape": lambda k, op, x: k.reshape(x[0], op.result.type.shape),
    "transpose": lambda k, op, x: k.transpose(x[0], op.attrs["permutation"]),
    "slice": lambda k, op, x: k.slice(x[0], op.attrs["starts"], op.attrs["limits"], op.attrs["strides"]),
    "reverse": lambda k, op, x: k.reverse(x[0], op.attrs["dims"]),
    "concatenate": lambda k, op, x: k.join(x, op.attrs["dim"]),
    "pad": pad,
    "reduce": reduce,
    "reduce_window": reduce_window,
    "argreduce": argreduce,
    "dot_general": dot_general,
    "convolution": convolution,
    "gather": lambda k, op, x: k.gather(x[0], x[1], op.attrs, op.result.type.shape),
    "scatter": lambda k, op, x: k.scatter(x[0], x[1], x[2], op.attrs),
    "dynamic_slice": lambda k, op, x: k.read_at(x[0], x[1:], op.attrs["sizes"]),
    "dynamic_update_slice": lambda k, op, x: k.write_at(x[0], x[1], x[2:]),
    "sort": sort,
    "top_k": top_k,
    "opaque": opaque,
    "custom_call": custom_call,
    "rng": lambda k, op, x: k.draw(op.attrs["distribution"], op.result.type),
    "all_reduce": lambda k, op, x: k.all_reduce(x[0], op.attrs["kind"], op.attrs["groups"]),
    "all_gather": lambda k, op, x: k.all_gather(x[0], op.attrs["dim"], op.attrs["groups"]),
    "reduce_scatter": reduce_scatter,
    "all_to_all": lambda k, op, x: k.all_to_all(
        x[0], op.attrs["split_dim"], op.attrs["concat_dim"], op.attrs["groups"]
    ),
    "collective_permute": lambda k, op, x: k.permute(x[0], op.attrs["pairs"]),
    "collective_broadcast": lambda k, op, x: k.from_first(x[0], op.attrs["groups"]),
    "agree": lambda k, op, x: k.agreed(x[0], op.attrs["groups"]),
}
