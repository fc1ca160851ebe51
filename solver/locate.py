"""Where a program departs from its reference, in words, and whether repairing that value is enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from shardproof.ir.module import Module, Op, Value
from shardproof.ir.ops import TABLE
from shardproof.passes.normalise import Normalised, apply, continue_from
from shardproof.passes.views import Unsupported, View
from shardproof.solver.counterpart import Alignment, Match, Status, cone, ratio
from shardproof.solver.placement import runs
from shardproof.solver.prove import Clock, equal
from shardproof.solver.relation import rank_groups

CANDIDATES: Final = 6
"""How many operators at fault are tried as the one to repair."""
STARTS: Final = 256
ALONE: Final = " (this alone does not prove all outputs)"


@dataclass(frozen=True, slots=True)
class Finding:
    """The departing value, what it should be, what it is.

    `proves` when repairing it proves every output, `ordered` when it is a collective with ranks in
    another order than that of their numbers, `rearranged` when it holds the right elements elsewhere.
    """

    op: Op
    value: Value
    reference: str | None
    code: str
    expected: str
    found: str
    repair: str | None
    proves: bool = False
    ordered: bool = False
    rearranged: bool = False


def locate(alignment: Alignment, failing: Sequence[str], clock: Clock) -> Finding | None:
    """The first value that departs from its counterpart on the way to the failing outputs."""
    module = alignment.implementation
    bad = cone(module, failing, alignment.matches)
    suspects: list[tuple[Op, Value, Match]] = []
    alone: list[tuple[Op, Value, Match]] = []
    for op in module.ops:
        for value in op.results:
            if value.name not in bad:
                continue
            match = alignment.matches[value.name]
            (alone if match.view is None else suspects).append((op, value, match))
    vouched = _vouched(alignment)
    suspects = [s for s in suspects if s[1].name not in vouched] or suspects
    if not suspects:
        return _finding(alignment, *alone[0]) if alone else None
    at_fault = [s for s in suspects if _reads_right(alignment, s[0])]
    for op, value, match in at_fault[:CANDIDATES]:
        clock.check()
        assert match.view is not None
        if repaired(alignment, {value.name: match.view}, failing):
            return _finding(alignment, op, value, match, proves=True)
    first = _finding(alignment, *suspects[0])
    if first.code == "R02" and _sums_suffice(alignment, failing, clock):
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
                if x.type.dtype.kind != "real"
                and x.name in alignment.matches
                and alignment.matches[x.name].status not in right
            )
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
        or _right_elements(alignment, x)
        for x in op.operands
    )


def _right_elements(alignment: Alignment, value: Value) -> bool:
    """Whether a value reads elements of its counterpart's class only, each as it is.

    A class that is read at one index in two slots has other elements than the counterpart.
    """
    name = alignment.matches[value.name].reference
    if name is None:
        return False
    store = alignment.proof.store
    whole = alignment.proof.reference.views[name].term
    if sum(len(set(store.indices(e))) for e in whole.access) > len(store.term_indices(whole)):
        return False
    found = alignment.proof.implementation.views[value.name].term
    made = store.classes[found.cls]
    pieces = made.operands if made.op == "concat" else (found,)
    scale = found.coef if made.op == "concat" else 1
    return all(t.cls == whole.cls and t.coef * scale == whole.coef for t in pieces)


def _dependents(module: Module, names: set[str]) -> Iterator[Op]:
    """Operators that read one of the values, also through others."""
    dirty = set(names)
    for op in module.ops:
        if any(v.name in dirty for v in op.operands):
            dirty.update(v.name for v in op.results)
            yield op


def rerun(alignment: Alignment, replaced: Mapping[str, View]) -> Normalised:
    """The implementation's views with some values replaced."""
    before = alignment.proof.implementation
    module = alignment.proof.composed.implementation
    state = Normalised(before.algebra, {**before.views, **replaced})
    continue_from(state, list(_dependents(module, set(replaced))), replaced)
    return state


def repaired(alignment: Alignment, replaced: Mapping[str, View], failing: Sequence[str]) -> bool:
    """Whether the failing outputs are as expected once some values are replaced."""
    return _as_expected(alignment, rerun(alignment, replaced), failing)


def _as_expected(alignment: Alignment, state: Normalised, failing: Sequence[str]) -> bool:
    proof = alignment.proof
    wanted = {o.name: proof.expected.views[o.value.name] for o in proof.composed.expected.outputs}
    return all(
        equal(proof.store, wanted[o.name], state.views[o.value.name])
        for o in proof.composed.implementation.outputs
        if o.name in failing
    )


