"""Where values of the implementation stop being the reference's, seen on a draw of inputs.

A value is known when the reference has its elements, in whatever places, or those of its sum (mean,
maximum) over ranks or rounds of a loop. The mistake is where what is known ends; where all of it is known, in
the wrong places, it is the operator that moved it there, or what computed the position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Module, Op, Value
from shardproof.solver.locate.edit_operators import axis_groups
from shardproof.solver.locate.edits import MOVES
from shardproof.solver.locate.trial_runs import TrialRuns, close
from shardproof.solver.relations.relation import rank_groups

EXCHANGES: Final = frozenset(
    {"all_gather", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter"}
)
POSITIONS: Final = {"dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1, "scatter": 1}
"""Operators that read or write at computed positions, and the first operand with these."""
_CLOSE: Final = 1e-9
_PROBES: Final = 4


class Elements:
    """The elements of the reference's real values, and whether arrays have only those of one value."""

    def __init__(self, values: Iterable[Sequence[Any]]) -> None:
        self._own: list[Any] = []
        for arrays in values:
            whole = np.concatenate([np.ravel(a) for a in arrays])
            if whole.dtype.kind == "f":
                self._own.append(np.unique(whole[np.isfinite(whole)]))
        lengths = [len(a) for a in self._own]
        every = np.concatenate(self._own) if self._own else np.zeros(0)
        owners = np.repeat(np.arange(len(self._own)), lengths)
        order = np.argsort(every, kind="stable")
        self._every, self._owners = every[order], owners[order]

    def has(self, arrays: Sequence[Any]) -> bool | None:
        """Whether one value of the reference has all of these, zeros and ones aside; None without others."""
        wanted = np.unique(np.concatenate([np.ravel(a) for a in {id(a): a for a in arrays}.values()]))
        wanted = wanted[np.isfinite(wanted) & (wanted != 0) & (np.abs(wanted) != 1)]
        if not len(wanted):
            return None
        picked = wanted[np.linspace(0, len(wanted) - 1, min(_PROBES, len(wanted))).astype(int)]
        owners: set[int] | None = None
        for x in picked:
            low, high = np.searchsorted(self._every, (x - _slack(x), x + _slack(x)))
            found = set(self._owners[low:high].tolist())
            owners = found if owners is None else owners & found
        return any(_within(wanted, self._own[n]) for n in owners or ())


def _slack(x: Any) -> Any:
    return _CLOSE * np.maximum(np.abs(x), 1e-3)


def _within(wanted: Any, own: Any) -> bool:
    low = np.searchsorted(own, wanted - _slack(wanted))
    return bool(np.all(np.searchsorted(own, wanted + _slack(wanted)) > low))


