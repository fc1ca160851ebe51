"""Samples of every operator: operand types, attributes and the result types they must give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.types import DType, Mesh, TensorType

RANKS: Final = 4
PAIRS: Final = ((0, 1), (2, 3))


@dataclass(frozen=True)
class Sample:
    """One well-typed use of an operator on a mesh of `RANKS` ranks."""

    opcode: str
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.opcode}-{'-'.join(map(str, self.operands))}"

    def op(self) -> Op:
        """The operator, on values named x0, x1, ... and y0, y1, ..."""
        reads = tuple(Value(f"x{i}", t) for i, t in enumerate(self.operands))
        return Op(
            self.opcode, reads, tuple(Value(f"y{i}", t) for i, t in enumerate(self.results)), self.attrs
        )

    def arrays(self, seed: int) -> list[Any]:
        """Random operands: reals in (-2, 2), integers in 0 to 2."""
        draw = np.random.default_rng(seed)
        return [_draw(draw, t) for t in self.operands]


def _draw(draw: np.random.Generator, type_: TensorType) -> Any:
    kind = type_.dtype.kind
    if kind == "real":
        return draw.uniform(-2, 2, type_.shape)
    if kind == "complex":
        return draw.uniform(-2, 2, type_.shape) + 1j * draw.uniform(-2, 2, type_.shape)
    return draw.integers(0, 2 if kind == "bool" else 3, type_.shape).astype(type_.dtype.storage)


def t(text: str) -> TensorType:
    """The type that `str` writes so."""
    name, _, sizes = text.rstrip("]").partition("[")
    return TensorType(DType(name), tuple(int(n) for n in sizes.split(",") if n))


def _ts(text: str) -> tuple[TensorType, ...]:
    return tuple(t(word) for word in text.split())


def _s(opcode: str, operands: str, results: str, **attrs: Any) -> Sample:
    return Sample(opcode, _ts(operands), _ts(results), attrs)


_REAL_UNARY = (
    *("negate", "abs", "exponential", "expm1", "log", "log1p", "logistic", "tanh", "tan", "sine", "cosine"),
    *("sqrt", "rsqrt", "cbrt", "sign", "floor", "ceil", "round_even", "round_away", "erf"),
)
_TURNING = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh")
_COMPLEX_UNARY = ("negate", *_REAL_UNARY[2:13], *_TURNING)
_INTEGER_UNARY = ("negate", "abs", "sign", "not", "popcnt", "clz")
_REAL_BINARY = ("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "power", "atan2")
_INTEGER_BINARY = (
    *_REAL_BINARY[:-1],
    *("and", "or", "xor", "shift_left", "shift_right_logical", "shift_right_arithmetic"),
)
_BOOL_BINARY = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
_INTEGERS = ("s4", "s8", "s16", "s32", "s64", "u4", "u8", "u16", "u32", "u64")


def _pointwise() -> Iterator[Sample]:
    for name in (*_REAL_UNARY, *_TURNING):
        yield _s(name, "f32[2,3]", "f32[2,3]")
        yield _s(name, "bf16[0]", "bf16[0]")
    for name in _COMPLEX_UNARY:
        yield _s(name, "c64[3]", "c64[3]")
    for dtype in _INTEGERS:
        for name in _INTEGER_UNARY:
            yield _s(name, f"{dtype}[2,3]", f"{dtype}[2,3]")
        for name in _INTEGER_BINARY:
            yield _s(name, f"{dtype}[2,3] {dtype}[2,3]", f"{dtype}[2,3]")
        yield _s("clamp", f"{dtype}[] {dtype}[3] {dtype}[3]", f"{dtype}[3]")
    for name in _REAL_BINARY:
        yield _s(name, "f32[2,3] f32[2,3]", "f32[2,3]")
        yield _s(name, "f8e4m3fn[] f8e4m3fn[]", "f8e4m3fn[]")
    for name in _BOOL_BINARY:
        yield _s(name, "bool[2,3] bool[2,3]", "bool[2,3]")
    yield _s("not", "bool[2]", "bool[2]")
    yield _s("abs", "c128[2]", "f64[2]")
    yield _s("real", "c64[2]", "f32[2]")
    yield _s("imag", "c128[2]", "f64[2]")
    yield _s("complex", "f32[2] f32[2]", "c64[2]")
    yield _s("is_finite", "f16[2,2]", "bool[2,2]")
    for direction in ("EQ", "NE", "LT", "LE", "GT", "GE"):
        for total in (False, True):
            yield _s("compare", "f32[4] f32[4]", "bool[4]", direction=direction, total=total)
        yield _s("compare", "u8[4] u8[4]", "bool[4]", direction=direction, total=False)
    yield _s("select", "bool[2,3] f32[2,3] f32[2,3]", "f32[2,3]")
    yield _s("select", "bool[] s32[2,3] s32[2,3]", "s32[2,3]")
    yield _s("clamp", "f32[] f32[2,3] f32[]", "f32[2,3]")
    for source in ("bool", *_INTEGERS, "f32", "f16"):
        for target in ("bool", *_INTEGERS, "bf16", "f64", "c64"):
            yield _s("convert", f"{source}[3]", f"{target}[3]")


def _layout() -> Iterator[Sample]:
    yield _s("constant", "", "f32[2]", value=np.array([0.5, -np.inf], dtype=np.float32))
    yield _s("constant", "", "s4[3]", value=np.array([-8, 0, 7], dtype=np.int8))
    yield _s("constant", "", "bool[]", value=np.array(True))
    yield _s("iota", "", "s32[2,3]", dim=1)
    yield _s("iota", "", "bf16[2,3]", dim=0)
    yield _s("bitcast_convert", "s32[3]", "u32[3]")
    yield _s("bitcast_convert", "s32[3]", "f32[3]")
    yield _s("bitcast_convert", "u32[3]", "u8[3,4]")
    yield _s("bitcast_convert", "u8[3,4]", "u32[3]")
    yield _s("bitcast_convert", "u16[3]", "bf16[3]")
    yield _s("reshape", "f32[2,6]", "f32[3,4]")
    yield _s("reshape", "f32[1,1]", "f32[]")
    yield _s("broadcast_in_dim", "f32[3]", "f32[2,3]", dims=(1,))
    yield _s("broadcast_in_dim", "f32[3,1]", "f32[2,4,3]", dims=(2, 1))
    yield _s("broadcast_in_dim", "s8[]", "s8[2]", dims=())
    yield _s("transpose", "f32[2,3,4]", "f32[4,2,3]", permutation=(2, 0, 1))
    yield _s("slice", "f32[7,4]", "f32[3,2]", starts=(1, 2), limits=(6, 4), strides=(2, 1))
    yield _s("pad", "f32[3] f32[]", "f32[7]", low=(2,), high=(0,), interior=(1,))
    yield _s("pad", "f32[4,3] f32[]", "f32[2,4]", low=(-1, 0), high=(-1, 1), interior=(0, 0))
    yield _s("reverse", "f32[2,3]", "f32[2,3]", dims=(1,))
    yield _s("concatenate", "f32[2,1] f32[2,3]", "f32[2,4]", dim=1)


def _conv(**changes: Any) -> dict[str, Any]:
    return {
        "strides": (1, 1),
        "pad_low": (0, 0),
        "pad_high": (0, 0),
        "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1),
        "reversal": (False, False),
        "lhs_dims": (0, 1, 2, 3),
        "rhs_dims": (1, 0, 2, 3),
        "out_dims": (0, 1, 2, 3),
        "feature_groups": 1,
        "batch_groups": 1,
    } | changes


def _dot(**changes: Any) -> dict[str, Any]:
    none: dict[str, Any] = {"lhs_contracting": (), "rhs_contracting": (), "lhs_batch": (), "rhs_batch": ()}
    return none | changes


def _window(kind: str, **changes: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "sizes": (1, 3),
        "strides": (1, 1),
        "base_dilations": (1, 1),
        "window_dilations": (1, 1),
        "pad_low": (0, 0),
        "pad_high": (0, 0),
    } | changes


def _contractions() -> Iterator[Sample]:
    matrix = _dot(lhs_contracting=(1,), rhs_contracting=(0,))
    yield _s("dot_general", "f32[2,3] f32[3,4]", "f32[2,4]", **matrix)
    yield _s("dot_general", "s8[2,3] s8[3,4]", "s32[2,4]", **matrix)
    yield _s("dot_general", "bool[2,3] bool[3,4]", "bool[2,4]", **matrix)
    yield _s("dot_general", "f32[2,0] f32[0,4]", "f32[2,4]", **matrix)
    batched = _dot(lhs_contracting=(3, 0), rhs_contracting=(1, 3), lhs_batch=(1,), rhs_batch=(2,))
    yield _s("dot_general", "bf16[5,2,3,4] bf16[6,4,2,5]", "f32[2,3,6]", **batched)
    yield _s("convolution", "f32[2,3,5,6] f32[4,3,2,3]", "f32[2,4,4,4]", **_conv())
    strided = _conv(
        strides=(2, 1), pad_low=(1, 0), pad_high=(1, -1), rhs_dilation=(2, 1), reversal=(True, False)
    )
    yield _s("convolution", "f32[2,3,5,6] f32[4,3,2,3]", "f32[2,4,3,3]", **strided)
    yield _s("convolution", "f32[2,4,5,6] f32[6,2,2,2]", "f32[2,6,4,5]", **_conv(feature_groups=2))
    yield _s("convolution", "f32[4,3,5,6] f32[6,3,2,2]", "f32[2,6,4,5]", **_conv(batch_groups=2))
    moved = _conv(lhs_dims=(0, 3, 1, 2), rhs_dims=(2, 3, 0, 1), out_dims=(1, 0, 3, 2), lhs_dilation=(2, 1))
    yield _s("convolution", "f32[2,5,6,3] f32[2,3,3,4]", "f32[4,2,4,8]", **moved)
    for kind in ("sum", "prod", "max", "min"):
        yield _s("reduce", "f32[2,3,4] f32[]", "f32[3]", dims=(0, 2), kind=kind)
        yield _s("reduce", "f32[2,0] f32[]", "f32[2]", dims=(1,), kind=kind)
        yield _s("reduce", "u8[2,3] u8[]", "u8[2]", dims=(1,), kind=kind)
        yield _s("reduce_window", "f32[2,5] f32[]", "f32[2,3]", **_window(kind))
    for kind in ("sum", "prod", "max", "min", "and", "or"):
        yield _s("reduce", "bool[2,3] bool[]", "bool[2]", dims=(1,), kind=kind)
        yield _s("reduce", "s16[2,3] s16[]", "s16[3]", dims=(0,), kind=kind)
    sparse = _window("max", pad_low=(0, 2), pad_high=(1, 0), base_dilations=(1, 2), window_dilations=(1, 3))
    yield _s("reduce_window", "f32[2,5] f32[]", "f32[3,5]", **sparse)
    for kind in ("max", "min"):
        yield _s("argreduce", "f32[2,5]", "f32[2] s32[2]", dim=1, kind=kind)
        yield _s("argreduce", "s8[2,5]", "s8[5] u32[5]", dim=0, kind=kind)


def _gather(**changes: Any) -> dict[str, Any]:
    return {
        "offset_dims": (),
        "collapsed_slice_dims": (),
        "start_index_map": (),
        "index_vector_dim": 0,
        "slice_sizes": (),
        "operand_batching_dims": (),
        "start_indices_batching_dims": (),
    } | changes


def _scatter(**changes: Any) -> dict[str, Any]:
    return {
        "update_window_dims": (),
        "inserted_window_dims": (),
        "scatter_dims_to_operand_dims": (),
        "index_vector_dim": 0,
        "input_batching_dims": (),
        "scatter_indices_batching_dims": (),
        "kind": "sum",
        "unique": False,
    } | changes


EMBEDDING: Final = _gather(
    offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=2, slice_sizes=(1, 4)
)
ROWS: Final = _scatter(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1
)


def _scalars() -> Iterator[Sample]:
    """Operators on tensors without dims."""
    yield _s("slice", "f32[]", "f32[]", starts=(), limits=(), strides=())
    yield _s("dynamic_slice", "f32[]", "f32[]", sizes=())
    yield _s("dynamic_update_slice", "f32[] f32[]", "f32[]")
    yield _s("reduce", "f32[] f32[]", "f32[]", dims=(), kind="sum")
    yield _s("reduce", "f32[3] f32[]", "f32[]", dims=(0,), kind="max")
    yield _s("gather", "f32[] s32[3,0]", "f32[3]", **_gather(index_vector_dim=1))
    yield _s("scatter", "f32[] s32[3,0] f32[3]", "f32[]", **_scatter(index_vector_dim=1))
    yield _s("convert", "f32[]", "bool[]")
    yield _s("transpose", "f32[]", "f32[]", permutation=())
    yield _s("reverse", "f32[]", "f32[]", dims=())
    yield _s("broadcast_in_dim", "f32[]", "f32[]", dims=())
    yield _s("argreduce", "f32[5]", "f32[] s32[]", dim=0, kind="max")
    yield _s("compare", "f32[] f32[]", "bool[]", direction="LT", total=False)
    yield _s("dot_general", "f32[3] f32[3]", "f32[]", **_dot(lhs_contracting=(0,), rhs_contracting=(0,)))
    yield _s("not", "bool[]", "bool[]")


def _indexing() -> Iterator[Sample]:
    yield _s("gather", "f32[7,4] s32[2,3]", "f32[2,3,4]", **EMBEDDING)
    windows = _gather(offset_dims=(0, 2), start_index_map=(1, 0), index_vector_dim=0, slice_sizes=(2, 3))
    yield _s("gather", "f32[4,5] u8[2,6]", "f32[2,6,3]", **windows)
    batched = _gather(
        offset_dims=(1,),
        collapsed_slice_dims=(1,),
        start_index_map=(1,),
        index_vector_dim=2,
        slice_sizes=(1, 1, 2),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(1,),
    )
    yield _s("gather", "f32[3,5,4] s64[6,3]", "f32[6,2,3]", **batched)
    for kind in ("sum", "prod", "max", "min"):
        yield _s("scatter", "f32[7,4] s32[3] f32[3,4]", "f32[7,4]", **(ROWS | {"kind": kind}))
    yield _s("scatter", "f32[7,4] s32[1] f32[1,4]", "f32[7,4]", **(ROWS | {"kind": "set", "unique": True}))
    inner = _scatter(
        update_window_dims=(2,),
        scatter_dims_to_operand_dims=(1,),
        inserted_window_dims=(),
        index_vector_dim=2,
        input_batching_dims=(0,),
        scatter_indices_batching_dims=(1,),
    )
    yield _s("scatter", "s32[3,5] s32[6,3] s32[6,3,2]", "s32[3,5]", **inner)
    yield _s("dynamic_slice", "f32[5,4] s32[] u8[]", "f32[2,4]", sizes=(2, 4))
    yield _s("dynamic_update_slice", "f32[5,4] f32[2,3] s32[] s32[]", "f32[5,4]")
    yield _s("sort", "f32[2,5] s32[2,5]", "f32[2,5] s32[2,5]", dim=1, comparator="lt:0", stable=True)
    yield _s("sort", "f32[2,5] s32[2,5]", "f32[2,5] s32[2,5]", dim=0, comparator="gt:1", stable=True)
    yield from _scalars()
    yield _s("top_k", "f32[2,5]", "f32[2,3] s32[2,3]", k=3)


def _named() -> Iterator[Sample]:
    norm = {"target": "AwsNeuronRmsNorm", "config": "1"}
    yield _s("custom_call", "f32[2,4,3] f32[4] f32[]", "f32[2,4,3]", **norm)
    yield _s("custom_call", "f32[2]", "s32[] f32[5]", target="Unknown", config="")
    free = (((0, -1), (1,)), ((1, 0), (0,)))
    yield _s("opaque", "f32[2,3] f32[3]", "f32[3,2]", name="f", free=free)
    yield _s("rng", "f32[] f32[]", "f32[2,3]", distribution="uniform")
    yield _s("rng_bit_generator", "u64[2]", "u64[2] u32[3]", algorithm="threefry")


def _loops() -> Iterator[Sample]:
    step, carry, row = (Value(n, t("f32[2]")) for n in ("step", "carry", "row"))
    total = Value("total", t("f32[2]"))
    body = Module(
        "round",
        Mesh((("x", 2), ("y", 2))),
        (Input(step, 0), Input(carry, 1), Input(row, 2)),
        (Op("add", (carry, row), (total,)),),
        (Output("carry", total), Output("row", step)),
    )
    for reverse in (False, True):
        yield _s(
            "scan",
            "f32[2] f32[2] f32[3,2]",
            "f32[2] f32[3,2]",
            body=body,
            consts=1,
            carries=1,
            length=3,
            reverse=reverse,
        )


def _collectives() -> Iterator[Sample]:
    for kind in ("sum", "prod", "max", "min"):
        yield _s("all_reduce", "f32[2,3]", "f32[2,3]", kind=kind, groups=PAIRS)
    yield _s("all_reduce", "bool[3]", "bool[3]", kind="or", groups=((0,), (1, 2, 3)))
    yield _s("all_gather", "f32[2,3]", "f32[2,6]", dim=1, groups=PAIRS)
    yield _s("reduce_scatter", "f32[2,4]", "f32[2,2]", dim=1, kind="sum", groups=((1, 0), (3, 2)))
    yield _s("all_to_all", "f32[4,3]", "f32[1,12]", split_dim=0, concat_dim=1, groups=((0, 1, 2, 3),))
    yield _s("collective_permute", "f32[2]", "f32[2]", pairs=((0, 1), (1, 2), (3, 3)))
    yield _s("collective_broadcast", "f32[2]", "f32[2]", groups=((2, 0),))
    yield _s("agree", "f32[2]", "f32[2]", groups=PAIRS)
    yield _s("rank_id", "", "u32[]")


SAMPLES: Final = (
    *_pointwise(),
    *_layout(),
    *_contractions(),
    *_indexing(),
    *_named(),
    *_collectives(),
    *_loops(),
)
