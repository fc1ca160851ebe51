"""Lemma files are found, read once, cached by content, and never mean something else for it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardproof.lemmas import load as loading
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.load import defines_for, load, load_files
from shardproof.lemmas.sources import of_packages, of_project, shipped

SQUARE = 'lemma square "A square." x*x => x^2\n'
DEFINES = """
define custom::scale(x[k]; by) -> y[k] "Scales." y = x*by
define custom::scale(x[k]) -> y[k] "Doubles." y = 2*x
opaque custom::mix(x[k]) -> y[k] "Mixes."
"""


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a current directory without a project."""
    home = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    return home


def written(tmp_path: Path, text: str, name: str = "mine.lemma") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def entries(home: Path) -> list[Path]:
    return sorted((home / "shardproof" / "lemmas").glob("*"))


def never_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str, file: str) -> Any:
        raise AssertionError("the file was parsed")

    monkeypatch.setattr("shardproof.lemmas.parse.parse", parse)


def test_a_file_is_loaded_by_name(tmp_path: Path) -> None:
    library = load_files([written(tmp_path, SQUARE + DEFINES)])
    assert list(library.lemmas) == ["square"] and library.lemmas["square"].theme == "mine"
    assert library.lemmas["square"].variables == (("x", "real"),)
    assert [len(d.attributes) for d in library.defines["custom::scale"]] == [1, 0]
    assert list(library.opaques) == ["custom::mix"]
    assert library.files == (str(tmp_path / "mine.lemma"),)


def test_the_second_time_nothing_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, SQUARE + DEFINES)
    first = load_files([path])
    never_parse(monkeypatch)
    again = load_files([path])
    assert again == first and again.lemmas["square"].span == first.lemmas["square"].span
    with pytest.raises(AssertionError, match="was parsed"):
        load_files([written(tmp_path, SQUARE.replace("x^2", "x^2 + 0"))])


def test_a_copy_is_cached_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_files([written(tmp_path, SQUARE)])
    never_parse(monkeypatch)
    copy = load_files([written(tmp_path, SQUARE, "other.lemma")]).lemmas["square"]
    assert copy.theme == "other" and copy.span is not None and copy.span.file.endswith("other.lemma")


def false_payload(entry: Path) -> None:
    """Another lemma with a header that fits it."""
    header, _, payload = entry.read_text().partition("\n")
    payload = payload.replace('"2"', '"3"')
    key = json.loads(header)["key"]
    digest = hashlib.sha256(payload.encode()).hexdigest()
    entry.write_text(json.dumps({"key": key + "0", "payload": digest}) + "\n" + payload)


def ill_typed(entry: Path) -> None:
    """A payload whose statement breaks a rule, with a header that fits it."""
    header, _, payload = entry.read_text().partition("\n")
    payload = payload.replace('["a","power","x",["n","2"]]', '["a","power","y",["n","2"]]')
    assert '"y"' in payload
    digest = hashlib.sha256(payload.encode()).hexdigest()
    entry.write_text(json.dumps({**json.loads(header), "payload": digest}) + "\n" + payload)


def other_kinds(entry: Path) -> None:
    header, _, payload = entry.read_text().partition("\n")
    payload = payload.replace('["x","real"]', '["x","int"]')
    assert '"int"' in payload
    digest = hashlib.sha256(payload.encode()).hexdigest()
    entry.write_text(json.dumps({**json.loads(header), "payload": digest}) + "\n" + payload)


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda e: e.write_bytes(b"\xff\xfe"),
        lambda e: e.write_text(""),
        lambda e: e.write_text("[]"),
        lambda e: e.write_text(e.read_text()[:-5]),
        lambda e: e.write_text(e.read_text().replace('"2"', '"3"')),
        lambda e: e.write_text("[" * 100_000),
        lambda e: (e.unlink(), e.mkdir()),
        false_payload,
        ill_typed,
        other_kinds,
    ],
)
def test_a_corrupted_entry_never_changes_the_meaning(
    tmp_path: Path, cache_home: Path, corrupt: Callable[[Path], object]
) -> None:
    path = written(tmp_path, SQUARE)
    first = load_files([path])
    (entry,) = entries(cache_home)
    corrupt(entry)
    assert load_files([path]) == first


def test_an_entry_changes_with_the_language(
    tmp_path: Path, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, SQUARE)
    load_files([path])
    monkeypatch.setattr(loading, "_language", lambda: b"another")
    load_files([path])
    assert len(entries(cache_home)) == 2


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = written(tmp_path, "", "blocked")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert load_files([written(tmp_path, SQUARE)]).lemmas


def test_no_temporary_file_is_left(tmp_path: Path, cache_home: Path) -> None:
    load_files([written(tmp_path, SQUARE)])
    assert [e.suffix for e in entries(cache_home)] == [".json"]


