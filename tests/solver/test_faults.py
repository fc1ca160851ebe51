"""Where a mistake is said to be: the small change that mends it, or what moved elements to other places."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import shardproof
from shardproof.ir.module import Module
from shardproof.ir.text import parse
from shardproof.solver.relations.relation_file import Declared
from shardproof.solver.verdict import Result

DOT = "{lhs_contracting=(1,), rhs_contracting=(0,), lhs_batch=(), rhs_batch=()}"
HEAD = ("x = input(0) : f32[4,3]", "w = input(1) : f32[3,5]", "b = input(2) : f32[4,5]")


def module(mesh: str, output: str, lines: Sequence[str]) -> Module:
    body = "\n".join(f"%{line}" for line in (*HEAD, *lines))
    return parse(f'module "m" mesh({mesh}) {{\n{body}\noutput "y" = %{output}\n}}\n', source="test")


def whole(*lines: str, output: str = "y") -> Module:
    own = [h.replace("f32[4,3]", "f32[4,6]").replace("f32[3,5]", "f32[6,5]") for h in HEAD]
    body = "\n".join(f"%{line}" for line in (*own, *lines))
    return parse(f'module "m" mesh() {{\n{body}\noutput "y" = %{output}\n}}\n', source="test")


def verdict(reference: Module, *lines: str) -> Result:
    layouts = {"x": "shard(1)", "w": "shard(0)", "b": "replicate"}
    return shardproof.verify(
        reference, module("tp=2", "y", lines), relation=Declared(inputs=layouts, outputs={"y": "replicate"})
    )


REFERENCE = whole(
    f"z = dot_general(%x, %w) {DOT} : f32[4,5]", "s = add(%z, %b) : f32[4,5]", "y = tanh(%s) : f32[4,5]"
)
Z = f"z = dot_general(%x, %w) {DOT} : f32[4,5]"
ADD = "s = add(%z, %b) : f32[4,5]"
TANH = "y = tanh(%s) : f32[4,5]"


def summed(name: str, of: str, kind: str = "sum", groups: str = "((0,1),)") -> str:
    return f'{name} = all_reduce(%{of}) {{kind="{kind}", groups={groups}}} : f32[4,5]'


SUM = summed("r", "z")
TWOS = (
    "two = constant() {value=f32[](2.0)} : f32[]",
    "twos = broadcast_in_dim(%two) {dims=()} : f32[4,5]",
)


@pytest.mark.parametrize(
    ("lines", "place", "code"),
    [
        ((Z, "s = add(%z, %b) : f32[4,5]", TANH), "z", "R02"),
        ((Z, ADD, summed("r", "s"), "y = tanh(%r) : f32[4,5]"), "s", "R04"),
        ((Z, SUM, summed("q", "r"), "s = add(%q, %b) : f32[4,5]", TANH), "q", "R02"),
        ((Z, summed("r", "z", "max"), "s = add(%r, %b) : f32[4,5]", TANH), "r", "R02"),
        ((Z, summed("r", "z", groups="((0,),(1,))"), "s = add(%r, %b) : f32[4,5]", TANH), "r", "R02"),
        ((Z, SUM, "s = subtract(%r, %b) : f32[4,5]", TANH), "s", "R05"),
        ((Z, SUM, "t = add(%r, %b) : f32[4,5]", "s = add(%t, %b) : f32[4,5]", TANH), "t", "R05"),
        ((Z, "t = tanh(%z) : f32[4,5]", summed("q", "t"), "y = add(%q, %b) : f32[4,5]"), "t", "R05"),
    ],
)
def test_the_change_that_mends_it(lines: tuple[str, ...], place: str, code: str) -> None:
    result = verdict(REFERENCE, *lines)
    assert result.verdict == "refuted" and result.location is not None, result.text()
    assert (result.location.value, result.code) == (place, code), result.text()


def test_the_right_program_is_verified() -> None:
    assert verdict(REFERENCE, Z, SUM, "s = add(%r, %b) : f32[4,5]", TANH).verdict == "verified"


def test_a_mean_in_place_of_a_sum() -> None:
    result = verdict(
        REFERENCE, Z, SUM, *TWOS, "m = divide(%r, %twos) : f32[4,5]", "s = add(%m, %b) : f32[4,5]", TANH
    )
    assert result.location is not None and result.location.value == "m" and result.code == "R02"
    assert result.repair is not None and "the sum over ranks proves all outputs" in result.repair


def test_a_factor_is_where_its_number_is_written() -> None:
    scaled = ("t = multiply(%s, %twos) : f32[4,5]", "y = tanh(%t) : f32[4,5]")
    result = verdict(REFERENCE, Z, SUM, "s = add(%r, %b) : f32[4,5]", *TWOS, *scaled)
    assert result.location is not None and result.location.value == "t", result.text()


def sliced(start: str, *lines: str) -> Module:
    zero = "zero = constant() {value=s32[](0)} : s32[]"
    cut = f"c = dynamic_slice(%x, %{start}, %zero) {{sizes=(2,3)}} : f32[2,3]"
    every = ("x = input(0) : f32[8,3]", zero, *lines, cut, "y = tanh(%c) : f32[2,3]")
    body = "\n".join(f"%{line}" for line in every)
    return parse(f'module "m" mesh(a=2, b=2) {{\n{body}\noutput "y" = %y\n}}\n', source="test")


def test_a_position_is_where_it_is_computed() -> None:
    body = "%x = input(0) : f32[8,3]\n%y = tanh(%x) : f32[8,3]"
    reference = parse(f'module "m" mesh() {{\n{body}\noutput "y" = %y\n}}\n', source="test")
    declared = Declared(inputs={"x": "replicate"}, outputs={"y": "shard(0, a, b)"})
    rank, two = "rank = rank_id() : s32[]", "two = constant() {value=s32[](2)} : s32[]"
    right = sliced("at", rank, two, "at = multiply(%rank, %two) : s32[]")
    assert shardproof.verify(reference, right, relation=declared).verdict == "verified"
    place = "place = remainder(%rank, %two) : s32[]"
    wrong = sliced("at", rank, two, place, "at = multiply(%place, %two) : s32[]")
    result = shardproof.verify(reference, wrong, relation=declared)
    assert (result.verdict, result.code) == ("refuted", "R03"), result.text()
    assert result.location is not None and result.location.value == "at"
    assert result.found == "is at positions 0, 2, 0, 2 on the ranks"
    assert result.expected == "positions 0, 2, 4, 6 on the ranks"


def test_elements_gathered_in_another_place() -> None:
    body = f"%x = input(0) : f32[4,6]\n%w = input(1) : f32[6,5]\n%y = dot_general(%x, %w) {DOT} : f32[4,5]"
    reference = parse(f'module "m" mesh() {{\n{body}\noutput "y" = %y\n}}\n', source="test")
    lines = [
        "x = input(0) : f32[4,6]",
        "w = input(1) : f32[3,5]",
        "t = transpose(%w) {permutation=(1,0)} : f32[5,3]",
        "g = all_gather(%t) {dim=0, groups=((0,1),)} : f32[10,3]",
        "v = reshape(%g) : f32[6,5]",
        f"y = dot_general(%x, %v) {DOT} : f32[4,5]",
    ]
    body = "\n".join(f"%{line}" for line in lines)
    wrong = parse(f'module "m" mesh(tp=2) {{\n{body}\noutput "y" = %y\n}}\n', source="test")
    declared = Declared(inputs={"x": "replicate", "w": "shard(0)"}, outputs={"y": "replicate"})
    result = shardproof.verify(reference, wrong, relation=declared)
    assert (result.verdict, result.code) == ("refuted", "R03"), result.text()
    assert result.location is not None and result.location.value == "g"
