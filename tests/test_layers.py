"""Rooms import in one direction, heavy libraries stay where they belong, and rooms go by their full name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "ir": {"ir"},
    "frontends": {"ir", "frontends"},
    "passes": {"ir", "passes"},
    "lemmas": {"ir", "lemmas"},
    "solver": {"ir", "frontends", "passes", "lemmas", "solver"},
    "tools": {"ir", "frontends", "passes", "lemmas", "solver", "tools"},
}
FRAMEWORKS = {"torch", "torch_xla", "jax", "jaxlib", "flax", "onnx", "megatron", "transformers"}
SOURCES = sorted(path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py"))
OTHERS = sorted(
    path for place in ("tests", "examples", "benchmarks") for path in (ROOT / place).rglob("*.py")
)


@dataclass(frozen=True)
class Import:
    """One imported module, absolute; `lazy` when inside a function, `typing` when never executed."""

    module: str
    line: int
    lazy: bool
    typing: bool


def imports(path: Path, source: str) -> list[Import]:
    """Every import of a file; `path` is relative to the repository root."""
    package = ("shardproof", *path.parent.parts)

    def visit(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy, typing)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *([node.module] if node.module else [])))
            if stem == "shardproof":
                for alias in node.names:
                    yield Import(f"shardproof.{alias.name}", node.lineno, lazy, typing)
            else:
                yield Import(stem, node.lineno, lazy, typing)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                yield from visit(child, inside, True)
            for child in node.orelse:
                yield from visit(child, inside, typing)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside, typing)

    return list(visit(ast.parse(source), False, False))


def violations(path: Path, source: str) -> list[str]:
    """What a file of a room, or of tests, examples or benchmarks, imports against the rules."""
    room = path.parts[0]
    found = []
    for item in imports(path, source):
        top, _, rest = item.module.partition(".")
        if top in MAY_IMPORT or top == "src":
            found.append(f"{path}:{item.line} imports `{item.module}`, write `shardproof.{item.module}`")
        if room not in MAY_IMPORT:
            continue
        other = rest.partition(".")[0]
        if top == "shardproof" and other in MAY_IMPORT and other not in MAY_IMPORT[room]:
            found.append(f"{path}:{item.line} imports {other}/ from {room}/")
        if top == "shardproof" and other not in MAY_IMPORT and other != "__version__":
            found.append(f"{path}:{item.line} imports `{item.module}` from the public package")
        if top == "tests":
            found.append(f"{path}:{item.line} imports the tests")
        if top == "egglog" and path.as_posix() != "solver/search/saturate.py":
            found.append(f"{path}:{item.line} imports egglog outside solver/search/saturate.py")
        if top == "z3" and not (room == "lemmas" and path.name.startswith("check")):
            found.append(f"{path}:{item.line} imports z3 outside lemma checking")
        if top in FRAMEWORKS and not (room == "frontends" and (item.lazy or item.typing)):
            found.append(f"{path}:{item.line} imports {top} other than lazily in its frontend")
    return found


@pytest.mark.parametrize("path", SOURCES + OTHERS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_layers(path: Path) -> None:
    assert violations(path.relative_to(ROOT), path.read_text(encoding="utf-8")) == []


def test_every_room_is_looked_at() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == set(MAY_IMPORT)
    assert {path.name for path in (ROOT / "src" / "shardproof").iterdir() if path.is_symlink()} == set(
        MAY_IMPORT
    )


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ir/x.py", "from shardproof.passes.views import View"),
        ("ir/x.py", "from ..solver import verdict"),
        ("ir/x.py", "from shardproof import solver"),
        ("passes/x.py", "import shardproof.frontends.load"),
        ("passes/x.py", "def f():\n    from shardproof.lemmas import grammar"),
        ("frontends/hlo/x.py", "from ...passes import views"),
        ("solver/x.py", "from shardproof.tools.report import report"),
        ("solver/x.py", "from shardproof import verify"),
        ("solver/x.py", "import egglog"),
        ("tools/x.py", "def f():\n    import egglog"),
        ("solver/x.py", "import z3"),
        ("frontends/jaxpr/x.py", "import jax"),
        ("frontends/jaxpr/x.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import jax"),
        ("tools/x.py", "def f():\n    import torch"),
        ("tests/ir/x.py", "from ir.types import Mesh"),
        ("tests/ir/x.py", "def f():\n    import solver.verdict"),
        ("examples/x.py", "import src.shardproof"),
        ("ir/x.py", "from tests import samples"),
    ],
)
def test_a_violation_is_found(path: str, source: str) -> None:
    assert violations(Path(path), source) != []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("solver/x.py", "from shardproof import __version__\nfrom shardproof.ir.types import Mesh"),
        ("solver/search/saturate.py", "import egglog"),
        ("lemmas/checking.py", "import z3"),
        ("frontends/hlo/x.py", "from .. import load\nfrom ...ir import types"),
        ("frontends/jaxpr/x.py", "def f():\n    import jax"),
        ("frontends/jaxpr/x.py", "if TYPE_CHECKING:\n    import jax"),
        ("tools/x.py", "from shardproof.solver.verdict import Result"),
        ("tests/ir/x.py", "import shardproof\nfrom shardproof.ir.types import Mesh"),
    ],
)
def test_an_allowed_import_is_not(path: str, source: str) -> None:
    assert violations(Path(path), source) == []
