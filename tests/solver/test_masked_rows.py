"""Rows of which a mask leaves nothing: 0 in one program and no number in the other is an assumption."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import shardproof
from shardproof.ir.interpret import run
from shardproof.ir.module import Module
from shardproof.ir.text import parse
from shardproof.solver.verdict import Verdict

HEAD = """module "m" mesh() {
  %s = input(0) : f64[2,3]
  %m = input(1) : bool[2,3]
  %c0 = constant() {value=f64[](0.0)} : f64[]
  %zeros = broadcast_in_dim(%c0) {dims=()} : f64[2,3]
  %low = constant() {value=f64[](-inf)} : f64[]
  %lows = broadcast_in_dim(%low) {dims=()} : f64[2,3]
  %w = select(%m, %s, %lows) : f64[2,3]
  %ew = exponential(%w) : f64[2,3]
  %sw = reduce(%ew, %c0) {dims=(1,), kind="sum"} : f64[2]
  %bw = broadcast_in_dim(%sw) {dims=(0,)} : f64[2,3]
  %soft = divide(%ew, %bw) : f64[2,3]
  %es = exponential(%s) : f64[2,3]
  %e0 = select(%m, %es, %zeros) : f64[2,3]
  %s0 = reduce(%e0, %c0) {dims=(1,), kind="sum"} : f64[2]
  %b0 = broadcast_in_dim(%s0) {dims=(0,)} : f64[2,3]
"""
ENDS = {
    "infinity": "  %y = add(%soft, %zeros) : f64[2,3]\n",
    "guarded": "  %y = select(%m, %soft, %zeros) : f64[2,3]\n",
    "multiplied": "  %one = convert(%m) : f64[2,3]\n  %y = multiply(%one, %soft) : f64[2,3]\n",
    "zeros": "  %y = divide(%e0, %b0) : f64[2,3]\n",
    "late": "  %q = divide(%es, %b0) : f64[2,3]\n  %y = select(%m, %q, %zeros) : f64[2,3]\n",
    "logarithm": "  %l = log(%bw) : f64[2,3]\n  %d = subtract(%w, %l) : f64[2,3]\n"
    "  %e = exponential(%d) : f64[2,3]\n  %y = select(%m, %e, %zeros) : f64[2,3]\n",
}


def program(name: str) -> Module:
    return parse(HEAD + ENDS[name] + '  output "y" = %y\n}\n', source="m.spf")


def dead(name: str) -> bool:
    """Whether a row without a score is 0, not no number."""
    mask = np.array([[True, False, True], [False, False, False]])
    found = run(program(name), {"s": [np.ones((2, 3))], "m": [mask]})["y"][0]
    assert np.isfinite(found[0]).all()
    return bool(np.isfinite(found[1]).all())


FAST = (("guarded", "multiplied"), ("zeros", "late"), ("infinity", "logarithm"))


def check(a: str, b: str) -> None:
    assert dead(a) != dead(b)
    result = shardproof.verify(program(a), program(b))
    assert result.verdict is not Verdict.VERIFIED or result.assumptions, result.text()


@pytest.mark.parametrize(("a", "b"), FAST)
def test_masked_rows(a: str, b: str) -> None:
    check(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), [p for p in permutations(ENDS, 2) if p not in FAST])
def test_more_masked_rows(a: str, b: str) -> None:
    if dead(a) != dead(b):
        check(a, b)
