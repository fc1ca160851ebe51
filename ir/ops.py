"""The operator table: one row per operator with everything the project knows of it.

Names and attributes follow StableHLO. A row gives

- `attrs`: the attributes, exactly these; an operator with another attribute is not this operator;
- `type`: the type rule (`shardproof.ir.typing`), raising `ModuleError`;
- `numpy`: what it computes on one rank (`shardproof.ir.numpy_meaning`); None for collectives and
  `rank_id`, which the interpreter runs on all ranks in lock-step, and for what NumPy can't compute;
- `index`: what it means for views (`shardproof.ir.index_meaning`); None means that the operator
  is an opaque function that binds all dims of all operands;
- `traits`: `elementwise`, `commutative`, `collective`, `random` (each use is a fresh draw),
  `closed` (no operand), `effect`;
- `spellings`: the names in other dialects, keyed `hlo`, `aten`, `jax`, `onnx`. A spelling says where
  to look; a frontend decides by the attributes whether a use of it is this operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardproof.ir import index_meaning as index
from shardproof.ir import named_functions as named
from shardproof.ir import numpy_compute as compute
from shardproof.ir import numpy_meaning as numpy
from shardproof.ir import typing
from shardproof.ir import typing_compute as rules
from shardproof.ir import typing_index as indexing
from shardproof.ir.module import Op
from shardproof.ir.types import Array, TensorType

TypeRule = Callable[[Sequence[TensorType], Mapping[str, Any], Sequence[TensorType]], tuple[TensorType, ...]]
"""(operand types, attributes, declared result types) -> result types; the declared ones serve operators
such as `reshape` and `convert` whose result type is not a function of the operands."""
NumpyMeaning = Callable[[Op, Sequence[Array]], tuple[Array, ...]]
IndexMeaning = Callable[[Any, Op, Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One operator."""

    name: str
    type: TypeRule
    numpy: NumpyMeaning | None
    index: IndexMeaning | None
    attrs: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _row(
    name: str,
    type_: TypeRule,
    meaning: NumpyMeaning | None,
    attrs: str = "",
    traits: str = "",
    **spellings: str,
) -> Row:
    """A row whose names are given as words separated by spaces."""
    names = {dialect: tuple(words.split()) for dialect, words in spellings.items()}
    views = index.MEANING.get(name)
    return Row(name, type_, meaning, views, tuple(attrs.split()), frozenset(traits.split()), names)


_NUMBER: Final = typing.pointwise(1, "int", "uint", "real", "complex")
_SIGN: Final = typing.pointwise(1, "int", "uint", "real")
_ANALYTIC: Final = typing.pointwise(1, "real", "complex")
_REAL: Final = typing.pointwise(1, "real")
_INTEGER: Final = typing.pointwise(1, "int", "uint")
_LOGICAL: Final = typing.pointwise(1, "bool", "int", "uint")
_ADDITIVE: Final = typing.pointwise(2, "bool", "int", "uint", "real", "complex")
_FIELD: Final = typing.pointwise(2, "int", "uint", "real", "complex")
_REMAINDER: Final = typing.pointwise(2, "int", "uint", "real")
_ORDERED: Final = typing.pointwise(2, "bool", "int", "uint", "real")
_ANGLE: Final = typing.pointwise(2, "real")
_LOGICAL_2: Final = typing.pointwise(2, "bool", "int", "uint")
_SHIFT: Final = typing.pointwise(2, "int", "uint")

_E: Final = "elementwise"
_EC: Final = "elementwise commutative"
_GATHER: Final = (
    "offset_dims collapsed_slice_dims start_index_map index_vector_dim slice_sizes "
    "operand_batching_dims start_indices_batching_dims"
)
_SCATTER: Final = (
    "update_window_dims inserted_window_dims scatter_dims_to_operand_dims index_vector_dim "
    "input_batching_dims scatter_indices_batching_dims kind unique"
)
_CONVOLUTION: Final = (
    "strides pad_low pad_high lhs_dilation rhs_dilation reversal "
    "lhs_dims rhs_dims out_dims feature_groups batch_groups"
)
_WINDOW: Final = "kind sizes strides base_dilations window_dilations pad_low pad_high"

# fmt: off
_CREATION: Final = (
    _row("constant", typing.constant, numpy.constant, "value", "closed", hlo="constant", onnx="Constant"),
    _row("iota", typing.iota, numpy.iota, "dim", "closed", hlo="iota", aten="arange", jax="iota",
         onnx="Range"),
)

