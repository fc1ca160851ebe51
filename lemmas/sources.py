"""Where lemma files come from, in order: the package, the project, installed packages, the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.terms import Span

GROUP: Final = "shardproof.lemmas"
"""Entry points of this group name a path or a list of paths of lemma files."""


def sources(
    files: Sequence[Path] = (), *, project: Path | None = None, entry_points: bool = True
) -> list[Path]:
    """All lemma files of a run, each once."""
    found = [*shipped(), *of_project(project)]
    if entry_points:
        found += of_packages()
    found += files
    return list({os.path.realpath(path): path for path in reversed(found)}.values())[::-1]


def shipped() -> list[Path]:
    """The library of this package, by name."""
    return sorted((Path(__file__).parent / "library").glob("*.lemma"))


def of_project(project: Path | None = None) -> list[Path]:
    """The files that `[tool.shardproof] lemmas` of a pyproject.toml lists, relative to it."""
    path = _project_file(project)
    if path is None:
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise LemmaError("found no readable project file", Span(str(path), 1)) from None
    if "shardproof" not in text:
        return []
    import tomllib

    try:
        tool = tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise LemmaError(f"found broken TOML, {str(error).lower()}", Span(str(path), 1)) from None
    section = tool.get("shardproof", {}) if isinstance(tool, dict) else {}
    listed = section.get("lemmas", []) if isinstance(section, dict) else []
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        message = f"found {listed!r} for `lemmas` of [tool.shardproof], a list of paths is needed"
        raise LemmaError(message, Span(str(path), 1))
    return [path.parent / entry for entry in listed]


def _project_file(project: Path | None) -> Path | None:
    if project is not None:
        return project / "pyproject.toml" if project.is_dir() else project
    here = Path.cwd()
    for directory in (here, *here.parents):
        path = directory / "pyproject.toml"
        if path.is_file():
            return path
    return None


def of_packages() -> list[Path]:
    """The files of installed packages; a broken entry point is an error that names its package."""
    from importlib.metadata import entry_points

    found: list[Path] = []
    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        package = point.dist.name if point.dist is not None else point.module
        place = f"entry point `{point.name}` of the package {package}"
        try:
            value = point.load()
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise LemmaError(f"{place} cannot be loaded: {reason}") from error
        for path in _paths(value):
            if path is None or not path.is_file():
                raise LemmaError(f"{place} gives {path or value!r}, paths of lemma files are needed")
            found.append(path)
    return found


def _paths(value: Any) -> Iterable[Path | None]:
    entries = value if isinstance(value, list | tuple) else [value]
    return [Path(entry) if isinstance(entry, str | os.PathLike) else None for entry in entries]
