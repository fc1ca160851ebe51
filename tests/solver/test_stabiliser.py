"""A softmax whose exponents are shifted by something else than a maximum is no `verified`."""

from __future__ import annotations

import pytest

import shardproof
from shardproof.ir.module import Module
from shardproof.ir.text import parse

SUM = '{dims=(1,), kind="sum"}'
MAX = '{dims=(1,), kind="max"}'
START = (
    "zero = constant() {value=f32[](0.0)} : f32[]",
    "low = constant() {value=f32[](-inf)} : f32[]",
)


def program(mesh: str, *lines: str) -> Module:
    body = "\n".join(f"  %{line}" for line in (*START, *lines))
    return parse(f'module "m" mesh({mesh}) {{\n{body}\n  output "y" = %y\n}}\n', source="test")


def total(shift: str) -> list[str]:
    """The logarithm of the sum of the exponentials of 4 of 8 columns a rank, shifted by `shift`."""
    return [
        "x = input(0) : f32[3,4]",
        f"m = reduce(%x, %low) {MAX} : f32[3]",
        f"s = {shift} : f32[3]",
        "wide = broadcast_in_dim(%s) {dims=(0,)} : f32[3,4]",
        "e = subtract(%x, %wide) : f32[3,4]",
        "p = exponential(%e) : f32[3,4]",
        f"t = reduce(%p, %zero) {SUM} : f32[3]",
        'all = all_reduce(%t) {groups=((0,1)), kind="sum"} : f32[3]',
        "log = log(%all) : f32[3]",
        "y = add(%log, %s) : f32[3]",
    ]


REFERENCE = program(
    "",
    "x = input(0) : f32[3,8]",
    f"m = reduce(%x, %low) {MAX} : f32[3]",
    "wide = broadcast_in_dim(%m) {dims=(0,)} : f32[3,8]",
    "e = subtract(%x, %wide) : f32[3,8]",
    "p = exponential(%e) : f32[3,8]",
    f"t = reduce(%p, %zero) {SUM} : f32[3]",
    "log = log(%t) : f32[3]",
    "y = add(%log, %m) : f32[3]",
)


@pytest.mark.parametrize("kind", ["sum", "min", "prod"])
def test_another_collective_than_the_maximum_is_named(kind: str) -> None:
    shift = f'all_reduce(%m) {{groups=((0,1)), kind="{kind}"}}'
    result = shardproof.verify(REFERENCE, program("tp=2", *total(shift)))
    assert (result.verdict, result.code) == ("unknown", "U14"), result.text()
    assert result.location is not None and result.location.value == "s"


def test_a_maximum_that_starts_at_a_constant_is_named() -> None:
    """Where all scores are far below it, all exponentials vanish."""
    shift = 'all_reduce(%own) {groups=((0,1)), kind="max"}'
    lines = total(shift)
    lines[1:2] = ["one = constant() {value=f32[](1.0)} : f32[]", f"own = reduce(%x, %one) {MAX} : f32[3]"]
    result = shardproof.verify(REFERENCE, program("tp=2", *lines))
    assert (result.verdict, result.code) == ("unknown", "U14"), result.text()
    assert result.location is not None and result.location.value == "own"


def test_the_maximum_over_all_ranks_is_verified() -> None:
    shift = 'all_reduce(%m) {groups=((0,1)), kind="max"}'
    assert shardproof.verify(REFERENCE, program("tp=2", *total(shift))).verdict == "verified"


def test_a_maximum_of_blocks_as_they_come_is_verified() -> None:
    """The exponent of a running softmax: what was summed so far is scaled by the old and the new maximum."""
    cut = "{{starts=(0,{a}), limits=(3,{b}), strides=(1,1)}}"
    lines = ["x = input(0) : f32[3,8]"]
    for n, (a, b) in enumerate(((0, 3), (3, 8))):
        width = b - a
        lines += [
            f"x{n} = slice(%x) {cut.format(a=a, b=b)} : f32[3,{width}]",
            f"own{n} = reduce(%x{n}, %low) {MAX} : f32[3]",
            f"m{n} = maximum(%own{n}, %{'own0' if n == 0 else 'm0'}) : f32[3]",
            f"wide{n} = broadcast_in_dim(%m{n}) {{dims=(0,)}} : f32[3,{width}]",
            f"e{n} = subtract(%x{n}, %wide{n}) : f32[3,{width}]",
            f"p{n} = exponential(%e{n}) : f32[3,{width}]",
            f"t{n} = reduce(%p{n}, %zero) {SUM} : f32[3]",
        ]
    lines += [
        "back = subtract(%m0, %m1) : f32[3]",
        "scale = exponential(%back) : f32[3]",
        "kept = multiply(%t0, %scale) : f32[3]",
        "t = add(%kept, %t1) : f32[3]",
        "log = log(%t) : f32[3]",
        "y = add(%log, %m1) : f32[3]",
    ]
    result = shardproof.verify(REFERENCE, program("", *lines))
    assert result.verdict == "verified" and result.lemmas, result.text()
