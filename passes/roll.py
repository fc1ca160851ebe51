"""Layers that were written out as loops again.

A run of operators that repeats with a period, each repetition reading the one before in the same way, is a
`scan` over what differs between repetitions. The module that this gives computes the same: what a
repetition reads is made by itself, by the one before, before the run for all alike, or before the run for
each its own, which are then stacked as rows; what is read after the run is a row of the stacked results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Input, Module, Op, Output, Value
from shardproof.ir.ops import TABLE
from shardproof.ir.types import TensorType
from shardproof.passes.unroll import LOOP

LEAST: Final = 4
"""Fewest repetitions that are worth a loop."""
SHORTEST: Final = 8
"""Fewest operators of a repetition."""
_PARTS: Final = frozenset(
    {"agree", "all_gather", "convert", "dynamic_slice", "reshape", "slice", "transpose"}
)
STARTS: Final = 3
"""How many places within a repetition are tried as its start."""


def rolled(module: Module) -> Module:
    """The module with its repeating runs as loops; the same object where none is found."""
    hoisted = [op for op in module.ops if op.opcode == "constant"]
    by_value: dict[tuple[Any, ...], Value] = {}
    same: dict[str, Value] = {}
    kept: list[Op] = []
    for op in hoisted:
        value = op.attrs["value"]
        key = (op.result.type, value.dtype.str, value.tobytes() if value.size <= 64 else op.result.name)
        first = by_value.setdefault(key, op.result)
        if first is op.result:
            kept.append(op)
        else:
            same[op.result.name] = first
    ops = [_reading(op, same) for op in module.ops if op.opcode != "constant"]
    roller = _Roller(module, ops)
    found = roller.roll()
    if not roller.loops:
        return module
    outputs = tuple(replace(o, value=roller.value(same.get(o.value.name, o.value))) for o in module.outputs)
    return replace(module, ops=_live([*kept, *found], outputs), outputs=outputs)


def _live(ops: Sequence[Op], outputs: Sequence[Output]) -> tuple[Op, ...]:
    """The operators that an output depends on."""
    read = {o.value.name for o in outputs}
    found = []
    for op in reversed(ops):
        if not read.isdisjoint([v.name for v in op.results]):
            found.append(op)
            read.update([v.name for v in op.operands])
    return tuple(reversed(found))


def _reading(op: Op, named: Mapping[str, Value]) -> Op:
    if not any(v.name in named for v in op.operands):
        return op
    return replace(op, operands=tuple(named.get(v.name, v) for v in op.operands))


Slot = tuple[int, int]
"""The number of an operator within a repetition, and of one of its results."""


@dataclass(slots=True)
class _Run:
    """A run from operator `start` on: `count` repetitions of `period` operators.

    From operator `low` on all repeats with that period, up to `high`.
    `sources` tells for every operand of one repetition where it comes from, in order.
    """

    start: int
    period: int
    count: int
    low: int
    high: int
    sources: list[_Source] = field(default_factory=list)
    fixed: dict[str, Value] = field(default_factory=dict)
    carried: dict[tuple[Slot, str], Value] = field(default_factory=dict)
    rows: dict[tuple[str, ...], tuple[Value, ...]] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count


@dataclass(frozen=True, slots=True)
class _Source:
    """Where an operand comes from: `own` or `before` (a slot), `fixed` or `row` (the key of what is read)."""

    kind: str
    key: Any


class _Roller:
    """Rolls the operators of one module; `loops` counts the loops made."""

    def __init__(self, module: Module, ops: Sequence[Op]) -> None:
        self.module = module
        self.ops = ops
        self.loops = 0
        self.names = {i.name for i in module.inputs} | {v.name for op in module.ops for v in op.results}
        self.made: dict[str, tuple[int, int]] = {
            v.name: (n, k) for n, op in enumerate(ops) for k, v in enumerate(op.results)
        }
        self.readers: dict[str, list[int]] = {}
        for n, op in enumerate(ops):
            for v in op.operands:
                self.readers.setdefault(v.name, []).append(n)
        self.results = {o.value.name for o in module.outputs}
        self.renamed: dict[str, Value] = {}
        self.stacks: dict[str, tuple[Value, int, int]] = {}
        self.entering: dict[str, tuple[Value, int, int]] = {}
        keys: dict[Any, int] = {}
        self.keys = np.asarray([_key(op, keys) for op in ops], np.int64)

    def value(self, v: Value) -> Value:
        """What stands for a value of the module now."""
        return self.renamed.get(v.name, v)

    def roll(self) -> list[Op]:
        """All operators, runs of them as loops."""
        runs = sorted(self._runs(0, len(self.ops)), key=lambda r: r.start)
        found: list[Op] = []
        at = 0
        for whole in runs:
            run = self._aligned(whole)
            found += [_reading(op, self.renamed) for op in self.ops[at : run.start]]
            found += self._loop(run)
            at = run.stop
        found += [_reading(op, self.renamed) for op in self.ops[at:]]
        return found

    # finding

    def _runs(self, low: int, high: int) -> Iterable[_Run]:
        """Disjoint runs among operators `low` to `high`."""
        if high - low < LEAST * SHORTEST:
            return
        run = self._longest(low, high)
        if run is None:
            return
        yield from self._runs(low, run.start)
        yield run
        yield from self._runs(run.stop, high)

    def _longest(self, low: int, high: int) -> _Run | None:
        keys = self.keys[low:high]
        options = []
        for period in _periods(keys):
            start, length = _streak(keys[:-period] == keys[period:])
            count = length // period + 1
            if count >= LEAST:
                options.append((-count * period, period, low + start, length - (count - 1) * period, count))
        for _, period, start, slack, count in sorted(options)[:STARTS]:
            found = []
            for shift in self._cuts(start, period)[:STARTS]:
                whole = count - (shift > slack)
                high = start + count * period + slack
                for skipped in (0, 1):
                    run = _Run(start + shift + skipped * period, period, whole - skipped, start, high)
                    if run.count >= LEAST and self._classify(run):
                        found.append(run)
                        break
            if found:
                return min(found, key=lambda r: (len(r.carried), self._mixed(r)))
        return None

    def _mixed(self, run: _Run) -> int:
        """How far inputs of different repetitions stand in one, as their numbers tell.

        Inputs of a layer have neighbouring numbers, those of the next are a step away.
        """
        numbers = {i.name: i.number for i in self.module.inputs}
        first, steps = [], []
        for rows in run.rows.values():
            taken = [numbers[n] for n in map(self._origin, rows) if n in numbers]
            if len(taken) == len(rows):
                first.append(taken[0])
                steps += [abs(b - a) for a, b in pairwise(taken)]
        return (max(first) - min(first)) // max(max(steps), 1) if first else 0

    def _origin(self, v: Value) -> str:
        """The value that `v` is a part or another layout of."""
        name = v.name
        while name in self.made:
            op = self.ops[self.made[name][0]]
            if op.opcode not in _PARTS:
                break
            name = op.operands[0].name
        return name

    def _cuts(self, start: int, period: int) -> list[int]:
        """Shifts of the start, those first across which the fewest values are carried."""
        changes = [0] * (2 * period + 1)
        low = start + period
        for n in range(low - period, low + period):
            for v in self.ops[n].results:
                later = [m for m in self.readers.get(v.name, ()) if n < m < n + 2 * period]
                if later:
                    first, last = max(n + 1 - low, 0), min(max(later) - low, n + period - low)
                    if first <= last:
                        changes[first] += 1
                        changes[last + 1] -= 1
        live = np.cumsum(changes)[:period]
        return [int(shift) for shift in np.argsort(live, kind="stable")]

    def _classify(self, run: _Run) -> bool:
        """Fill in where operands come from; whether every repetition reads alike."""
        for offset in range(run.period):
            turns = [self.ops[run.start + k * run.period + offset] for k in range(run.count)]
            for place in range(len(turns[0].operands)):
                source = self._source(run, [op.operands[place] for op in turns])
                if source is None:
                    return False
                run.sources.append(source)
        return True

    def _source(self, run: _Run, read: Sequence[Value]) -> _Source | None:
        first, second = read[0], read[1]
        places = [self.made.get(v.name) for v in read]
        inside = [p is not None and run.start <= p[0] < run.stop for p in places]
        if not any(inside):
            if any(p is not None and p[0] >= run.stop for p in places):
                return None
            if all(v is first for v in read):
                run.fixed[first.name] = first
                return _Source("fixed", first.name)
            key = tuple(v.name for v in read)
            run.rows[key] = tuple(read)
            return _Source("row", key)
        if not all(inside[1:]):
            return None
        slots = [
            None if p is None else (p[0] - run.start - k * run.period, p[1]) for k, p in enumerate(places)
        ]
        slot = slots[1]
        if slot is None or any(s != slot for s in slots[1:]):
            return None
        if inside[0] and slots[0] == slot and 0 <= slot[0] < run.period:
            return _Source("own", slot)
        if inside[0] or not -run.period <= slot[0] < 0:
            return None
        before = (slot[0] + run.period, slot[1])
        key2 = (before, first.name)
        if first.type != second.type:
            return None
        run.carried[key2] = first
        return _Source("before", key2)

    def _aligned(self, run: _Run) -> _Run:
        """The run, or its repetitions cut elsewhere, so that the rows read are those of a stack."""
        best = (self._torn(run), -run.count, run.start, run)
        starts = range(run.low, run.low + run.period) if not run.carried else (run.start,)
        for start in starts:
            most = (run.high - start) // run.period
            for first, count in ((start, most), (start, most - 1), (start + run.period, most - 1)):
                if not best[0] and count <= -best[1]:
                    continue
                other = self._cut(run, first, count, best[0])
                if other is not None:
                    best = min(best, (self._torn(other), -count, first, other), key=lambda b: b[:3])
        return best[3]

    def _cut(self, run: _Run, start: int, count: int, torn: int) -> _Run | None:
        """`count` repetitions of a run from `start` on, unless the first ones already read torn rows."""
        for few in (LEAST, count):
            other = _Run(start, run.period, few, run.low, run.high)
            if few > count or not self._classify(other) or len(other.carried) > len(run.carried):
                return None
            if self._torn(other) > torn:
                return None
        return other

    def _torn(self, run: _Run) -> int:
        """How many stacks of rows hold some of another stack and others."""
        known = self.stacks.keys() | self.entering.keys()
        return sum(
            any(v.name in known for v in rows)
            and self._part(rows) is None
            and self._part(list(reversed(rows))) is None
            for rows in run.rows.values()
        )

    def _part(self, rows: Sequence[Value]) -> tuple[Value, int, int] | None:
        """The stack of which `rows` are rows in order, the number of the first, and how many it has."""
        for stacks in (self.stacks, self.entering):
            found = stacks.get(rows[0].name)
            if found is not None:
                whole, first, count = found
                if all(stacks.get(v.name) == (whole, first + n, count) for n, v in enumerate(rows)):
                    return found
        return None

    # writing

    def _loop(self, run: _Run) -> list[Op]:
        """The loop of a run, and the operators around it."""
        self.loops += 1
        body, slots = self._body(run)
        before: list[Op] = []
        descending = self._descending(run)
        stacked = [self._stacked(before, run, rows, descending) for rows in run.rows.values()]
        operands = (
            *(self.value(v) for v in run.fixed.values()),
            *(self.value(v) for v in run.carried.values()),
            *stacked,
        )
        last = self.ops[run.stop - run.period : run.stop]
        carries = list(run.carried)
        results = [self._fresh(f"loop{self.loops}.carried", self.value(v).type) for v in run.carried.values()]
        entered = [key for key in carries if key[0] in slots]
        for slot in (*slots, *(slot for slot, _ in entered)):
            type = last[slot[0]].results[slot[1]].type
            results.append(
                self._fresh(f"loop{self.loops}.rows", TensorType(type.dtype, (run.count, *type.shape)))
            )
        before.append(
            Op(
                LOOP,
                operands,
                tuple(results),
                {
                    "body": body,
                    "consts": len(run.fixed),
                    "carries": len(carries),
                    "length": run.count,
                    "reverse": descending,
                },
            )
        )
        self._name(before, run, slots, carries, results, descending)
        for (slot, initial), stack in zip(entered, results[len(carries) + len(slots) :], strict=True):
            names = [initial]
            for k in range(run.count - 1):
                names.append(self.ops[run.start + k * run.period + slot[0]].results[slot[1]].name)
            for k, name in enumerate(names):
                row = run.count - 1 - k if descending else k
                self.entering[name] = (stack, row, run.count)
        return before

    def _name(
        self,
        ops: list[Op],
        run: _Run,
        slots: Sequence[Slot],
        carries: Sequence[tuple[Slot, str]],
        results: Sequence[Value],
        descending: bool,
    ) -> None:
        """What now stands for values of the run that are read outside of it."""
        final: dict[Slot, Value] = {}
        for (slot, _), value in zip(carries, results, strict=False):
            final.setdefault(slot, value)
        for slot, stack in zip(slots, results[len(carries) :], strict=False):
            for k in range(run.count):
                own = self.ops[run.start + k * run.period + slot[0]].results[slot[1]]
                row = run.count - 1 - k if descending else k
                self.stacks[own.name] = (stack, row, run.count)
                if self._read_outside(own, run):
                    self.renamed[own.name] = self._row(ops, stack, row, own)
        for slot, value in final.items():
            own = self.ops[run.stop - run.period + slot[0]].results[slot[1]]
            self.renamed[own.name] = value

    def _body(self, run: _Run) -> tuple[Module, list[Slot]]:
        """The module of one repetition, and the slots whose values it stacks."""
        first = self.ops[run.start : run.start + run.period]
        fixed = {n: Value(f"fixed {k}", v.type) for k, (n, v) in enumerate(run.fixed.items())}
        carried = {n: Value(f"carried {k}", v.type) for k, (n, v) in enumerate(run.carried.items())}
        rows = {n: Value(f"row {k}", v[0].type) for k, (n, v) in enumerate(run.rows.items())}
        given: Mapping[str, Mapping[Any, Value]] = {"fixed": fixed, "before": carried, "row": rows}
        sources = iter(run.sources)
        ops: list[Op] = []
        made: list[tuple[Value, ...]] = []
        for op in first:
            operands = []
            for _ in op.operands:
                s = next(sources)
                if s.kind == "own":
                    operands.append(made[s.key[0]][s.key[1]])
                else:
                    operands.append(given[s.kind][s.key])
            ops.append(replace(op, operands=tuple(operands)))
            made.append(op.results)
        slots = list(self._stacked_slots(run))
        results = [made[n][k] for (n, k), _ in run.carried] + [made[n][k] for n, k in slots]
        results += [value for key, value in carried.items() if key[0] in slots]
        values = [*fixed.values(), *carried.values(), *rows.values()]
        return (
            Module(
                "repetition",
                self.module.mesh,
                tuple(Input(v, k) for k, v in enumerate(values)),
                tuple(ops),
                tuple(Output(str(k), v) for k, v in enumerate(results)),
            ),
            slots,
        )

    def _stacked_slots(self, run: _Run) -> Iterable[Slot]:
        """The values of a repetition that are read outside of the run, but for the last carried ones."""
        final = {slot for slot, _ in run.carried}
        for n in range(run.period):
            for k in range(len(self.ops[run.start + n].results)):
                turns = [
                    self.ops[run.start + t * run.period + n].results[k]
                    for t in range(run.count - ((n, k) in final))
                ]
                if any(self._read_outside(v, run) for v in turns):
                    yield n, k

    def _read_outside(self, v: Value, run: _Run) -> bool:
        return v.name in self.results or any(n >= run.stop for n in self.readers.get(v.name, ()))

    def _descending(self, run: _Run) -> bool:
        """Whether the rows come in descending order of an earlier stack, or of the inputs' numbers."""
        numbers = {i.name: i.number for i in self.module.inputs}
        votes = 0
        for rows in run.rows.values():
            orders = [self.stacks[v.name][1] for v in rows if v.name in self.stacks]
            if len(orders) < len(rows):
                orders = [numbers[v.name] for v in rows if v.name in numbers]
            if len(orders) == len(rows):
                votes += 1 if orders[0] > orders[-1] else -1
        return votes > 0

    def _stacked(self, ops: list[Op], run: _Run, rows: Sequence[Value], descending: bool) -> Value:
        """One tensor whose rows these are."""
        order = list(reversed(rows)) if descending else list(rows)
        type = order[0].type
        found = self._part(order)
        if found is not None:
            whole, first, count = found
            if count == run.count:
                return whole
            none, ones = (0,) * len(type.shape), (1,) * len(type.shape)
            cut = self._fresh(f"{order[0].name}.rows", TensorType(type.dtype, (run.count, *type.shape)))
            limits = (first + run.count, *type.shape)
            attrs = {"starts": (first, *none), "limits": limits, "strides": (1, *ones)}
            ops.append(Op("slice", (whole,), (cut,), attrs))
            return cut
        pieces = []
        for v in order:
            now = self.value(v)
            piece = self._fresh(f"{v.name}.row", TensorType(type.dtype, (1, *type.shape)))
            ops.append(Op("reshape", (now,), (piece,), {}))
            pieces.append(piece)
        whole = self._fresh(f"{order[0].name}.rows", TensorType(type.dtype, (run.count, *type.shape)))
        ops.append(Op("concatenate", tuple(pieces), (whole,), {"dim": 0}))
        return whole

    def _row(self, ops: list[Op], stack: Value, row: int, own: Value) -> Value:
        """Row `row` of a stack, in place of `own`."""
        shape = own.type.shape
        none, ones = (0,) * len(shape), (1,) * len(shape)
        cut = self._fresh(f"{own.name}.row", TensorType(own.type.dtype, (1, *shape)))
        attrs = {"starts": (row, *none), "limits": (row + 1, *shape), "strides": (1, *ones)}
        ops.append(Op("slice", (stack,), (cut,), attrs))
        ops.append(Op("reshape", (cut,), (own,), {}))
        return own

    def _fresh(self, wanted: str, type: TensorType) -> Value:
        name, count = wanted, 0
        while name in self.names:
            count += 1
            name = f"{wanted}.{count}"
        self.names.add(name)
        return Value(name, type)


