"""What is said about a program that departs from its reference in several places."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof
from shardproof.ir.module import Module
from shardproof.ir.text import parse

DOT = "{lhs_contracting=(1,), rhs_contracting=(0,), lhs_batch=(), rhs_batch=()}"


def layers(mesh: str, inner: int, joined: bool) -> Module:
    """Two blocks `x + tanh(x w) v`; with `joined` their products are summed over two ranks."""
    lines = ["%x0 = input(0) : f32[3,4]"]
    for n in range(2):
        lines.append(f"%w{n} = input({2 * n + 1}) : f32[4,{inner}]")
        lines.append(f"%v{n} = input({2 * n + 2}) : f32[{inner},4]")
    for n in range(2):
        lines.append(f"%a{n} = dot_general(%x{n}, %w{n}) {DOT} : f32[3,{inner}]")
        lines.append(f"%b{n} = tanh(%a{n}) : f32[3,{inner}]")
        lines.append(f"%c{n} = dot_general(%b{n}, %v{n}) {DOT} : f32[3,4]")
        if joined:
            lines.append(f'%s{n} = all_reduce(%c{n}) {{kind="sum", groups=((0,1),)}} : f32[3,4]')
        lines.append(f"%x{n + 1} = add(%x{n}, %{'s' if joined else 'c'}{n}) : f32[3,4]")
    lines.append('output "y" = %x2')
    return parse(f'module "m" mesh({mesh}) {{\n' + "\n".join(lines) + "\n}\n", source="test")


def test_the_right_program_is_verified() -> None:
    assert shardproof.verify(layers("", 8, False), layers("tp=2", 4, True)).verdict == "verified"


def test_a_sum_that_is_missing_in_every_layer_is_one_finding() -> None:
    result = shardproof.verify(layers("", 8, False), layers("tp=2", 4, False))
    assert (result.verdict, result.code) == ("refuted", "R02"), result.text()
    assert result.location is not None and result.location.value == "x1"
    assert result.repair == ("an all-reduce over tp after `c0`, and the same further on, proves all outputs")


def fused(interleaved: bool) -> Module:
    """`q * k + v` of one product with a fused weight; a rank may hold it group by group."""
    n, cols = (3, 6) if interleaved else (3, 12)
    lines = [f"%x = input(0) : f32[{n},4]", f"%w = input(1) : f32[4,{cols}]"]
    lines.append(f"%z = dot_general(%x, %w) {DOT} : f32[{n},{cols}]")
    names = "qkv"
    if interleaved:
        lines.append(f"%g = reshape(%z) : f32[{n},2,3]")
        for k, name in enumerate(names):
            where = f"{{starts=(0,0,{k}), limits=({n},2,{k + 1}), strides=(1,1,1)}}"
            lines.append(f"%{name}1 = slice(%g) {where} : f32[{n},2,1]")
            lines.append(f"%{name} = reshape(%{name}1) : f32[{n},2]")
        part = f"f32[{n},2]"
    else:
        for k, name in enumerate(names):
            where = f"{{starts=(0,{4 * k}), limits=({n},{4 * k + 4}), strides=(1,1)}}"
            lines.append(f"%{name} = slice(%z) {where} : f32[{n},4]")
        part = f"f32[{n},4]"
    lines += [f"%qk = multiply(%q, %k) : {part}", f"%y = add(%qk, %v) : {part}", 'output "y" = %y']
    mesh = "tp=2" if interleaved else ""
    return parse(f'module "m" mesh({mesh}) {{\n' + "\n".join(lines) + "\n}\n", source="test")


def test_repairing_the_output_itself_is_no_evidence(tmp_path: Path) -> None:
    assert shardproof.verify(fused(False), fused(True)).verdict == "unknown"
    file = tmp_path / "relation.toml"
    steps = '"h (s r g) -> h (r g s), s=3, r=2 | shard(1)"'
    file.write_text(f'mesh = {{ tp = 2 }}\n[inputs]\n"x" = "replicate"\n"w" = {steps}\n')
    assert shardproof.verify(fused(False), fused(True), relation=file).verdict == "verified"


def gathered(order: tuple[int, ...] | None) -> Module:
    """A product whose columns are sharded, gathered, and put in another order of parts."""
    if order is None:
        lines = ["%x = input(0) : f32[3,4]", "%w = input(1) : f32[4,8]"]
        lines.append(f"%y = dot_general(%x, %w) {DOT} : f32[3,8]")
    else:
        lines = ["%x = input(0) : f32[3,4]", "%w = input(1) : f32[4,2]"]
        lines.append(f"%z = dot_general(%x, %w) {DOT} : f32[3,2]")
        lines.append("%g = all_gather(%z) {dim=1, groups=((0,1,2,3),)} : f32[3,8]")
        for n, k in enumerate(order):
            where = f"{{starts=(0,{2 * k}), limits=(3,{2 * k + 2}), strides=(1,1)}}"
            lines.append(f"%p{n} = slice(%g) {where} : f32[3,2]")
        parts = ", ".join(f"%p{n}" for n in range(len(order)))
        lines.append(f"%y = concatenate({parts}) {{dim=1}} : f32[3,8]")
    lines.append('output "y" = %y')
    mesh = "" if order is None else "tp=4"
    return parse(f'module "m" mesh({mesh}) {{\n' + "\n".join(lines) + "\n}\n", source="test")


def test_ranks_that_may_hold_other_shards_are_not_refuted() -> None:
    result = shardproof.verify(gathered(None), gathered((2, 0, 3, 1)))
    assert (result.verdict, result.code) == ("unknown", "U06"), result.text()
    assert shardproof.verify(gathered(None), gathered((0, 1, 2, 3))).verdict == "verified"
    assert shardproof.verify(gathered(None), gathered((0, 1, 2, 2))).verdict == "refuted"


def test_an_unfinished_search_for_layouts_refutes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = gathered((0, 1, 2, 2))
    assert shardproof.verify(gathered(None), wrong).verdict == "refuted"
    monkeypatch.setattr("shardproof.solver.replay.refute.PATIENCE", -1.0)
    result = shardproof.verify(gathered(None), wrong)
    assert (result.verdict, result.code) == ("unknown", "U10"), result.text()


TAKE = (
    "{offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,3), "
    "index_vector_dim=1, operand_batching_dims=(), start_indices_batching_dims=()}"
)


def looked_up(mesh: str, first: str = "", start: str = "") -> Module:
    """Rows of a table by their ids; on two ranks each looks in its own five rows."""
    rows = 5 if mesh else 10
    lines = [f"%w = input(0) : f32[{rows},3]", "%ids = input(1) : s32[4]"]
    at = "ids"
    if mesh:
        spread = "{dims=()} : s32[4]"
        lines.append("%rank = rank_id() : s32[]")
        for name, numbers in (("first", first), ("start", start)):
            lines.append(f'%{name}_of_all = constant() {{value=s32[2]({numbers})}} : s32[2]')
            lines.append(f"%{name}_own = dynamic_slice(%{name}_of_all, %rank) {{sizes=(1,)}} : s32[1]")
            lines.append(f"%{name} = reshape(%{name}_own) : s32[]")
            lines.append(f"%{name}s = broadcast_in_dim(%{name}) {spread}")
        lines.append('%zero = constant() {value=s32[](0)} : s32[]')
        lines.append('%size = constant() {value=s32[](5)} : s32[]')
        lines += [f"%zeros = broadcast_in_dim(%zero) {spread}", f"%sizes = broadcast_in_dim(%size) {spread}"]
        lines.append("%there = subtract(%ids, %starts) : s32[4]")
        lines.append('%below = compare(%there, %sizes) {direction="LT", total=false} : bool[4]')
        lines.append('%above = compare(%ids, %firsts) {direction="GE", total=false} : bool[4]')
        lines.append("%inside = and(%above, %below) : bool[4]")
        lines.append("%local = select(%inside, %there, %zeros) : s32[4]")
        at = "local"
    lines.append(f"%column = reshape(%{at}) : s32[4,1]")
    lines.append(f"%rows = gather(%w, %column) {TAKE} : f32[4,3]")
    out = "rows"
    if mesh:
        lines.append("%hits = broadcast_in_dim(%inside) {dims=(0,)} : bool[4,3]")
        lines.append('%nothing = constant() {value=f32[](0.0)} : f32[]')
        lines.append("%none = broadcast_in_dim(%nothing) {dims=()} : f32[4,3]")
        lines.append("%masked = select(%hits, %rows, %none) : f32[4,3]")
        lines.append('%y = all_reduce(%masked) {kind="sum", groups=((0,1),)} : f32[4,3]')
        out = "y"
    lines.append(f'output "y" = %{out}')
    return parse(f'module "m" mesh({mesh}) {{\n' + "\n".join(lines) + "\n}\n", source="test")


@pytest.mark.parametrize(
    ("first", "start", "wrong", "numbers"),
    [("0, 6", "0, 5", "first", "0, 6"), ("0, 5", "0, 4", "start", "0, 4"), ("1, 5", "0, 5", "first", "1, 5")],
)
def test_a_number_of_one_rank_that_is_right_elsewhere_is_named(
    first: str, start: str, wrong: str, numbers: str
) -> None:
    right = shardproof.verify(looked_up(""), looked_up("tp=2", "0, 5", "0, 5"))
    assert right.verdict == "verified", right.text()
    result = shardproof.verify(looked_up(""), looked_up("tp=2", first, start))
    assert result.verdict == "refuted" and result.location is not None, result.text()
    assert (result.location.value, result.code) == (wrong, "R03"), result.text()
    assert result.found == f"is {numbers} on the ranks" and result.repair == "using 0, 5 proves all outputs"