_UNARY: Final = (
    _row("convert", typing.convert, numpy.convert, "", _E, hlo="convert", aten="_to_copy to.dtype",
         jax="convert_element_type", onnx="Cast"),
    _row("negate", _NUMBER, numpy.negate, "", _E, hlo="negate", aten="neg", jax="neg", onnx="Neg"),
    _row("abs", typing.absolute, numpy.abs_, "", _E, hlo="abs", aten="abs", jax="abs", onnx="Abs"),
    _row("exponential", _ANALYTIC, numpy.exponential, "", _E, hlo="exponential", aten="exp", jax="exp",
         onnx="Exp"),
    _row("expm1", _ANALYTIC, numpy.expm1, "", _E, hlo="exponential-minus-one", aten="expm1", jax="expm1"),
    _row("log", _ANALYTIC, numpy.log, "", _E, hlo="log", aten="log", jax="log", onnx="Log"),
    _row("log1p", _ANALYTIC, numpy.log1p, "", _E, hlo="log-plus-one", aten="log1p", jax="log1p"),
    _row("logistic", _ANALYTIC, numpy.logistic, "", _E, hlo="logistic", aten="sigmoid", jax="logistic",
         onnx="Sigmoid"),
    _row("tanh", _ANALYTIC, numpy.tanh, "", _E, hlo="tanh", aten="tanh", jax="tanh", onnx="Tanh"),
    _row("tan", _ANALYTIC, numpy.tan, "", _E, hlo="tan", aten="tan", jax="tan", onnx="Tan"),
    _row("sine", _ANALYTIC, numpy.sine, "", _E, hlo="sine", aten="sin", jax="sin", onnx="Sin"),
    _row("cosine", _ANALYTIC, numpy.cosine, "", _E, hlo="cosine", aten="cos", jax="cos", onnx="Cos"),
    _row("acos", _ANALYTIC, numpy.acos, "", _E, hlo="acos", aten="acos", jax="acos", onnx="Acos"),
    _row("acosh", _ANALYTIC, numpy.acosh, "", _E, hlo="acosh", aten="acosh", jax="acosh", onnx="Acosh"),
    _row("asin", _ANALYTIC, numpy.asin, "", _E, hlo="asin", aten="asin", jax="asin", onnx="Asin"),
    _row("asinh", _ANALYTIC, numpy.asinh, "", _E, hlo="asinh", aten="asinh", jax="asinh", onnx="Asinh"),
    _row("atanh", _ANALYTIC, numpy.atanh, "", _E, hlo="atanh", aten="atanh", jax="atanh", onnx="Atanh"),
    _row("cosh", _ANALYTIC, numpy.cosh, "", _E, hlo="cosh", aten="cosh", jax="cosh", onnx="Cosh"),
    _row("sinh", _ANALYTIC, numpy.sinh, "", _E, hlo="sinh", aten="sinh", jax="sinh", onnx="Sinh"),
    _row("sqrt", _ANALYTIC, numpy.sqrt, "", _E, hlo="sqrt", aten="sqrt", jax="sqrt", onnx="Sqrt"),
    _row("rsqrt", _ANALYTIC, numpy.rsqrt, "", _E, hlo="rsqrt", aten="rsqrt", jax="rsqrt"),
    _row("cbrt", _REAL, numpy.cbrt, "", _E, hlo="cbrt", jax="cbrt"),
    _row("sign", _SIGN, numpy.sign, "", _E, hlo="sign", aten="sign", jax="sign", onnx="Sign"),
    _row("floor", _REAL, numpy.floor, "", _E, hlo="floor", aten="floor", jax="floor", onnx="Floor"),
    _row("ceil", _REAL, numpy.ceil, "", _E, hlo="ceil", aten="ceil", jax="ceil", onnx="Ceil"),
    _row("round_even", _REAL, numpy.round_even, "", _E, hlo="round-nearest-even", aten="round", jax="round",
         onnx="Round"),
    _row("round_away", _REAL, numpy.round_away, "", _E, hlo="round-nearest-afz", jax="round"),
    _row("not", _LOGICAL, numpy.not_, "", _E, hlo="not", aten="bitwise_not logical_not", jax="not",
         onnx="Not BitwiseNot"),
    _row("is_finite", typing.predicate, numpy.is_finite, "", _E, hlo="is-finite", aten="isfinite",
         jax="is_finite"),
    _row("erf", _REAL, numpy.erf, "", _E, hlo="erf", aten="erf", jax="erf", onnx="Erf"),
    _row("popcnt", _INTEGER, numpy.popcnt, "", _E, hlo="popcnt", jax="population_count"),
    _row("clz", _INTEGER, numpy.clz, "", _E, hlo="count-leading-zeros", jax="clz"),
    _row("real", typing.complex_part, numpy.real, "", _E, hlo="real", aten="real", jax="real"),
    _row("imag", typing.complex_part, numpy.imag, "", _E, hlo="imag", aten="imag", jax="imag"),
)

