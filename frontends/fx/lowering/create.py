"""Operators that make tensors: constants, counting, uninitialised memory and random draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.dtypes import of_number
from shardproof.frontends.fx.lowering.state import Arguments, Lowering, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType

_WORDS: Final = {8: DType.U8, 16: DType.S16, 32: DType.S32, 64: DType.S64}


def uninitialised(s: Lowering, dtype: DType, shape: Sequence[int]) -> Value:
    """Memory of unknown content: fresh bits, so that a real may be an infinity or nan (E1 of soundness)."""
    found = s.draw(_WORDS[dtype.bits] if dtype.kind == "real" else dtype, shape)
    if dtype.kind == "real":
        found = s.emit("bitcast_convert", found, type=TensorType(dtype, tuple(shape)))
    s.raw.add(found)
    return found


def _dtype(s: Lowering, given: Any, otherwise: DType | None = None) -> DType:
    """The element type asked for; without one that of `otherwise`, else the default: recorded, or f32."""
    if isinstance(given, DType):
        return given
    if given is not None:
        s.fail(f"has the element type {given!r}, which is not known")
    return otherwise if otherwise is not None else s.floating(DType.S64)


def _filled(value: int | None) -> Rule:
    """A tensor of that size filled with a number; None for uninitialised memory."""

    def rule(s: Lowering, a: Arguments) -> Value:
        shape = s.shape(a["size"])
        like = a["self"].type.dtype if "self" in a else None
        dtype = _dtype(s, a["dtype"], like)
        return uninitialised(s, dtype, shape) if value is None else s.full(value, dtype, shape)

    return rule


def _filled_like(value: int | None) -> Rule:
    """The same of the size of a tensor."""

    def rule(s: Lowering, a: Arguments) -> Value:
        x = a["self"]
        dtype = _dtype(s, a["dtype"], x.type.dtype)
        if value is None:
            return uninitialised(s, dtype, x.type.shape)
        return s.full(value, dtype, x.type.shape)

    return rule


def _full(s: Lowering, a: Arguments) -> Value:
    value = a["fill_value"]
    if isinstance(value, Value):
        s.fail("fills with a tensor, a number is needed")
    inferred = of_number(value)
    dtype = _dtype(s, a["dtype"], None if inferred is DType.F32 else inferred)
    return s.full(value, dtype, s.shape(a["size"]))


def _full_like(s: Lowering, a: Arguments) -> Value:
    """`full_like` and `new_full`: the element type of the tensor."""
    x = a["self"]
    shape = s.shape(a["size"]) if "size" in a else x.type.shape
    return s.full(a["fill_value"], _dtype(s, a["dtype"], x.type.dtype), shape)


def _fill(s: Lowering, a: Arguments) -> Value:
    """Every element is the number or the scalar tensor."""
    x = a["self"]
    return s.spread(s.tensor(a["value"], x.type.dtype), x.type.shape)


def _scalar_tensor(s: Lowering, a: Arguments) -> Value:
    return s.scalar(a["s"], _dtype(s, a["dtype"]))


def counted(s: Lowering, start: Any, end: Any, step: Any, dtype: Any, *, begins: bool) -> Value:
    """`start`, `start + step`, ... below `end`. `begins` keeps the addition of a start of 0, so that the
    programs of ranks that start elsewhere have the same operators."""
    numbers = [n if isinstance(n, float) else s.size(n) for n in (start, end, step)]
    start, end, step = numbers
    if step == 0:
        s.fail("counts by steps of 0")
    whole = all(isinstance(n, int) for n in numbers)
    target = _dtype(s, dtype, DType.S64 if whole else None)
    count = -(-(end - start) // step) if whole else math.ceil((end - start) / step)
    if target.kind != "real" and not whole:
        s.fail("counts integers by reals, which is not supported")
    result = s.iota(target, (max(count, 0),), 0)
    if step != 1:
        result = s.pair("multiply", result, step)
    if begins:
        result = s.pair("add", result, start)
        if (start, step) == (0, 1):
            s.lines[result] = 0
    return result


def _arange(s: Lowering, a: Arguments) -> Value:
    return counted(s, 0, a["end"], 1, a["dtype"], begins=False)


def _arange_from(s: Lowering, a: Arguments) -> Value:
    return counted(s, a["start"], a["end"], a.get("step", 1), a["dtype"], begins=True)


def _eye(s: Lowering, a: Arguments) -> Value:
    rows = s.size(a["n"])
    shape = (rows, s.size(a["m"]) if "m" in a else rows)
    row, column = (s.iota(DType.S64, shape, d) for d in (0, 1))
    return s.convert(s.compare("EQ", row, column), _dtype(s, a["dtype"]))


def _random(distribution: str) -> Rule:
    def rule(s: Lowering, a: Arguments) -> Value:
        x = a.get("self")
        if a.get("generator") is not None:
            s.fail("draws from a generator of its own, which is not supported")
        shape = s.shape(a["size"]) if x is None else x.type.shape
        return s.draw(_dtype(s, a["dtype"], None if x is None else x.type.dtype), shape, distribution)

    return rule


def kept(s: Lowering, shape: Sequence[int], dropped: float) -> Value:
    """A fresh mask that holds with the probability `1 - dropped`, as bool."""
    return s.compare("GE", s.draw(DType.F32, shape), float(dropped))


def dropped_out(s: Lowering, x: Value, probability: float) -> tuple[Value, Value]:
    """`x` with elements dropped and the rest scaled up, and the mask of those kept."""
    if not 0 <= probability <= 1:
        s.fail(f"drops with the probability {probability}")
    mask = kept(s, x.type.shape, probability)
    scale = 0.0 if probability == 1 else 1.0 / (1.0 - probability)
    masked = s.pair("multiply", x, s.convert(mask, x.type.dtype))
    return s.pair("multiply", masked, scale), mask


def _native_dropout(s: Lowering, a: Arguments) -> tuple[Value, Value]:
    x = a["input"]
    if a["train"] is False or a["p"] == 0:
        return x, s.full(True, DType.BOOL, x.type.shape)
    return dropped_out(s, x, a["p"])


def _dropout(s: Lowering, a: Arguments) -> Value:
    x: Value = a["input"]
    return x if a["train"] is False or a["p"] == 0 else dropped_out(s, x, a["p"])[0]


def _dropout_backward(s: Lowering, a: Arguments) -> Value:
    grad = a["grad_output"]
    masked = s.pair("multiply", grad, s.convert(a["mask"], grad.type.dtype))
    return s.pair("multiply", masked, a["scale"])


def _bernoulli(s: Lowering, a: Arguments) -> Value:
    x = a["self"]
    if a.get("generator") is not None:
        s.fail("draws from a generator of its own, which is not supported")
    drawn = s.draw(DType.F32, x.type.shape)
    p = x if a.get("p") is None else s.full(a["p"], DType.F32, x.type.shape)
    return s.convert(s.compare("LT", drawn, s.convert(p, DType.F32)), x.type.dtype)


TABLE: Final[Table] = {
    **entries("size dtype=None", _filled(0), "aten.zeros"),
    **entries("size dtype=None", _filled(1), "aten.ones"),
    **entries("size dtype=None", _filled(None), "aten.empty.memory_format"),
    **entries("size stride dtype=None", _filled(None), "aten.empty_strided"),
    **entries("size physical_layout dtype=None", _filled(None), "aten.empty_permuted"),
    **entries("self size dtype=None", _filled(0), "aten.new_zeros"),
    **entries("self size dtype=None", _filled(1), "aten.new_ones"),
    **entries("self size dtype=None", _filled(None), "aten.new_empty"),
    **entries("self size stride dtype=None", _filled(None), "aten.new_empty_strided"),
    **entries("self dtype=None", _filled_like(0), "aten.zeros_like"),
    **entries("self dtype=None", _filled_like(1), "aten.ones_like"),
    **entries("self dtype=None", _filled_like(None), "aten.empty_like"),
    **entries("size fill_value dtype=None", _full, "aten.full"),
    **entries("self fill_value dtype=None", _full_like, "aten.full_like"),
    **entries("self size fill_value dtype=None", _full_like, "aten.new_full"),
    **entries("self value", _fill, "aten.fill.Scalar", "aten.fill.Tensor"),
    **entries("s dtype=None", _scalar_tensor, "aten.scalar_tensor"),
    **entries("end dtype=None", _arange, "aten.arange"),
    **entries("start end dtype=None", _arange_from, "aten.arange.start"),
    **entries("start end step=1 dtype=None", _arange_from, "aten.arange.start_step"),
    **entries("n dtype=None", _eye, "aten.eye"),
    **entries("n m dtype=None", _eye, "aten.eye.m"),
    **entries("size dtype=None", _random("uniform"), "aten.rand"),
    **entries("size dtype=None", _random("normal"), "aten.randn"),
    **entries("self dtype=None generator=None", _random("uniform"), "aten.rand_like"),
    **entries("self dtype=None generator=None", _random("normal"), "aten.randn_like"),
    **entries("input p train", _native_dropout, "aten.native_dropout"),
    **entries("input p train", _dropout, "aten.dropout"),
    **entries("grad_output mask scale", _dropout_backward, "aten.native_dropout_backward"),
    **entries("self generator=None", _bernoulli, "aten.bernoulli"),
    **entries("self p generator=None", _bernoulli, "aten.bernoulli.p"),
}