def _key(op: Op, keys: dict[Any, int]) -> int:
    """Equal numbers for operators that differ in what they read only; draws are equal to none."""
    own = op.result.name if TABLE[op.opcode].traits & {"random", "effect"} else ""
    try:
        parts = (
            op.opcode,
            tuple(sorted(op.attrs.items())) if op.attrs else (),
            tuple([v.type for v in op.operands]),
            tuple([v.type for v in op.results]),
            own,
        )
        return keys.setdefault(parts, len(keys))
    except TypeError:
        return keys.setdefault(op.result.name, len(keys))


def _periods(keys: np.ndarray) -> list[int]:
    """Distances at which operators that occur seldom come again."""
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    edges = np.flatnonzero(np.diff(sorted_keys)) + 1
    found: Counter[int] = Counter()
    for places in np.split(order, edges):
        if len(places) < LEAST:
            continue
        gaps, counts = np.unique(np.diff(places), return_counts=True)
        best = int(gaps[np.argmax(counts)])
        if best >= SHORTEST:
            found[best] += 1
    return [p for p, _ in found.most_common(32) if p < len(keys)]


def _streak(matches: np.ndarray) -> tuple[int, int]:
    """Start and length of the longest run of true values."""
    padded = np.concatenate([[False], matches, [False]])
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return 0, 0
    best = int(np.argmax(stops - starts))
    return int(starts[best]), int(stops[best] - starts[best])
