"""Operators that one of two programs writes as others: one function then, and no other."""

from __future__ import annotations

import pytest

from shardproof.ir.module import Module
from shardproof.ir.text import parse
from shardproof.passes.spell_out import spelled_alike
from shardproof.solver.verify import verify


def program(*lines: str) -> Module:
    body = "\n".join(("%x = input(0) : f32[4]", *lines))
    return parse(f'module "m" mesh() {{\n{body}\noutput "y" = %y\n}}\n', source="m.spf")


def by_exponential(inner: str) -> Module:
    return program(
        "%one = constant() {value=f32[](1.0)} : f32[]",
        "%ones = broadcast_in_dim(%one) {dims=()} : f32[4]",
        inner,
        "%e = exponential(%n) : f32[4]",
        "%s = add(%ones, %e) : f32[4]",
        "%y = divide(%ones, %s) : f32[4]",
    )


LOGISTIC = program("%y = logistic(%x) : f32[4]")
SPELLED = by_exponential("%n = negate(%x) : f32[4]")
OTHER = by_exponential("%n = add(%x, %x) : f32[4]")


@pytest.mark.parametrize("both", [(LOGISTIC, SPELLED), (SPELLED, LOGISTIC)])
def test_one_side_is_written_like_the_other(both: tuple[Module, Module]) -> None:
    found = spelled_alike(*both)
    assert not any(op.opcode == "logistic" for m in found for op in m.ops)
    result = verify(*both)
    assert result.verdict == "verified" and not result.lemmas and not result.assumptions


def test_both_alike_are_left_alone() -> None:
    for both in ((LOGISTIC, LOGISTIC), (SPELLED, SPELLED)):
        assert spelled_alike(*both) == both


def test_another_exponential_is_refuted() -> None:
    assert verify(LOGISTIC, OTHER).verdict == "refuted"
    assert verify(OTHER, LOGISTIC).verdict == "refuted"
