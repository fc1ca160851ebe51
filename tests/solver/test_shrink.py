from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.ir.interpret import run
from shardproof.ir.module import Module, Value
from shardproof.ir.types import DType, TensorType
from shardproof.solver.replay.extents import (
    atom,
    choose,
    chosen,
    cut,
    fix,
    kept,
    product,
    total,
    unify,
    window,
)
from shardproof.solver.replay.outcome import Difference
from shardproof.solver.replay.replay import Replay, compare, confirm, draw
from shardproof.solver.replay.shrink import Shrunk, shrink

BATCH, HIDDEN, HEADS, DEPTH, INNER = 4, 512, 16, 32, 2048


def dot(p: Any, x: Value, w: Value, a: int, b: int) -> Value:
    attrs = {"lhs_contracting": (a,), "rhs_contracting": (b,), "lhs_batch": (), "rhs_batch": ()}
    shape = [n for d, n in enumerate(x.type.shape) if d != a] + [
        n for d, n in enumerate(w.type.shape) if d != b
    ]
    return p.op("dot_general", x, w, type=TensorType(DType.F32, tuple(shape)), **attrs)


def cut_at(p: Any, x: Value, dim: int, start: int, stop: int) -> Value:
    shape = x.type.shape
    starts = tuple(start if d == dim else 0 for d in range(len(shape)))
    limits = tuple(stop if d == dim else n for d, n in enumerate(shape))
    return p.op("slice", x, starts=starts, limits=limits, strides=(1,) * len(shape))


def rotate(p: Any, x: Value) -> Value:
    """[B, heads, depth]: halves of the depth swapped, the second negated."""
    half = x.type.shape[2] // 2
    second = p.op("negate", cut_at(p, x, 2, half, 2 * half))
    return p.op("concatenate", second, cut_at(p, x, 2, 0, half), dim=2)


