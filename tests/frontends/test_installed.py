"""Frontends of other packages: which files reach them, and what a broken one is told."""

from __future__ import annotations

import gzip
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hlo_programs import PROGRAMS
from hlo_writer import to_bytes

import shardproof
from shardproof.frontends.load import load
from shardproof.frontends.source import HEAD, Source
from shardproof.ir.module import Guess, Input, Module, ModuleError, Op, Output, Value
from shardproof.ir.types import DType, Mesh, TensorType

Install = Callable[..., None]
X = Value("x", TensorType(DType.F32, (2,)))
MODULE = Module("toy", Mesh(), (Input(X, 0),), (), (Output("y", X),))
MARK = b"\x00toy"


def toy(read: Callable[[Source], Any] = lambda source: MODULE) -> SimpleNamespace:
    return SimpleNamespace(recognises=lambda source: source.head.startswith(MARK), read=read)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes objects the frontends of packages of their names; an exception is one of loading it."""

    def installed(**frontends: Any) -> None:
        points = []
        for name, frontend in frontends.items():
            module = f"frontend_of_{name}"
            if not isinstance(frontend, Exception):
                monkeypatch.setitem(sys.modules, module, SimpleNamespace(it=frontend))
            points.append(EntryPoint(name, f"{module}:it", "shardproof.frontends"))
        chosen = {"shardproof.frontends": points}
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: chosen.get(group, []))

    return installed


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "program.toy"
        path.write_bytes(data)
        return path

    return write


def failing(source: Source) -> Any:
    raise KeyError("nothing here")


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_its_kind_is_read(install: Install, written: Any, packed: bool) -> None:
    install(toy=toy())
    path = written(gzip.compress(MARK) if packed else MARK)
    assert load(path).name == "toy"
    assert load(path).warnings == (
        "program.toy is read by the frontend `toy` of the package frontend_of_toy",
    )
    assert load(path, ranks=2).mesh.size == 2


def test_it_is_told_what_is_known(install: Install, written: Any) -> None:
    seen: list[Source] = []
    install(toy=toy(lambda source: seen.append(source) or MODULE))
    path = written(MARK + bytes(2 * HEAD))
    load(path, ranks=4, constants={"n": 3.0}, wrapper_files=("wraps.py",))
    (source,) = seen
    assert (source.path, source.ranks, source.constants) == (path, 4, {"n": 3.0})
    assert source.wrapper_files == ("wraps.py",)
    assert len(source.head) == HEAD and len(source.data) == 2 * HEAD + len(MARK)


def test_verify_gives_it_the_numbers_of_the_relation_file(
    install: Install, written: Any, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def read(source: Source) -> Module:
        seen.append((source.ranks, dict(source.constants)))
        return MODULE

    install(toy=toy(read))
    relation = tmp_path / "relation.toml"
    relation.write_text("[constants]\nn = 3\n", encoding="utf-8")
    path = written(MARK)
    found = shardproof.verify(path, [path, path], relation=relation)
    assert found.verdict is shardproof.Verdict.VERIFIED
    assert seen == [(None, {"n": 3.0}), (2, {"n": 3.0}), (2, {"n": 3.0})]
    assert "are not used" not in found.text()
    install(toy=toy())
    assert "sections constants of the relation are not used" in shardproof.verify(
        path, path, relation=relation
    ).text()


def test_a_verdict_lists_what_it_guesses(install: Install, written: Any) -> None:
    guess = Guess("ids_in_range", "x is in range", "x")
    install(toy=toy(lambda source: replace(MODULE, guesses=(guess,))))
    found = shardproof.verify(written(MARK), written(MARK))
    assert [a.text for a in found.assumptions] == ["x is in range"]


def test_a_known_format_asks_no_package(install: Install, written: Any, tmp_path: Path) -> None:
    install(toy=ImportError("a framework"))
    text = PROGRAMS["elementwise"].text
    for data in (to_bytes(text), text.encode(), b'module "m" mesh() {\n}\n'):
        assert load(written(data)) is not None


def test_a_zip_that_is_no_pt2_and_a_damaged_file_may_be_of_a_package(
    install: Install, written: Any, tmp_path: Path
) -> None:
    archive = tmp_path / "program.toy"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("weights/0", b"1")
    with pytest.raises(ModuleError, match=r"lacks .models/model.json"):
        load(archive)
    takes_all = SimpleNamespace(recognises=lambda source: True, read=lambda source: MODULE)
    install(toy=takes_all)
    assert load(archive).name == "toy"
    assert load(written(to_bytes(PROGRAMS["elementwise"].text)[:-20])).name == "toy"
    assert load(written(b"any text")).name == "toy"


def test_what_nothing_reads_names_every_kind(install: Install, written: Any) -> None:
    install(toy=toy())
    with pytest.raises(ModuleError, match=r"'any text'; what is read: HLO text.*the frontend `toy` of"):
        load(written(b"any text"))


def test_two_claims_are_refused(install: Install, written: Any) -> None:
    install(one=toy(), two=toy())
    with pytest.raises(ModuleError, match=r"claimed by the frontend `one` .* and the frontend `two`"):
        load(written(MARK))


@pytest.mark.parametrize(
    ("frontend", "told"),
    [
        (ImportError(), r"`bad` of the package frontend_of_bad can't be loaded \(ModuleNotFoundError"),
        (SimpleNamespace(read=failing), "`bad` .* has no function `recognises`"),
        (SimpleNamespace(recognises=failing, read=failing), r"`bad` .* fails at telling .*\(KeyError"),
        (toy(failing), r"`bad` .* fails at reading it \(KeyError: 'nothing here'\)"),
        (toy(lambda source: None), "`bad` .* gives a NoneType, a Module is needed"),
        (
            toy(lambda source: Module("m", Mesh(), (), (), (Output("y", X),))),
            "`bad` .* gives a module that is not well formed: output 'y' is %x, which is not defined",
        ),
        (
            toy(lambda source: Module("m", Mesh(), (Input(X, 0),), (Op("erf", (X,), (X,)),), ())),
            "`bad` .* gives a module that is not well formed: value %x has the name of %x",
        ),
        (
            toy(lambda source: Module("m", Mesh(), None, (), ())),  # type: ignore[arg-type]
            "`bad` .* gives a module that is not well formed: TypeError",
        ),
    ],
)
def test_a_broken_one_is_named(frontend: Any, told: str, install: Install, written: Any) -> None:
    install(bad=frontend)
    path = written(MARK)
    with pytest.raises(ModuleError, match=told) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: the frontend") and "\n" not in str(caught.value)


def test_its_own_errors_go_through(install: Install, written: Any) -> None:
    def refuse(source: Source) -> Any:
        raise ModuleError("node 3: `foo` is not known")

    install(toy=toy(refuse))
    path = written(MARK)
    with pytest.raises(ModuleError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: node 3: `foo` is not known"
