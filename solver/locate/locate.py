"""Where a program departs from its reference, in words, and whether repairing that value is enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardproof.ir.module import Module, Op, Value
from shardproof.ir.ops import TABLE
from shardproof.solver.counterpart import Alignment, Status, cone
from shardproof.solver.locate.finding import (
    ALONE,
    Finding,
    Suspect,
    constant_operand,
    finding_of,
    partial_operand,
    right_elements,
)
from shardproof.solver.locate.repairs import dependents, misplaced, repaired, sums_suffice
from shardproof.solver.prove import Clock

CANDIDATES: Final = 6
"""How many operators at fault are tried as the one to repair."""


def locate(alignment: Alignment, failing: Sequence[str], clock: Clock) -> Finding | None:
    """The first value that departs from its counterpart on the way to the failing outputs."""
    module = alignment.implementation
    bad = cone(module, failing, alignment.matches)
    suspects: list[Suspect] = []
    alone: list[Suspect] = []
    for op in module.ops:
        for value in op.results:
            if value.name not in bad:
                continue
            match = alignment.matches[value.name]
            (alone if match.view is None else suspects).append((op, value, match))
    vouched = _vouched(alignment) | _arbitrary(alignment)
    suspects = [s for s in suspects if s[1].name not in vouched] or suspects
    if not suspects:
        return finding_of(alignment, *(_strange(alignment, alone) or alone[0])) if alone else None
    at_fault = [s for s in suspects if _reads_right(alignment, s[0])]
    doubtful = {v.name for _, v, _ in [*suspects, *alone] if v.name not in vouched}
    out_of_place = misplaced(alignment, doubtful, failing, clock)
    if out_of_place is not None:
        return out_of_place
    begun = origins(alignment, at_fault)
    starts = [s for s, _ in [*begun.values()][:CANDIDATES]]
    for op, value, match in sorted([*at_fault[:CANDIDATES], *starts], key=lambda s: not _joins(s[0])):
        clock.check()
        assert match.view is not None
        if repaired(alignment, {value.name: match.view}, failing):
            return finding_of(alignment, op, value, match, proves=True)
    foremost = _foremost(module, suspects, failing)
    for start, readers in begun.values():
        if foremost[1].name in readers and (len(readers) > 1 or _joins(start[0])):
            foremost = start
    constant = constant_operand(alignment, foremost[0], foremost[2])
    if constant is not None:
        return constant
    first = finding_of(alignment, *foremost)
    if first.code == "R05" and not _reads_right(alignment, foremost[0]):
        strange = _strange(alignment, alone, foremost[0])
        if strange is not None:
            return finding_of(alignment, *strange)
    if first.code == "R02" and sums_suffice(alignment, failing, bad, clock):
        return Finding(
            first.op,
            first.value,
            first.reference,
            first.code,
            first.expected,
            first.found,
            f"{(first.repair or '').removesuffix(ALONE)}, and the same further on, proves all outputs",
            True,
        )
    return first


def _strange(alignment: Alignment, alone: Sequence[Suspect], last: Op | None = None) -> Suspect | None:
    """The first value, before an operator, that holds what the reference nowhere has and is made of what it
    has, whether in these places or others."""
    views = alignment.proof.implementation.views

    def known(v: Value) -> bool:
        return v.name in alignment.constant or alignment.arranged.knows(views[v.name])

    order = {op.result.name: n for n, op in enumerate(alignment.implementation.ops)}
    end = len(order) if last is None else order[last.result.name]
    for op, value, match in alone:
        if order[op.result.name] < end and not known(value) and all(map(known, op.operands)):
            return op, value, match
    return None


def _vouched(alignment: Alignment) -> set[str]:
    """Integers and truth values, like nothing of the reference, of which right real values are made."""
    right = (Status.SAME, Status.PARTIAL)
    found: set[str] = set()
    for op in reversed(alignment.implementation.ops):
        good = any(
            v.name in found
            or (v.type.dtype.kind == "real" and alignment.matches[v.name].status in right)
            for v in op.results
        )
        if good:
            found.update(
                x.name
                for x in op.operands
                if x.name in alignment.matches and alignment.matches[x.name].status not in right
            )
    real = {v.name for op in alignment.implementation.ops for v in op.results if v.type.dtype.kind == "real"}
    return found - real


def _arbitrary(alignment: Alignment) -> set[str]:
    """Values that nothing but draws and constants make."""
    found: set[str] = set()
    for op in alignment.implementation.ops:
        of_draws = any(x.name in found for x in op.operands)
        if op.opcode == "rng" or (of_draws and all(x.name in alignment.constant for x in op.operands)):
            found.update(v.name for v in op.results)
    return found


def _foremost(module: Module, suspects: Sequence[Suspect], failing: Sequence[str]) -> Suspect:
    """The first departing value, read from none that departs, of the line of source from which most of the
    failing outputs are reached."""
    reached: dict[str, int] = {}
    for n, out in enumerate(module.outputs):
        if out.name in failing:
            reached[out.value.name] = reached.get(out.value.name, 0) | 1 << n
    for op in reversed(module.ops):
        after = 0
        for v in op.results:
            after |= reached.get(v.name, 0)
        for x in op.operands:
            reached[x.name] = reached.get(x.name, 0) | after
    departed = {value.name for _, value, _ in suspects}
    tainted = {v.name for op in dependents(module, departed) for v in op.results}
    places: dict[object, list[Suspect]] = {}
    for s in suspects:
        if s[1].name not in tainted:
            at = s[1].location
            place = (at.file, at.line) if at is not None else s[1].name
            places.setdefault(place, []).append(s)

    def outputs(group: list[Suspect]) -> int:
        every = 0
        for _, value, _ in group:
            every |= reached.get(value.name, 0)
        return every.bit_count()

    return max(places.values(), key=outputs)[0]


def _joins(op: Op) -> bool:
    """Whether an operator joins the values of several ranks, so that what it leaves partial is its fault."""
    return "collective" in TABLE[op.opcode].traits


def origins(alignment: Alignment, at_fault: Sequence[Suspect]) -> dict[str, tuple[Suspect, list[str]]]:
    """The values where partial sums begin that are read as whole, with the departing values that do so."""
    made = {v.name: (op, v) for op in alignment.implementation.ops for v in op.results}
    found: dict[str, tuple[Suspect, list[str]]] = {}
    for op, departed, _ in at_fault:
        partial = partial_operand(alignment, op)
        while partial is not None and partial in made:
            maker, value = made[partial]
            before = partial_operand(alignment, maker)
            if before is None:
                begun = maker, value, alignment.matches[value.name]
                found.setdefault(value.name, (begun, []))[1].append(departed.name)
            partial = before
    return found


def _reads_right(alignment: Alignment, op: Op) -> bool:
    """Whether an operator's operands are as they should be, so that the fault is its own.

    Repairing a later value could hide any fault before it: that of an output proves nothing. Operands
    that hold the right elements in another order than shards would have them count as right.
    """
    right = (Status.SAME, Status.PARTIAL)
    return all(
        x.name in alignment.constant
        or alignment.matches[x.name].status in right
        or right_elements(alignment, x)
        for x in op.operands
    )