def _sums_suffice(alignment: Alignment, failing: Sequence[str], clock: Clock) -> bool:
    """Whether completing every partial sum where it is read as a whole proves the outputs, in one sweep."""
    proof = alignment.proof
    composed = proof.composed
    given = {i.name: proof.implementation.views[i.name] for i in composed.implementation.inputs}
    state = Normalised(proof.implementation.algebra, given)
    trial = Alignment(
        replace(proof, implementation=state),
        alignment.relation,
        alignment.reference,
        alignment.implementation,
    )
    own = {op.result.name: op for op in alignment.implementation.ops}
    for op in composed.implementation.ops:
        clock.check()
        views = apply(state, op, [state.views[x.name] for x in op.operands])
        state.views.update((v.name, view) for v, view in zip(op.results, views, strict=True))
        mine = own.get(op.result.name)
        if mine is None:
            continue
        if not trial.matches:
            trial.begin()
        trial.step(mine)
        match = trial.matches[mine.result.name]
        if match.status is not Status.WRONG or match.view is None:
            continue
        if _partial_operand(trial, mine) is not None:
            state.views[mine.result.name] = match.view
            trial.matches[mine.result.name] = replace(match, status=Status.SAME)
    return _as_expected(trial, state, failing)


def _partial_operand(alignment: Alignment, op: Op) -> tuple[str, tuple[str, ...]] | None:
    if "collective" in TABLE[op.opcode].traits:
        return None
    for x in op.operands:
        match = alignment.matches.get(x.name)
        if match is not None and match.status is Status.PARTIAL:
            return x.name, match.axes
    return None


def _finding(alignment: Alignment, op: Op, value: Value, match: Match, *, proves: bool = False) -> Finding:
    code, expected, found, repair = _words(alignment, op, value, match)
    if proves:
        repair = f"{repair or 'computing it as the reference does'} proves all outputs"
    elif repair is not None:
        repair = f"{repair}{ALONE}"
    return Finding(
        op,
        value,
        match.reference,
        code,
        expected,
        found,
        repair,
        proves,
        _reorders(op),
        _right_elements(alignment, value),
    )


def _reorders(op: Op) -> bool:
    """Whether a collective reads ranks in another order than that of their numbers."""
    groups = op.attrs.get("groups", ())
    return op.opcode == "collective_permute" or any(list(g) != sorted(g) for g in groups)


def _words(alignment: Alignment, op: Op, value: Value, match: Match) -> tuple[str, str, str, str | None]:
    """(code, what was expected, what was found, the repair)."""
    partial = _partial_operand(alignment, op)
    if match.status is Status.WRONG and match.view is not None:
        scale = _ratio(alignment, op, value, match.view)
        if scale is not None:
            return scale
    if match.status is Status.PARTIAL:
        axes = "+".join(match.axes)
        return (
            "R02",
            f"the sum over {axes}, as `{match.reference}` of the reference",
            f"`{value.name}` is a partial sum over {axes}: the sum over {axes} is missing",
            f"an all-reduce over {axes} after it",
        )
    if partial is not None and op.opcode not in ("reshape", "transpose"):
        name, over = partial
        axes = "+".join(over)
        return (
            "R02",
            f"the sum of `{name}` over {axes}",
            f"`{name}` is read as a partial sum over {axes}: the sum over {axes} is missing",
            f"an all-reduce over {axes} after `{name}`",
        )
    if match.view is None:
        return "R01", "a value of the reference", f"`{value.name}` is like no value of the reference", None
    for attempt in (_groups, _start, _swapped, _dims):
        words = attempt(alignment, op, value, match.view)
        if words is not None:
            return words
    operator = "R05" if match.reference else "R01"
    return (
        operator,
        f"the value of `{match.reference}` of the reference",
        f"`{value.name}` ({op.opcode}) is another function of the inputs",
        None,
    )


Words = tuple[str, str, str, str | None]


def _ratio(alignment: Alignment, op: Op, value: Value, wanted: View) -> Words | None:
    times = ratio(alignment.proof.store, wanted, alignment.proof.implementation.views[value.name])
    if times is None or times == 1:
        return None
    if times > 1:
        text = f"is {'twice' if times == 2 else f'{times} times'} too large"
    else:
        text = "is the negated value" if times == -1 else f"is {times} times the value"
    collective = "collective" in TABLE[op.opcode].traits
    code = "R02" if collective else "R04"
    undone = "negating it" if times == -1 else f"dividing it by {times}"
    repair = undone if not collective else f"leaving out `{value.name}`"
    return code, f"the value of `{_name(alignment, value)}` of the reference", text, repair


