"""When lemmas are tried, what they cost, and that searching them ends."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from lemma_text import rules, searching, tensor

import shardproof
from shardproof.ir.text import parse
from shardproof.passes.arithmetic import add, exponential, multiply
from shardproof.solver.attempts import BY_LEMMAS
from shardproof.solver.search.theory import LEVELS, theory

PAIRS = Path(__file__).parent / "lemma_pairs"

THEORY = "shardproof.solver.search.theory"
HEAVY = {"egglog", "z3", "shardproof.lemmas.load", "shardproof.lemmas.parse", THEORY}

LAZY = """
import sys
import shardproof
result = shardproof.verify({reference!r}, {implementation!r}, relation={relation!r})
print(result.verdict, *sorted(m for m in sys.modules if m.split(".")[0] in ("egglog", "z3")
                              or m.startswith("shardproof.lemmas.") or m.endswith("search.theory")))
"""


def loaded(name: str, implementation: str) -> list[str]:
    folder = PAIRS / name
    relation = folder / "relation.toml"
    code = LAZY.format(
        reference=str(folder / "reference.spf"),
        implementation=str(folder / f"{implementation}.spf"),
        relation=str(relation) if relation.exists() else None,
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return out.stdout.split()


def test_a_proof_without_lemmas_loads_none() -> None:
    verdict, *modules = loaded("vocab_embedding", "tp2")
    assert verdict == "verified"
    assert not HEAVY.intersection(modules)


def test_a_refutation_loads_none() -> None:
    verdict, *modules = loaded("vocab_embedding", "wrong_unmasked")
    assert verdict == "refuted"
    assert not HEAVY.intersection(modules)


def test_a_proof_by_lemmas_needs_no_egglog() -> None:
    verdict, *modules = loaded("flash_attention", "two_blocks")
    assert verdict == "verified"
    assert "shardproof.solver.search.theory" in modules and "egglog" not in modules and "z3" not in modules


def test_levels_have_the_lemmas_of_those_before() -> None:
    known = theory()
    names = [{p.lemma.name for p in known.rules(level).patterns} for level in LEVELS]  # type: ignore[union-attr]
    assert all(a < b for a, b in pairwise(names))
    assert known.rules("none") is None
    assert not any(p.lemma.assumed for p in known.rules("both").patterns)  # type: ignore[union-attr]
    assert [a.lemmas for a in BY_LEMMAS if not a.lenient] == ["early", "late", "both"]


@pytest.mark.parametrize(
    "text",
    [
        "a: tanh(x) => tanh(x)*tanh(x) + tanh(x)",
        "a: exp(x + y) => exp(x)*exp(y)\nb: exp(x)*exp(y) => exp(x + y)",
        "a: sin(x) => sin(x + 1)",
        "a: tanh(x + y) => tanh(x) + tanh(y)\nb: tanh(x) + tanh(y) => tanh(x + y)",
    ],
)
def test_lemmas_that_feed_themselves_end(text: str) -> None:
    search = searching(text)
    s = search.store
    i = s.fresh(3)
    values = [tensor(s, name, i) for name in "abcdef"]
    start = time.monotonic()
    from shardproof.passes.arithmetic import pointwise

    for op in ("tanh", "sine"):
        pointwise(s, op, (), "real", [add(s, values)])
    exponential(s, add(s, values))
    multiply(s, [values[0], add(s, [multiply(s, values[1:3]), multiply(s, values[3:5])])])
    assert time.monotonic() - start < 20


def chain(count: int, *, backwards: bool) -> str:
    """Sums of products in one order and another, that differ in one coefficient."""
    names = [f"%x{k}" for k in range(count)]
    lines = [f"{n} = input({k}) : f32[4]" for k, n in enumerate(names)]
    order = names[::-1] if backwards else names
    last = order[0]
    for k, n in enumerate(order[1:]):
        op = "add" if k % 2 else "multiply"
        lines.append(f"%s{k} = {op}({last}, {n}) : f32[4]")
        last = f"%s{k}"
    lines.append(f'output "y" = {last}')
    return 'module "m" mesh() {\n' + "\n".join(lines) + "\n}\n"


def test_long_chains_that_differ_end() -> None:
    a, b = (parse(chain(40, backwards=x), source="test") for x in (False, True))
    start = time.monotonic()
    result = shardproof.verify(a, b, timeout=60)
    assert result.verdict in ("unknown", "refuted")
    assert time.monotonic() - start < 60


FACTORS = """module "factors" mesh() {
  %x = input(0) : f32[4]
  %y = input(1) : f32[4]
  %p = add(%x, %y) : f32[4]
  %q = subtract(%x, %y) : f32[4]
  %r = multiply(%p, %q) : f32[4]
  output "y" = %r
}
"""
SQUARES = """module "squares" mesh() {
  %x = input(0) : f32[4]
  %y = input(1) : f32[4]
  %p = multiply(%x, %x) : f32[4]
  %q = multiply(%y, %y) : f32[4]
  %r = subtract(%p, %q) : f32[4]
  output "y" = %r
}
"""


def test_what_no_direction_proves_is_searched() -> None:
    factors, squares = parse(FACTORS, source="test"), parse(SQUARES, source="test")
    for a, b in ((factors, squares), (squares, factors)):
        result = shardproof.verify(a, b)
        assert (result.verdict, result.code) == ("verified", "V01"), result.text()
        assert [use.name for use in result.lemmas or ()] == ["product_over_addition"]
    wrong = parse(SQUARES.replace("subtract", "add"), source="test")
    assert shardproof.verify(factors, wrong).verdict == "refuted"


def test_lemmas_that_contradict_each_other_prove_nothing(tmp_path: Path) -> None:
    file = tmp_path / "wrong.lemma"
    text = 'lemma one "False." sin(x)*sin(x) <=> 1\nlemma two "False." sin(x)*sin(x) <=> 2\n'
    file.write_text(text, encoding="utf-8")
    sine = SQUARES.replace("multiply(%y, %y)", "sine(%y)").replace("multiply(%x, %x)", "sine(%x)")
    squared = sine.replace("subtract(%p, %q)", "multiply(%p, %p)").replace("%q = sine(%y) : f32[4]\n", "")
    other = squared.replace("%r = multiply(%p, %p)", "%s = multiply(%p, %p)").replace(
        'output "y" = %r', '%r = add(%s, %s) : f32[4]\n  output "y" = %r'
    )
    result = shardproof.verify(parse(squared, source="a"), parse(other, source="b"), lemmas=[file])
    assert result.verdict != "verified", result.text()


def test_an_unknown_writes_what_it_lacks_and_is_proved_with_it(tmp_path: Path) -> None:
    """From `unknown` to a lemma: sin(x)**2 is 1 - cos(x)**2."""
    sine = """module "sine" mesh() {
  %x = input(0) : f32[4]
  %s = sine(%x) : f32[4]
  %q = multiply(%s, %s) : f32[4]
  output "y" = %q
}
"""
    cosine = """module "cosine" mesh() {
  %x = input(0) : f32[4]
  %c = cosine(%x) : f32[4]
  %q = multiply(%c, %c) : f32[4]
  %one = constant() {value=f32[4](1.0, 1.0, 1.0, 1.0)} : f32[4]
  %r = subtract(%one, %q) : f32[4]
  output "y" = %r
}
"""
    a, b = parse(sine, source="a"), parse(cosine, source="b")
    result = shardproof.verify(a, b, goals=tmp_path / "goals")
    assert (result.verdict, result.tested_equal) == ("unknown", 12)
    (file,) = (tmp_path / "goals").iterdir()
    proved = shardproof.verify(a, b, lemmas=[file])
    assert proved.verdict == "verified", proved.text()
    assert [x.kind for x in proved.assumptions] == ["tested_lemma"]


def test_patterns_of_one_text_are_independent_of_its_order() -> None:
    text = ["a: exp(x + y) => exp(x)*exp(y)", "b: log(x*y) => log(x) + log(y) when x > 0, y > 0"]
    one, other = rules("\n".join(text)), rules("\n".join(reversed(text)))
    assert {p.lemma.name: p.root for p in one.patterns} == {p.lemma.name: p.root for p in other.patterns}
