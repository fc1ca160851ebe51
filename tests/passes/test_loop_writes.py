"""Loops that write their results row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from evaluated import agree, equal_views
from loop_programs import Build, Results, f32, program, s32

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, Value
from shardproof.passes.normalise import input_view, new_store, normalise
from shardproof.passes.unroll import unrolled

INPUTS = {"x": f32(3), "xs": f32(4, 3), "y": f32(4, 3)}
ONE = {
    "update_window_dims": (0,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 0,
    "input_batching_dims": (),
    "scatter_indices_batching_dims": (),
    "unique": False,
}
At = Callable[[Build, Value], Value]


def own(b: Build, n: Value) -> Value:
    return n


def writing(
    by: str = "update",
    at: At = own,
    start: int = 0,
    reverse: bool = False,
    more: bool = False,
    uses: bool = False,
) -> Module:
    """Rows of `tanh(c) + x` written over, or added to, `y` while a count goes up from `start`."""

    def build(b: Build, x: Value, xs: Value, y: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            n, state, held = c
            new = b("add", b("tanh", state), r[0])
            if uses:
                first = b("slice", held, starts=(0, 0), limits=(1, 3), strides=(1, 1))
                new = b("add", new, b("reshape", first, type=f32(3)))
            place = at(b, n)
            if by == "update":
                row = b("reshape", new, type=f32(1, 3))
                held = b("dynamic_update_slice", held, row, place, b.full(0, s32()))
            else:
                where = b("reshape", place, type=s32(1))
                held = b("scatter", held, where, new, kind=by, **ONE)
            if more:
                held = b("tanh", held)
            return [b("add", n, b.full(1, s32())), new, held], []

        return b.scan(body, [b.full(start, s32()), x, y], [xs], reverse=reverse)[1:]

    return program(INPUTS, build)


def stacked(*, reverse: bool = False, turned: bool = False, added: bool = False) -> Module:
    def build(b: Build, x: Value, xs: Value, y: Value) -> Results:
        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            new = b("add", b("tanh", c[0]), r[0])
            return [new], [new]

        state, rows = b.scan(body, [x], [xs], reverse=reverse)
        rows = b("reverse", rows, dims=(0,)) if turned else rows
        return [state, b("add", y, rows) if added else rows]

    return program(INPUTS, build)


def shown(a: Module, b: Module) -> bool:
    store = new_store(folding=True)
    inputs = {i.name: input_view(store, i.value) for i in a.inputs}
    first, second = normalise(store, a, inputs), normalise(store, b, inputs)
    pairs = zip(a.outputs, b.outputs, strict=True)
    return all(equal_views(store, first.views[x.value.name], second.views[y.value.name]) for x, y in pairs)


def differ(a: Module, b: Module) -> bool:
    draw = np.random.default_rng(5)
    given: dict[str, Any] = {n: draw.normal(size=t.shape) for n, t in INPUTS.items()}
    first, second = (run(unrolled(m, 1000), given) for m in (a, b))
    return not all(agree(first[o.name][0], second[o.name][0]) for o in a.outputs)


def backwards(b: Build, n: Value) -> Value:
    return b("subtract", b.full(3, s32()), n)


def after(b: Build, n: Value) -> Value:
    return b("remainder", b("add", n, b.full(1, s32())), b.full(4, s32()))


EQUAL = {
    "each row": (stacked(), writing()),
    "each row, by a scatter": (stacked(), writing("set")),
    "each row, added": (stacked(added=True), writing("sum")),
    "rows from the end": (stacked(turned=True), writing(at=backwards)),
    "a loop that goes back": (stacked(reverse=True, turned=True), writing(reverse=True)),
    "rows from the end, going back": (stacked(reverse=True), writing(at=backwards, reverse=True)),
    "rows that are used": (writing(uses=True), writing(uses=True)),
    "rows after their own": (writing(at=after), writing(at=after)),
}
UNEQUAL = {
    "from row 1": (stacked(), writing(start=1)),
    "the row after": (stacked(), writing(at=after)),
    "always the first row": (stacked(), writing(at=lambda b, n: b.full(0, s32()))),
    "from the end": (stacked(), writing(at=backwards)),
    "going back": (stacked(reverse=True), writing(reverse=True)),
    "added": (stacked(), writing("sum")),
    "not added": (stacked(added=True), writing("set")),
    "changed after": (stacked(), writing(more=True)),
    "used": (stacked(), writing(uses=True)),
}


def watched(how: str, looked: bool, rows: int = 4) -> Module:
    """A loop that writes rows of `y`, with what is to be seen of it in each round, or of `y` as it was."""

    def build(b: Build, x: Value, xs: Value, y: Value) -> Results:
        wide = b("concatenate", y, y, dim=0) if rows > 4 else y

        def body(b: Build, k: Results, c: Results, r: Results) -> tuple[Results, Results]:
            row = b("reshape", b("tanh", r[0]), type=f32(1, 3))
            over, held = (b("dynamic_update_slice", v, row, c[0], b.full(0, s32())) for v in (k[0], c[1]))
            before, after = (c[1], held) if looked else (k[0], over)
            seen = b("tanh", after) if how == "read" else after if how == "after" else before
            return [b("add", c[0], b.full(1, s32())), held], [seen]

        return b.scan(body, [b.full(0, s32()), wide], [xs], [wide])[1:]

    return program(INPUTS, build)


@pytest.mark.parametrize("how", ["before", "after", "read"])
def test_what_is_written_is_seen_in_each_round(how: str) -> None:
    a, b = watched(how, True), watched(how, False)
    assert differ(a, b)
    assert not shown(a, b) and not shown(b, a)
    assert shown(a, a)


def test_rows_beyond_the_rounds_stay() -> None:
    """Of eight rows four are written; the others are not what a round gives."""
    long = watched("before", False, 8)
    store = new_store()
    state = normalise(store, long, {i.name: input_view(store, i.value) for i in long.inputs})
    assert [state.views[o.value.name].shape for o in long.outputs] == [(8, 3), (4, 8, 3)]
    assert shown(long, long) and not shown(long, watched("before", True, 8))


@pytest.mark.parametrize("name", EQUAL)
def test_rows_that_are_written_are_rows_that_are_stacked(name: str) -> None:
    a, b = EQUAL[name]
    assert not differ(a, b)
    assert shown(a, b) and shown(b, a)


@pytest.mark.parametrize("name", UNEQUAL)
def test_rows_that_are_written_elsewhere_are_not(name: str) -> None:
    a, b = UNEQUAL[name]
    assert differ(a, b)
    assert not shown(a, b) and not shown(b, a)