def _name(alignment: Alignment, value: Value) -> str:
    return alignment.matches[value.name].reference or value.name


def _groups(alignment: Alignment, op: Op, value: Value, wanted: View) -> Words | None:
    if op.opcode not in ("all_reduce", "reduce_scatter", "all_gather") or "groups" not in op.attrs:
        return None
    for axes, _ in runs(alignment.mesh):
        groups = rank_groups(alignment.mesh, axes)
        if groups == op.attrs["groups"]:
            continue
        if _equals(alignment, Op(op.opcode, op.operands, op.results, {**op.attrs, "groups": groups}), wanted):
            name = "+".join(axes)
            return (
                "R02",
                f"{op.opcode} over {name}, groups {_shown(groups)}",
                f"runs over groups {_shown(op.attrs['groups'])}",
                f"using the groups of {name}",
            )
    return None


def _shown(groups: Sequence[Sequence[int]]) -> str:
    text = " ".join("{" + ",".join(map(str, g)) + "}" for g in groups)
    return text if len(text) < 60 else text[:56] + " ..."


def _equals(alignment: Alignment, op: Op, wanted: View) -> bool:
    state = Normalised(alignment.algebra, {})
    views = alignment.proof.implementation.views
    try:
        results = apply(state, op, [views[x.name] for x in op.operands])
    except (Unsupported, AssertionError):
        return False
    return len(results) == 1 and equal(alignment.proof.store, wanted, results[0])


def _start(alignment: Alignment, op: Op, value: Value, wanted: View) -> Words | None:
    if op.opcode != "slice":
        return None
    shape = op.operands[0].type.shape
    a = op.attrs
    for d, n in enumerate(value.type.shape):
        if n == shape[d] or a["strides"][d] != 1:
            continue
        room = shape[d] - n
        step = max(1, room // STARTS)
        for start in sorted({*range(0, room + 1, n), room, *range(0, room + 1, step)}):
            starts = (*a["starts"][:d], start, *a["starts"][d + 1 :])
            limits = (*a["limits"][:d], start + n, *a["limits"][d + 1 :])
            moved = Op("slice", op.operands, op.results, {**a, "starts": starts, "limits": limits})
            if start != a["starts"][d] and _equals(alignment, moved, wanted):
                last = d == len(shape) - 1 and len(shape) > 1
                what = "columns" if last else "rows" if d == 0 else f"dim {d} at"
                by = start - a["starts"][d]
                return (
                    "R03",
                    f"{what} {start}:{start + n}",
                    f"reads {what} {a['starts'][d]}:{a['limits'][d]}",
                    f"shifting the start by {by}",
                )
    return None


def _swapped(alignment: Alignment, op: Op, value: Value, wanted: View) -> Words | None:
    if len(op.operands) != 2 or op.operands[0].type != op.operands[1].type:
        return None
    if not _equals(alignment, Op(op.opcode, op.operands[::-1], op.results, op.attrs), wanted):
        return None
    names = [x.name for x in op.operands]
    expected, given = (f"{op.opcode} of {a} and {b}" for a, b in ((names[1], names[0]), (names[0], names[1])))
    return "R05", expected, given, "swapping the operands"


def _dims(alignment: Alignment, op: Op, value: Value, wanted: View) -> Words | None:
    found = alignment.proof.implementation.views[value.name]
    for a, b in combinations(range(len(found.shape)), 2):
        if found.shape[a] != found.shape[b] or found.shape[a] < 2:
            continue
        order = list(range(len(found.shape)))
        order[a], order[b] = b, a
        if equal(alignment.proof.store, wanted, alignment.algebra.transpose(found, order)):
            dims = f"dims {a} and {b}"
            return "R05", f"{dims} the other way round", f"{dims} are swapped", f"swapping {dims}"
    for x in op.operands:
        for a, b in combinations(range(len(x.type.shape)), 2):
            if x.type.shape[a] != x.type.shape[b] or x.type.shape[a] < 2:
                continue
            order = list(range(len(x.type.shape)))
            order[a], order[b] = b, a
            views = alignment.proof.implementation.views
            operands = [
                alignment.algebra.transpose(views[y.name], order) if y is x else views[y.name]
                for y in op.operands
            ]
            try:
                results = apply(Normalised(alignment.algebra, {}), op, operands)
            except (Unsupported, AssertionError):
                continue
            if equal(alignment.proof.store, wanted, results[0]):
                return (
                    "R05",
                    f"`{x.name}` with dims {a} and {b} the other way round",
                    f"`{x.name}` is transposed",
                    f"swapping dims {a} and {b} of `{x.name}`",
                )
    return None
