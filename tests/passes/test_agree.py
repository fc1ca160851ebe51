"""Values that ranks are said to hold alike count only where that is shown (soundness S9)."""

from __future__ import annotations

from shardproof.ir.module import Module
from shardproof.ir.parse import parse
from shardproof.passes.normalise import input_view, new_store, normalise
from shardproof.solver.verify import verify

WHOLE = """
module "whole" mesh() {
  %x = input(0) : f32[4]
  %y = tanh(%x) : f32[4]
  output "y" = %y
}
"""
SAME = """
module "ranks" mesh(tp=2) {
  %x = input(0) : f32[2]
  %y = tanh(%x) : f32[2]
  %g = all_gather(%y) {dim=0, groups=((0, 1),)} : f32[4]
  %a = agree(%g) {groups=((0, 1),)} : f32[4]
  output "y" = %a
}
"""
OWN_COPIES = """
module "ranks" mesh(tp=2) {
  %x = input(0) : f32[2]
  %y = tanh(%x) : f32[2]
  %two = concatenate(%y, %y) {dim=0} : f32[4]
  %a = agree(%two) {groups=((0, 1),)} : f32[4]
  %r = rank_id() : s32[]
  %n = constant() {value=s32[](2)} : s32[]
  %s = multiply(%r, %n) : s32[]
  %p = dynamic_slice(%a, %s) {sizes=(2,)} : f32[2]
  %g = all_gather(%p) {dim=0, groups=((0, 1),)} : f32[4]
  output "y" = %g
}
"""


def module(text: str) -> Module:
    return parse(text, source="test")


def opaque(text: str) -> dict[str, str]:
    store, program = new_store(), module(text)
    views = {i.name: input_view(store, i.value) for i in program.inputs}
    return normalise(store, program, views).opaque


def test_a_gathered_value_is_held_alike() -> None:
    result = verify(module(WHOLE), module(SAME))
    assert result.verdict.value == "verified", result.text()


def test_parts_of_different_copies_prove_nothing() -> None:
    """Every rank cuts the part out of its own copy that is right there: equal, if copies were never mixed."""
    without = module(OWN_COPIES.replace("agree(%two) {groups=((0, 1),)}", "reshape(%two)"))
    assert verify(module(WHOLE), without).verdict.value == "verified"
    assert verify(module(WHOLE), module(OWN_COPIES)).verdict.value == "unknown"


def test_only_what_differs_between_ranks_has_no_meaning() -> None:
    text = """
    module "ranks" mesh(tp=2) {
      %r = rank_id() : s32[]
      %a = agree(%r) {groups=((0, 1),)} : s32[]
      output "y" = %a
    }
    """
    assert list(opaque(text)) == ["a"]
    assert not opaque(text.replace("((0, 1),)", "((0,), (1,))"))
    assert not opaque(text.replace("rank_id()", "constant() {value=s32[](1)}"))
