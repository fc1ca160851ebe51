"""What a run says of the lemmas that it used, and of the one that came closest when none was enough."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from arrays import Graph, Tensor

from shardproof.ir.module import Module
from shardproof.solver.attempts import theory_of
from shardproof.solver.meaning import meant
from shardproof.solver.prove import Attempt, Clock, Proof, prove
from shardproof.solver.relations import relation_file
from shardproof.solver.relations.infer import infer
from shardproof.solver.relations.relation import compose
from shardproof.solver.search import closest as closeness
from shardproof.solver.search.closest import closest, where_used
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify
from shardproof.tools.report import report

SINE = """
lemma sine_of_shifted
  "The sine of a sum whose second part is constant along k, summed."
  sum[k](sin(x + c)) => cos(c)*sum[k](sin(x)) + sin(c)*sum[k](cos(x))
  when k not in c
"""
FALSE = """
lemma no_sign
  "False: every value is its own magnitude."
  abs(x) => x
"""
"""Equal on the programs below, where the argument is positive."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def sine(tmp_path: Path) -> Path:
    path = tmp_path / "own.lemma"
    path.write_text(SINE, encoding="utf-8")
    return path


def summed(*, expanded: bool, shared: bool) -> Module:
    """Sums over the second dim of sin(x + c); `shared`: c is one value per row."""
    g = Graph(1)
    x = g.input("x", 3, 4)
    if shared:
        row = g.input("c", 3)
        c = g.op("broadcast_in_dim", row, type=x.value.type, dims=(0,))
    else:
        c = g.input("c", 3, 4)

    def along(t: Tensor) -> Tensor:
        return g.op("reduce", t, g.const(0.0), dims=(1,), kind="sum")

    if expanded:
        parts = [g.op(a, x) * g.op(b, c) for a, b in (("sine", "cosine"), ("cosine", "sine"))]
        y = along(parts[0] + parts[1])
    else:
        y = along(g.op("sine", x + c))
    g.output("y", y)
    return g.module()


def magnitude(*, explicit: bool) -> Module:
    """2 + sin(x), which is positive, or its magnitude."""
    g = Graph(1)
    x = g.input("x", 4)
    y = g.op("sine", x) + 2.0
    g.output("y", g.op("abs", y) if explicit else y)
    return g.module()


def proof(reference: Module, implementation: Module, lemmas: Path) -> Proof:
    first, second = (m.module for m in meant((reference, implementation)))
    relation = infer(first, second, relation_file.resolve(relation_file.Declared(), first, second)).relation
    theory = theory_of([lemmas])
    attempt = Attempt(folding=True, lemmas="early")
    return prove(compose(first, second, relation), Clock(None), attempt, rules=theory.rules("early"))


def test_a_lemma_that_is_only_tested_is_an_assumption(sine: Path) -> None:
    pair = summed(expanded=False, shared=True), summed(expanded=True, shared=True)
    result = verify(*pair, lemmas=[sine])
    assert result.verdict is Verdict.VERIFIED, result.text()
    (use,) = [u for u in result.lemmas or () if u.name == "sine_of_shifted"]
    assert (use.status, use.fired, use.needed) == ("tested", 1, 1)
    (listed,) = [a for a in result.assumptions if a.kind == "tested_lemma"]
    assert listed.value == "sine_of_shifted" and "constant along k" in listed.text
    form = json.loads(result.to_json())["lemmas"]
    assert {"name": "sine_of_shifted", "status": "tested", "fired": 1, "needed": 1} in form
    assert "sine_of_shifted (tested), fired once, needed 1" in report(result, verbose=True)
    assert result.lemma_count is not None and f" of {result.lemma_count} lemmas (--verbose)" in report(result)
    strict = verify(*pair, lemmas=[sine], strict=True)
    assert (strict.verdict, strict.code) == ("unknown", "U08")


def test_the_condition_that_fails_is_named(sine: Path) -> None:
    pair = summed(expanded=True, shared=False), summed(expanded=False, shared=False)
    result = verify(*pair, lemmas=[sine])
    assert result.verdict is Verdict.UNKNOWN, result.text()
    (blocked,) = result.blocked or ()
    assert blocked.closest_lemma == "sine_of_shifted"
    assert blocked.failed_condition == "needs `k not in c`, but c varies over k"
    assert "closest         sine_of_shifted: needs `k not in c`" in report(result)


def test_a_proof_by_a_false_lemma_is_no_proof(tmp_path: Path) -> None:
    path = tmp_path / "own.lemma"
    path.write_text(FALSE, encoding="utf-8")
    pair = magnitude(explicit=True), magnitude(explicit=False)
    assert verify(*pair).verdict is Verdict.UNKNOWN
    for _ in range(2):
        result = verify(*pair, lemmas=[path])
        assert (result.verdict, result.code) == ("unknown", "U12"), result.text()
        assert "no_sign" in result.message and "own.lemma:2" in result.message and "x = " in result.message
        assert all(o.verdict is Verdict.UNKNOWN for o in result.outputs)


def test_the_library_has_no_lemma_that_is_false() -> None:
    pair = summed(expanded=False, shared=True), summed(expanded=False, shared=True)
    result = verify(*pair)
    assert result.verdict is Verdict.VERIFIED and result.lemmas is None


def test_looking_changes_nothing(sine: Path) -> None:
    found = proof(summed(expanded=True, shared=False), summed(expanded=False, shared=False), sine)
    store, count = found.store, len(found.instances)
    before = len(store.classes), dict(store.rewritten), store.rewrite
    assert found.search is not None
    for pattern in found.search.rules.patterns:
        closest(found, pattern, range(before[0]))
    assert (len(store.classes), dict(store.rewritten), store.rewrite) == before
    assert len(found.instances) == count


def test_looking_is_short(sine: Path) -> None:
    found = proof(summed(expanded=True, shared=False), summed(expanded=False, shared=False), sine)
    (name,) = (o.value.name for o in found.composed.implementation.outputs)
    start = time.perf_counter()
    near = closeness.closest_lemma(found, [found.implementation.views[name]])
    assert time.perf_counter() - start < 0.5
    assert near is not None and near.condition and near.matched == near.total


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("late_division", "the normal form has it"),
        ("exp_add", "first attempt"),
        ("softmax_shift", "other lemmas have it"),
    ],
)
def test_where_a_lemma_is_used(name: str, words: str) -> None:
    theory = theory_of(())
    assert words in where_used(theory, theory.statements.lemmas[name])
