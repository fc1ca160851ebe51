"""Small changes of a program that mistakes in distributed code call for, by kind of mistake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Module, Op, Value
from shardproof.solver.locate.edit_operators import (
    all_reduced,
    axis_groups,
    listed,
    moved_slice,
    permutes,
    scaled_by,
    shown,
    stand_in,
    times_words,
)
from shardproof.solver.locate.trial_runs import Edit, TrialRuns

ARITHMETIC: Final = frozenset({"add", "divide", "maximum", "minimum", "multiply", "power", "subtract"})
MOVES: Final = frozenset(
    {"broadcast_in_dim", "concatenate", "convert", "reshape", "reverse", "slice", "transpose"}
)
"""Operators that only move elements, on one rank."""
LINEAR: Final = MOVES | {"add", "divide", "dot_general", "multiply", "negate", "reduce", "select", "subtract"}
_MOST_MOVES: Final = 200
_EXTENTS: Final = 8


@dataclass(frozen=True, slots=True)
class Repair:
    """An edit of the results of some operators that are written alike, and what it is in words.

    `over` are the axes that it is about, `gone` an operator that it leaves out beside.
    """

    kind: str
    ops: tuple[Op, ...]
    edit: Edit
    code: str
    expected: str
    found: str
    repair: str
    over: tuple[str, ...] = ()
    gone: Op | None = None

    @property
    def value(self) -> Value:
        return self.ops[0].result


@dataclass(slots=True)
class Edits:
    """The edits of the operators that lead to the outputs that differ, likely kinds of mistake first.

    `numbers` are the values that hold one number, `sums` those summed over so many ranks.
    """

    module: Module
    runs: TrialRuns
    ops: Sequence[Op]
    constant: set[str]
    axes: list[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]] = field(init=False)
    idle: list[Op] = field(init=False)
    numbers: dict[str, float] = field(init=False, default_factory=dict)
    sums: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.axes = axis_groups(self.module.mesh)
        for op in self.ops:
            if op.opcode == "constant" and op.result.type.size == 1:
                self.numbers[op.result.name] = float(np.ravel(np.real(op.attrs["value"]))[0])
            elif op.opcode in MOVES and op.operands[0].name in self.numbers:
                self.numbers[op.result.name] = self.numbers[op.operands[0].name]
            elif op.opcode == "all_reduce" and op.attrs["kind"] == "sum":
                self.sums[op.result.name] = len(op.attrs["groups"][0])
        sums = [op for op in self.ops if op.opcode == "all_reduce" and op.attrs["kind"] == "sum"]
        self.idle = [op for op in sums if not self.runs.vary(op.operands[0], op.attrs["groups"])]

    def averages(self, op: Op) -> bool:
        """Whether an operator makes the mean of a sum over ranks, or the sum."""
        if op.opcode != "divide":
            return op.result.name in self.sums
        total, count = (x.name for x in op.operands)
        return total in self.sums and self.numbers.get(count) == self.sums[total]

    def families(self) -> Iterator[Iterator[Repair]]:
        """Edits of one kind after the other."""
        others = [op for op in self.ops if op.opcode == "all_reduce" and op not in self.idle]
        sizes = {len(groups[0]) for _, groups in self.axes}
        extents = {n for op in self.ops for n in op.result.type.shape if n > 1} - sizes
        yield self._left_out(self.idle)
        yield self._regrouped()
        yield self._averaged()
        yield self._positions()
        yield self._summed(("sum", "max", "min"), again=False)
        yield self._moved(self.idle)
        yield self._left_out(others)
        yield self._summed(("mean",), again=False)
        yield self._scaled_inputs(sorted(sizes))
        yield self._scaled(sorted(sizes))
        yield self._summed(("sum", "mean"), again=True)
        yield self._moved(others)
        yield self._compared()
        yield self._scaled(sorted(extents)[:_EXTENTS])
        yield self._dropped()

    def _alike(self, op: Op) -> tuple[Op, ...]:
        """The operators that are the same one in other rounds of a loop, with it."""
        if op.location is None:
            return (op,)
        return tuple(
            o
            for o in self.ops
            if o.opcode == op.opcode and o.location == op.location and o.result.type == op.result.type
        )

    def _each(self) -> Iterator[tuple[Op, ...]]:
        """Operators that make reals, each alone, then those of all rounds of a loop together."""
        several: dict[tuple[str, ...], tuple[Op, ...]] = {}
        for op in self.ops:
            if len(op.results) == 1 and op.result.type.dtype.kind == "real":
                yield (op,)
                group = self._alike(op)
                if len(group) > 1:
                    several[tuple(o.result.name for o in group)] = group
        yield from several.values()

    def _left_out(self, ops: Sequence[Op]) -> Iterator[Repair]:
        for op in ops:
            n, name = len(op.attrs["groups"][0]), op.result.name
            found = f"adds up what each of {n} ranks holds whole: it is {times_words(n)} too large"
            if op not in self.idle:
                found = "joins what each rank needs of its own"
            for group in dict.fromkeys(((op,), self._alike(op))):
                edit = Edit({o.result.name: o.operands[0].name for o in group})
                wanted = f"`{op.operands[0].name}` as each rank holds it"
                yield Repair("without", group, edit, "R02", wanted, found, f"leaving out `{name}`")

    def _regrouped(self) -> Iterator[Repair]:
        """Collectives over other axes, and permutes the other way round."""
        for op in self.ops:
            if op.opcode == "collective_permute":
                every = [o for o in self.ops if o.attrs.get("pairs") == op.attrs["pairs"]]
                for words, pairs in permutes(op, self.module.mesh):
                    for group in dict.fromkeys(((op,), self._alike(op), tuple(every))):
                        yield self._replaced(
                            group, {"pairs": pairs}, words, f"sends {shown(op.attrs['pairs'])}"
                        )
            if op.opcode not in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter"):
                continue
            size = len(op.attrs["groups"][0])
            for axes, groups in self.axes:
                if groups == op.attrs["groups"] or (op.opcode != "all_reduce" and len(groups[0]) != size):
                    continue
                wanted = f"{op.opcode} over {'+'.join(axes)}, groups {shown(groups)}"
                found = f"runs over groups {shown(op.attrs['groups'])}"
                for group in self._several(op):
                    yield self._replaced(group, {"groups": groups}, wanted, found)
            if op.opcode == "all_reduce":
                for kind in ("sum", "max", "min"):
                    if kind != op.attrs["kind"]:
                        found = f"is the {op.attrs['kind']}"
                        yield self._replaced((op,), {"kind": kind}, f"the {kind}", found)

    def _positions(self) -> Iterator[Repair]:
        """Slices at positions that are another function of the rank."""
        for op in self.ops:
            first = {"dynamic_slice": 1, "dynamic_update_slice": 2}.get(op.opcode)
            if first is None:
                continue
            sizes = op.attrs["sizes"] if first == 1 else op.operands[1].type.shape
            for d, n in enumerate(op.operands[0].type.shape):
                x = op.operands[first + d]
                now = self.runs.numbers(x)
                if now is None or sizes[d] == n:
                    continue
                for table in self._tables(sizes[d], n - sizes[d]):
                    moved = [b - a for a, b in zip(now, table, strict=True)]
                    if any(moved):
                        yield from self._shifted(op, first + d, moved, now, table)

    def _tables(self, size: int, last: int) -> Iterator[tuple[int, ...]]:
        """Positions of each rank up to `last`."""
        seen: set[tuple[int, ...]] = set()
        for _, groups in self.axes:
            n = len(groups[0])
            place = {r: k for group in groups for k, r in enumerate(group)}
            order = [place[r] for r in range(self.module.mesh.size)]
            for m in (m for m in range(1, n) if n % m == 0):
                for by in (size, 1):
                    for numbers in (
                        tuple(k // m * by for k in order),
                        tuple(k // m * m * by for k in order),
                        tuple(k % m * by for k in order),
                        tuple((n - 1 - k) // m * by for k in order),
                    ):
                        if numbers not in seen and max(numbers) <= last:
                            seen.add(numbers)
                            yield numbers

    def _shifted(
        self,
        op: Op,
        number: int,
        moved: Sequence[int],
        now: Sequence[int],
        wanted: Sequence[int],
    ) -> Iterator[Repair]:
        for group in dict.fromkeys(((op,), self._alike(op))):
            edit = Edit({o.result.name: moved_slice(o, number, moved) for o in group})
            own = f"positions {listed(wanted)} on the ranks"
            free = tuple(
                axes[0]
                for axes, groups in self.axes
                if len(axes) == 1 and all(len({wanted[r] for r in g}) == 1 for g in groups)
            )
            found = f"is at positions {listed(now)} on the ranks"
            yield Repair("position", group, edit, "R03", own, found, f"using {own}", free)

    def _averaged(self) -> Iterator[Repair]:
        """Sums over ranks in place of means, and means in place of sums."""
        averaged = {op.operands[0].name for op in self.ops if op.opcode == "divide" and self.averages(op)}
        for op in self.ops:
            if not self.averages(op) or op.result.name in averaged or op.result.type.dtype.kind != "real":
                continue
            if op.opcode == "divide":
                edit = Edit({op.result.name: op.operands[0].name})
                found, wanted = "is the mean over ranks", "the sum over ranks"
            else:
                edit = Edit({op.result.name: scaled_by(op.result, self.sums[op.result.name], True)})
                found, wanted = "is the sum over ranks", "the mean over ranks"
            yield Repair("instead", (op,), edit, "R02", wanted, found, f"using {wanted}")

    def _several(self, op: Op) -> list[tuple[Op, ...]]:
        """A collective alone, with those written alike, and with all on the same line."""
        line = [o for o in self.ops if o.opcode == op.opcode and o.location == op.location is not None]
        return list(dict.fromkeys(((op,), self._alike(op), tuple(line) or (op,))))

    def _replaced(self, group: tuple[Op, ...], attrs: dict[str, Any], wanted: str, found: str) -> Repair:
        edit = Edit(
            {
                o.result.name: (Op(o.opcode, o.operands, (stand_in(o.result.type),), {**o.attrs, **attrs}),)
                for o in group
            }
        )
        return Repair("instead", group, edit, "R02", wanted, found, f"using {wanted}")

    def _summed(self, kinds: Sequence[str], again: bool) -> Iterator[Repair]:
        """All-reduces after values; `again` for those that are summed over the same ranks further on."""
        for kind in kinds:
            for axes, groups in self.axes:
                later = self._summed_later(groups)
                for ops in self._each():
                    if all(o.result.name in later for o in ops) != again:
                        continue
                    repair = self._reduced(ops, kind, axes, groups)
                    if repair is not None:
                        yield repair

    def _reduced(
        self, ops: tuple[Op, ...], kind: str, axes: tuple[str, ...], groups: tuple[tuple[int, ...], ...]
    ) -> Repair | None:
        """An all-reduce after some operators, those left out that have one already."""
        held = tuple(
            o
            for o in ops
            if self.runs.vary(o.result, groups) and (len(ops) == 1 or not self._joined(o, groups))
        )
        if not held:
            return None
        edit = Edit({o.result.name: all_reduced(o.result, kind, groups) for o in held})
        over, name = "+".join(axes), held[0].result.name
        whole = {"max": "maximum", "min": "minimum"}.get(kind, kind)
        return Repair(
            kind,
            held,
            edit,
            "R02",
            f"the {whole} of `{name}` over {over}",
            f"`{name}` is a partial {whole} over {over}: the {whole} over {over} is missing",
            f"an all-reduce over {over} after it",
            axes,
        )

    def _summed_later(self, groups: tuple[tuple[int, ...], ...]) -> set[str]:
        """Values that lead to a sum over these ranks, or more, through linear operators."""
        found: set[str] = set()
        for op in reversed(self.ops):
            if op.opcode == "all_reduce" and op.attrs["kind"] == "sum":
                if all(any(set(g) <= set(h) for h in op.attrs["groups"]) for g in groups):
                    found.add(op.operands[0].name)
            elif op.opcode in LINEAR and any(v.name in found for v in op.results):
                found.update(x.name for x in op.operands)
        return found

    def _joined(self, op: Op, groups: tuple[tuple[int, ...], ...]) -> bool:
        return any(
            o.opcode == "all_reduce" and o.operands[0].name == op.result.name and o.attrs["groups"] == groups
            for o in self.ops
        )

    def _moved(self, ops: Sequence[Op]) -> Iterator[Repair]:
        """A sum elsewhere than where it is."""
        tried = 0
        for gone in ops:
            groups, kind = gone.attrs["groups"], gone.attrs["kind"]
            axes = next((a for a, g in self.axes if g == groups), ())
            for part, own in [(axes, groups)] if gone not in self.idle else self.axes:
                for op in self.ops:
                    if len(op.results) != 1 or op is gone or op.result.type.dtype.kind != "real":
                        continue
                    if not self.runs.vary(op.result, own):
                        continue
                    tried += 1
                    if tried > _MOST_MOVES:
                        return
                    changes: dict[str, tuple[Op, ...] | str] = {gone.result.name: gone.operands[0].name}
                    changes[op.result.name] = all_reduced(op.result, kind, own)
                    over = "+".join(part)
                    yield Repair(
                        "moved",
                        (op,),
                        Edit(changes),
                        "R02",
                        f"the {kind} of `{op.result.name}` over {over}",
                        f"`{gone.result.name}` is a {kind} over {'+'.join(axes)} in the wrong place: "
                        f"that of `{op.result.name}` over {over} is needed",
                        f"an all-reduce of `{op.result.name}` in place of `{gone.result.name}`",
                        part,
                        gone,
                    )

    def _scaled(self, sizes: Sequence[int]) -> Iterator[Repair]:
        for ops in self._each():
            for n in sizes:
                for large in (True, False):
                    edit = Edit({o.result.name: scaled_by(o.result, n, large) for o in ops})
                    name = ops[0].result.name
                    found = f"is {times_words(n)} too {'large' if large else 'small'}"
                    undone = f"{'dividing' if large else 'multiplying'} `{name}` by {n}"
                    wanted = f"1/{n} of it" if large else f"{n} times as much"
                    yield Repair("scale", ops, edit, "R04", wanted, found, undone)

    def _scaled_inputs(self, sizes: Sequence[int]) -> Iterator[Repair]:
        """Inputs that are added, a multiple of them instead."""
        inputs = {i.name for i in self.module.inputs}
        for op in self.ops:
            for k, x in enumerate(op.operands if op.opcode in ("add", "subtract") else ()):
                for n in sizes if x.name in inputs and x.type.dtype.kind == "real" else ():
                    part = scaled_by(x, n, True)
                    operands = (*op.operands[:k], part[-1].result, *op.operands[k + 1 :])
                    changed = Op(op.opcode, operands, (Value("with it", op.result.type),), op.attrs)
                    found = f"adds `{x.name}` {times_words(n)}, once on each of {n} ranks"
                    edit = Edit({op.result.name: (*part, changed)})
                    undone = f"dividing `{x.name}` by {n} there"
                    yield Repair("input", (op,), edit, "R04", f"1/{n} of `{x.name}`", found, undone)

    def _compared(self) -> Iterator[Repair]:
        """Comparisons of positions with equality let in or left out."""
        other = {"LT": "LE", "LE": "LT", "GT": "GE", "GE": "GT"}
        for op in self.ops:
            if op.opcode != "compare" or op.attrs["direction"] not in other:
                continue
            written = any(x.name in self.numbers for x in op.operands)
            if not written and op.operands[0].type.dtype.kind in ("int", "uint"):
                now, wanted = op.attrs["direction"], other[op.attrs["direction"]]
                attrs = {**op.attrs, "direction": wanted}
                changed = Op("compare", op.operands, (stand_in(op.result.type),), attrs)
                edit = Edit({op.result.name: (changed,)})
                found, expected = f"is {now} of its operands", f"{wanted} in place of {now}"
                yield Repair("compare", (op,), edit, "R05", expected, found, f"using {wanted}")

    def _dropped(self) -> Iterator[Repair]:
        """One operand in place of the result; operands or branches swapped."""
        for op in self.ops:
            if len(op.results) != 1 or op.result.type.dtype.kind != "real":
                continue
            for group in dict.fromkeys(((op,), self._alike(op))):
                if op.opcode in ("subtract", "divide", "select", "dot_general"):
                    yield from _swapped(group)
                for k, x in enumerate(op.operands):
                    if x.type != op.result.type or not (op.opcode in ARITHMETIC or op.opcode == "select"):
                        continue
                    edit = Edit({o.result.name: o.operands[k].name for o in group})
                    found, repair = f"is {op.opcode} of it and others", f"using `{x.name}` in its place"
                    yield Repair("drop", group, edit, "R05", f"`{x.name}` as it is", found, repair)


def _swapped(group: tuple[Op, ...]) -> Iterator[Repair]:
    op = group[0]
    first = 1 if op.opcode == "select" else 0
    a, b = op.operands[first : first + 2]
    if a.type != b.type:
        return
    changes = {}
    for o in group:
        own = (*o.operands[:first], o.operands[first + 1], o.operands[first])
        changes[o.result.name] = (Op(o.opcode, own, (stand_in(o.result.type),), o.attrs),)
    expected, found = (f"{op.opcode} of {x.name} and {y.name}" for x, y in ((b, a), (a, b)))
    yield Repair("swap", group, Edit(changes), "R05", expected, found, "swapping the operands")


