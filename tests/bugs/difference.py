"""Where two traced programs first differ, and whether a reported place is there.

The programs are a wrong one and its repair. A place is right when it is an equation of the wrong program
that is the first to differ from those of the repaired one, or one that makes what this reads or reads what
this makes. Where an equation is missing, these are those around the gap.
"""

from __future__ import annotations

from difflib import SequenceMatcher

from shardproof.ir.ops import TABLE
from shardproof.ir.types import Location
from shardproof.solver.verdict import Place
from tests.bugs.jaxprs import Program, Step

COMPOSED = frozenset({"and", "broadcast_in_dim", "compare", "constant", "multiply", "reshape", "select"})
"""Operators that primitives without a row of their own are made of."""


def by_dataflow(wrong: Program, right: Program) -> set[int]:
    """Equations of `wrong` around the first whose results `right` does not compute, and the reverse."""
    mine, others = set(wrong.known.values()), set(right.known.values())
    found: set[int] = set()
    for n, step in enumerate(wrong.steps):
        if any(wrong.known[v] not in others for v in step.makes):
            found |= _around(wrong, step) | {n}
            break
    for step in right.steps:
        if any(right.known[v] not in mine for v in step.makes):
            same = {right.known[v] for v in step.reads if v not in right.literals}
            held = [v for v, text in wrong.known.items() if text in same]
            found |= _gap(wrong, held, others)
            break
    return found


def by_order(wrong: Program, right: Program) -> set[int]:
    """Equations of `wrong` around the first place where the two lists of equations differ."""
    a, b = ([s.says for s in p.steps] for p in (wrong, right))
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    where = {j: i for kind, i1, i2, j1, _ in blocks if kind == "equal" for i, j in zip(range(i1, i2), range(j1, j1 + i2 - i1))}
    for kind, i1, i2, j1, j2 in blocks:
        if kind == "equal":
            if any(
                _sources(wrong, wrong.steps[i]) != [where.get(m) for m in _sources(right, right.steps[j])]
                for i, j in zip(range(i1, i2), range(j1, j2))
            ):
                i = next(
                    i for i, j in zip(range(i1, i2), range(j1, j2))
                    if _sources(wrong, wrong.steps[i]) != [where.get(m) for m in _sources(right, right.steps[j])]
                )
                return _around(wrong, wrong.steps[i]) | {i}
            continue
        found: set[int] = set()
        if i2 > i1:
            found |= _around(wrong, wrong.steps[i1]) | {i1}
        if j2 > j1:
            step = right.steps[j1]
            makers = right.makers()
            found |= {where[makers[v]] for v in step.reads if v in makers and makers[v] in where}
            found |= {where[n] for v in step.makes for n in right.readers(v) if n in where}
        return found
    return set()


def _sources(program: Program, step: Step) -> list[int | None]:
    makers = program.makers()
    return [makers[v] for v in step.reads if v in makers]


def _around(program: Program, step: Step) -> set[int]:
    makers = program.makers()
    found = {makers[v] for v in step.reads if v in makers}
    found |= {makers[g] for g, taken in program.again.items() if taken in step.reads and g in makers}
    return found | {n for v in step.makes for n in program.readers(v)}


def _gap(program: Program, held: list[int], others: set[str]) -> set[int]:
    """What makes the values that a missing equation would read, and what reads them in its stead."""
    makers = program.makers()
    found = {makers[v] for v in held if v in makers}
    for v in held:
        for n in program.readers(v):
            if any(program.known[made] not in others for made in program.steps[n].makes):
                found.add(n)
    return found


def placed(place: Place, program: Program, accepted: set[int]) -> bool:
    """Whether a reported place is one of these equations: its line, and an operator it may have become."""
    return any(_is(place, program.steps[n]) for n in accepted)


def _is(place: Place, step: Step) -> bool:
    at: Location | None = step.location
    if at is None or (place.file, place.line) != (at.file, at.line):
        return False
    rows = {row.name for row in TABLE.values() if step.primitive in row.spellings.get("jax", ())}
    return place.op in rows if rows else place.op in COMPOSED or place.op in TABLE
