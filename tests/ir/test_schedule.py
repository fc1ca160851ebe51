"""Runs of one program per rank: collectives meet by group, or the run says why not."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.ir.interpret import Deadlock, GroupMismatch, InterpretError, run, run_ranks
from shardproof.ir.module import Module
from shardproof.ir.text import parse

X = {"x": [np.full((2, 2), float(10**r)) for r in range(4)]}
ALL = "((0, 1, 2, 3),)"
TP = "((0, 1), (2, 3))"
DP = "((0, 2), (1, 3))"


def program(rank: int | None, *lines: str, ranks: int = 4) -> Module:
    number = "" if rank is None else f" rank={rank}"
    body = "\n".join(("%x = input(0) : f32[2,2]", *lines, 'output "y" = %y'))
    return parse(f'module "m" mesh(x={ranks}){number} {{ {body} }}', source="test")


def reduced(name: str, operand: str, groups: str, kind: str = "sum") -> str:
    call = f'all_reduce(%{operand}) {{kind="{kind}", groups={groups}}}'
    return f'%{name} = {call} : f32[2,2] at "f.py":{ord(name)}'


def first(outputs: list[dict[str, np.ndarray]]) -> list[float]:
    return [float(o["y"].flat[0]) for o in outputs]


def test_the_same_program_on_every_rank_is_the_lock_step_run() -> None:
    lines = (reduced("a", "x", TP), "%b = negate(%a) : f32[2,2]", reduced("y", "b", DP))
    lock_step = run(program(None, *lines), X)["y"]
    found = run_ranks([program(r, *lines) for r in range(4)], X)
    for r in range(4):
        np.testing.assert_array_equal(found[r]["y"], lock_step[r])
    assert first(run_ranks([program(None, *lines)] * 4, X)) == first(found)


def test_programs_may_differ_between_collectives() -> None:
    one = (reduced("a", "x", TP), reduced("y", "a", TP))
    more = ("%n = negate(%x) : f32[2,2]", reduced("a", "n", TP), reduced("y", "a", TP))
    assert first(run_ranks([program(r, *(more if r == 1 else one)) for r in range(4)], X)) == [
        -18.0, -18.0, 2200.0, 2200.0,
    ]  # fmt: skip


def test_each_rank_lists_its_own_group_only() -> None:
    groups = ["((0, 1),)", "((0, 1),)", "((2, 3),)", "((2, 3),)"]
    found = run_ranks([program(r, reduced("y", "x", groups[r])) for r in range(4)], X)
    assert first(found) == [11.0, 11.0, 1100.0, 1100.0]


def test_rank_of_the_module_decides() -> None:
    programs = [program(r, "%i = rank_id() : s32[]", "%y = negate(%x) : f32[2,2]") for r in (2, 0, 3, 1)]
    assert first(run_ranks(programs, X)) == [-1.0, -10.0, -100.0, -1000.0]
    with pytest.raises(InterpretError, match=r"ranks \[0, 0, 1, 2\]"):
        run_ranks([program(r, "%y = negate(%x) : f32[2,2]") for r in (0, 0, 1, 2)], X)
    with pytest.raises(InterpretError, match="4 ranks, 2 programs"):
        run_ranks([program(r, "%y = negate(%x) : f32[2,2]") for r in (0, 1)], X)


def test_pipeline_of_permutes() -> None:
    send = "%y = collective_permute(%x) {pairs=((0, 1), (2, 3))} : f32[2,2]"
    assert first(run_ranks([program(r, send) for r in range(4)], X)) == [0.0, 1.0, 0.0, 100.0]
    idle = "%y = negate(%x) : f32[2,2]"
    alone = "%y = collective_permute(%x) {pairs=((0, 1),)} : f32[2,2]"
    programs = [program(r, alone if r < 3 else idle) for r in range(4)]
    assert first(run_ranks(programs, X)) == [0.0, 1.0, 0.0, -1000.0]


def test_a_rank_that_does_not_call_is_a_deadlock() -> None:
    programs = [program(r, reduced("y", "x", TP)) for r in range(3)]
    programs.append(program(3, "%y = negate(%x) : f32[2,2]"))
    with pytest.raises(Deadlock) as error:
        run_ranks(programs, X)
    assert "rank 2 waits at all_reduce %y at f.py:121 on group (2, 3)" in str(error.value)
    assert "rank 3 has finished" in str(error.value)
    assert "\n" not in str(error.value)


def test_swapped_calls_are_a_deadlock() -> None:
    ordered = (reduced("a", "x", TP), reduced("y", "a", ALL))
    swapped = (reduced("a", "x", ALL), reduced("y", "a", TP))
    with pytest.raises(Deadlock, match=r"rank 1 waits at all_reduce %a at f.py:97 on group \(0, 1, 2, 3\)"):
        run_ranks([program(r, *(swapped if r == 1 else ordered)) for r in range(4)], X)


def test_a_cycle_of_ranks_is_a_deadlock() -> None:
    pairs = ["((0, 1),)", "((1, 2),)", "((2, 0),)"]
    three = [program(r, reduced("y", "x", pairs[r]), ranks=3) for r in range(3)]
    with pytest.raises(Deadlock, match="rank 2 waits"):
        run_ranks(three, {"x": X["x"][0]})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (reduced("y", "x", TP, "max"), "attributes differ: rank 0 .* rank 1"),
        (reduced("y", "x", "((1, 0), (2, 3))"), r"groups differ: rank 0 .*\(0, 1\).* rank 1 .*\(1, 0\)"),
        (reduced("y", "x", ALL), r"groups differ: rank 0 .*\(0, 1\).* rank 1 .*\(0, 1, 2, 3\)"),
        (f"%y = all_gather(%x) {{dim=0, groups={TP}}} : f32[4,2]", "operators differ"),
    ],
)
def test_calls_that_do_not_match(other: str, message: str) -> None:
    programs = [program(r, other if r == 1 else reduced("y", "x", TP)) for r in range(4)]
    with pytest.raises(GroupMismatch, match=message):
        run_ranks(programs, X)


def test_types_must_match() -> None:
    short = ("%s = slice(%x) {starts=(0, 0), limits=(1, 2), strides=(1, 1)} : f32[1,2]",)
    other = (*short, '%y = all_reduce(%s) {kind="sum", groups=((0, 1), (2, 3))} : f32[1,2]')
    programs = [program(r, *(other if r == 3 else (reduced("y", "x", TP),))) for r in range(4)]
    with pytest.raises(GroupMismatch, match=r"operand types f32\[2,2\] and f32\[1,2\] differ"):
        run_ranks(programs, X)