def test_the_digest_is_of_the_contents(tmp_path: Path) -> None:
    one = load_files([written(tmp_path, SQUARE)]).digest
    assert load_files([written(tmp_path, SQUARE, "b.lemma")]).digest == one
    assert load_files([written(tmp_path, SQUARE.replace("x^2", "x^2*1"))]).digest != one


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SQUARE, SQUARE),
        ('define f(x[k]; a) -> y[k] "d" y = x*a', 'define f(x[j]; a = 1) -> y[j] "d" y = x'),
        ('define f(x[k]) -> y[k] "d" y = 2*x', 'opaque f(x) -> y "d"'),
        ('opaque f(x) -> y "d"', 'define f(x[k]) -> y[k] "d" y = 2*x'),
    ],
)
def test_two_of_one_name_are_an_error_that_names_both_places(tmp_path: Path, first: str, second: str) -> None:
    files = [written(tmp_path, first, "a.lemma"), written(tmp_path, "\n" + second, "b.lemma")]
    with pytest.raises(LemmaError) as error:
        load_files(files)
    assert f"{files[1]}:2:1: found a second" in str(error.value)
    assert f"the first is at {files[0]}:1:1" in str(error.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('define f(x[k]; a = 0) -> y[k] "d" y = x', 'define f(x[k]; a = 1) -> y[k] "d" y = 2*x'),
        ('define f(x[k]) -> y[k] "d" y = x', 'define f(x[k]; a) -> y[k] "d" y = a*x'),
        ('define f(x[k]) -> y[k] "d" y = x', 'define f(x[k], z[k]) -> y[k] "d" y = z*x'),
    ],
)
def test_defines_that_no_use_confuses_share_a_name(tmp_path: Path, first: str, second: str) -> None:
    files = [written(tmp_path, first, "a.lemma"), written(tmp_path, second, "b.lemma")]
    assert len(load_files(files).defines["f"]) == 2


def test_a_project_lists_files_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    (root / "deep" / "er").mkdir(parents=True)
    written(root, SQUARE.replace("square", "project_square"), "own.lemma")
    written(root, '[tool.shardproof]\nlemmas = ["own.lemma"]\n', "pyproject.toml")
    monkeypatch.chdir(root / "deep" / "er")
    assert of_project() == of_project(root) == of_project(root / "pyproject.toml") == [root / "own.lemma"]
    assert "project_square" in load(entry_points=False).lemmas
    assert "project_square" not in load(entry_points=False, project=tmp_path / "here").lemmas


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.shardproof]\nlemmas = 'own.lemma'", "found 'own.lemma' for `lemmas`"),
        ("[tool.shardproof]\nlemmas = [1]", "a list of paths is needed"),
        ("[tool.shardproof\nlemmas = []", "found broken TOML"),
    ],
)
def test_a_broken_project_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LemmaError, match=r"pyproject\.toml:1:1: ") as error:
        of_project(written(tmp_path, text, "pyproject.toml").parent)
    assert message in str(error.value)


def test_a_file_given_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, SQUARE.replace("square", "mine"))
    written(tmp_path, f'[tool.shardproof]\nlemmas = ["{path.name}"]\n', "pyproject.toml")
    assert "mine" in load([path], project=tmp_path, entry_points=False).lemmas


def point(name: str, value: Any) -> Any:
    def loaded() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return SimpleNamespace(
        name=name, value=f"pkg:{name}", module="pkg", dist=SimpleNamespace(name="pkg"), load=loaded
    )


def test_packages_give_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = written(tmp_path, SQUARE, "a.lemma"), written(tmp_path, "", "b.lemma")
    points = [point("one", str(a)), point("two", [b])]
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: points if group == "shardproof.lemmas" else []
    )
    assert of_packages() == [a, b]


@pytest.mark.parametrize("value", [ImportError("no module named x"), 3, "missing.lemma", [None]])
def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point("one", value)])
    with pytest.raises(LemmaError, match="entry point `one` of the package pkg"):
        load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "found no lemma file, no such file"),
        (b'lemma a\n "\xff"', ":2:1: found a byte that is not UTF-8"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.lemma"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LemmaError) as error:
        load_files([path])
    assert message in str(error.value)


def test_defines_are_loaded_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [written(tmp_path, DEFINES), written(tmp_path, "broken", "broken.lemma")]
    found = defines_for(["custom::scale"], files, entry_points=False)
    assert list(found.defines) == ["custom::scale"] and not found.opaques and not found.lemmas
    assert not defines_for(["custom::other"], files, entry_points=False).defines


def test_the_shipped_library_loads() -> None:
    library = load(entry_points=False)
    assert set(library.files) == set(map(str, shipped()))
    assert {lemma.theme for lemma in library.lemmas.values()} <= {path.stem for path in shipped()}


def test_a_cached_library_needs_no_parser(tmp_path: Path) -> None:
    path = written(tmp_path, SQUARE + DEFINES)
    load_files([path])
    code = (
        "import sys; from pathlib import Path; from shardproof.lemmas.load import load_files; "
        f"assert load_files([Path({str(path)!r})]).lemmas; "
        "print([m for m in ('lark', 'numpy', 'z3', 'egglog', 'tomllib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
