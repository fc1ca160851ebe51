"""Attention with masks, spelled as two frameworks do: what is one under listed assumptions, what is not."""

from __future__ import annotations

import numpy as np
import pytest

import shardproof
from shardproof.ir.interpret import run
from shardproof.ir.module import Module
from shardproof.ir.text import parse
from shardproof.lemmas.codec import from_json, to_json
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.parse import parse as statements
from shardproof.lemmas.printer import show
from shardproof.lemmas.terms import Lemma
from shardproof.lemmas.typing import check
from shardproof.solver.verdict import Verdict

HEAD = """module "m" mesh() {
  %s = input(0) : f64[2,3,3]
  %m = input(1) : bool[2,3,3]
  %v = input(2) : f64[2,3,4]
  %zero = constant() {value=f64[](0.0)} : f64[]
  %zeros = broadcast_in_dim(%zero) {dims=()} : f64[2,3,3]
  %lowest = constant() {value=f64[](-inf)} : f64[]
  %mask = constant() {value=f64[](MASK)} : f64[]
  %masks = broadcast_in_dim(%mask) {dims=()} : f64[2,3,3]
"""
ADDED = """  %a = select(%m, %zeros, %masks) : f64[2,3,3]
  %w = add(%s, %a) : f64[2,3,3]
"""
CHOSEN = "  %w = select(%m, %s, %masks) : f64[2,3,3]\n"
OPPOSITE = "  %w = select(%m, %masks, %s) : f64[2,3,3]\n"
TRANSPOSED = """  %t = transpose(%m) {permutation=(0, 2, 1)} : bool[2,3,3]
  %w = select(%t, %s, %masks) : f64[2,3,3]
"""
DOUBLED = """  %two = constant() {value=f64[](2.0)} : f64[]
  %twos = broadcast_in_dim(%two) {dims=()} : f64[2,3,3]
  %ss = multiply(%s, %twos) : f64[2,3,3]
  %w = select(%m, %ss, %masks) : f64[2,3,3]
"""
PLAIN = "  %e = exponential(%w) : f64[2,3,3]\n"
SHIFTED = """  %top = reduce(%w, %lowest) {dims=(2,), kind="max"} : f64[2,3]
  %tops = broadcast_in_dim(%top) {dims=(0, 1)} : f64[2,3,3]
  %d = subtract(%w, %tops) : f64[2,3,3]
  %e = exponential(%d) : f64[2,3,3]
"""
SHIFTED_BY_COLUMN = """  %top = reduce(%w, %lowest) {dims=(1,), kind="max"} : f64[2,3]
  %tops = broadcast_in_dim(%top) {dims=(0, 2)} : f64[2,3,3]
  %d = subtract(%w, %tops) : f64[2,3,3]
  %e = exponential(%d) : f64[2,3,3]
"""
BY_ROW = """  %n = reduce(%e, %zero) {dims=(2,), kind="sum"} : f64[2,3]
  %ns = broadcast_in_dim(%n) {dims=(0, 1)} : f64[2,3,3]
"""
BY_COLUMN = """  %n = reduce(%e, %zero) {dims=(1,), kind="sum"} : f64[2,3]
  %ns = broadcast_in_dim(%n) {dims=(0, 2)} : f64[2,3,3]
"""
TAIL = """  %p = divide(%e, %ns) : f64[2,3,3]
  %o = dot_general(%p, %v) {DIMS} : f64[2,3,4]
  output "y" = %o
}
"""


DIMS = "lhs_contracting=(2,), rhs_contracting=(1,), lhs_batch=(0,), rhs_batch=(0,)"


def program(mask: str, *parts: str) -> Module:
    text = HEAD.replace("MASK", mask) + "".join(parts) + TAIL.replace("DIMS", DIMS)
    return parse(text, source="m.spf")


