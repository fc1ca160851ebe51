"""What operators compute, against literal values and against definitions written as loops."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import EMBEDDING, ROWS, SAMPLES, Sample, t

from shardproof.ir.interpret import Unsupported
from shardproof.ir.module import Op, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import DType, TensorType

INTEGERS = [d for d in DType if d.kind in ("int", "uint")]


def compute(opcode: str, operands: Sequence[Any], types: str, result: str, **attrs: Any) -> Any:
    """The first result of one operator on arrays of these types."""
    sample = Sample(opcode, tuple(t(w) for w in types.split()), tuple(t(w) for w in result.split()), attrs)
    meaning = TABLE[opcode].numpy
    assert meaning is not None
    with np.errstate(all="ignore"):
        return meaning(sample.op(), [np.asarray(x) for x in operands])[0]


def bounds(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "uint":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def wrap(value: int, dtype: DType) -> int:
    low, _ = bounds(dtype)
    return (value - low) % 2**dtype.bits + low


def truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def scalar_definition(opcode: str, x: int, y: int, dtype: DType) -> int:
    """Exact integer arithmetic, before wrapping."""
    if opcode == "add":
        return x + y
    if opcode == "subtract":
        return x - y
    if opcode == "multiply":
        return x * y
    if opcode == "divide":
        return truncated(x, y) if y else -1
    if opcode == "remainder":
        return x - truncated(x, y) * y if y else x
    amount = y % 2**dtype.bits
    if opcode == "shift_left":
        return x << amount if amount < dtype.bits else 0
    if opcode == "shift_right_logical":
        return (x % 2**dtype.bits) >> amount if amount < dtype.bits else 0
    if opcode == "shift_right_arithmetic":
        return wrap(x, DType(f"s{dtype.bits}")) >> min(amount, dtype.bits - 1)
    if opcode == "power":
        return x**y if y >= 0 else {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
    raise AssertionError(opcode)


@given(st.data(), st.sampled_from(INTEGERS))
def test_integer_arithmetic_wraps_in_its_own_width(data: st.DataObject, dtype: DType) -> None:
    low, high = bounds(dtype)
    edge = st.sampled_from([v for v in (low, low + 1, -1, 0, 1, 2, 3, high) if low <= v <= high])
    number = edge | st.integers(low, high)
    x, y = data.draw(number), data.draw(number)
    names = ["add", "subtract", "multiply", "divide", "remainder"]
    names += ["shift_left", "shift_right_logical", "shift_right_arithmetic"]
    if y < 20:
        names.append("power")
    for name in names:
        if name == "shift_left" and y % 2**dtype.bits > 200:
            continue
        found = compute(
            name,
            [np.array(v, dtype=dtype.storage) for v in (x, y)],
            f"{dtype.value}[] {dtype.value}[]",
            f"{dtype.value}[]",
        )
        assert int(found) == wrap(scalar_definition(name, x, y, dtype), dtype), name


@given(st.data(), st.sampled_from(INTEGERS))
def test_bit_counts(data: st.DataObject, dtype: DType) -> None:
    x = data.draw(st.integers(*bounds(dtype)))
    word = x % 2**dtype.bits
    name = f"{dtype.value}[]"
    value = [np.array(x, dtype=dtype.storage)]
    assert int(compute("popcnt", value, name, name)) == wrap(word.bit_count(), dtype)
    assert int(compute("clz", value, name, name)) == wrap(dtype.bits - word.bit_length(), dtype)


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS))
def test_integer_conversion_wraps(data: st.DataObject, source: DType, target: DType) -> None:
    x = data.draw(st.integers(*bounds(source)))
    found = compute("convert", [np.array(x, dtype=source.storage)], f"{source.value}[]", f"{target.value}[]")
    assert int(found) == wrap(x, target)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_real_to_integer_truncates_and_saturates(dtype: DType) -> None:
    low, high = bounds(dtype)
    reals = np.array([2.9, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e30])
    found = compute("convert", [reals], "f64[7]", f"{dtype.value}[7]")
    assert found.tolist() == [min(2, high), 0, 0, high, low, 0, high]


def test_real_conversions_are_the_identity() -> None:
    x = np.array([0.1, 1e300])
    assert compute("convert", [x], "f64[2]", "bf16[2]").tolist() == x.tolist()
    assert compute("convert", [np.array([0, 3], np.int32)], "s32[2]", "f16[2]").dtype == np.float64
    assert compute("convert", [np.array([0.0, 0.2])], "f32[2]", "bool[2]").tolist() == [False, True]


def test_reals_stay_in_the_type_they_come_in() -> None:
    x = np.ones(3, dtype=np.float32)
    assert compute("add", [x, x], "f64[3] f64[3]", "f64[3]").dtype == np.float32


def test_bool_arithmetic() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert compute("add", [x, y], "bool[4] bool[4]", "bool[4]").tolist() == [False, True, True, True]
    assert compute("multiply", [x, y], "bool[4] bool[4]", "bool[4]").tolist() == [False, False, False, True]
    summed = compute("reduce", [y, np.array(False)], "bool[4] bool[]", "bool[]", dims=(0,), kind="sum")
    assert summed.dtype == np.bool_ and bool(summed)


def test_rounding() -> None:
    x = np.array([0.5, 1.5, -0.5, -2.5, 0.49999999999999994])
    assert compute("round_even", [x], "f64[5]", "f64[5]").tolist() == [0.0, 2.0, -0.0, -2.0, 0.0]
    assert compute("round_away", [x], "f64[5]", "f64[5]").tolist() == [1.0, 2.0, -1.0, -3.0, 0.0]


def test_total_order() -> None:
    line = np.array([-np.nan, -np.inf, -1.0, -0.0, 0.0, 1.0, np.inf, np.nan])
    line[0] = np.copysign(np.nan, -1.0)
    for i, j in itertools.product(range(8), repeat=2):
        pair = [line[i], line[j]]
        total = compute("compare", pair, "f64[] f64[]", "bool[]", direction="LT", total=True)
        assert bool(total) == (i < j)
    unordered = compute("compare", [np.nan, np.nan], "f64[] f64[]", "bool[]", direction="EQ", total=False)
    assert not bool(unordered)


def test_bitcast_needs_exact_bits() -> None:
    assert int(compute("bitcast_convert", [np.array(1.0)], "f32[]", "u32[]")) == 0x3F800000
    assert int(compute("bitcast_convert", [np.array(1.0)], "bf16[]", "u16[]")) == 0x3F80
    assert float(compute("bitcast_convert", [np.array(0x3F80, np.uint16)], "u16[]", "bf16[]")) == 1.0
    for name in ("f32[]", "bf16[]", "f16[]"):
        with pytest.raises(Unsupported, match="exact"):
            compute("bitcast_convert", [np.array(0.1)], name, "u32[]")


def samples_of(opcode: str) -> list[Any]:
    return [pytest.param(s, id=str(s)) for s in SAMPLES if s.opcode == opcode]


def results(sample: Sample, seed: int = 3) -> tuple[list[Any], tuple[Any, ...]]:
    meaning = TABLE[sample.opcode].numpy
    assert meaning is not None
    arrays = sample.arrays(seed)
    return arrays, meaning(sample.op(), arrays)


COMBINE: dict[str, Any] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": max,
    "min": min,
}


@pytest.mark.parametrize("sample", samples_of("pad"))
def test_pad(sample: Sample) -> None:
    (x, value), (found,) = results(sample)
    expected = np.full(found.shape, value)
    for at in np.ndindex(x.shape):
        low, inner = sample.attrs["low"], sample.attrs["interior"]
        to = tuple(l + i * (k + 1) for l, i, k in zip(low, at, inner, strict=True))
        if all(0 <= p < n for p, n in zip(to, found.shape, strict=True)):
            expected[to] = x[at]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("sample", samples_of("dot_general"))
def test_dot_general(sample: Sample) -> None:
    (lhs, rhs), (found,) = results(sample)
    a = sample.attrs
    letters = itertools.count()
    left: list[Any] = [None] * lhs.ndim
    right: list[Any] = [None] * rhs.ndim
    out: list[int] = []
    for l, r in zip(a["lhs_batch"], a["rhs_batch"], strict=True):
        left[l] = right[r] = next(letters)
        out.append(left[l])
    for l, r in zip(a["lhs_contracting"], a["rhs_contracting"], strict=True):
        left[l] = right[r] = next(letters)
    for side in (left, right):
        for d, letter in enumerate(side):
            if letter is None:
                side[d] = next(letters)
                out.append(side[d])
    if lhs.dtype == np.bool_:
        expected = np.einsum(lhs.astype(int), left, rhs.astype(int), right, out) > 0
    else:
        wide = [x.astype(np.int64) if x.dtype.kind == "i" else x for x in (lhs, rhs)]
        expected = np.einsum(wide[0], left, wide[1], right, out)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("sample", samples_of("convolution"))
def test_convolution(sample: Sample) -> None:
    (x, kernel), (found,) = results(sample)
    a = sample.attrs
    x, kernel = x.transpose(a["lhs_dims"]), kernel.transpose(a["rhs_dims"])
    expected = np.zeros([found.shape[d] for d in a["out_dims"]])
    outputs, per_group = kernel.shape[1], kernel.shape[0]
    for n, o, *place in np.ndindex(expected.shape):
        group = o // (outputs // a["feature_groups"])
        batch = o // (outputs // a["batch_groups"]) * (x.shape[0] // a["batch_groups"]) + n
        for i, *k in np.ndindex(per_group, *kernel.shape[2:]):
            read = []
            for d, (p, tap) in enumerate(zip(place, k, strict=True)):
                at = p * a["strides"][d] + tap * a["rhs_dilation"][d] - a["pad_low"][d]
                whole, rest = divmod(at, a["lhs_dilation"][d])
                limit = (x.shape[2 + d] - 1) * a["lhs_dilation"][d] + 1 + a["pad_high"][d]
                inside = rest == 0 and 0 <= whole < x.shape[2 + d] and at < limit
                read.append(whole if inside else None)
            taps = [kernel.shape[2 + d] - 1 - tap if a["reversal"][d] else tap for d, tap in enumerate(k)]
            if None not in read:
                expected[(n, o, *place)] += x[(batch, group * per_group + i, *read)] * kernel[(i, o, *taps)]
    np.testing.assert_allclose(found, expected.transpose(np.argsort(a["out_dims"])), rtol=1e-12)


@pytest.mark.parametrize("sample", samples_of("reduce_window"))
def test_reduce_window(sample: Sample) -> None:
    (x, init), (found,) = results(sample)
    a = sample.attrs
    for place in np.ndindex(found.shape):
        expected = init.item()
        for k in np.ndindex(*a["sizes"]):
            at = [
                p * a["strides"][d] + k[d] * a["window_dilations"][d] - a["pad_low"][d]
                for d, p in enumerate(place)
            ]
            base = [divmod(i, a["base_dilations"][d]) for d, i in enumerate(at)]
            if all(r == 0 and 0 <= w < n for (w, r), n in zip(base, x.shape, strict=True)):
                expected = COMBINE[a["kind"]](expected, x[tuple(w for w, _ in base)])
        assert found[place] == pytest.approx(expected)


def test_padded_sum_window_with_another_init_is_unsupported() -> None:
    window = {
        "kind": "sum", "sizes": (2,), "strides": (1,), "base_dilations": (1,), "window_dilations": (1,),
        "pad_low": (1,), "pad_high": (0,),
    }  # fmt: skip
    x = np.array([1.0, 2.0])
    found = compute("reduce_window", [x, np.array(0.0)], "f32[2] f32[]", "f32[2]", **window)
    assert found.tolist() == [1.0, 3.0]
    with pytest.raises(Unsupported, match="identity"):
        compute("reduce_window", [x, np.array(1.0)], "f32[2] f32[]", "f32[2]", **window)


@pytest.mark.parametrize("sample", samples_of("reduce"))
def test_reduce_combines_the_initial_value(sample: Sample) -> None:
    (x, init), (found,) = results(sample)
    a, dims = sample.attrs, sample.attrs["dims"]
    names = {"and": lambda p, q: p & q, "or": lambda p, q: p | q} | COMBINE
    if x.dtype == np.bool_:
        names |= {"sum": lambda p, q: p | q, "prod": lambda p, q: p & q}
    expected = np.full(found.shape, init.item(), dtype=x.dtype)
    for at in np.ndindex(x.shape):
        to = tuple(i for d, i in enumerate(at) if d not in dims)
        expected[to] = names[a["kind"]](expected[to], x[at])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def starts_at(indices: Any, vector: int, batch_at: tuple[int, ...]) -> list[int]:
    if vector == indices.ndim:
        return [int(indices[batch_at])]
    size = indices.shape[vector]
    return [int(indices[(*batch_at[:vector], k, *batch_at[vector:])]) for k in range(size)]


def full_position(
    start: dict[int, int], batching: dict[int, int], window: list[int], rank: int, gone: set[int]
) -> list[int]:
    offsets = iter(window)
    return [start.get(d, 0) + batching.get(d, 0) + (0 if d in gone else next(offsets)) for d in range(rank)]


@pytest.mark.parametrize("sample", samples_of("gather"))
@pytest.mark.parametrize("shift", [-9, 0, 2, 100])
def test_gather_clamps(sample: Sample, shift: int) -> None:
    x, indices = sample.arrays(5)
    if indices.dtype.kind == "i" or shift > 0:
        indices = indices + np.asarray(shift).astype(indices.dtype)
    meaning = TABLE["gather"].numpy
    assert meaning is not None
    (found,) = meaning(sample.op(), [x, indices])
    a = sample.attrs
    vector = a["index_vector_dim"]
    for at in np.ndindex(found.shape):
        batch_at = tuple(i for d, i in enumerate(at) if d not in a["offset_dims"])
        window = [at[d] for d in a["offset_dims"]]
        start = {
            d: max(0, min(s, x.shape[d] - a["slice_sizes"][d]))
            for d, s in zip(a["start_index_map"], starts_at(indices, vector, batch_at), strict=True)
        }
        pairs = zip(a["operand_batching_dims"], a["start_indices_batching_dims"], strict=True)
        batching = {d: batch_at[b - (b > vector)] for d, b in pairs}
        gone = {*a["collapsed_slice_dims"], *a["operand_batching_dims"]}
        assert found[at] == x[tuple(full_position(start, batching, window, x.ndim, gone))]


@pytest.mark.parametrize("sample", samples_of("scatter"))
@pytest.mark.parametrize("shift", [-9, 0, 6, 100])
def test_scatter_drops_what_is_out_of_range(sample: Sample, shift: int) -> None:
    x, indices, updates = sample.arrays(7)
    indices = (indices // 2 * 2 if sample.attrs["update_window_dims"] == (2,) else indices) + shift
    meaning = TABLE["scatter"].numpy
    assert meaning is not None
    (found,) = meaning(sample.op(), [x, indices.astype(np.int32), updates])
    a, expected = sample.attrs, np.array(x)
    vector = a["index_vector_dim"]
    combine = COMBINE | {"set": lambda old, new: new}
    for at in np.ndindex(updates.shape):
        batch_at = tuple(i for d, i in enumerate(at) if d not in a["update_window_dims"])
        window = [at[d] for d in a["update_window_dims"]]
        names = a["scatter_dims_to_operand_dims"]
        start = dict(zip(names, starts_at(indices, vector, batch_at), strict=True))
        pairs = zip(a["input_batching_dims"], a["scatter_indices_batching_dims"], strict=True)
        batching = {d: batch_at[b - (b > vector)] for d, b in pairs}
        gone = {*a["inserted_window_dims"], *a["input_batching_dims"]}
        to = tuple(full_position(start, batching, window, x.ndim, gone))
        if all(0 <= p < n for p, n in zip(to, x.shape, strict=True)):
            expected[to] = combine[a["kind"]](expected[to], updates[at])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_scatter_without_a_defined_result_is_unsupported() -> None:
    x, updates = np.zeros((7, 4)), np.ones((2, 4))
    types = "f32[7,4] s32[2] f32[2,4]"
    twice = [x, np.array([3, 3], np.int32), updates]
    with pytest.raises(Unsupported, match="distinct"):
        compute("scatter", twice, types, "f32[7,4]", **(ROWS | {"kind": "set"}))
    assert compute("scatter", twice, types, "f32[7,4]", **ROWS)[3].tolist() == [2.0] * 4
    window = ROWS | {"inserted_window_dims": (), "update_window_dims": (1, 2)}
    partly = [x, np.array([6], np.int32), np.ones((1, 2, 4))]
    with pytest.raises(Unsupported, match="partly"):
        compute("scatter", partly, "f32[7,4] s32[1] f32[1,2,4]", "f32[7,4]", **window)


def test_gather_of_saturating_unsigned_indices() -> None:
    x = np.arange(28.0).reshape(7, 4)
    indices = np.array([[2**64 - 1]], dtype=np.uint64)
    found = compute("gather", [x, indices], "f32[7,4] u64[1,1]", "f32[1,1,4]", **EMBEDDING)
    assert found.tolist() == [[x[6].tolist()]]


def test_dynamic_slices_clamp() -> None:
    x = np.arange(5.0)
    for start, expected in ((-3, 0.0), (1, 1.0), (99, 3.0)):
        at = np.array(start, np.int32)
        found = compute("dynamic_slice", [x, at], "f32[5] s32[]", "f32[2]", sizes=(2,))
        assert found.tolist() == [expected, expected + 1]
        written = compute(
            "dynamic_update_slice", [x, np.array([7.0, 8.0]), at], "f32[5] f32[2] s32[]", "f32[5]"
        )
        assert written[int(expected)] == 7.0 and written[int(expected) + 1] == 8.0
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_order_is_stable() -> None:
    x = np.array([1.0, 2.0, 1.0, 2.0, 0.0])
    which = np.arange(5, dtype=np.int32)
    types = tuple(TensorType(d, (5,)) for d in (DType.F32, DType.S32))
    for comparator, expected in (("lt:0", [4, 0, 2, 1, 3]), ("gt:0", [1, 3, 0, 2, 4])):
        attrs = {"dim": 0, "comparator": comparator, "stable": True}
        op = Sample("sort", types, types, attrs).op()
        meaning = TABLE["sort"].numpy
        assert meaning is not None
        assert meaning(op, [x, which])[1].tolist() == expected
    top = TABLE["top_k"].numpy
    assert top is not None
    s32 = TensorType(DType.S32, (3,))
    op = Op(
        "top_k", (Value("x", types[0]),), (Value("v", TensorType(DType.F32, (3,))), Value("i", s32)), {"k": 3}
    )
    values, indices = top(op, [x])
    assert values.tolist() == [2.0, 2.0, 1.0] and indices.tolist() == [1, 3, 0]
    tie = np.array([3.0, 3.0, -1.0, -1.0])
    for kind, first in (("max", 0), ("min", 2)):
        op = Sample("argreduce", (t("f32[4]"),), (t("f32[]"), t("s32[]")), {"dim": 0, "kind": kind}).op()
        arg = TABLE["argreduce"].numpy
        assert arg is not None
        assert int(arg(op, [tie])[1]) == first


def test_unknown_orders_are_unsupported() -> None:
    for comparator in ("", "lt:1", "le:0", "lt"):
        with pytest.raises(Unsupported, match="comparator"):
            compute("sort", [np.ones(2)], "f32[2]", "f32[2]", dim=0, comparator=comparator, stable=True)
    with pytest.raises(Unsupported, match="nan"):
        compute("sort", [[np.nan, 1.0]], "f32[2]", "f32[2]", dim=0, comparator="lt:0", stable=True)


def test_neuron_rms_norm() -> None:
    x, weight = np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([1.0, 10.0])
    attrs = {"target": "AwsNeuronRmsNorm", "config": "1"}
    found = compute("custom_call", [x, weight, np.array(0.5)], "f32[2,2] f32[2] f32[]", "f32[2,2]", **attrs)
    expected = [[3 / 13**0.5, 40 / 13**0.5], [0.0, 20 / 2.5**0.5]]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