_BINARY: Final = (
    _row("add", _ADDITIVE, numpy.add, "", _EC, hlo="add", aten="add.Tensor", jax="add add_any", onnx="Add"),
    _row("subtract", _FIELD, numpy.subtract, "", _E, hlo="subtract", aten="sub.Tensor", jax="sub",
         onnx="Sub"),
    _row("multiply", _ADDITIVE, numpy.multiply, "", _EC, hlo="multiply", aten="mul.Tensor", jax="mul",
         onnx="Mul"),
    _row("divide", _FIELD, numpy.divide, "", _E, hlo="divide", aten="div.Tensor", jax="div", onnx="Div"),
    _row("remainder", _REMAINDER, numpy.remainder, "", _E, hlo="remainder", aten="fmod.Tensor", jax="rem",
         onnx="Mod"),
    _row("maximum", _ORDERED, numpy.maximum, "", _EC, hlo="maximum", aten="maximum", jax="max", onnx="Max"),
    _row("minimum", _ORDERED, numpy.minimum, "", _EC, hlo="minimum", aten="minimum", jax="min", onnx="Min"),
    _row("power", _FIELD, numpy.power, "", _E, hlo="power", aten="pow.Tensor_Tensor", jax="pow", onnx="Pow"),
    _row("atan2", _ANGLE, numpy.atan2, "", _E, hlo="atan2", aten="atan2", jax="atan2"),
    _row("and", _LOGICAL_2, numpy.and_, "", _EC, hlo="and", aten="bitwise_and.Tensor logical_and", jax="and",
         onnx="And BitwiseAnd"),
    _row("or", _LOGICAL_2, numpy.or_, "", _EC, hlo="or", aten="bitwise_or.Tensor logical_or", jax="or",
         onnx="Or BitwiseOr"),
    _row("xor", _LOGICAL_2, numpy.xor, "", _EC, hlo="xor", aten="bitwise_xor.Tensor logical_xor", jax="xor",
         onnx="Xor BitwiseXor"),
    _row("shift_left", _SHIFT, numpy.shift_left, "", _E, hlo="shift-left", aten="bitwise_left_shift.Tensor",
         jax="shift_left", onnx="BitShift"),
    _row("shift_right_logical", _SHIFT, numpy.shift_right_logical, "", _E, hlo="shift-right-logical",
         jax="shift_right_logical", onnx="BitShift"),
    _row("shift_right_arithmetic", _SHIFT, numpy.shift_right_arithmetic, "", _E, hlo="shift-right-arithmetic",
         aten="bitwise_right_shift.Tensor", jax="shift_right_arithmetic"),
    _row("complex", typing.make_complex, numpy.complex_, "", _E, hlo="complex", aten="complex",
         jax="complex"),
    _row("compare", typing.compare, numpy.compare, "direction total", _E, hlo="compare",
         aten="eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", jax="eq ne lt le gt ge",
         onnx="Equal Less LessOrEqual Greater GreaterOrEqual"),
    _row("select", typing.select, numpy.select, "", _E, hlo="select", aten="where.self", jax="select_n",
         onnx="Where"),
    _row("clamp", typing.clamp, numpy.clamp, "", _E, hlo="clamp", aten="clamp clamp.Tensor", jax="clamp",
         onnx="Clip"),
)

_LAYOUT: Final = (
    _row("bitcast_convert", typing.bitcast_convert, numpy.bitcast_convert, hlo="bitcast-convert",
         aten="view.dtype", jax="bitcast_convert_type"),
    _row("reshape", typing.reshape, numpy.reshape, hlo="reshape", aten="view reshape _unsafe_view",
         jax="reshape", onnx="Reshape"),
    _row("broadcast_in_dim", typing.broadcast_in_dim, numpy.broadcast_in_dim, "dims", hlo="broadcast",
         aten="expand", jax="broadcast_in_dim", onnx="Expand"),
    _row("transpose", typing.transpose, numpy.transpose, "permutation", hlo="transpose",
         aten="permute transpose.int t", jax="transpose", onnx="Transpose"),
    _row("slice", typing.slice_, numpy.slice_, "starts limits strides", hlo="slice", aten="slice.Tensor",
         jax="slice", onnx="Slice"),
    _row("pad", typing.pad, numpy.pad, "low high interior", hlo="pad", aten="constant_pad_nd", jax="pad",
         onnx="Pad"),
    _row("reverse", typing.reverse, numpy.reverse, "dims", hlo="reverse", aten="flip", jax="rev"),
    _row("concatenate", typing.concatenate, numpy.concatenate, "dim", hlo="concatenate", aten="cat",
         jax="concatenate", onnx="Concat"),
)

