"""Pairs of loops that look alike: those that are equal are shown to be, no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from evaluated import agree, equal_views
from loop_programs import Build, Results, f32, program, s32

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.passes.normalise import input_view, new_store, normalise
from shardproof.passes.unroll import unrolled
from shardproof.passes.views import Unsupported

Program = Callable[..., Value | Results]
X = {"x": f32(4), "xs": f32(4, 4), "w": f32(4)}


def shown(a: Module, b: Module) -> bool:
    """Whether all outputs are shown equal, `b` on the ranks of its own mesh and `a` on all of them alike."""
    found = set()
    for flags in ({}, {"folding": True}, {"folding": True, "lenient": True, "algebra": True}):
        store = new_store(**flags)
        inputs = {i.name: input_view(store, i.value) for i in a.inputs}
        first = normalise(store, a, inputs)
        same = {} if a.mesh != b.mesh else {"algebra": first.algebra}
        second = normalise(store, b, inputs, **same)
        pairs = zip(a.outputs, b.outputs, strict=True)
        found.add(
            all(equal_views(store, first.views[x.value.name], second.views[y.value.name]) for x, y in pairs)
        )
    return True in found


def differ(a: Module, b: Module, inputs: Mapping[str, TensorType]) -> bool:
    draw = np.random.default_rng(1)
    given: dict[str, Any] = {}
    for name, t in inputs.items():
        array = draw.integers(0, 4, t.shape) if t.dtype.kind != "real" else draw.normal(size=t.shape)
        given[name] = array.astype(np.float64 if t.dtype.kind == "real" else t.dtype.storage)
    first, second = (run(unrolled(m, 10_000), given) for m in (a, b))
    ranks = range(b.mesh.size)
    return not all(
        agree(first[x.name][0 if a.mesh.size == 1 else r], second[y.name][r])
        for x, y in zip(a.outputs, b.outputs, strict=True)
        for r in ranks
    )


def looped(
    step: Callable[[Build, Value, Value], Value],
    *,
    init: float | None = None,
    ranks: bool = False,
    **how: Any,
) -> Program:
    """A loop over the rows of `xs` that starts with `x`, or with a constant."""

    def build(b: Build, x: Value, xs: Value, w: Value) -> Results:
        start = x if init is None else b.full(init, x.type)
        if ranks:
            start = b("add", start, b.spread(b.rank(), x.type))

        def body(b: Build, consts: Results, carried: Results, rows: Results) -> tuple[Results, Results]:
            new = step(b, carried[0], rows[0])
            return [new], [new]

        return b.scan(body, [start], [xs], **how)

    return build


def pair(
    step: Callable[[Build, Results, Results], tuple[Results, Results]], **how: Any
) -> Program:
    """A loop that carries `x` and `w`."""

    def build(b: Build, x: Value, xs: Value, w: Value) -> Results:
        def body(b: Build, consts: Results, carried: Results, rows: Results) -> tuple[Results, Results]:
            return step(b, carried, rows)

        return b.scan(body, [x, w], [xs], **how)

    return build


def tanh_add(b: Build, c: Value, r: Value) -> Value:
    return b("add", b("tanh", c), r)


def add(b: Build, c: Value, r: Value) -> Value:
    return b("add", c, r)


def rank_added(b: Build, c: Value, r: Value) -> Value:
    return b("add", tanh_add(b, c, r), b.spread(b.rank(), c.type))


def counted(
    by: Callable[[Build, Value, Value], Value], *, start: int = 0, dtype: DType = DType.S32
) -> Program:
    """A loop whose rounds add what is counted; `by(build, count, row)` is what the count grows by."""

    def build(b: Build, x: Value, xs: Value, w: Value) -> Results:
        n = b.full(start, TensorType(dtype, ()))

        def body(b: Build, consts: Results, carried: Results, rows: Results) -> tuple[Results, Results]:
            count, c = carried
            shown = b.spread(b("convert", count, type=f32()), c.type)
            return [b("add", count, by(b, count, rows[0])), b("add", b("tanh", c), shown)], [shown]

        return b.scan(body, [n, x], [xs])[1:]

    return build


def grow(k: int, dtype: DType = DType.S32) -> Callable[[Build, Value, Value], Value]:
    return lambda b, n, r: b.full(k, TensorType(dtype, ()))


def _twice(b: Build, c: Results, r: Results) -> tuple[Results, Results]:
    return [b("tanh", c[0]), b("add", b("tanh", c[1]), r[0])], [c[0]]


def _crossed(b: Build, c: Results, r: Results) -> tuple[Results, Results]:
    new, out = _twice(b, c, r)
    return [new[1], new[0]], out


def inner_with(outer: bool) -> Program:
    """A loop in a loop: the inner one reads the outer round's row, or rows by its own number."""

    def build(b: Build, x: Value, xs: Value, w: Value) -> Results:
        def round(b: Build, consts: Results, carried: Results, rows: Results) -> tuple[Results, Results]:
            def step(b: Build, k: Results, d: Results, r: Results) -> tuple[Results, Results]:
                return [b("multiply", b("tanh", d[0]), k[0] if outer else r[0])], []

            (d,) = b.scan(step, [consts[0]], [consts[1]], [rows[0]])
            return [b("multiply", b("tanh", carried[0]), rows[0])], [d]

        return b.scan(round, [x], [xs], [x, xs])

    return build


