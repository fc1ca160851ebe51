"""The operator table: one row per operator with everything the project knows of it.

Names and attributes follow StableHLO. A row gives

- `attrs`: the attributes, exactly these; an operator with another attribute is not this operator;
- `type`: the type rule (`shardproof.ir.typing`), raising `ModuleError`;
- `numpy`: what it computes on one rank (`shardproof.ir.numpy_meaning`); None for collectives and
  `rank_id`, which the interpreter runs on all ranks in lock-step, and for what NumPy can't compute;
- `index`: what it means for views (`shardproof.ir.index_meaning`); None means that the operator
  is an opaque function that binds all dims of all operands;
- `traits`: `elementwise`, `commutative`, `collective`, `random` (each use is a fresh draw),
  `closed` (no operand), `effect`.

What frontends read as an operator is in docs/operators.md, from their own tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


def _row(
    name: str,
    type_: TypeRule,
    meaning: NumpyMeaning | None,
    attrs: str = "",
    traits: str = "",
) -> Row:
    """A row whose names are given as words separated by spaces."""
    views = index.MEANING.get(name)
    return Row(name, type_, meaning, views, tuple(attrs.split()), frozenset(traits.split()))


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
    _row("constant", typing.constant, numpy.constant, "value", "closed"),
    _row("iota", typing.iota, numpy.iota, "dim", "closed"),
)

_UNARY: Final = (
    _row("convert", typing.convert, numpy.convert, "", _E),
    _row("negate", _NUMBER, numpy.negate, "", _E),
    _row("abs", typing.absolute, numpy.abs_, "", _E),
    _row("exponential", _ANALYTIC, numpy.exponential, "", _E),
    _row("expm1", _ANALYTIC, numpy.expm1, "", _E),
    _row("log", _ANALYTIC, numpy.log, "", _E),
    _row("log1p", _ANALYTIC, numpy.log1p, "", _E),
    _row("logistic", _ANALYTIC, numpy.logistic, "", _E),
    _row("tanh", _ANALYTIC, numpy.tanh, "", _E),
    _row("tan", _ANALYTIC, numpy.tan, "", _E),
    _row("sine", _ANALYTIC, numpy.sine, "", _E),
    _row("cosine", _ANALYTIC, numpy.cosine, "", _E),
    _row("acos", _ANALYTIC, numpy.acos, "", _E),
    _row("acosh", _ANALYTIC, numpy.acosh, "", _E),
    _row("asin", _ANALYTIC, numpy.asin, "", _E),
    _row("asinh", _ANALYTIC, numpy.asinh, "", _E),
    _row("atanh", _ANALYTIC, numpy.atanh, "", _E),
    _row("cosh", _ANALYTIC, numpy.cosh, "", _E),
    _row("sinh", _ANALYTIC, numpy.sinh, "", _E),
    _row("sqrt", _ANALYTIC, numpy.sqrt, "", _E),
    _row("rsqrt", _ANALYTIC, numpy.rsqrt, "", _E),
    _row("cbrt", _REAL, numpy.cbrt, "", _E),
    _row("sign", _SIGN, numpy.sign, "", _E),
    _row("floor", _REAL, numpy.floor, "", _E),
    _row("ceil", _REAL, numpy.ceil, "", _E),
    _row("round_even", _REAL, numpy.round_even, "", _E),
    _row("round_away", _REAL, numpy.round_away, "", _E),
    _row("not", _LOGICAL, numpy.not_, "", _E),
    _row("is_finite", typing.predicate, numpy.is_finite, "", _E),
    _row("erf", _REAL, numpy.erf, "", _E),
    _row("popcnt", _INTEGER, numpy.popcnt, "", _E),
    _row("clz", _INTEGER, numpy.clz, "", _E),
    _row("real", typing.complex_part, numpy.real, "", _E),
    _row("imag", typing.complex_part, numpy.imag, "", _E),
)

_BINARY: Final = (
    _row("add", _ADDITIVE, numpy.add, "", _EC),
    _row("subtract", _FIELD, numpy.subtract, "", _E),
    _row("multiply", _ADDITIVE, numpy.multiply, "", _EC),
    _row("divide", _FIELD, numpy.divide, "", _E),
    _row("remainder", _REMAINDER, numpy.remainder, "", _E),
    _row("maximum", _ORDERED, numpy.maximum, "", _EC),
    _row("minimum", _ORDERED, numpy.minimum, "", _EC),
    _row("power", _FIELD, numpy.power, "", _E),
    _row("atan2", _ANGLE, numpy.atan2, "", _E),
    _row("and", _LOGICAL_2, numpy.and_, "", _EC),
    _row("or", _LOGICAL_2, numpy.or_, "", _EC),
    _row("xor", _LOGICAL_2, numpy.xor, "", _EC),
    _row("shift_left", _SHIFT, numpy.shift_left, "", _E),
    _row("shift_right_logical", _SHIFT, numpy.shift_right_logical, "", _E),
    _row("shift_right_arithmetic", _SHIFT, numpy.shift_right_arithmetic, "", _E),
    _row("complex", typing.make_complex, numpy.complex_, "", _E),
    _row("compare", typing.compare, numpy.compare, "direction total", _E),
    _row("select", typing.select, numpy.select, "", _E),
    _row("clamp", typing.clamp, numpy.clamp, "", _E),
)

_LAYOUT: Final = (
    _row("bitcast_convert", typing.bitcast_convert, numpy.bitcast_convert),
    _row("reshape", typing.reshape, numpy.reshape),
    _row("broadcast_in_dim", typing.broadcast_in_dim, numpy.broadcast_in_dim, "dims"),
    _row("transpose", typing.transpose, numpy.transpose, "permutation"),
    _row("slice", typing.slice_, numpy.slice_, "starts limits strides"),
    _row("pad", typing.pad, numpy.pad, "low high interior"),
    _row("reverse", typing.reverse, numpy.reverse, "dims"),
    _row("concatenate", typing.concatenate, numpy.concatenate, "dim"),
)

_COMPUTE: Final = (
    _row("dot_general", rules.dot_general, compute.dot_general,
         "lhs_contracting rhs_contracting lhs_batch rhs_batch"),
    _row("convolution", rules.convolution, compute.convolution, _CONVOLUTION),
    _row("reduce", rules.reduce, compute.reduce, "dims kind"),
    _row("reduce_window", rules.reduce_window, compute.reduce_window, _WINDOW),
    _row("argreduce", rules.argreduce, compute.argreduce, "dim kind"),
    _row("gather", indexing.gather, compute.gather, _GATHER),
    _row("scatter", indexing.scatter, compute.scatter, _SCATTER),
    _row("dynamic_slice", indexing.dynamic_slice, compute.dynamic_slice, "sizes"),
    _row("dynamic_update_slice", indexing.dynamic_update_slice, compute.dynamic_update_slice),
    _row("sort", indexing.sort, compute.sort, "dim comparator stable"),
    _row("top_k", indexing.top_k, compute.top_k, "k"),
    _row("custom_call", rules.custom_call, compute.custom_call, "target config"),
    _row("opaque", rules.opaque, named.opaque, "name free"),
)

_RANDOM: Final = (
    _row("rng", rules.rng, None, "distribution", "random"),
    _row("rng_bit_generator", rules.rng_bit_generator, None, "algorithm", "random"),
)

_COLLECTIVE: Final = (
    _row("all_reduce", rules.all_reduce, None, "kind groups", "collective"),
    _row("all_gather", rules.all_gather, None, "dim groups", "collective"),
    _row("reduce_scatter", rules.reduce_scatter, None, "dim kind groups", "collective"),
    _row("all_to_all", rules.all_to_all, None, "split_dim concat_dim groups", "collective"),
    _row("collective_permute", rules.same_as_operand, None, "pairs", "collective"),
    _row("collective_broadcast", rules.same_as_operand, None, "groups", "collective"),
    _row("agree", rules.same_as_operand, None, "groups", "collective"),
    _row("scan", rules.scan, None, "body consts carries length reverse"),
    _row("rank_id", rules.rank_id, None, "", "closed"),
)
# fmt: on

_ROWS: Final = (*_CREATION, *_UNARY, *_BINARY, *_LAYOUT, *_COMPUTE, *_RANDOM, *_COLLECTIVE)

TABLE: Final[Mapping[str, Row]] = {row.name: row for row in _ROWS}