BY_INFINITY = program("-inf", ADDED, PLAIN, BY_ROW)
RIGHT = {
    "chosen": (program("-30000.0", CHOSEN, PLAIN, BY_ROW), True),
    "shifted": (program("-30000.0", CHOSEN, SHIFTED, BY_ROW), True),
    "added": (program("-65504.0", ADDED, PLAIN, BY_ROW), True),
    "added and shifted": (program("-65504.0", ADDED, SHIFTED, BY_ROW), True),
    "added infinity, shifted": (program("-inf", ADDED, SHIFTED, BY_ROW), False),
    "infinity": (program("-inf", CHOSEN, PLAIN, BY_ROW), False),
    "infinity and shifted": (program("-inf", CHOSEN, SHIFTED, BY_ROW), False),
}
WRONG = {
    "weak mask added": program("-4.0", ADDED, PLAIN, BY_ROW),
    "added, shifted by column": program("-65504.0", ADDED, SHIFTED_BY_COLUMN, BY_ROW),
    "weak mask": program("-4.0", CHOSEN, SHIFTED, BY_ROW),
    "mask of the other sign": program("30000.0", CHOSEN, SHIFTED, BY_ROW),
    "opposite": program("-30000.0", OPPOSITE, SHIFTED, BY_ROW),
    "transposed": program("-30000.0", TRANSPOSED, SHIFTED, BY_ROW),
    "doubled": program("-30000.0", DOUBLED, SHIFTED, BY_ROW),
    "shifted by column": program("-30000.0", CHOSEN, SHIFTED_BY_COLUMN, BY_ROW),
    "summed by column": program("-30000.0", CHOSEN, SHIFTED, BY_COLUMN),
}


def values(one: Module) -> np.ndarray:
    rng = np.random.default_rng(3)
    mask = np.array([[[1, 0, 0], [1, 1, 0], [0, 1, 1]], [[1, 0, 1], [0, 0, 1], [1, 1, 1]]], bool)
    inputs = {"s": [rng.normal(size=(2, 3, 3))], "m": [mask], "v": [rng.normal(size=(2, 3, 4))]}
    found: np.ndarray = run(one, inputs)["y"][0]
    return found


@pytest.mark.parametrize("name", RIGHT)
def test_masks_of_two_kinds(name: str) -> None:
    other, by_value = RIGHT[name]
    assert np.allclose(values(other), values(BY_INFINITY))
    result = shardproof.verify(BY_INFINITY, other)
    assert result.verdict is Verdict.VERIFIED, result.text()
    kinds = {a.kind for a in result.assumptions} - {"inferred_relation"}
    assert "row_not_fully_masked" in kinds, result.text()
    assert ("mask_value" in kinds) is by_value
    assert kinds <= {"row_not_fully_masked", "mask_value"}


@pytest.mark.parametrize("name", WRONG)
def test_other_masks_and_softmaxes(name: str) -> None:
    other = WRONG[name]
    differs = not np.allclose(values(other), values(BY_INFINITY))
    assert differs or "column" in name
    result = shardproof.verify(BY_INFINITY, other)
    assert result.verdict is not Verdict.VERIFIED, result.text()


ASSUMED = 'assume a "Doc." exp(x - inf) => 0*x claim {}\n'


@pytest.mark.parametrize("claim", ["mask_value", "mask_value, row_not_fully_masked"])
def test_claims_are_kept(claim: str) -> None:
    (lemma,) = map(check, statements(ASSUMED.format(claim), "a.lemma"))
    assert isinstance(lemma, Lemma) and lemma.claims == tuple(claim.split(", "))
    assert show(lemma).endswith(f"claim {claim}")
    assert tuple(map(check, statements(show(lemma), "a.lemma"))) == (lemma,)
    assert from_json(to_json(lemma)) == lemma


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ASSUMED.format("truth"), "found the claim `truth`"),
        ('lemma a "Doc." x + y => y + x + 0 claim mask_value', "only an `assume` makes"),
    ],
)
def test_other_claims_are_refused(text: str, message: str) -> None:
    (lemma,) = statements(text, "a.lemma")
    with pytest.raises(LemmaError, match=message):
        check(lemma)
