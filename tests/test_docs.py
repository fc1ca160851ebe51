"""The pages in docs/ keep up with the code."""

from __future__ import annotations

import re
from pathlib import Path

from shardproof.solver.proved import STRICT
from shardproof.solver.relations import relation_file, steps
from shardproof.solver.verdict import ASSUMPTION_KINDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = {p.name: p.read_text(encoding="utf-8") for p in (ROOT / "docs").glob("*.md")}
SOUNDNESS = PAGES["soundness.md"]


def test_every_kind_of_assumption_is_listed_with_its_claim() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", SOUNDNESS, flags=re.MULTILINE))
    assert rows == ASSUMPTION_KINDS


def test_what_strict_rejects_is_listed() -> None:
    (sentence,) = re.findall(r"^`--strict` turns (.*?)\.\n", SOUNDNESS, flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+_\w+)`", sentence)) == STRICT


def test_rules_that_the_code_names_are_stated() -> None:
    stated = set(re.findall(r"^\* \*\*([A-Z]\d)\*\*", SOUNDNESS, flags=re.MULTILINE))
    named = {
        rule
        for room in ("ir", "frontends", "passes", "solver", "tools")
        for file in (ROOT / room).rglob("*.py")
        for mention in re.findall(r"\(soundness (?:rules )?([^)]*)\)", file.read_text(encoding="utf-8"))
        for rule in re.findall(r"[A-Z]\d", mention)
    }
    assert {"K1", "N5", "R2"} <= named
    assert named <= stated


def test_relation_files_that_are_shown_are_read(tmp_path: Path) -> None:
    files = re.findall(r"^```toml\n(.*?)^```", PAGES["relations.md"], flags=re.MULTILINE | re.DOTALL)
    assert len(files) == 2
    for text in files:
        path = tmp_path / "relation.toml"
        path.write_text(text, encoding="utf-8")
        assert relation_file.read(path).inputs


def test_every_section_and_step_is_described() -> None:
    cells = re.findall(r"^\| `((?:\\\||[^`|])+)` \|", PAGES["relations.md"], flags=re.MULTILINE)
    layouts = [cell.replace("\\|", "|") for cell in cells if cell not in relation_file.SECTIONS]
    assert set(relation_file.SECTIONS) < set(cells)
    used = {s.name for text in layouts for s in steps.parse(text).steps if isinstance(s, steps.Step)}
    assert "replicate" in layouts and "`per_rank`" in PAGES["relations.md"]
    assert used | {"replicate", "per_rank"} == steps.KNOWN


def test_links_lead_somewhere() -> None:
    for name, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)):
            assert (ROOT / "docs" / target).exists(), f"{name}: {target}"


def test_the_index_lists_every_page() -> None:
    for name in PAGES:
        assert name == "README.md" or f"]({name})" in PAGES["README.md"]
