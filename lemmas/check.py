"""Checks lemmas by machine: well-formed, conditions needed, no counterexample, proved for all extents.

A lemma is `false` if random functions that satisfy its conditions make its sides differ, `invalid` if
it is not well formed or a condition cannot hold or is not needed, `proved` if Z3 proves it for all
extents, else `tested`. An `assume` is `assumed`, a `define` or `opaque` statement `defined`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, Final, Literal

from shardproof.lemmas.check_numbers import Exact, Unsupported, arithmetic
from shardproof.lemmas.check_samples import Counterexample, search, unneeded
from shardproof.lemmas.check_values import Meaning, Table
from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.printer import fingerprint, show_condition
from shardproof.lemmas.terms import Define, Lemma, OpaqueDefine, Statement
from shardproof.lemmas.typing import check as check_typing

Status = Literal["proved", "tested", "false", "invalid", "assumed", "defined"]

SAMPLES: Final = 80
NEEDED_SAMPLES: Final = 400
STATUS_FILE: Final = "status.json"


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of one statement. `counterexample` makes a `false` lemma differ."""

    name: str
    theme: str
    status: Status
    detail: str = ""
    counterexample: str | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "theme": self.theme,
            "status": self.status,
            "detail": self.detail,
            "counterexample": self.counterexample,
            "seconds": round(self.seconds, 3),
        }


def check(
    lemmas: Iterable[Statement], *, seed: int = 0, seconds_per_lemma: float = 10.0, prove: bool = True
) -> list[Checked]:
    """The status of each statement, in order; the same for the same seed.

    `seconds_per_lemma` bounds each question to Z3; `prove=False` asks none.
    """
    results = []
    for statement in lemmas:
        start = perf_counter()
        result = _checked(statement, seed, seconds_per_lemma, prove)
        results.append(replace(result, seconds=perf_counter() - start))
    return results


def _checked(statement: Statement, seed: int, seconds: float, prove: bool) -> Checked:
    name, theme = statement.name, statement.theme
    try:
        statement = check_typing(statement)
    except LemmaError as error:
        return Checked(name, theme, "invalid", error.message)
    try:
        match statement:
            case OpaqueDefine():
                return Checked(name, theme, "defined", "an unknown function")
            case Define():
                _evaluate(statement, seed)
                return Checked(name, theme, "defined", "has a value on random inputs")
            case Lemma(assumed=True):
                return _assumed(statement, seed)
            case Lemma():
                return _lemma(statement, seed, seconds, prove)
    except Unsupported as error:
        return Checked(name, theme, "invalid", str(error))


def _lemma(lemma: Lemma, seed: int, seconds: float, prove: bool) -> Checked:
    conditions = lemma.conditions
    exact = search(lemma, conditions, SAMPLES, seed=seed)
    if exact.counterexample is not None:
        return _false(lemma, exact.counterexample, "the sides differ")
    if not exact.samples:
        return Checked(lemma.name, lemma.theme, "invalid", "found no functions for which the conditions hold")
    extended = search(lemma, conditions, 2 * SAMPLES, seed=seed, infinite=True)
    if extended.counterexample is not None:
        return _false(lemma, extended.counterexample, "the sides differ at infinities, add `finite`")
    idle = unneeded(lemma, NEEDED_SAMPLES, seed=seed)
    if idle:
        text = "; ".join(f"condition `{show_condition(c)}` is not needed" for c in idle)
        return Checked(lemma.name, lemma.theme, "invalid", text)
    tested = f"{exact.samples + extended.samples} samples"
    if not prove:
        return Checked(lemma.name, lemma.theme, "tested", tested)
    if find_spec("z3") is None:
        return Checked(lemma.name, lemma.theme, "tested", f"{tested}, z3 is not installed")
    from shardproof.lemmas.check_z3 import prove as by_z3

    if by_z3(lemma, seconds):
        return Checked(lemma.name, lemma.theme, "proved", f"for all extents, {tested}")
    return Checked(lemma.name, lemma.theme, "tested", f"{tested}, z3 found no proof")


def _false(lemma: Lemma, found: Counterexample, detail: str) -> Checked:
    return Checked(lemma.name, lemma.theme, "false", detail, str(found))


def _assumed(lemma: Lemma, seed: int) -> Checked:
    """An `assume` is no theorem: what samples say of it is told, and changes nothing."""
    told = []
    for infinite, where in ((False, "reals"), (True, "infinities")):
        try:
            found = search(lemma, lemma.conditions, SAMPLES, seed=seed, infinite=infinite)
        except Unsupported:
            continue
        if found.counterexample is None:
            told.append(f"no difference in {found.samples} samples with {where}")
        else:
            told.append(f"differs with {where}: {found.counterexample}")
    return Checked(lemma.name, lemma.theme, "assumed", "; ".join(told))


def _evaluate(define: Define, seed: int) -> None:
    """Evaluate the results on one random input. Raises `Unsupported` for an operator without a value."""
    random = Random(f"{seed}|{define.name}")
    dims = {*define.indices, *(d for p in define.parameters for d in p.dims or ())}
    dims |= {d for r in define.results for d in r.dims or ()}
    extents = {d: random.randint(1, 3) for d in sorted(dims)}
    everywhere = tuple(sorted(dims))
    reads = {p.name: everywhere if p.dims is None else p.dims for p in define.parameters}
    reads |= {a.name: () for a in define.attributes if a.value is None}
    numbers = Exact(seed)
    with arithmetic():
        empty = Meaning(numbers, extents, reads, {})
        tables: dict[str, Table] = {
            name: {tuple(p.values()): numbers.unknown(name, [p]) for p in empty.points(own)}
            for name, own in reads.items()
        }
        for result in define.results:
            meaning = Meaning(numbers, extents, reads, tables)
            own = everywhere if result.dims is None else result.dims
            missing = [i for i in meaning.free(result.term) if i not in own and i != "..."]
            if missing:
                raise Unsupported(f"`{result.name}` reads `{missing[0]}`, which is none of its dims")
            points = meaning.points(tuple(dict.fromkeys((*own, *meaning.free(result.term)))))
            values = {tuple(p[i] for i in own): meaning.at(result.term, p) for p in points}
            reads, tables = {**reads, result.name: own}, {**tables, result.name: values}


def status_of(statements: Sequence[Statement], results: Sequence[Checked]) -> dict[str, dict[str, str]]:
    """Name to status and fingerprint, as `status.json` holds them; defines of one name share an entry."""
    found: dict[str, dict[str, str]] = {}
    for statement, result in zip(statements, results, strict=True):
        known = found.get(statement.name)
        digest = fingerprint(statement)
        if known is not None:
            digest = hashlib.sha256((known["sha256"] + digest).encode()).hexdigest()
        found[statement.name] = {"status": result.status, "sha256": digest}
    return found


def write_status(directory: Path, statements: Sequence[Statement], results: Sequence[Checked]) -> None:
    """Write the statuses of a library, for use where Z3 is not installed."""
    text = json.dumps(status_of(statements, results), indent=1, sort_keys=True)
    (directory / STATUS_FILE).write_text(text + "\n", encoding="utf-8")
