"""The lemmas of a run: the shipped library, files, the project's and those of installed packages.

Parsed files are kept as JSON under the user's cache directory, keyed by their content and by the
language's own sources. An entry that is not exactly what was written, or whose statements do not
pass `shardproof.lemmas.typing.check`, is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from shardproof.lemmas.codec import from_json, to_json
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.sources import sources
from shardproof.lemmas.terms import Define, Lemma, OpaqueDefine, Span, Statement
from shardproof.lemmas.typing import check

LARGEST_FILE: Final = 1_000_000
"""Size limit of a lemma file, in bytes."""

_LANGUAGE: Final = (
    "lemma.lark",
    "parse.py",
    "parse_terms.py",
    "parse_define.py",
    "functions.py",
    "terms.py",
    "codec.py",
    "load.py",
)


@dataclass(frozen=True, slots=True)
class Library:
    """Checked statements by name, in the order of the files.

    Several defines may have one name if no use matches two of them. `digest` is a hash of all
    statements and the places where they stand; `files` are the files that they come from.
    """

    lemmas: dict[str, Lemma] = field(default_factory=dict)
    defines: dict[str, tuple[Define, ...]] = field(default_factory=dict)
    opaques: dict[str, OpaqueDefine] = field(default_factory=dict)
    digest: str = ""
    files: tuple[str, ...] = ()


def load(files: Sequence[Path] = (), *, project: Path | None = None, entry_points: bool = True) -> Library:
    """The shipped library, then the project's, the packages' and the given files.

    `project` is a pyproject.toml or its directory; without it the nearest one from the current
    directory upward is read. Raises `LemmaError` for a file that cannot be read or does not check,
    for a broken package, and for a name that stands in two places.
    """
    return _library(sources(files, project=project, entry_points=entry_points))


def load_files(files: Sequence[Path]) -> Library:
    """The statements of these files alone."""
    return _library(files)


def defines_for(
    targets: Iterable[str],
    files: Sequence[Path] = (),
    *,
    project: Path | None = None,
    entry_points: bool = True,
) -> Library:
    """The defines and opaque operators of these names; reads only the files that mention one of them."""
    names = set(targets)
    spelled = [word.encode() for name in names for word in (name, json.dumps(name)[1:-1])]
    found = []
    for path in sources(files, project=project, entry_points=entry_points):
        content = _content(path)
        if any(word in content for word in spelled):
            found.append(path)
    library = _library(found)
    defines = {name: group for name, group in library.defines.items() if name in names}
    opaques = {name: opaque for name, opaque in library.opaques.items() if name in names}
    return Library({}, defines, opaques, library.digest, library.files)


def statements_of(path: Path) -> tuple[Statement, ...]:
    """The checked statements of a file, from the cache where it holds them."""
    return _read(path)[0]


def _library(files: Sequence[Path]) -> Library:
    lemmas: dict[str, Lemma] = {}
    defines: dict[str, tuple[Define, ...]] = {}
    opaques: dict[str, OpaqueDefine] = {}
    digest = hashlib.sha256()
    for path in files:
        statements, text_digest = _read(path)
        digest.update(text_digest.encode())
        for statement in statements:
            match statement:
                case Lemma(name=name):
                    _distinct(statement, lemmas.get(name))
                    lemmas[name] = statement
                case Define(name=name):
                    others = defines.get(name, ())
                    _distinct(statement, opaques.get(name), *(o for o in others if _overlap(statement, o)))
                    defines[name] = (*others, statement)
                case OpaqueDefine(name=name):
                    _distinct(statement, opaques.get(name), *defines.get(name, ()))
                    opaques[name] = statement
    return Library(lemmas, defines, opaques, digest.hexdigest(), tuple(map(str, files)))


def _distinct(statement: Statement, *others: Statement | None) -> None:
    for other in others:
        if other is not None:
            place = other.span
            where = "elsewhere" if place is None else f"at {place.file}:{place.line}:{place.column}"
            raise LemmaError(f"found a second `{statement.name}`, the first is {where}", statement.span)


def _overlap(a: Define, b: Define) -> bool:
    """Whether one use could match both: no attribute, number of operands or of results tells them apart."""
    values = {x.name: x.value for x in a.attributes}, {x.name: x.value for x in b.attributes}
    if values[0].keys() != values[1].keys():
        return False
    if (len(a.parameters), len(a.outputs)) != (len(b.parameters), len(b.outputs)):
        return False
    return all(values[1][name] is None or v is None or values[1][name] == v for name, v in values[0].items())


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise LemmaError(f"found no lemma file, {reason}", Span(str(path), 1)) from None
    if len(content) > LARGEST_FILE:
        raise LemmaError(f"found {len(content)} bytes, at most {LARGEST_FILE} are read", Span(str(path), 1))
    return content


def _read(path: Path) -> tuple[tuple[Statement, ...], str]:
    """The checked statements and the hash of their JSON without the name of the file."""
    content = _content(path)
    key = hashlib.sha256(_language() + content).hexdigest()
    entry = cache_directory() / f"{key}.json"
    cached = _cached(entry, key, str(path))
    if cached is not None:
        return cached
    from shardproof.lemmas.parse import parse

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        place = Span(str(path), content.count(b"\n", 0, error.start) + 1)
        raise LemmaError("found a byte that is not UTF-8, save the file as UTF-8", place) from None
    statements = tuple(map(check, parse(text, str(path))))
    payload = _payload(statements)
    _keep(entry, key, payload)
    return statements, hashlib.sha256(payload.encode()).hexdigest()


def _payload(statements: tuple[Statement, ...]) -> str:
    """JSON of the statements with an empty file name, so that it depends on the content alone."""
    data = [to_json(s) for s in statements]
    for entry in data:
        entry[3] = ""
        entry[4] = ["", *entry[4][1:]]
    return json.dumps(data, separators=(",", ":"))


def _cached(entry: Path, key: str, file: str) -> tuple[tuple[Statement, ...], str] | None:
    """The statements of a cache entry, None if there is none that can be trusted."""
    try:
        header, _, payload = entry.read_text(encoding="utf-8").partition("\n")
        digest = hashlib.sha256(payload.encode()).hexdigest()
        if json.loads(header) != {"key": key, "payload": digest}:
            return None
        decoded = tuple(from_json(data, file) for data in json.loads(payload))
        statements = tuple(map(check, decoded))
    except (OSError, ValueError, TypeError, KeyError, RecursionError, ArithmeticError):
        return None
    return (statements, digest) if statements == decoded else None


def _keep(entry: Path, key: str, payload: str) -> None:
    """Writes a cache entry in one step; a directory that cannot be written is no error."""
    header = json.dumps({"key": key, "payload": hashlib.sha256(payload.encode()).hexdigest()})
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=entry.parent, prefix=".", suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(f"{header}\n{payload}")
        os.replace(name, entry)
    except OSError:
        Path(name).unlink(missing_ok=True)


def cache_directory() -> Path:
    """Where what is known of lemma files is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "shardproof" / "lemmas"


@cache
def _language() -> bytes:
    """A hash of what decides how a text is read."""
    here = Path(__file__).parent
    return hashlib.sha256(b"\0".join((here / name).read_bytes() for name in _LANGUAGE)).digest()
