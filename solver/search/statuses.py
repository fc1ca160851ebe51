"""What is known of lemmas: of the shipped ones as they were checked, of others as this user's checks found.

Findings about other lemmas are kept under the user's cache directory, by what the lemma says and by the
checker's own sources, so that a lemma is sampled once and not in each run.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from shardproof import lemmas as room
from shardproof.lemmas.printer import fingerprint
from shardproof.lemmas.terms import Define, Lemma, OpaqueDefine, Statement

KNOWN: Final = frozenset({"proved", "tested", "false", "invalid", "assumed"})
Statuses = Mapping[str, Mapping[str, str]]
"""By name: `status`, and `sha256` of the printed statement that has it."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a check found of a lemma, and why or with which counterexample."""

    status: str
    detail: str = ""


@cache
def shipped_statuses() -> Statuses:
    """What the checker found of the shipped lemmas, by name; empty when they were never checked."""
    path = _room() / "library" / "status.json"
    if not path.exists():
        return {}
    found: Statuses = json.loads(path.read_text(encoding="utf-8"))
    return found


def shipped_status(statement: Statement) -> str:
    """What the library's checks found of exactly this statement; `not checked` if nothing was."""
    if not isinstance(statement, Lemma):
        return "defined"
    entry = shipped_statuses().get(statement.name, {})
    return entry.get("status", "") if entry.get("sha256") == fingerprint(statement) else "not checked"


def known_status(statement: Statement) -> Status | None:
    """What was found of exactly this statement before; None if nothing was."""
    found = shipped_status(statement)
    return Status(found) if found != "not checked" else _kept(fingerprint(statement))


def status_now(lemma: Lemma) -> Status:
    """What is known of a lemma; one that was never checked is tested on samples, without a proof."""
    known = known_status(lemma)
    if known is not None:
        return known
    from shardproof.lemmas.check import check

    (found,) = check([lemma], prove=False)
    return remember(lemma, found.status, found.counterexample or found.detail)


def remember(statement: Statement, status: str, detail: str = "") -> Status:
    """Keep what a check found; a proof is not forgotten for a later test."""
    found = Status(status, detail)
    if isinstance(statement, Define | OpaqueDefine) or status not in KNOWN:
        return found
    digest = fingerprint(statement)
    before = _kept(digest)
    if not (before is not None and before.status == "proved" and status == "tested"):
        _keep(digest, found)
    return found


def statuses_of(lemmas: Iterable[Lemma]) -> Statuses:
    """What is known of these lemmas, without checking any."""
    found: dict[str, Mapping[str, str]] = {}
    for lemma in lemmas:
        known = known_status(lemma)
        if known is not None:
            found[lemma.name] = {"status": known.status, "sha256": fingerprint(lemma)}
    return found


def refuted_among(lemmas: Iterable[Lemma]) -> tuple[Lemma, Status] | None:
    """The first of these lemmas that is no theorem, or is not well formed, and what shows it."""
    for lemma in lemmas:
        found = status_now(lemma)
        if found.status in ("false", "invalid"):
            return lemma, found
    return None


def _kept(digest: str) -> Status | None:
    try:
        data = json.loads(_entry(digest).read_text(encoding="utf-8"))
        if data["sha256"] == digest and data["status"] in KNOWN:
            return Status(data["status"], str(data["detail"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _keep(digest: str, found: Status) -> None:
    """A directory that cannot be written is no error."""
    path = _entry(digest)
    text = json.dumps({"sha256": digest, "status": found.status, "detail": found.detail})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)


def _entry(digest: str) -> Path:
    from shardproof.lemmas.load import cache_directory

    key = hashlib.sha256(f"{_checker()} {digest}".encode()).hexdigest()
    return cache_directory() / f"{key}.status.json"


@cache
def _checker() -> str:
    """A hash of the checker's sources: another checker may find something else."""
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in sorted(_room().glob("*.py")))).hexdigest()


def _room() -> Path:
    return Path(next(iter(room.__path__)))
