"""Where a wrong program first differs from its repair, and whether a reported place is there.

A right place is an equation of the wrong program: the first whose results the repaired one does not compute,
one that makes what this reads, or one that reads what this makes. Around the first equation that only the
repaired program has these are the ones that make what it reads, and that read this in its stead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bug_equations import Program, Step

from shardproof.solver.verdict import Place
from shardproof.tools import operator_page
from shardproof.tools.operator_page import Read

READ = operator_page.read("jax")
"""What the tests of the frontend show that primitives become."""


def accepted(wrong: Program, right: Program) -> set[int]:
    """The numbers of the equations of `wrong` that are right places."""
    mine, others = set(wrong.known.values()), set(right.known.values())
    found: set[int] = set()
    first = _first(wrong, others)
    if first is not None:
        found |= {wrong.steps.index(first), *_around(wrong, first)}
    lacking = _first(right, mine)
    if lacking is not None:
        same = {right.known[v] for v in lacking.reads if v not in right.literals}
        held = [v for v, text in wrong.known.items() if text in same]
        found.update(_makers(wrong, held))
        found |= {n for v in held for n in wrong.readers(v) if _differs(wrong, wrong.steps[n], others)}
    return found


def placed(place: Place, program: Program, numbers: Iterable[int]) -> bool:
    """Whether a place is one of some equations, by its line and the operator that the equation becomes."""
    return any(_is(place, program.steps[n]) for n in numbers if on_line(place, program.steps[n]))


def on_line(place: Place, step: Step) -> bool:
    """Whether a place is on the line where an equation was written."""
    at = step.location
    return at is not None and (place.file, place.line) == (at.file, at.line)


def _is(place: Place, step: Step) -> bool:
    """Of a primitive that becomes several operators any will do."""
    read = READ.get(step.primitive, Read())
    return len(read.alone) != 1 or place.op in read.alone


def _first(program: Program, others: set[str]) -> Step | None:
    return next((step for step in program.steps if _differs(program, step, others)), None)


def _differs(program: Program, step: Step, others: set[str]) -> bool:
    return any(program.known[v] not in others for v in step.makes)


def _around(program: Program, step: Step) -> Iterator[int]:
    yield from _makers(program, step.reads)
    yield from _makers(program, (given for given, taken in program.again.items() if taken in step.reads))
    for v in step.makes:
        yield from program.readers(v)


def _makers(program: Program, values: Iterable[int]) -> Iterator[int]:
    makers = program.makers()
    yield from (makers[v] for v in values if v in makers)
