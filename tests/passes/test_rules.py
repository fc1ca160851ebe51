"""One case per soundness rule: programs that are equal meet, programs that differ never do."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from evaluated import check_graph, equal, normalised
from tests.passes.written_programs import B, F, I, Program, local, unrun

from shardproof.ir.module import Op, Value
from shardproof.ir.types import TensorType
from shardproof.passes.access import index, scale
from shardproof.passes.arithmetic import pointwise
from shardproof.passes.canonical import node
from shardproof.passes.classes import Term
from shardproof.passes.evaluate import Evaluation
from shardproof.passes.normalise import new_store
from shardproof.passes.reduction import reduce


def test_n1_overlapping_windows_do_not_merge() -> None:
    p = Program()
    x = p.input(F, (9,))
    window = {
        "window_dilations": (1,),
        "base_dilations": (1,),
        "pad_low": (0,),
        "pad_high": (0,),
        "kind": "sum",
    }
    wide = p("reduce_window", x, p.number(0.0), sizes=(3,), strides=(2,), **window)
    apart = p("reduce_window", x, p.number(0.0), sizes=(3,), strides=(3,), **window)
    a, b = p.reduced(wide, "sum", 0), p.reduced(apart, "sum", 0)
    assert not p.meet(a, b)
    assert p.meet(b, p.reduced(x, "sum", 0))


def test_n1_one_high_index_merges_with_one_low_index_only() -> None:
    """x[6b + 2i + 3j] with i < 3 and j < 2: both i and j end where b starts."""
    store = new_store()
    x = store.leaf("input", ("x",), "real", (14,))
    b, i, j = store.fresh(2), store.fresh(3), store.fresh(2)
    at = store.add(scale(index(b), 6), store.add(scale(index(i), 2), scale(index(j), 3)))
    total = reduce(store, "sum", {b, i, j}, Term(1, x, (at,)))
    values = np.arange(14.0) ** 2
    want = sum(values[6 * b + 2 * i + 3 * j] for b in range(2) for i in range(3) for j in range(2))
    evaluation = Evaluation(store, {"x": values})
    assert evaluation.term(total, {}) == want
    each = pointwise(store, "tanh", (), "real", [Term(1, x, (at,))])
    for p in product(range(2), range(3), range(2)):
        place = dict(zip((b, i, j), map(np.int64, p), strict=True))
        assert evaluation.term(each, place) == np.tanh(values[6 * p[0] + 2 * p[1] + 3 * p[2]])


def test_n2_a_position_read_twice_is_not_factored_apart() -> None:
    p = Program()
    x, s, ids = p.input(F, (4,)), p.input(F, (4,)), p.input(I, (4,))
    a = p("multiply", p.take(x, ids), s)
    b = p("multiply", p.take(x, ids), p.take(s, ids))
    c = p.take(p("multiply", x, s), ids)
    assert not p.meet(a, b)
    assert p.meet(b, c)


def test_n2_a_bound_position_is_not_factored() -> None:
    p = Program()
    x, ids = p.input(F, (4, 4)), p.input(I, (4,))
    a = p.reduced(p.take(x, ids), "sum", 0)
    b = p.reduced(x, "sum", 0)
    assert not p.meet(a, b)


def test_n2_a_diagonal_is_not_a_matrix() -> None:
    p = Program()
    x = p.input(F, (3, 3))
    i = p("iota", to=(I, (3, 3)), dim=0)
    j = p("iota", to=(I, (3, 3)), dim=1)
    eye = p("compare", i, j, direction="EQ", total=False)
    diagonal = p.reduced(p("select", eye, x, p.full(0.0, x)), "sum", 1)
    assert not p.meet(p.spread(diagonal, (3, 3), 0), x)
    assert not p.meet(p.spread(diagonal, (3, 3), 0), p.spread(diagonal, (3, 3), 1))


@pytest.mark.parametrize("kind", ["max", "min"])
def test_n4_a_negative_coefficient_swaps_max_and_min(kind: str) -> None:
    p = Program()
    x = p.input(F, (4,))
    a = p.reduced(p("negate", x), kind, 0)
    b = p("negate", p.reduced(x, kind, 0))
    c = p("negate", p.reduced(x, "min" if kind == "max" else "max", 0))
    assert not p.meet(a, b)
    assert p.meet(a, c)


def test_n4_relu_passes_positive_factors_only() -> None:
    p = Program()
    x = p.input(F, (6,))
    zero = p.full(0.0, x)

    def relu(v: Value) -> Value:
        return p("maximum", v, zero)

    two, minus = p.full(2.0, x), p.full(-2.0, x)
    assert p.meet(relu(p("multiply", x, two)), p("multiply", relu(x), two))
    assert not p.meet(relu(p("multiply", x, minus)), p("multiply", relu(x), minus))


def test_n4_comparisons_and_absolute_values_of_negated_values() -> None:
    p = Program()
    x, y = p.input(F, (6,)), p.input(F, (6,))
    less = p("compare", x, y, direction="LT", total=False)
    negated = p("compare", p("negate", x), p("negate", y), direction="LT", total=False)
    assert not p.meet(less, negated)
    assert p.meet(p("abs", p("negate", x)), p("abs", x))
    assert not p.meet(p("abs", p("negate", x)), p("negate", p("abs", x)))


def test_n4_a_product_over_replicas_is_a_power() -> None:
    p = Program(2)
    x = p.input(F, (3,))
    group = ((0, 1),)
    product = p("all_reduce", x, kind="prod", groups=group)
    total = p("all_reduce", x, kind="sum", groups=group)
    largest = p("all_reduce", x, kind="max", groups=group)
    assert p.meet(product, p("multiply", x, x))
    assert not p.meet(product, x)
    assert p.meet(total, p("add", x, x))
    assert p.meet(largest, x)


def test_n4_a_factor_leaves_a_product_as_a_power() -> None:
    p = Program()
    x = p.input(F, (3,))
    product = p.reduced(p("multiply", x, p.full(-2.0, x)), "prod", 0)
    assert p.meet(product, p("multiply", p.reduced(x, "prod", 0), p.number(-8.0)))
    assert not p.meet(product, p("multiply", p.reduced(x, "prod", 0), p.number(-2.0)))


def test_n4_an_unread_digit_of_a_bound_index_counts() -> None:
    p = Program()
    x = p.input(F, (2, 3))
    tiled = p("concatenate", x, x, x, dim=1)
    total = p.reduced(tiled, "sum", 0, 1)
    once = p.reduced(x, "sum", 0, 1)
    assert not p.meet(total, once)
    assert p.meet(total, p("multiply", once, p.number(3.0)))
    assert p.meet(p.reduced(tiled, "max", 0, 1), p.reduced(x, "max", 0, 1))
    p.reduced(tiled, "prod", 1)
    check_graph(p)


def test_n4_a_bound_index_that_nothing_reads_is_part_of_the_class() -> None:
    store = new_store()
    x = store.leaf("input", ("x",), "real", (2,))
    i, unread = store.fresh(2), store.fresh(3)
    term = Term(1, x, (index(i),))
    sums = [node(store, "sum", (), "real", [term], bound) for bound in ([i, unread], [i])]
    evaluation = Evaluation(store, {"x": np.array([1.0, 5.0])})
    assert [evaluation.term(t, {}) for t in sums] == [18.0, 6.0]


def test_n5_concatenation_passes_sums_and_elementwise_functions() -> None:
    p = Program()
    x, y = p.input(F, (3,)), p.input(F, (2,))
    both = p("concatenate", x, y, dim=0)
    assert p.meet(p("tanh", both), p("concatenate", p("tanh", x), p("tanh", y), dim=0))
    assert p.meet(p.reduced(both, "sum", 0), p("add", p.reduced(x, "sum", 0), p.reduced(y, "sum", 0)))
    p.reduced(both, "max", 0), p.reduced(both, "min", 0), p.reduced(both, "prod", 0)
    check_graph(p)


@pytest.mark.parametrize("kind", ["and", "or"])
def test_n5_bitwise_reductions_of_pieces_are_not_extrema(kind: str) -> None:
    p = Program()
    x, y = p.input(I, (3,)), p.input(I, (2,))
    both = p("concatenate", x, y, dim=0)
    p("reduce", both, p.number(-1 if kind == "and" else 0, I), dims=(0,), kind=kind)
    check_graph(p)


def test_n5_pieces_of_other_extents_are_no_tiling() -> None:
    p = Program()
    x = p.input(F, (6,))
    two, three = p.cut(x, 0, 0, 2), p.cut(x, 0, 0, 3)
    mixed, tiled = p("concatenate", two, three, dim=0), p("concatenate", three, three, dim=0)
    assert not p.meet(mixed, p.cut(tiled, 0, 0, 5))
    p.cut(tiled, 0, 2, 5)
    check_graph(p)


@pytest.mark.parametrize("starts", [(0, 2, 4), (4, 2, 0), (0, 3, 4), (0, 2, 3), (0, 4, 2), (2, 2, 4)])
def test_n5_slices_one_behind_the_other_along_another_dim(starts: tuple[int, ...]) -> None:
    p = Program()
    x = p.input(F, (3, 6))
    stacked = p("concatenate", *(p.cut(x, 1, k, k + 2) for k in starts), dim=0)
    blocks = p("transpose", p("reshape", x, to=(F, (3, 3, 2))), permutation=(1, 0, 2))
    assert p.meet(stacked, p("reshape", blocks, to=(F, (9, 2)))) is (starts == (0, 2, 4))
    p.cut(stacked, 0, 3, 6), p.cut(stacked, 0, 2, 7, 2), p.reduced(stacked, "sum", 0)
    p("reshape", stacked, to=(F, (3, 6)))
    check_graph(p)


def test_n5_slices_of_two_values_are_no_one_read() -> None:
    p = Program()
    x, y = p.input(F, (3, 4)), p.input(F, (3, 4))
    same = p("concatenate", p.cut(x, 1, 0, 2), p.cut(x, 1, 2, 4), dim=0)
    for other in (p.cut(y, 1, 2, 4), p("negate", p.cut(x, 1, 2, 4))):
        assert not p.meet(same, p("concatenate", p.cut(x, 1, 0, 2), other, dim=0))
    check_graph(p)


def test_selection_by_a_border_from_both_sides() -> None:
    p = Program()
    x, y = p.input(F, (5,)), p.input(F, (5,))
    i = p("iota", to=(I, (5,)), dim=0)
    above, below, before = (
        p("compare", i, p.full(2, i), direction=d, total=False) for d in ("GE", "LE", "LT")
    )
    first = p("select", above, x, y)
    assert not p.meet(first, p("select", below, y, x))
    assert p.meet(first, p("select", before, y, x))


def test_n5_concatenation_passes_no_ordered_binder() -> None:
    p = Program()
    x, y = p.input(F, (3,)), p.input(F, (2,))
    both = p("concatenate", x, y, dim=0)
    parts = [p("sort", v, dim=0, comparator="lt:0", stable=True) for v in (both, x, y)]
    assert not p.meet(parts[0], p("concatenate", parts[1], parts[2], dim=0))
    window = {
        "sizes": (5,),
        "strides": (1,),
        "base_dilations": (1,),
        "window_dilations": (1,),
        "pad_high": (0,),
    }
    sums = p("reduce_window", both, p.number(0.0), kind="sum", pad_low=(4,), **window)
    window |= {"sizes": (3,), "pad_low": (2,)}
    first = p("reduce_window", x, p.number(0.0), kind="sum", **window)
    window |= {"sizes": (2,), "pad_low": (1,)}
    second = p("reduce_window", y, p.number(0.0), kind="sum", **window)
    assert not p.meet(sums, p("concatenate", first, second, dim=0))


def test_n5_an_own_shard_that_crosses_a_border_on_one_rank_stays_whole() -> None:
    p = Program(3)
    x, y = p.input(F, (2,)), p.input(F, (4,))
    both = p("concatenate", x, y, dim=0)
    start = p("multiply", p.rank(), p.number(2, I))
    mine = p("dynamic_slice", both, start, sizes=(2,))
    assert not p.meet(mine, x)
    off = p("add", start, p.number(1, I))
    p("dynamic_slice", both, off, sizes=(2,))
    check_graph(p)


def test_n6_close_literals_differ_and_folding_is_exact() -> None:
    p = Program()
    x = p.input(F, (3,))
    a, b = (p("add", x, p.full(eps, x)) for eps in (1e-5, 1e-6))
    assert not p.meet(a, b)
    p = Program(special=True)
    x = p.input(F, (3,))
    y = p("add", p("subtract", p("add", x, p.full(2.0**19, x)), p.full(2.0**19, x)), p.full(1.0, x))
    assert p.meet(y, p("add", x, p.full(1.0, x)))


def test_n7_a_gram_matrix_is_symmetric_and_other_products_are_not() -> None:
    p = Program()
    x, y = p.input(F, (3, 4)), p.input(F, (3, 4))

    def gram(v: Value, w: Value) -> Value:
        return p(
            "dot_general", v, w, to=(F, (3, 3)),
            lhs_contracting=(1,), rhs_contracting=(1,), lhs_batch=(), rhs_batch=(),
        )  # fmt: skip

    def turned(v: Value) -> Value:
        return p("transpose", v, permutation=(1, 0))

    assert p.meet(turned(gram(x, x)), gram(x, x))
    assert not p.meet(turned(gram(x, y)), gram(x, y))
    assert p.meet(turned(gram(x, y)), gram(y, x))
    assert p.meet(turned(p("tanh", gram(x, x))), p("tanh", gram(x, x)))
    square = gram(x, y)
    apart = p("subtract", square, turned(square))
    both = p("add", square, turned(square))
    assert not p.meet(turned(apart), apart)
    assert p.meet(turned(both), both)


def test_k1_attributes_are_part_of_the_function() -> None:
    p = Program()
    x = p.input(F, (6,))
    assert not p.meet(p.cut(x, 0, 0, 5, 2), p.cut(x, 0, 0, 3))
    assert not p.meet(p.reduced(x, "sum", 0), p.reduced(x, "sum", 0, init=1.0))
    assert not p.meet(p.reduced(x, "max", 0), p.reduced(x, "max", 0, init=2.0))
    one, true = p.number([1, 0, 1, 1], I), p.number([True, False, True, True], B)
    assert not p.meet(one, p("convert", true, to=(F, (4,))))


def test_k2_ordered_binders_keep_the_order_of_digits() -> None:
    p = Program()
    x, ids = p.input(F, (2, 3)), p.input(I, (4,))
    rows = p("reshape", x, to=(F, (6,)))
    columns = p("reshape", p("transpose", x, permutation=(1, 0)), to=(F, (6,)))
    assert not p.meet(p.take(rows, ids), p.take(columns, ids))
    twice = p("concatenate", rows, rows, dim=0)
    each = p("reshape", p.spread(rows, (6, 2), 0), to=(F, (12,)))
    assert not p.meet(p.take(twice, ids), p.take(each, ids))
    sums = {"sizes": (6,), "strides": (1,), "base_dilations": (1,), "window_dilations": (1,), "pad_low": (5,)}
    totals = [
        p("reduce_window", v, p.number(0.0), kind="sum", pad_high=(0,), **sums) for v in (rows, columns)
    ]
    assert not p.meet(*totals)
    top = [p("top_k", v, k=2) for v in (rows, columns)]
    places = [v for v in p.pool if v.name in (top[0].name[:-1] + "b", top[1].name[:-1] + "b")]
    assert p.meet(*top) or len(places) == 2
    assert not p.meet(*places)


def test_k2_k3_opaque_functions_bind_dims_in_order() -> None:
    p = Program()
    x, y = p.input(F, (4, 4)), p.input(F, (4, 4))
    turned = p("transpose", x, permutation=(1, 0))
    rows = (((0,), (0,)),)

    def f(v: Value, free: tuple[Any, ...], *shape: int) -> Value:
        return unrun(p, "opaque", v, shape, name="f", free=free)

    def cut(v: Value, limit: tuple[int, int]) -> Value:
        return unrun(p, "slice", v, limit, starts=(0, 0), limits=limit, strides=(1, 1))

    assert not equal(p, f(x, (), 4), f(turned, (), 4))
    assert not equal(p, f(x, (), 4), f(y, (), 4))
    assert equal(p, f(x, (), 4), f(x, (), 4))
    assert not equal(p, f(x, rows, 4, 4), f(turned, rows, 4, 4))
    assert not equal(p, f(x, rows, 4, 4), f(x, (((1,), (1,)),), 4, 4))
    assert equal(p, cut(f(x, rows, 4, 4), (2, 4)), f(cut(x, (2, 4)), rows, 2, 4))
    assert not equal(p, cut(f(x, rows, 4, 4), (4, 2)), f(cut(x, (4, 2)), rows, 4, 2))


def test_k3_sort_is_slice_by_slice_along_the_other_dims_only() -> None:
    p = Program()
    x = p.input(F, (4, 3))

    def ordered(v: Value, dim: int) -> Value:
        return p("sort", v, dim=dim, comparator="lt:0", stable=True)

    whole = ordered(x, 1)
    assert p.meet(p.cut(whole, 0, 1, 3), ordered(p.cut(x, 0, 1, 3), 1))
    assert not p.meet(p.cut(whole, 1, 0, 2), ordered(p.cut(x, 1, 0, 2), 1))
    turned = p("transpose", x, permutation=(1, 0))
    assert p.meet(p("transpose", ordered(turned, 0), permutation=(1, 0)), whole)
    assert not p.meet(ordered(x, 0), whole)


def test_k4_argmax_takes_the_first_of_equals() -> None:
    p = Program()
    x = p.input(F, (5,))
    place = {"dim": 0, "kind": "max"}
    types = (x.type, TensorType(I, ()))
    assert p.add("argreduce", (x,), *types, **place) is not None
    first = p.pool[-1]
    assert p.add("argreduce", (p("reverse", x, dims=(0,)),), *types, **place) is not None
    last = p("subtract", p.number(4, I), p.pool[-1])
    assert not p.meet(first, last)


@pytest.mark.parametrize(("kind", "value"), [("sum", 0.0), ("prod", 1.0)])
def test_k5_reductions_over_nothing(kind: str, value: float) -> None:
    p = Program()
    x = p.input(F, (3, 4))
    nothing = p.cut(x, 1, 2, 2)
    r = p.reduced(nothing, kind, 1)
    assert p.meet(r, p.full(value, r))
    assert p.meet(p("concatenate", nothing, x, nothing, dim=1), x)
    p("concatenate", nothing, nothing, dim=1)
    check_graph(p)


def test_k6_one_class_read_elsewhere_is_not_equal() -> None:
    p = Program()
    x = p.input(F, (4, 4))
    assert not p.meet(x, p("transpose", x, permutation=(1, 0)))
    assert not p.meet(p.cut(x, 0, 0, 2), p.cut(x, 0, 2, 4))
    assert not p.meet(x, p("reverse", x, dims=(0,)))
    assert p.meet(p("reverse", p("reverse", x, dims=(0,)), dims=(0,)), x)


def test_e1_every_draw_is_another_and_differs_by_rank() -> None:
    p = Program(2)
    zero, one = p.number(0.0), p.number(1.0)
    made = [Value(f"r{k}", TensorType(F, (3,))) for k in range(2)]
    for v in made:
        p.ops.append(Op("rng", (zero, one), (v,), {"distribution": "uniform"}))
    assert not equal(p, *made)
    assert equal(p, made[0], made[0])
    other = Value("moved", TensorType(F, (3,)))
    p.ops.append(Op("collective_permute", (made[0],), (other,), {"pairs": ((0, 1), (1, 0))}))
    assert not equal(p, made[0], other)


def scattered(p: Program, x: Value, ids: Value, u: Value, kind: str, unique: bool) -> Value | None:
    return p.add(
        "scatter",
        (x, ids, u),
        update_window_dims=(),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
        input_batching_dims=(),
        scatter_indices_batching_dims=(),
        kind=kind,
        unique=unique,
    )


def test_e3_setting_repeated_positions_equals_nothing() -> None:
    p = Program()
    x, u = p.input(F, (4,)), p.input(F, (3,))
    ids = p.number([2, 0, 3], I)
    a, b = scattered(p, x, ids, u, "set", False), scattered(p, x, ids, u, "set", False)
    assert a is not None and b is not None
    assert not equal(p, a, b)
    c, d = scattered(p, x, ids, u, "set", True), scattered(p, x, ids, u, "set", True)
    assert c is not None and d is not None
    assert p.meet(c, d)


def test_e3_adding_at_repeated_positions_adds_all() -> None:
    p = Program()
    x, u, ids = p.input(F, (4,)), p.input(F, (3,)), p.number([1, 1, 7], I)
    a = scattered(p, x, ids, u, "sum", False)
    assert a is not None
    check_graph(p)


def test_f3_the_order_of_a_group_is_kept() -> None:
    p = Program(2)
    x = local(p, F, (2,))
    there = p("all_gather", x, dim=0, groups=((0, 1),))
    back = p("all_gather", x, dim=0, groups=((1, 0),))
    assert not p.meet(there, back)
    assert p.meet(
        p("all_reduce", x, kind="sum", groups=((0, 1),)), p("all_reduce", x, kind="sum", groups=((1, 0),))
    )


def test_f3_one_sided_permutes_give_zeros() -> None:
    p = Program(2)
    x = local(p, F, (2,))
    moved = p("collective_permute", x, pairs=((0, 1),))
    assert not p.meet(moved, p("collective_permute", x, pairs=((0, 1), (1, 0))))
    assert not p.meet(moved, x)


def test_all_to_all_twice_is_nothing_and_times_itself_commutes() -> None:
    p = Program(2)
    x = local(p, F, (2, 4))
    group = {"groups": ((0, 1),)}
    there = p("all_to_all", x, split_dim=1, concat_dim=0, **group)
    assert p.meet(p("all_to_all", there, split_dim=0, concat_dim=1, **group), x)
    z = local(p, F, (2, 2))
    turned = p("all_to_all", z, split_dim=1, concat_dim=1, **group)
    assert p.meet(p("multiply", turned, z), p("multiply", z, turned))
    assert not p.meet(turned, z)


def test_one_hot_sums_are_reads_in_range_only() -> None:
    p = Program()
    x, ids = p.input(F, (5,)), p.input(I, (4,))
    hot = p(
        "compare", p.spread(ids, (4, 5), 0), p("iota", to=(I, (4, 5)), dim=1), direction="EQ", total=False
    )
    rows = p.spread(x, (4, 5), 1)
    picked = p.reduced(p("select", hot, rows, p.full(0.0, rows)), "sum", 1)
    assert not p.meet(picked, p.take(x, ids))
    bounded = p("clamp", p.number(0, I), ids, p.number(4, I))
    hot = p(
        "compare", p.spread(bounded, (4, 5), 0), p("iota", to=(I, (4, 5)), dim=1), direction="EQ", total=False
    )
    inside = p.reduced(p("select", hot, rows, p.full(0.0, rows)), "sum", 1)
    assert p.meet(inside, p.take(x, ids))
    elsewhere = p.reduced(p("select", hot, rows, p.full(1.0, rows)), "sum", 1)
    assert not p.meet(elsewhere, inside)


def test_one_hot_sums_over_multiples_read_at_multiples_only() -> None:
    p = Program()
    x = p.input(F, (4,))
    ids = p("iota", to=(I, (6, 4)), dim=0)
    double = p("multiply", p("iota", to=(I, (6, 4)), dim=1), p.full(2, ids))
    rows = p.spread(x, (6, 4), 1)
    hot = p("compare", ids, double, direction="EQ", total=False)
    p.reduced(p("select", hot, rows, p.full(0.0, rows)), "sum", 1)
    check_graph(p)


def test_bounds_are_wished_of_inputs_themselves_only() -> None:
    p = Program(2)
    x, ids = p.input(F, (3,)), p.input(I, (4,))
    offset = p("multiply", p.rank(), p.number(3, I))
    p.take(x, p("subtract", ids, p.spread(offset, (4,))))
    store, _ = normalised(p)
    assert not store.wishes
    p.take(x, ids)
    store, _ = normalised(p)
    assert set(store.wishes) == {"x1"}


def test_misaligned_reshapes_meet_each_other_and_nothing_else() -> None:
    p = Program()
    x = p.input(F, (2, 3))
    a = p("reshape", p("tanh", x), to=(F, (3, 2)))
    b = p("tanh", p("reshape", x, to=(F, (3, 2))))
    assert p.meet(a, b)
    assert not p.meet(b, p("tanh", p("transpose", x, permutation=(1, 0))))
    assert p.meet(p("reshape", b, to=(F, (2, 3))), p("tanh", x))


def test_inputs_of_one_shape_are_apart() -> None:
    p = Program()
    x = p.input(F, (3,))
    assert not p.meet(x, p.input(F, (3,)))


def test_k1_an_infinite_initial_value_is_the_identity_of_its_own_kind_only() -> None:
    p = Program(special=True)
    x = p.input(F, (4,))
    assert not p.meet(p.reduced(x, "sum", 0, init=-np.inf), p.reduced(x, "sum", 0))
    assert not p.meet(p.reduced(x, "max", 0, init=np.inf), p.reduced(x, "max", 0))
