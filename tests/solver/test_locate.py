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
    monkeypatch.setattr("shardproof.solver.refute.PATIENCE", -1.0)
    result = shardproof.verify(gathered(None), wrong)
    assert (result.verdict, result.code) == ("unknown", "U10"), result.text()
