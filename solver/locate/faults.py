"""The place of a mistake: the small change with which the outputs agree, or where what is right ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from shardproof.ir.module import Module, Op
from shardproof.ir.numpy_meaning import InterpretError
from shardproof.passes.normalise import Normalised, apply
from shardproof.passes.views import Unsupported, View
from shardproof.solver.counterpart import Alignment
from shardproof.solver.locate.edits import MOVES, Edits, Repair
from shardproof.solver.locate.finding import ALONE, Finding
from shardproof.solver.locate.repairs import repaired
from shardproof.solver.locate.traces import Trace
from shardproof.solver.locate.trial_runs import TrialRuns
from shardproof.solver.prove import Clock, TimeUp
from shardproof.solver.replay.outcome import Difference

PATIENCE: Final = 4.0
"""Seconds that changes are tried for."""
_ADDS: Final = ("add", "subtract")
_ELEMENTWISE: Final = frozenset({"add", "multiply", "negate", "select", "subtract"}) | MOVES


def fault(
    alignment: Alignment,
    failing: Sequence[str],
    difference: Difference,
    clock: Clock,
    other: Finding | None,
) -> Finding | None:
    """The mistake that made a difference.

    Of programs that are small enough to be run often that is a change with which all outputs agree; then
    the `other` finding, if repairing that proves them; then a change with which some agree; then where
    values stop being the reference's.
    """
    composed = alignment.proof.composed
    runs = TrialRuns.of(
        composed.reference, composed.implementation, composed.expected, difference.seed, composed.ranges
    )
    if runs is None:
        return other
    wrong = runs.failing()
    ops = leading_to(alignment.implementation, wrong & set(failing))
    constant = _constants(alignment.implementation)
    try:
        found = _repair(Edits(alignment.implementation, runs, ops, constant), wrong, clock)
    except InterpretError:
        return other
    if found is not None and found[1]:
        return _mended(alignment, failing, *found, runs, constant)
    counted = _counted(alignment, other, constant) if other is not None else None
    if counted is not other:
        return counted
    proves = other is not None and other.proves
    if found is not None and not proves:
        return _mended(alignment, failing, *found, runs, constant)
    spread = alignment.reference.mesh.size == 1 < alignment.mesh.size
    if spread and not (other is not None and proves and other.code != "R05"):
        trace = Trace(alignment.implementation, alignment.reference, runs, constant)
        departure = _departure(alignment, trace, wrong & set(failing))
        moves = departure is not None and departure.op.opcode != "broadcast_in_dim"
        if departure is not None and (not proves or (departure.code == "R03" and moves)):
            other = departure
    return other


def _counted(alignment: Alignment, found: Finding, constant: set[str]) -> Finding:
    """Of a value that ranks compute alike from constants, where they count as the reference nowhere does."""
    if found.value.name not in constant:
        return found
    types = {op.result.type for op in alignment.reference.ops if op.opcode == "iota"}
    needed = {found.value.name}
    for op in reversed(alignment.implementation.ops):
        if any(v.name in needed for v in op.results):
            needed.update(x.name for x in op.operands)
            if op.opcode == "iota" and op.result.type not in types:
                return replace(found, op=op, value=op.result)
    return found


def _mended(
    alignment: Alignment,
    failing: Sequence[str],
    repair: Repair,
    complete: bool,
    runs: TrialRuns,
    constant: set[str],
) -> Finding:
    found = _finding(alignment, failing, repair, complete)
    if repair.kind == "position" and alignment.reference.mesh.size == 1:
        trace = Trace(alignment.implementation, alignment.reference, runs, constant)
        before = trace.position(repair.ops[0], repair.over)
        return replace(found, op=before, value=before.result)
    return found


def _constants(module: Module) -> set[str]:
    """Values that are made of constants alone, the same on every rank."""
    found: set[str] = set()
    for op in module.ops:
        if op.opcode not in ("rank_id", "rng") and all(x.name in found for x in op.operands):
            found.update(v.name for v in op.results)
    return found


def leading_to(module: Module, outputs: set[str] | frozenset[str]) -> list[Op]:
    """The operators that some outputs depend on, in order."""
    needed = {o.value.name for o in module.outputs if o.name in outputs}
    found = []
    for op in reversed(module.ops):
        if any(v.name in needed for v in op.results):
            needed.update(x.name for x in op.operands)
            found.append(op)
    return found[::-1]


def _repair(edits: Edits, wrong: frozenset[str], clock: Clock) -> tuple[Repair, bool] | None:
    """The change that mends most outputs, of the likeliest kind, and whether it mends all."""
    best: tuple[int, Repair] | None = None
    limited = clock.within(PATIENCE)
    try:
        for family in edits.families():
            mending: dict[int, list[Repair]] = {}
            for repair in family:
                limited.check()
                left = edits.runs.failing(repair.edit)
                if left < wrong:
                    mending.setdefault(len(wrong) - len(left), []).append(repair)
            if not mending:
                continue
            most = max(mending)
            if best is None or most > best[0]:
                best = most, _chosen(mending[most][0], [r for rs in mending.values() for r in rs], edits)
            if most == len(wrong):
                break
    except TimeUp:
        clock.check()
    return (best[1], best[0] == len(wrong)) if best is not None else None


def _chosen(first: Repair, mending: Sequence[Repair], edits: Edits) -> Repair:
    """Of changes like the first that mend an output, the one where the mistake is likeliest."""
    alike = [r for r in mending if (r.kind, r.over, r.gone) == (first.kind, first.over, first.gone)]
    order = {op.result.name: n for n, op in enumerate(edits.ops)}
    by_name: Mapping[str, Repair] = {op.result.name: r for r in alike for op in r.ops}
    last = max(alike, key=lambda r: order[r.value.name])
    if first.kind == "sum":
        last = _before_layers(last, by_name, edits)
    if first.kind in ("sum", "mean", "max", "min"):
        return _along(last, by_name, edits)
    if first.gone is not None:
        last = _along(last, by_name, edits)
        return replace(last, ops=(min(last.ops[0], first.gone, key=edits.ops.index),))
    if first.kind == "scale":
        factors = [r for r in alike if _is_factor(r.ops[0], edits)]
        if factors:
            return max(factors, key=lambda r: order[r.value.name])
        last = _along(last, by_name, edits)
        reader = _adder(last.ops[0], edits)
        return replace(last, ops=(reader,)) if reader is not None else last
    return last if first.kind == "without" else first


def _adder(op: Op, edits: Edits) -> Op | None:
    """The operator that adds a value that ranks hold alike to one of which each has its part."""
    readers = [o for o in edits.ops if any(x.name == op.result.name for x in o.operands)]
    if len(readers) != 1 or readers[0].opcode not in _ADDS:
        return None
    everyone = (tuple(range(edits.module.mesh.size)),)
    mixed = edits.runs.vary(readers[0].result, everyone) and not edits.runs.vary(op.result, everyone)
    return readers[0] if mixed else None


def _is_factor(op: Op, edits: Edits) -> bool:
    """Whether an operator does nothing but scale, by a number that is written there."""
    scales = op.opcode in ("multiply", "divide") and any(x.name in edits.numbers for x in op.operands)
    return (scales and not edits.averages(op)) or op in edits.idle


def _before_layers(last: Repair, by_name: Mapping[str, Repair], edits: Edits) -> Repair:
    """Back from the last of several values in a row, each of which could be completed, to the one that is
    multiplied by another value before a product with a weight is made of it: a layer before."""
    made = {op.result.name: op for op in edits.ops}
    op: Op | None = last.ops[0]
    while op is not None:
        before = [x.name for x in op.operands if x.name in by_name and x.name in made]
        found = None
        if op.opcode == "dot_general" and before:
            found = _multiplied(before[0], by_name, edits, made)
        if found is not None:
            last = replace(by_name[found], ops=(made[found],))
        name = found or (before[0] if len(before) == 1 else None)
        op = made[name] if name is not None else None
    return last


def _multiplied(
    name: str, by_name: Mapping[str, Repair], edits: Edits, made: Mapping[str, Op]
) -> str | None:
    """The value that elementwise operators, a product with another value among them, make `name` of."""
    todo, seen = [(name, False)], {name}
    while todo:
        value, crossed = todo.pop(0)
        op = made.get(value)
        if op is None or op.opcode not in _ELEMENTWISE:
            if crossed and value in by_name:
                return value
            continue
        product = op.opcode == "multiply" and not any(x.name in edits.numbers for x in op.operands)
        for x in op.operands:
            if x.name not in seen:
                seen.add(x.name)
                todo.append((x.name, crossed or product))
    return None


def _along(last: Repair, by_name: Mapping[str, Repair], edits: Edits) -> Repair:
    """Back from the last of several values in a row, each of which could be completed: before what is whole
    is added, before a factor, before a mean over ranks that is scaled, and to the first of the operators
    that only move what the one before computes."""
    made = {op.result.name: op for op in edits.ops}
    outputs = {o.value.name for o in edits.module.outputs}
    everyone = (tuple(range(edits.module.mesh.size)),)
    while True:
        op = last.ops[0]
        before = [x.name for x in op.operands if x.name in by_name and x.name in made]
        if len(before) != 1:
            return last
        rest = [x for x in op.operands if x.name not in by_name]
        added = op.opcode in _ADDS and not any(edits.runs.vary(x, everyone) for x in rest)
        factor = op.opcode == "multiply" and any(x.name in edits.numbers for x in rest)
        moved = op.opcode in MOVES and made[before[0]].opcode in MOVES and op.result.name not in outputs
        mean = last.kind == "scale" and edits.averages(op)
        if not (added or factor or moved or mean):
            return last
        last = replace(by_name[before[0]], ops=(made[before[0]],))


def _finding(
    alignment: Alignment, failing: Sequence[str], repair: Repair, complete: bool
) -> Finding:
    op = _user(alignment.implementation, repair.ops[0])
    proves = complete and _proved(alignment, repair, failing)
    if proves:
        text = f"{repair.repair} proves all outputs"
    elif complete:
        text = f"{repair.repair} makes all outputs agree (tested, not proved)"
    else:
        text = f"{repair.repair}{ALONE}"
    match = alignment.matches.get(op.result.name)
    reference = match.reference if match is not None else None
    found = repair.found.replace(f"`{repair.value.name}`", f"`{op.result.name}`")
    return Finding(op, op.result, reference, repair.code, repair.expected, found, text, proves)


def _user(module: Module, op: Op) -> Op:
    """The operator that reads a constant, in its place."""
    constant: set[str] = set()
    for o in module.ops:
        if o is op or any(x.name in constant for x in o.operands):
            if o.opcode != "constant" and not (o.opcode in MOVES and constant):
                return o
            constant.update(v.name for v in o.results)
    return op


def _departure(alignment: Alignment, trace: Trace, wrong: frozenset[str]) -> Finding | None:
    """Where values stop being the reference's."""
    root = trace.root(wrong)
    if root is None:
        return None
    moved = trace.moved(root)
    if moved is not None:
        wanted = f"what `{root.result.name}` reads in the places where the reference has it"
        found = f"`{moved.result.name}` ({moved.opcode}) puts other elements in their place"
        return Finding(moved, moved.result, None, "R03", wanted, found, None)
    match = alignment.matches.get(root.result.name)
    reference = match.reference if match is not None else None
    wanted = f"the value of `{reference}` of the reference" if reference else "a value of the reference"
    found = f"`{root.result.name}` ({root.opcode}) is another function of the inputs"
    return Finding(root, root.result, reference, "R05" if reference else "R01", wanted, found, None)


def _proved(alignment: Alignment, repair: Repair, failing: Sequence[str]) -> bool:
    """Whether the change of one value proves the outputs."""
    if len(repair.edit.changes) != 1:
        return False
    ((name, change),) = repair.edit.changes.items()
    views = alignment.proof.implementation.views
    if isinstance(change, str):
        return repaired(alignment, {name: views[change]}, failing)
    made: dict[str, View] = {}
    state = Normalised(alignment.algebra, {})
    try:
        for op in change:
            operands = [made[x.name] if x.name in made else views[x.name] for x in op.operands]
            made[op.result.name] = apply(state, op, operands)[0]
    except (Unsupported, AssertionError):
        return False
    return repaired(alignment, {name: made[change[-1].result.name]}, failing)
