"""The frontend of examples/new_frontend: installed beside the project it reads graphs, and it conforms."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shardproof.frontend import ModuleError, Source
from shardproof.ir.verify import verify as check_module
from shardproof.testing import Sample, frontend_conformance

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "new_frontend"
GRAPHS = EXAMPLE / "graphs"
SETUPTOOLS = 77


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's package installed into it."""
    found = {d.name: d.version for d in importlib.metadata.distributions()}
    if "pip" not in found or int(found.get("setuptools", "0").partition(".")[0]) < SETUPTOOLS:
        pytest.skip(f"building the package needs pip, and setuptools {SETUPTOOLS} or newer")
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "pebble")
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *offline]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True)
    return folder


@pytest.fixture
def pebble(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of the example."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    names = ("pebble", "block", "pebble_frontend")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def verify(site: Path | None, *names: str) -> tuple[int, str]:
    """The exit code and the output of `shardproof verify` on graphs, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    command = [sys.executable, "-m", "shardproof", "verify", *(str(GRAPHS / f"{n}.json") for n in names)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=GRAPHS)
    return done.returncode, done.stdout + done.stderr


def test_it_is_a_package_of_few_lines() -> None:
    lines = (EXAMPLE / "pebble_frontend.py").read_text(encoding="utf-8").splitlines()
    assert 60 < len(lines) < 150


def test_graphs_are_what_the_script_writes(pebble: dict[str, ModuleType], tmp_path: Path) -> None:
    pebble["block"].main(tmp_path)
    for path in GRAPHS.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert len(list(tmp_path.iterdir())) == len(list(GRAPHS.iterdir())) == 3


def test_installed_it_reads_a_pair(site: Path) -> None:
    code, text = verify(site, "seq", "tp")
    assert code == 0 and text.startswith("verified  tp.json refines seq.json"), text
    assert "7 sharded" in text and "assumes      nothing else" in text


def test_what_lacks_an_all_reduce_is_refuted_at_its_line(site: Path) -> None:
    code, text = verify(site, "seq", "tp_forgotten")
    lines = (EXAMPLE / "block.py").read_text(encoding="utf-8").splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if "part = g.matmul(h, down)" in line)
    assert code == 1 and f"--> block.py:{number}" in text, text
    assert f"refuted, at block.py:{number}" in (EXAMPLE / "README.md").read_text(encoding="utf-8")
    assert "is a partial sum over tp: the sum over tp is missing" in text


def test_without_it_the_file_is_not_known() -> None:
    code, text = verify(None, "seq", "tp")
    assert code == 3 and "is text that starts with '{\"pebble\": 1,'; what is read: HLO text" in text


def sample(pebble: dict[str, ModuleType], name: str, **told: Any) -> Sample:
    path = GRAPHS / f"{name}.json"
    graph = json.loads(path.read_text(encoding="utf-8"))
    return Sample(path, run=lambda inputs: pebble["pebble"].run(graph, inputs), **told)


def test_it_conforms(pebble: dict[str, ModuleType]) -> None:
    places = {"softmax13": "block.py:31", "x": "block.py:22"}
    samples = [sample(pebble, "seq", locations=places), *(sample(pebble, n) for n in ("tp", "tp_forgotten"))]
    report = frontend_conformance(pebble["pebble_frontend"], samples)
    assert report.passed and not report.skipped, report


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('r.pair("maximum", x, 0.0)', 'r.pair("maximum", x, 0.1)'),
        ('r.pair("add", mean, eps)', 'r.pair("add", mean, 0.1)'),
        ('r.reduce(e, last, "sum", keepdim=True)', 'r.reduce(x, last, "sum", keepdim=True)'),
        ("r.transpose(x, order)", "r.reshape(r.transpose(x, order[::-1]), r.transpose(x, order).type.shape)"),
        ('r.emit("all_reduce", x, kind="sum"', 'r.emit("all_reduce", x, kind="max"'),
        ("return r.mesh.groups([axis])", "return (r.mesh.groups([axis])[0][::-1],)"),
    ],
)
def test_a_wrong_rule_is_found(
    pebble: dict[str, ModuleType], right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (EXAMPLE / "pebble_frontend.py").read_text(encoding="utf-8")
    assert right in text
    (tmp_path / "changed_frontend.py").write_text(text.replace(right, wrong), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    frontend: Any = importlib.import_module("changed_frontend")
    del sys.modules["changed_frontend"]
    report = frontend_conformance(frontend, [sample(pebble, "seq"), sample(pebble, "tp")])
    assert any(f.check == "values" for f in report.failures), report


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda g: g["nodes"][0].update(op="cumsum"), "`rms_norm0` at block.py:28: the operator `cumsum`"),
        (lambda g: g["nodes"][0]["attrs"].update(biased=True), "unexpected keyword argument 'biased'"),
        (lambda g: g["nodes"][1].update(shape=[6, 9]), r"gives f32\[6,8\], the graph says \[6, 9\]"),
        (lambda g: g["nodes"][1].update({"in": ["x"]}), "`matmul` has other operands"),
        (lambda g: g["nodes"][1].update({"in": ["x", "later"]}), "reads `later`, which nothing before"),
        (lambda g: g["nodes"][2].update(out="matmul1"), "two values are called `matmul1`"),
        (lambda g: g["nodes"][1].update(at="nowhere"), "has the place 'nowhere'"),
        (lambda g: g.update(mesh={"tp": 0}), "mesh axis tp has size 0"),
    ],
)
def test_a_damaged_graph_is_refused(pebble: dict[str, ModuleType], change: Any, told: str) -> None:
    graph = json.loads((GRAPHS / "seq.json").read_text(encoding="utf-8"))
    change(graph)
    with pytest.raises(ModuleError, match=told):
        check_module(pebble["pebble_frontend"].read(Source("g.json", data=json.dumps(graph).encode())))
