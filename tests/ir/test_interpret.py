"""Lock-step runs of SPMD modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardproof.ir.interpret import InterpretError, Unsupported, run
from shardproof.ir.module import Module
from shardproof.ir.text import parse

MESH = "mesh(dp=2, tp=2)"
TP = "groups=((0, 1), (2, 3))"
X = [np.array([[1.0, 2.0], [3.0, 4.0]]) + 10 * r for r in range(4)]


def module(*lines: str, mesh: str = MESH, shape: str = "f32[2,2]") -> Module:
    body = "\n".join((f"%x = input(0) : {shape}", *lines, 'output "y" = %y'))
    return parse(f'module "m" {mesh} {{ {body} }}', source="test")


def outputs(line: str) -> list[Any]:
    return run(module(line), {"x": X})["y"]


def test_all_reduce() -> None:
    found = outputs(f'%y = all_reduce(%x) {{kind="sum", {TP}}} : f32[2,2]')
    for r, (a, b) in enumerate(((0, 1), (0, 1), (2, 3), (2, 3))):
        np.testing.assert_array_equal(found[r], X[a] + X[b])
    found = outputs(f'%y = all_reduce(%x) {{kind="max", {TP}}} : f32[2,2]')
    np.testing.assert_array_equal(found[0], X[1])


def test_order_of_a_group_is_the_order_of_its_pieces() -> None:
    found = outputs("%y = all_gather(%x) {dim=1, groups=((1, 0), (2, 3))} : f32[2,4]")
    np.testing.assert_array_equal(found[0], np.concatenate([X[1], X[0]], 1))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[3], np.concatenate([X[2], X[3]], 1))
    found = outputs('%y = reduce_scatter(%x) {dim=0, kind="sum", groups=((1, 0), (2, 3))} : f32[1,2]')
    np.testing.assert_array_equal(found[1], (X[0] + X[1])[:1])
    np.testing.assert_array_equal(found[0], (X[0] + X[1])[1:])
    found = outputs("%y = all_to_all(%x) {split_dim=0, concat_dim=1, groups=((1, 0), (2, 3))} : f32[1,4]")
    np.testing.assert_array_equal(found[1], np.concatenate([X[1][:1], X[0][:1]], 1))
    np.testing.assert_array_equal(found[0], np.concatenate([X[1][1:], X[0][1:]], 1))


def test_ranks_that_receive_nothing_get_zeros() -> None:
    found = outputs("%y = collective_permute(%x) {pairs=((0, 1), (1, 2))} : f32[2,2]")
    for r, expected in enumerate((0 * X[0], X[0], X[1], 0 * X[0])):
        np.testing.assert_array_equal(found[r], expected)
    found = outputs("%y = collective_broadcast(%x) {groups=((2, 0),)} : f32[2,2]")
    for r, expected in enumerate((X[2], 0 * X[0], X[2], 0 * X[0])):
        np.testing.assert_array_equal(found[r], expected)


def test_a_rank_without_group_is_an_error() -> None:
    line = '%y = all_reduce(%x) {kind="sum", groups=((0, 1),)} : f32[2,2] at "model.py":7'
    with pytest.raises(InterpretError, match=r"rank 2 is in no group of all_reduce %y at model.py:7"):
        outputs(line)


def test_rank_id() -> None:
    found = run(module("%y = rank_id() : s32[]"), {"x": X})["y"]
    assert [int(r) for r in found] == [0, 1, 2, 3] and found[0].dtype == np.int32


def test_work_and_results_are_shared() -> None:
    lines = ("%a = tanh(%x) : f32[2,2]", f'%y = all_reduce(%a) {{kind="sum", {TP}}} : f32[2,2]')
    everywhere = run(module(*lines), {"x": X[0]}, values=True)
    for name in ("x", "a", "y"):
        assert all(array is everywhere[name][0] for array in everywhere[name])
    per_tp = run(module(*lines), {"x": [X[0], X[1], X[0], X[1]]}, values=True)
    assert per_tp["a"][0] is per_tp["a"][2] and per_tp["a"][0] is not per_tp["a"][1]
    assert per_tp["y"][0] is per_tp["y"][3]


def test_values_by_name() -> None:
    m = module("%a = negate(%x) : f32[2,2]", "%y = abs(%a) : f32[2,2]")
    assert set(run(m, {"x": X})) == {"y"}
    everything = run(m, {"x": X}, values=True)
    assert set(everything) == {"x", "a", "y"}
    np.testing.assert_array_equal(everything["a"][3], -X[3])


def test_an_output_survives_its_last_use() -> None:
    text = (
        'module "m" mesh() { %x = input(0) : f32[] %y = negate(%x) : f32[] %z = negate(%y) : f32[]'
        ' output "x" = %x output "y" = %y output "again" = %y }'
    )
    found = run(parse(text, source="test"), {"x": np.array(2.0)})
    assert {name: float(arrays[0]) for name, arrays in found.items()} == {"x": 2.0, "y": -2.0, "again": -2.0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "input x is missing"),
        ({"x": X[:3]}, "input x has 3 arrays, 4 ranks"),
        ({"x": np.zeros(3)}, r"input x has shape \[3\]"),
        ({"x": np.zeros((2, 2), dtype=bool)}, "input x holds bool"),
        ({"x": np.zeros((2, 2), dtype=complex)}, "input x holds complex128"),
    ],
)
def test_inputs_that_do_not_fit(given: Any, message: str) -> None:
    with pytest.raises(InterpretError, match=message):
        run(module("%y = negate(%x) : f32[2,2]"), given)


def test_integer_inputs_must_fit_in_their_type() -> None:
    m = module("%y = negate(%x) : s8[2]", shape="s8[2]")
    assert run(m, {"x": np.array([1, -128])})["y"][0].tolist() == [-1, -128]
    with pytest.raises(InterpretError, match="outside of s8"):
        run(m, {"x": np.array([1, 128])})
    with pytest.raises(InterpretError, match="holds float64"):
        run(m, {"x": np.array([1.0, 2.0])})


def test_unsupported_names_the_operator() -> None:
    m = module('%y = opaque(%x) {name="f", free=()} : f32[2,2] at "model.py":3')
    with pytest.raises(Unsupported, match=r"opaque .* %y at model.py:3") as error:
        run(m, {"x": X})
    assert error.value.opcode == "opaque"


def test_the_program_of_one_rank_does_not_run_alone() -> None:
    with pytest.raises(InterpretError, match="rank 1"):
        run(module("%y = negate(%x) : f32[2,2]", mesh=f"{MESH} rank=1"), {"x": X})