@dataclass(slots=True)
class Trace:
    """What is known of an implementation's values on the first draw."""

    module: Module
    reference: Module
    runs: TrialRuns
    constant: set[str]
    made: dict[str, Op] = field(init=False)
    elements: Elements = field(init=False)
    _known: dict[str, bool] = field(init=False, default_factory=dict)
    _rounds: dict[int, list[str]] = field(init=False, default_factory=dict)
    _kinds: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.made = {v.name: op for op in self.module.ops for v in op.results}
        names = [i.value for i in self.reference.inputs]
        names += [v for op in self.reference.ops for v in op.results]
        values = self.runs.reference_values[0]
        self.elements = Elements(values[v.name] for v in names if v.type.dtype.kind == "real")
        for op in self.module.ops:
            read = tuple(self._kinds.get(x.name, x.name) for x in op.operands)
            for v in op.results:
                kind = self._kinds[v.name] = hash((op.opcode, op.location, v.type, read))
                self._rounds.setdefault(kind, []).append(v.name)

    def known(self, value: Value) -> bool:
        """Whether the reference has what a value is made of."""
        if value.name not in self._known:
            self._known[value.name] = value.type.dtype.kind != "real" or self._is_known(value)
        return self._known[value.name]

    def _is_known(self, value: Value) -> bool:
        if value.name in self.constant or value.name not in self.made:
            return True
        arrays = self.runs.values[0][value.name]
        if self.elements.has(arrays) is not False:
            return True
        for _, groups in axis_groups(self.module.mesh):
            for reduced in _reduced(arrays, groups):
                if self.elements.has(reduced):
                    return True
        alike = self._rounds[self._kinds[value.name]]
        if len(alike) > 1:
            total = [sum(parts) for parts in zip(*(self.runs.values[0][n] for n in alike), strict=True)]
            return bool(self.elements.has(total)) or any(
                self.elements.has(reduced)
                for _, groups in axis_groups(self.module.mesh)
                for reduced in _reduced(total, groups)
            )
        return False

    def placed(self, value: Value) -> bool:
        """Whether every rank holds a value of the reference whole, or its own shard along one dim."""
        if value.name not in self.made or value.name in self.constant:
            return True
        arrays = self.runs.values[0][value.name]
        return any(
            self._shards(arrays, whole[0])
            for whole in self.runs.reference_values[0].values()
            if whole[0].dtype.kind == arrays[0].dtype.kind
        )

    def _shards(self, arrays: Sequence[Any], whole: Any) -> bool:
        if whole.size == arrays[0].size and all(close(np.ravel(whole), np.ravel(a)) for a in arrays):
            return True
        for axes, groups in axis_groups(self.module.mesh):
            n = len(groups[0])
            if whole.ndim != arrays[0].ndim or not axes:
                continue
            for d in range(whole.ndim):
                own = (*whole.shape[:d], whole.shape[d] // n, *whole.shape[d + 1 :])
                if whole.shape[d] % n or arrays[0].shape != own:
                    continue
                parts = np.split(whole, n, axis=d)
                if all(close(parts[k], arrays[r]) for g in groups for k, r in enumerate(g)):
                    return True
        return False

    def root(self, failing: Iterable[str]) -> Op | None:
        """The first operator that makes of what is known what isn't, on the way to some outputs."""
        start = {o.value.name for o in self.module.outputs if o.name in failing}
        bad = set(start)
        for op in reversed(self.module.ops):
            if any(v.name in bad for v in op.results):
                bad.update(x.name for x in op.operands if not self.known(x))
        for op in self.module.ops:
            if any(v.name in bad for v in op.results) and all(map(self.known, op.operands)):
                return self._computed(op)
        return None

    def unfinished(self, value: Value) -> bool:
        """Whether a value is known as a part of a sum (mean, maximum) only."""
        if value.type.dtype.kind != "real" or value.name not in self.made or value.name in self.constant:
            return False
        return self.known(value) and self.elements.has(self.runs.values[0][value.name]) is False

    def _computed(self, op: Op) -> Op:
        """What computed the part of a sum that an operator moves; the operator where it is none."""
        while op.opcode in MOVES and op.operands and self.unfinished(op.operands[0]):
            op = self.made[op.operands[0].name]
        return op

    def moved(self, root: Op) -> Op | None:
        """The operator that moved what `root` reads, or gives, where it does not belong."""
        own = root.opcode in MOVES or root.opcode in EXCHANGES or root.opcode in POSITIONS
        if root.opcode in EXCHANGES or root.opcode in POSITIONS:
            return self.position(root)
        if any(self.unfinished(x) for x in (*root.operands, *root.results)):
            return None
        if not own and all(map(self.placed, root.operands)):
            return None
        first = None
        for op in self._before(root):
            if op.opcode in EXCHANGES or op.opcode in POSITIONS:
                return self.position(op)
            first = first or (op if op.opcode in MOVES and not self.placed(op.result) else None)
        return root if own else first

    def _before(self, root: Op) -> Iterator[Op]:
        """Operators that lead to one, the last first, of operands in wrong places before others."""
        wrong = [x for x in root.operands if not self.placed(x)] or list(root.operands)
        needed = {x.name for x in wrong}
        for op in reversed(self.module.ops):
            if any(v.name in needed for v in op.results) and op is not root:
                needed.update(x.name for x in op.operands)
                yield op

    def position(self, op: Op, free: Sequence[str] = ()) -> Op:
        """What computed the position where an operator reads or writes: the last operator that was written
        elsewhere, and not only moves an input; where it must not depend on the place along the axes `free`
        but does, the last of the line that reads that; else the last of all; else the operator."""
        if op.opcode not in POSITIONS:
            return op
        before = list(self._counting(op))
        groups = rank_groups(self.module.mesh, free)
        strange = [o for o in before if free and self.runs.vary(o.result, groups)]
        if strange:
            return next(o for o in before if _same_line(o, strange[-1]))
        last = [o for o in before if o.opcode not in MOVES]
        given = [o for o in before if o.opcode in MOVES and not any(x.name in self.made for x in o.operands)]
        elsewhere = [o for o in before if o not in given and not _same_line(o, op)]
        return (elsewhere or last or [op])[0]

    def _counting(self, op: Op) -> Iterator[Op]:
        """What computes the position where an operator reads or writes, the last first."""
        first = POSITIONS[op.opcode]
        given = op.operands[first:] if op.opcode.startswith("dynamic") else op.operands[first : first + 1]
        needed = {x.name for x in given}
        for o in reversed(self.module.ops):
            if any(v.name in needed and v.name not in self.constant for v in o.results):
                counted = self._from_the_end(o)
                if counted is not None:
                    needed.add(counted.name)
                    continue
                needed.update(x.name for x in (o.operands[1:] if o.opcode == "select" else o.operands))
                yield o

    def _from_the_end(self, op: Op) -> Value | None:
        """The position that an operator counts from the end where it is negative."""
        if op.opcode != "select":
            return None
        test, moved = (self.made.get(x.name) for x in op.operands[:2])
        given = op.operands[2]
        negative = test is not None and test.opcode == "compare" and test.operands[0] is given
        return given if negative and moved is not None and given in moved.operands else None


def _same_line(a: Op, b: Op) -> bool:
    x, y = a.location, b.location
    return x is None or y is None or (x.file, x.line) == (y.file, y.line)


def _reduced(arrays: Sequence[Any], groups: Sequence[Sequence[int]]) -> Iterator[list[Any]]:
    """The sums, means, maxima and minima over the ranks of each group, one of each group."""
    total = [np.sum([arrays[r] for r in g], axis=0) for g in groups]
    yield total
    yield [t / len(groups[0]) for t in total]
    yield [np.max([arrays[r] for r in g], axis=0) for g in groups]
    yield [np.min([arrays[r] for r in g], axis=0) for g in groups]