def layer(p: Any, x: Value, qk: Value, up: Value, down: Value, ranks: int, wrong: bool) -> None:
    """Fused projection, heads, half rotation, a table, then a two-layer MLP, on one rank's weights."""
    width = qk.type.shape[1] // 2
    both = dot(p, x, qk, 1, 0)
    q, k = cut_at(p, both, 1, 0, width), cut_at(p, both, 1, width, 2 * width)
    heads = [p.shape("reshape", v, BATCH, width // DEPTH, DEPTH) for v in (q, k)]
    table = p.constant(np.linspace(1, 2, DEPTH))
    spread = p.shape("broadcast_in_dim", table, BATCH, width // DEPTH, DEPTH, dims=(2,))
    p.output("k", p.op("multiply", rotate(p, heads[1]), spread))
    mixed = p.shape("reshape", p.op("multiply", heads[0], heads[1]), BATCH, width)
    hidden = p.op("tanh", dot(p, x, up, 1, 0))
    out = dot(p, hidden, down, 1, 1)
    if ranks > 1 and not wrong:
        out = p.op("all_reduce", out, kind="sum", groups=(tuple(range(ranks)),))
    p.output("y", out)
    p.output("mixed", mixed)


def check(program: Any, ranks: int, wrong: bool = False) -> tuple[Module, Module, Module]:
    shapes = {
        "x": (BATCH, HIDDEN),
        "qk": (HIDDEN, 2 * HEADS * DEPTH),
        "up": (HIDDEN, INNER),
        "down": (HIDDEN, INNER),
    }
    one, many, goal = program(), program(ranks), program(ranks)
    layer(one, *(one.input(n, *s) for n, s in shapes.items()), 1, False)
    x, qk, up, down = (many.input(n, *s) for n, s in shapes.items())
    parts = [
        many.shard(cut_at(many, qk, 1, n * HEADS * DEPTH, (n + 1) * HEADS * DEPTH), 1, ranks) for n in (0, 1)
    ]
    own = many.op("concatenate", *parts, dim=1)
    layer(many, x, own, many.shard(up, 1, ranks), many.shard(down, 1, ranks), ranks, wrong)
    for output in one.module().outputs:
        value = goal.input(output.name, *output.value.type.shape)
        goal.output(output.name, value if output.name == "y" else goal.shard(value, 1, ranks))
    return one.module(), many.module(), goal.module()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sharded_layer_shrinks_and_stays_equal(program: Any, ranks: int) -> None:
    shrunk = shrink(*check(program, ranks))
    assert isinstance(shrunk, Shrunk), shrunk
    sizes = [i.value.type.size for i in shrunk.implementation.inputs]
    assert sum(sizes) < 2000
    assert set(shrunk.extents) >= {"x dim 1", "qk dim 1", "up dim 1", "down dim 0"}
    extents = {n for i in shrunk.implementation.inputs for n in i.value.type.shape}
    assert min(extents) >= 2
    outcome = compare(shrunk.reference, shrunk.implementation, shrunk.expected, seed=1)
    assert outcome == Replay((), 1, 0, 0)


def test_a_missing_all_reduce_shows_on_the_shrunk_program(program: Any) -> None:
    shrunk = shrink(*check(program, 2, wrong=True))
    assert isinstance(shrunk, Shrunk), shrunk
    outcome = compare(shrunk.reference, shrunk.implementation, shrunk.expected, seed=1)
    assert isinstance(outcome, Replay)
    assert [d.output for d in outcome.differences] == ["y"]


def test_pieces_of_a_shrunk_program_keep_their_order(program: Any) -> None:
    p = program()
    x = p.input("x", 24, 6)
    parts = [cut_at(p, x, 0, 0, 8), cut_at(p, x, 0, 8, 24)]
    y = p.op("concatenate", parts[1], parts[0], dim=0)
    p.output("y", p.shape("reshape", y, 6, 4, 6))
    goal = program()
    goal.output("y", goal.input("y", 6, 4, 6))
    shrunk = shrink(p.module(), p.module(), goal.module())
    assert isinstance(shrunk, Shrunk), shrunk
    rows, columns = shrunk.reference.inputs[0].value.type.shape
    first = shrunk.reference.ops[0].result.type.shape[0]
    assert 2 <= first < rows < 24
    array = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns)
    found = run(shrunk.reference, {"x": array})["y"][0]
    np.testing.assert_array_equal(found.reshape(rows, columns), np.roll(array, -first, axis=0))


def test_what_is_not_understood_keeps_its_shape(program: Any) -> None:
    p = program()
    x = p.input("x", 16, 64)
    y = p.op("custom_call", x, type=x.type, target="unheard_of", config="")
    p.output("y", p.op("tanh", y))
    p.output("z", p.op("tanh", p.input("other", 32)))
    goal = program()
    goal.output("y", goal.input("y", 16, 64))
    goal.output("z", goal.input("z", 32))
    shrunk = shrink(p.module(), p.module(), goal.module())
    assert isinstance(shrunk, Shrunk), shrunk
    assert shrunk.extents == {"other dim 0": "32->3"}


def test_nothing_to_shrink_gives_the_reason(program: Any) -> None:
    p = program()
    p.output("y", p.op("tanh", p.input("x", 1, 1)))
    goal = program()
    goal.output("y", goal.input("y", 1, 1))
    assert "no extent" in str(shrink(p.module(), p.module(), goal.module()))


def test_programs_of_one_name_and_two_shapes_give_the_reason(program: Any) -> None:
    one, two, goal = program(), program(), program()
    one.output("y", one.input("x", 8))
    two.output("y", two.input("x", 4))
    goal.output("y", goal.input("y", 8))
    assert "x has shapes (8,) and (4,)" in str(shrink(one.module(), two.module(), goal.module()))


def test_extents_meet_in_a_common_refinement() -> None:
    whole, heads, depth, shard = atom(2048), atom(32), atom(64), atom(256)
    unify(product((heads, depth)), whole)
    unify(whole, total([shard] * 8))
    choose([whole], (3, 2, 5))
    assert chosen(whole) == chosen(heads) * chosen(depth) == 8 * chosen(shard)
    assert chosen(whole) < 100
    positions = kept(whole)
    assert len(positions) == chosen(whole) and len(set(positions // 256)) == 8


def test_extents_that_do_not_fit_are_fixed() -> None:
    whole, three, two = atom(6), atom(3), atom(2)
    unify(whole, product((three, two)))
    left, right = cut(whole, 3)
    choose([whole, left, right], (2,))
    assert [chosen(e) for e in (whole, left, right, three, two)] == [6, 3, 3, 3, 2]


def test_windows_share_their_cut_points() -> None:
    whole = atom(100)
    a, b = window(whole, 0, 60), window(whole, 40, 100)
    unify(a, b)
    choose([whole], (2,))
    assert chosen(a) == chosen(b) and chosen(whole) < 100
    fix(whole)
    assert chosen(whole) == 100


def test_draws_fit_the_shrunk_inputs(program: Any) -> None:
    shrunk = shrink(*check(program, 2))
    assert isinstance(shrunk, Shrunk)
    for name, array in draw(shrunk.implementation.inputs, 1).items():
        shape = next(i.value.type.shape for i in shrunk.implementation.inputs if i.name == name)
        assert array.shape == shape


MOVES = (
    *("add", "tanh", "select", "transpose", "reshape", "reshape", "slice", "slice", "pad", "concatenate"),
    *("broadcast", "dynamic_slice", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"),
    *("reverse", "collective_broadcast"),
)


def identity(program: Any, module: Module, ranks: int) -> Module:
    p = program(ranks)
    for output in module.outputs:
        p.output(output.name, p.input(output.name, *output.value.type.shape))
    result: Module = p.module()
    return result


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 1 << 32), ranks=st.sampled_from([1, 2, 3]))
def test_a_shrunk_program_moves_the_kept_elements(
    program: Any, random_program: Any, seed: int, ranks: int
) -> None:
    """Shrinking commutes with running: kept inputs give the kept elements of the outputs."""
    module = random_program(seed, ranks, (12, 30), MOVES, steps=20)
    shrunk = shrink(program().module(), module, program().module())
    if isinstance(shrunk, str):
        assert shrunk.startswith("no extent")
        return
    inputs = draw(module.inputs, 1)
    small = {i.name: inputs[i.name][np.ix_(*shrunk.input_positions[i.name])] for i in module.inputs}
    before, after = run(module, inputs), run(shrunk.implementation, small)
    for name, positions in shrunk.output_positions.items():
        for full, part in zip(before[name], after[name], strict=True):
            np.testing.assert_array_equal(part, full[np.ix_(*positions)] if positions else full)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 32), ranks=st.sampled_from([1, 2]))
def test_any_program_shrinks_to_one_that_runs(
    program: Any, random_program: Any, seed: int, ranks: int
) -> None:
    module = random_program(seed, ranks, (12, 30), steps=20)
    shrunk = shrink(program().module(), module, identity(program, module, ranks))
    if isinstance(shrunk, str):
        assert shrunk.startswith("no extent")
        return
    found = run(shrunk.implementation, draw(shrunk.implementation.inputs, 1))
    for name, positions in shrunk.output_positions.items():
        assert found[name][0].shape == tuple(map(len, positions))


def test_an_index_of_the_shrunk_output_stands_for_an_original_one(program: Any) -> None:
    modules = check(program, 2, wrong=True)
    shrunk = shrink(*modules)
    assert isinstance(shrunk, Shrunk)
    outcome = compare(shrunk.reference, shrunk.implementation, shrunk.expected, seed=1)
    assert isinstance(outcome, Replay)
    (found,) = outcome.differences
    index = shrunk.original(found.output, found.index)
    seen = confirm(*modules, output=found.output, rank=found.rank, index=index, seed=1)
    assert isinstance(seen, Difference) and seen.index == index


def test_stacked_outputs_of_several_reference_ranks_shrink(program: Any) -> None:
    many, one, goal = program(2), program(), program()
    many.output("y", many.shard(many.input("x", 40, 30), 0, 2))
    one.output("y", one.input("x", 40, 30))
    goal.output("y", goal.shape("reshape", goal.input("y", 2, 20, 30), 40, 30))
    shrunk = shrink(many.module(), one.module(), goal.module())
    assert isinstance(shrunk, Shrunk), shrunk
    assert shrunk.expected.inputs[0].value.type.shape[0] == 2
    assert shrunk.extents == {"x dim 0": "40->6", "x dim 1": "30->5"}
    assert compare(shrunk.reference, shrunk.implementation, shrunk.expected, seed=1) == Replay((), 1, 0, 0)
