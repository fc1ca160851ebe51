"""A value that departs from its counterpart, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from shardproof.ir.module import Op, Value
from shardproof.ir.ops import TABLE
from shardproof.passes.normalise import Normalised, apply
from shardproof.passes.views import Unsupported, View
from shardproof.solver.counterpart import LAYOUT, Alignment, Match, Status, ratio
from shardproof.solver.prove import equal
from shardproof.solver.relations.placement import runs
from shardproof.solver.relations.relation import rank_groups

STARTS: Final = 256
ALONE: Final = " (this alone does not prove all outputs)"

Suspect = tuple[Op, Value, Match]
"""A departing value, and how it stands to its counterpart, whose view it should have."""
Words = tuple[str, str, str, str | None]
"""The code, what was expected, what was found, the repair."""


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


def right_elements(alignment: Alignment, value: Value) -> bool:
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


def partial_operand(alignment: Alignment, op: Op) -> str | None:
    if "collective" in TABLE[op.opcode].traits:
        return None
    for x in op.operands:
        match = alignment.matches.get(x.name)
        if match is not None and match.status is Status.PARTIAL:
            return x.name
    return None


def finding_of(alignment: Alignment, op: Op, value: Value, match: Match, *, proves: bool = False) -> Finding:
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
        right_elements(alignment, value),
    )


def constant_operand(alignment: Alignment, op: Op, match: Match) -> Finding | None:
    """A constant that is read where the reference's operator reads what is computed."""
    other = next((o for o in alignment.reference.ops if match.reference in {v.name for v in o.results}), None)
    if other is None or other.opcode != op.opcode or len(other.operands) != len(op.operands):
        return None
    made = {v.name: (maker, v) for maker in alignment.implementation.ops for v in maker.results}
    for own, wanted in zip(op.operands, other.operands, strict=True):
        if own.name not in alignment.constant or wanted.name in alignment.constant:
            continue
        maker, value = made[own.name]
        while maker.opcode in LAYOUT:
            maker, value = made[maker.operands[0].name]
        expected = f"the value of `{wanted.name}` of the reference"
        return Finding(maker, value, wanted.name, "R05", expected, f"`{value.name}` is a constant", None)
    return None


def _reorders(op: Op) -> bool:
    """Whether a collective reads ranks in another order than that of their numbers."""
    groups = op.attrs.get("groups", ())
    return op.opcode == "collective_permute" or any(list(g) != sorted(g) for g in groups)


def _words(alignment: Alignment, op: Op, value: Value, match: Match) -> tuple[str, str, str, str | None]:
    """(code, what was expected, what was found, the repair)."""
    partial, matches = partial_operand(alignment, op), alignment.matches
    if match.status is Status.WRONG and match.view is not None:
        scale = _ratio(alignment, op, value, match.view)
        if scale is not None:
            return scale
    if match.status is Status.PARTIAL:
        regrouped = _groups(alignment, op, value, match.view) if match.view is not None else None
        if regrouped is not None:
            return regrouped
        axes, whole = "+".join(match.axes), match.whole
        return (
            "R02",
            f"the {whole} over {axes}, as `{match.reference}` of the reference",
            f"`{value.name}` is a partial {whole} over {axes}: the {whole} over {axes} is missing",
            f"an all-reduce over {axes} after it",
        )
    if partial is not None and op.opcode not in ("reshape", "transpose"):
        name = partial
        axes, whole = "+".join(matches[name].axes), matches[name].whole
        return (
            "R02",
            f"the {whole} of `{name}` over {axes}",
            f"`{name}` is read as a partial {whole} over {axes}: the {whole} over {axes} is missing",
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
