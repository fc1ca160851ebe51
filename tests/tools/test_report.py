"""The text of a result, as a whole."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from rich.text import Text

from shardproof.solver.verdict import Assumption, Blocked, LemmaUse, OutputVerdict, Verdict
from shardproof.tools.report import report, source_line

from .conftest import refuted, unknown, verified


def shown(text: str) -> str:
    return dedent(text).lstrip("\n")


def test_verified() -> None:
    assert report(verified()) == shown("""
        verified  tp8.pb refines tp1.pb, on an inferred layout    (mesh tp=8, 0.4 s)
          outputs      logits: shards of dim 0 over tp
                       k0, v0: shards of dim 2 over tp
          holds for    all inputs over the reals, these shapes
          inferred     2 replicated, 1 sharded
                       p9 = [q 2048 | k 512 | v 512] each sharded over tp on dim 1
          assumes      nothing else
    """)


def test_verified_under_a_declared_relation() -> None:
    result = verified(
        code="V01",
        inferred_relation=None,
        assumptions=(
            *(Assumption("no_overflow", f"add.{i} stays within s32", f"add.{i}") for i in range(9)),
            Assumption("user_assumed", "--assume y", "y"),
        ),
        unchecked_outputs=("debug",),
        lemmas=(LemmaUse("sum_of_products", "proved", 2, 1),),
        lemma_count=61,
    )
    assert report(result) == shown("""
        verified  tp8.pb refines tp1.pb                           (mesh tp=8, 0.4 s)
          outputs      logits: shards of dim 0 over tp
                       k0, v0: shards of dim 2 over tp
          holds for    all inputs over the reals, these shapes
          used         1 of 61 lemmas (--verbose)
          assumes      add.0 stays within s32 (no_overflow)
                       add.1 stays within s32 (no_overflow)
                       add.2 stays within s32 (no_overflow)
                       6 more (no_overflow; --verbose)
                       --assume y (user_assumed)
          unchecked    debug
    """)
    assert "nothing" in report(verified(code="V01", inferred_relation=None, assumptions=()))


def test_the_first_line_admits_an_inferred_layout() -> None:
    assert "on an inferred layout" in report(verified(message="")).splitlines()[0]
    assert "inferred" not in report(verified(code="V01", inferred_relation=None)).splitlines()[0]


def test_verbose_lists_everything() -> None:
    many = tuple(OutputVerdict(f"k{i}", "shards of dim 2 over tp", Verdict.VERIFIED) for i in range(9))
    assert "k0, k1, k2, k3 and 5 more: shards of dim 2 over tp" in report(verified(outputs=many))
    full = report(verified(outputs=many), verbose=True)
    assert "k0, k1, k2, k3, k4, k5, k6, k7, k8: shards" in full
    assert "p0 = replicate\n" in full
    assert "seconds      load 0.100, normalise 0.050, sweep 0.250\n" in full


def test_refuted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    body = """
        = expected        columns 1024:1280
        = found           columns 0:256
        = counterexample  seed 7, rank 0, logits[5,0,1]: reference -0.412, here 1.893
        = repair          shifting the start by 1024 proves all outputs
    """
    head = """
        refuted[R03]: `slice.54` reads columns 0:256, the reference needs 1024:1280
          --> layers/attention.py:124
    """
    other = "  ::: reference value slice.54 (layers/attention.py:126)\n"
    tail = "".join(f"  {line}\n" for line in shown(body).splitlines())
    assert report(refuted()) == shown(head) + other + tail
    source = tmp_path / "layers" / "attention.py"
    source.parent.mkdir()
    source.write_text("\n" * 123 + "\tkey = part(qkv, start)\n", encoding="utf-8")
    quoted = "124 |     key = part(qkv, start)\n    |     ^^^ first value that departs from the reference\n"
    assert report(refuted()) == shown(head) + quoted + other + tail


def test_refuted_verbose_shows_the_stack_and_extents() -> None:
    full = report(refuted(), verbose=True)
    assert "called at layers/attention.py:124 in split\n      called at model.py:9 in forward\n" in full
    assert "here 1.893 (s=4)" in full


def test_unknown() -> None:
    assert report(unknown()) == shown("""
        unknown[U02]: nothing relates `cumsum.9` across a split of its own dim
          --> moe_ep.py:52
          = blocks          1 of 2 outputs: y
          = blocked         `cumsum.9`
          = closest         cumsum_of_shards: needs `k not in x`, but x varies over k
          = tested          200 inputs, no difference (not a proof)
          = help            declare it in a relation file or accept it with --assume cumsum.9
    """)


def test_a_long_list_of_blocked_values_is_cut() -> None:
    result = unknown(blocked=tuple(Blocked(f"v{i}") for i in range(7)))
    assert "= blocked         3 more (--verbose)\n" in report(result)
    assert "`v6`" in report(result, verbose=True)


def test_a_result_without_message_has_the_title_of_its_code() -> None:
    assert report(unknown(message="")).startswith("unknown[U02]: nothing relates a value\n")


@pytest.mark.parametrize("result", [verified(), refuted(), unknown()])
def test_colour_changes_no_text(result: object) -> None:
    colored = result.text(color=True)  # type: ignore[attr-defined]
    assert "\x1b[" in colored
    assert Text.from_ansi(colored).plain.rstrip() == result.text().rstrip()  # type: ignore[attr-defined]


def test_control_characters_are_escaped() -> None:
    text = report(unknown(message="bad \x1b[2Jname", help=("a\nb\x07",)))
    assert "bad \\x1b[2Jname" in text
    assert "a b\\x07\n" in text
    assert "\x1b" not in text


def test_only_python_sources_are_quoted(tmp_path: Path) -> None:
    for name in ("a.py", "secret.pem"):
        (tmp_path / name).write_text("first\nsecond\n")
    assert source_line(str(tmp_path / "a.py"), 2) == "second"
    assert source_line(str(tmp_path / "secret.pem"), 2) is None
    assert source_line(str(tmp_path / "a.py"), 3) is None
    assert source_line(str(tmp_path / "a.py"), 0) is None
    assert source_line(str(tmp_path / "missing.py"), 1) is None
    assert source_line("nul\0.py", 1) is None