def apart(b: Build, x: Value, xs: Value, w: Value) -> Results:
    """One loop and its last value once per round."""

    def step(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
        return [b("multiply", b("tanh", c[0]), r[0])], []

    (c,) = b.scan(step, [x], [xs])
    return [c, b("broadcast_in_dim", c, type=f32(4, 4), dims=(1,))]


def opaque_rounds(first: bool) -> Program:
    """Rows that an operator of unknown meaning gives, or the one of the first round for all."""

    def build(b: Build, x: Value, xs: Value, w: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            bits = b.many("rng_bit_generator", b.full(3, TensorType(DType.U64, (2,))), algorithm="philox",
                          declared=(TensorType(DType.U64, (2,)), TensorType(DType.U32, ())))
            y = b("convert", bits[1], type=f32())
            return [c[0]], [y]

        ys = b.scan(body, [x], [xs])[1]
        if not first:
            return [ys]
        one = b("slice", ys, starts=(0,), limits=(1,), strides=(1,))
        return [b("broadcast_in_dim", b("reshape", one, type=f32()), type=f32(4), dims=())]

    return build


def stays(b: Build, c: Value, r: Value) -> Value:
    return b("add", b("tanh", c), b("subtract", r, r))


UNEQUAL: dict[str, tuple[Program, Program, int]] = {
    "a body reads the rank": (looped(tanh_add), looped(rank_added), 2),
    "initial values read the rank": (looped(tanh_add), looped(tanh_add, ranks=True), 2),
    "other initial values": (looped(tanh_add, init=0.0), looped(tanh_add, init=1.0), 1),
    "initial value used in the body": (
        looped(lambda b, c, r: b("add", b("tanh", c), r), init=0.0),
        looped(lambda b, c, r: b("add", b.full(0, c.type), r), init=0.0),
        1,
    ),
    "forward and back": (looped(tanh_add), looped(tanh_add, reverse=True), 1),
    "sums of rows in other orders": (looped(add), looped(add, reverse=True), 1),
    "another growth": (counted(grow(1)), counted(grow(2)), 1),
    "another start of the count": (counted(grow(1)), counted(grow(1), start=1), 1),
    "a count that doubles": (counted(grow(1), start=1), counted(lambda b, n, r: n, start=1), 1),
    "carried values crossed": (pair(_twice), pair(_crossed), 1),
    "results of the round before": (
        pair(lambda b, c, r: ([b("tanh", c[0]), c[1]], [c[0]])),
        pair(lambda b, c, r: ([y := b("tanh", c[0]), c[1]], [y])),
        1,
    ),
    "a fold of sums and of products": (
        pair(lambda b, c, r: ([b("add", c[0], r[0]), c[1]], [])),
        pair(lambda b, c, r: ([b("multiply", c[0], r[0]), c[1]], [])),
        1,
    ),
    "a fold that the other carried value reads": (
        pair(lambda b, c, r: ([b("add", c[0], r[0]), b("add", c[1], r[0])], [])),
        pair(lambda b, c, r: ([b("add", c[0], r[0]), b("add", c[1], c[0])], [])),
        1,
    ),
    "a fold of what was folded": (
        pair(lambda b, c, r: ([b("add", c[0], c[1]), b("add", c[1], r[0])], [])),
        pair(lambda b, c, r: ([b("add", c[0], r[0]), b("add", c[1], r[0])], [])),
        1,
    ),
    "a fold of two kinds": (
        pair(lambda b, c, r: ([b("maximum", b("add", c[0], r[0]), c[1]), c[1]], [])),
        pair(lambda b, c, r: ([b("add", b("maximum", c[0], c[1]), r[0]), c[1]], [])),
        1,
    ),
    "a fold of a sum and of a maximum": (
        pair(lambda b, c, r: ([b("maximum", b("add", c[0], r[0]), c[1]), c[1]], [])),
        pair(lambda b, c, r: ([b("maximum", b("maximum", c[0], r[0]), c[1]), c[1]], [])),
        1,
    ),
    "what was folded before each round": (
        pair(lambda b, c, r: ([b("add", c[0], r[0]), c[1]], [c[0]])),
        lambda b, x, xs, w: (lambda f: [*f, b("broadcast_in_dim", x, type=f32(4, 4), dims=(1,))])(
            b.scan(lambda b, k, c, r: ([b("add", c[0], r[0]), c[1]], []), [x, w], [xs])
        ),
        1,
    ),
    "what was folded carried on by another": (
        pair(lambda b, c, r: ([b("add", c[0], r[0]), c[0]], [])),
        lambda b, x, xs, w: (lambda f: [f[0], x])(
            b.scan(lambda b, k, c, r: ([b("add", c[0], r[0])], []), [x], [xs])
        ),
        1,
    ),
    "more rounds": (
        lambda b, x, xs, w: b.scan(lambda b, k, c, r: ([b("tanh", c[0])], []), [x], length=4),
        lambda b, x, xs, w: b.scan(lambda b, k, c, r: ([b("tanh", c[0])], []), [x], length=3),
        1,
    ),
    "one round and none": (
        lambda b, x, xs, w: b.scan(lambda b, k, c, r: ([b("tanh", c[0])], []), [x], length=1),
        lambda b, x, xs, w: [x],
        1,
    ),
    "a fold that is negated": (
        pair(lambda b, c, r: ([b("subtract", r[0], c[0]), c[1]], [])),
        pair(lambda b, c, r: ([b("add", r[0], c[0]), c[1]], [])),
        1,
    ),
    "loops in loops by the same number": (apart, inner_with(True), 1),
    "rows of the outer and of the inner round": (inner_with(False), inner_with(True), 1),
    "kept, but not initially": (looped(stays, init=0.0), looped(stays, init=0.5), 1),
    "swapped after each round": (
        pair(lambda b, c, r: ([c[1], c[0]], [c[0]])),
        pair(lambda b, c, r: ([c[0], c[1]], [c[0]])),
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_loops_are_not_shown_equal(name: str) -> None:
    first, second, ranks = UNEQUAL[name]
    a, b = program(X, first, ranks), program(X, second, ranks)
    assert differ(a, b, X)
    assert not shown(a, b)
    if ranks == 1:
        assert not shown(a, program(X, second, 2))


def test_unknown_values_differ_from_round_to_round() -> None:
    a, b = program(X, opaque_rounds(True)), program(X, opaque_rounds(False))
    assert not shown(a, b) and not shown(b, a) and not shown(b, b)


def test_values_are_finite_only_where_that_is_kept() -> None:
    def start(b: Build, x: Value, xs: Value, w: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            return [b("add", c[0], b.full(np.inf, c[0].type))], [b("subtract", c[0], c[0])]

        return b.scan(body, [x])[1:]

    def none(b: Build, x: Value, xs: Value, w: Value) -> Results:
        return [b.full(0, f32(4, 4))]

    def tame(b: Build, x: Value, xs: Value, w: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            return [b("tanh", c[0])], [b("subtract", c[0], c[0])]

        return b.scan(body, [x])[1:]

    store = new_store()
    inputs = {n: input_view(store, Value(n, t)) for n, t in X.items()}
    views = []
    for p in (start, none, tame):
        m = program(X, p)
        views.append(normalise(store, m, inputs).views[m.outputs[0].value.name])
    assert not equal_views(store, views[0], views[1])
    assert equal_views(store, views[2], views[1])

    def wild(b: Build, x: Value, xs: Value, w: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            return [b("tanh", c[0])], [b("subtract", c[0], c[0])]

        return b.scan(body, [b.full(-np.inf, x.type)])[1:]

    def partly(b: Build, x: Value, xs: Value, w: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            wide = b("add", c[1], b.full(np.inf, c[1].type))
            return [b("tanh", c[0]), wide], [b("subtract", c[0], c[0]), b("subtract", c[1], c[1])]

        return b.scan(body, [x, w])[2:]

    for p, number in ((wild, 0), (partly, 1)):
        m = program(X, p)
        view = normalise(store, m, inputs).views[m.outputs[number].value.name]
        assert not equal_views(store, view, views[1])


@pytest.mark.parametrize("dtype", [DType.U32, DType.BOOL, DType.C64, DType.S8, DType.F64])
@pytest.mark.parametrize("length", [1, 3])
def test_carried_values_of_every_kind(dtype: DType, length: int) -> None:
    opcode = {"uint": "multiply", "bool": "xor", "complex": "multiply", "int": "add", "real": "multiply"}

    def loop(second: str) -> Program:
        def build(b: Build, x: Value, y: Value) -> Results:
            def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
                return [b(second, b(opcode[dtype.kind], c[0], c[0]), k[0])], [c[0]]

            return b.scan(body, [x], [], [y], length=length)

        return build

    inputs = {"x": TensorType(dtype, (2,)), "y": TensorType(dtype, (2,))}
    first, other = ("or", "and") if dtype is DType.BOOL else ("add", "subtract")
    if dtype is DType.U32:
        other = "maximum"
    assert shown(program(inputs, loop(first)), program(inputs, loop(first)))
    assert not shown(program(inputs, loop(first)), program(inputs, loop(other)))


def test_tensors_without_elements_pass_through() -> None:
    def build(b: Build, x: Value, xs: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            return [b("add", b("tanh", c[0]), r[0]), b("add", c[1], r[0])], [c[0], r[0]]

        return b.scan(body, [x, x], [xs], length=3)

    inputs = {"x": f32(0, 2), "xs": f32(3, 0, 2)}
    assert shown(program(inputs, build), program(inputs, build))


def test_what_a_loop_cannot_express_is_unknown() -> None:
    """A fold of unsigned numbers, unequal groups: some result is unknown, and nothing fails."""

    def build(b: Build, x: Value, xs: Value, w: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            bad = b("all_reduce", r[0], kind="sum", groups=((0, 1), (2,)))
            return [b("tanh", b("add", c[0], bad))], [bad]

        return b.scan(body, [x], [xs])

    m = program(X, build, 3)
    store = new_store()
    state = normalise(store, m, {n: input_view(store, Value(n, t)) for n, t in X.items()})
    assert [name.partition("/")[0] for name in state.opaque] == [m.outputs[0].value.name]
    assert not shown(m, m)


def test_what_a_loop_raises_makes_its_results_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise Unsupported("a sum of these")

    m = program(X, EQUAL["a sum of rows"][0])
    monkeypatch.setattr("shardproof.passes.algebra.Views.reduce", refuse)
    store = new_store()
    state = normalise(store, m, {n: input_view(store, Value(n, t)) for n, t in X.items()})
    assert state.opaque == {m.outputs[0].value.name: "a sum of these"}


def sharded_loop(carried: int, kept: bool) -> Program:
    """On 2 x 2 ranks: zeros that are filled with this rank's shard of a row along axis `carried`.

    Where it is not `kept`, every other round fills them with the shard along the other axis.
    """

    def build(b: Build, x: Value, xs: Value, w: Value) -> Results:
        rank = b("rank_id", type=s32())
        two = b.full(2, s32())
        axes = [b("divide", rank, two), b("remainder", rank, two)]
        starts = [b("multiply", a, two) for a in axes]

        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            own = b("dynamic_slice", r[0], k[carried], sizes=(2,))
            new = b("add", b("tanh", c[0]), own)
            if not kept:
                even = b("compare", b("remainder", c[1], b.full(2, s32())), b.full(0, s32()), direction="EQ",
                         total=False)
                other = b("dynamic_slice", r[0], k[1 - carried], sizes=(2,))
                new = b("add", b("tanh", c[0]), b("select", b.spread(even, TensorType(DType.BOOL, (2,))), own,
                                                  other))
            return [new, b("add", c[1], b.full(1, s32()))], []

        found = b.scan(body, [b.full(0, f32(2)), b.full(0, s32())], [xs], starts)
        groups = ((0, 2), (1, 3)) if carried == 0 else ((0, 1), (2, 3))
        return [b("all_gather", found[0], dim=0, groups=groups)]

    return build  # fmt: skip


@pytest.mark.parametrize("carried", [0, 1])
def test_shards_are_kept_along_the_axis_that_they_lie_on(carried: int) -> None:
    whole = program(X, lambda b, x, xs, w: looped(tanh_add, init=0.0)(b, x, xs, w)[:1])
    mesh = Mesh((("dp", 2), ("tp", 2)))
    good, bad = (replace(program(X, sharded_loop(carried, kept), 4), mesh=mesh) for kept in (True, False))
    assert not differ(whole, good, X) and shown(whole, good)
    assert differ(whole, bad, X) and not shown(whole, bad)


def test_a_failed_attempt_leaves_no_loop_behind() -> None:
    """The inner loop of an outer one that was tried as another is known only as it is in the end."""
    store = new_store()
    inputs = {n: input_view(store, Value(n, t)) for n, t in X.items()}
    first, second = program(X, inner_with(True)), program(X, inner_with(False))
    state = normalise(store, first, inputs)
    assert len(store.loops) == 2
    normalise(store, second, inputs, algebra=state.algebra)
    assert len(store.loops) == 4


EQUAL: dict[str, tuple[Program, Program]] = {
    "the same loop": (looped(tanh_add), looped(tanh_add)),
    "operands in another order": (
        looped(tanh_add),
        looped(lambda b, c, r: b("add", r, b("tanh", c))),
    ),
    "carried values in another order": (
        pair(_twice),
        lambda b, x, xs, w: (
            lambda found: [found[1], found[0], found[2]]
        )(
            b.scan(
                lambda b, k, c, r: (
                    [b("add", b("tanh", c[0]), r[0]), b("tanh", c[1])], [c[1]]
                ),
                [w, x],
                [xs],
            )
        ),
    ),
    "a sum of rows": (
        lambda b, x, xs, w: b.scan(lambda b, k, c, r: ([b("add", c[0], r[0])], []), [x], [xs]),
        lambda b, x, xs, w: b("add", x, b("reduce", xs, b.full(0, f32()), dims=(0,), kind="sum")),
    ),
    "a maximum of rows, backwards": (
        lambda b, x, xs, w: b.scan(
            lambda b, k, c, r: ([b("maximum", r[0], c[0])], []), [x], [xs], reverse=True
        ),
        lambda b, x, xs, w: b("maximum", x, b("reduce", xs, b.full(-np.inf, f32()), dims=(0,), kind="max")),
    ),
    "results only": (
        lambda b, x, xs, w: b.scan(lambda b, k, c, r: ([], [b("tanh", r[0])]), [], [xs]),
        lambda b, x, xs, w: b("tanh", xs),
    ),
    "a count": (
        counted(grow(1)),
        counted(lambda b, n, r: b.full(1, s32())),
    ),
    "a loop in a loop": (inner_with(True), inner_with(True)),
    "a row by the count": (
        looped(tanh_add),
        lambda b, x, xs, w: (lambda f: [f[1], f[2]])(
            b.scan(
                lambda b, k, c, r: (
                    [
                        b("add", c[0], b.full(1, s32())),
                        y := tanh_add(
                            b,
                            c[1],
                            b(
                                "reshape",
                                b("dynamic_slice", k[0], c[0], b.full(0, s32()), sizes=(1, 4)),
                                type=f32(4),
                            ),
                        ),
                    ],
                    [y],
                ),
                [b.full(0, s32()), x],
                [],
                [xs],
            )
        ),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_loops_are_shown_equal(name: str) -> None:
    first, second = EQUAL[name]
    a, b = program(X, first), program(X, second)
    assert not differ(a, b, X)
    assert shown(a, b)
    assert shown(a, program(X, second, 2))