_COMPUTE: Final = (
    _row("dot_general", rules.dot_general, compute.dot_general,
         "lhs_contracting rhs_contracting lhs_batch rhs_batch", hlo="dot", aten="mm bmm matmul",
         jax="dot_general", onnx="MatMul"),
    _row("convolution", rules.convolution, compute.convolution, _CONVOLUTION, hlo="convolution",
         aten="convolution", jax="conv_general_dilated", onnx="Conv"),
    _row("reduce", rules.reduce, compute.reduce, "dims kind", hlo="reduce",
         aten="sum.dim_IntList prod.dim_int amax amin all.dim any.dim",
         jax="reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or",
         onnx="ReduceSum ReduceProd ReduceMax ReduceMin"),
    _row("reduce_window", rules.reduce_window, compute.reduce_window, _WINDOW, hlo="reduce-window",
         jax="reduce_window_sum reduce_window_max reduce_window_min", onnx="MaxPool"),
    _row("argreduce", rules.argreduce, compute.argreduce, "dim kind", aten="max.dim min.dim argmax argmin",
         jax="argmax argmin", onnx="ArgMax ArgMin"),
    _row("gather", indexing.gather, compute.gather, _GATHER, hlo="gather",
         aten="embedding index_select gather", jax="gather", onnx="Gather GatherElements GatherND"),
    _row("scatter", indexing.scatter, compute.scatter, _SCATTER, hlo="scatter",
         aten="scatter.src scatter_add index_put",
         jax="scatter scatter-add scatter-mul scatter-min scatter-max", onnx="ScatterElements ScatterND"),
    _row("dynamic_slice", indexing.dynamic_slice, compute.dynamic_slice, "sizes", hlo="dynamic-slice",
         jax="dynamic_slice"),
    _row("dynamic_update_slice", indexing.dynamic_update_slice, compute.dynamic_update_slice,
         hlo="dynamic-update-slice", jax="dynamic_update_slice"),
    _row("sort", indexing.sort, compute.sort, "dim comparator stable", hlo="sort", aten="sort", jax="sort"),
    _row("top_k", indexing.top_k, compute.top_k, "k", hlo="topk", aten="topk", jax="top_k", onnx="TopK"),
    _row("custom_call", rules.custom_call, compute.custom_call, "target config", hlo="custom-call"),
    _row("opaque", rules.opaque, named.opaque, "name free"),
)

_RANDOM: Final = (
    _row("rng", rules.rng, None, "distribution", "random", hlo="rng", aten="rand randn",
         onnx="RandomUniform RandomNormal"),
    _row("rng_bit_generator", rules.rng_bit_generator, None, "algorithm", "random", hlo="rng-bit-generator",
         jax="rng_bit_generator"),
)

_COLLECTIVE: Final = (
    _row("all_reduce", rules.all_reduce, None, "kind groups", "collective", hlo="all-reduce",
         aten="_c10d_functional.all_reduce", jax="psum pmax pmin"),
    _row("all_gather", rules.all_gather, None, "dim groups", "collective", hlo="all-gather",
         aten="_c10d_functional.all_gather_into_tensor", jax="all_gather"),
    _row("reduce_scatter", rules.reduce_scatter, None, "dim kind groups", "collective", hlo="reduce-scatter",
         aten="_c10d_functional.reduce_scatter_tensor", jax="reduce_scatter"),
    _row("all_to_all", rules.all_to_all, None, "split_dim concat_dim groups", "collective", hlo="all-to-all",
         aten="_c10d_functional.all_to_all_single", jax="all_to_all"),
    _row("collective_permute", rules.same_as_operand, None, "pairs", "collective", hlo="collective-permute",
         jax="ppermute"),
    _row("collective_broadcast", rules.same_as_operand, None, "groups", "collective",
         hlo="collective-broadcast", aten="_c10d_functional.broadcast", jax="pbroadcast"),
    _row("agree", rules.same_as_operand, None, "groups", "collective"),
    _row("scan", rules.scan, None, "body consts carries length reverse"),
    _row("rank_id", rules.rank_id, None, "", "closed", hlo="partition-id replica-id", jax="axis_index"),
)
# fmt: on

_ROWS: Final = (*_CREATION, *_UNARY, *_BINARY, *_LAYOUT, *_COMPUTE, *_RANDOM, *_COLLECTIVE)

TABLE: Final[Mapping[str, Row]] = {row.name: row for row in _ROWS}
