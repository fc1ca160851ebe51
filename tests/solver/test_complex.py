"""Complex numbers are no reals: no rule for reals sees them, and their parts are compared both."""

from __future__ import annotations

import pytest

from shardproof import Verdict, verify
from shardproof.ir.module import Module
from shardproof.ir.text import parse

TABLE = """
module "parts" mesh() {{
  %x = input(0) : f32[4]
  %a = constant() {{value=f32[4](0.1, 0.2, 0.4, 0.5)}} : f32[4]
  %b = constant() {{value=f32[4](0.3, 0.7, 0.1, {last})}} : f32[4]
  %z = complex(%a, %b) : c64[4]
{body}
  %y = multiply(%x, %q) : f32[4]
  output "y" = %y
}}
"""
BOTH = "  %i = imag(%z) : f32[4]\n  %r = real(%z) : f32[4]\n  %q = add(%i, %r) : f32[4]"
IMAGINARY = "  %q = imag(%z) : f32[4]"
EXPONENTIAL = "  %e = exponential(%z) : c64[4]\n  %q = real(%e) : f32[4]"


def program(last: float, body: str) -> Module:
    return parse(TABLE.format(last=last, body=body), source="parts.spf")


@pytest.mark.parametrize("body", [BOTH, IMAGINARY, EXPONENTIAL])
def test_constants_that_differ_in_one_part_only(body: str) -> None:
    assert verify(program(0.9, body), program(0.9, body)).verdict is Verdict.VERIFIED
    assert verify(program(0.9, body), program(0.8, body)).verdict is Verdict.REFUTED


def test_a_real_table_is_not_the_complex_number_that_it_is_a_part_of() -> None:
    alone = program(0.9, "  %q = real(%z) : f32[4]")
    zero = program(0.0, BOTH.replace("add", "multiply"))
    assert verify(alone, zero).verdict is Verdict.REFUTED
