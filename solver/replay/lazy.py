"""Evaluates single elements of a program at its own shapes, reading only what they depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import numpy as np

from shardproof.ir.module import Module, Op, Value
from shardproof.ir.numpy_meaning import InterpretError, element_type
from shardproof.ir.ops import TABLE
from shardproof.ir.types import Array
from shardproof.solver.replay.draws import Box, BoxInputs, shape_of
from shardproof.solver.replay.lazy_collectives import Exchange, exchange_piece
from shardproof.solver.replay.lazy_rules import Piece, hull, is_empty, piece, relative
from shardproof.solver.replay.steadiness import rounding_decides

Number = int | float | complex
DEFAULT_BUDGET = 2 << 30
"""Bytes of values that may be alive at a time."""

_Key = tuple[Value, int]
"""A value on a rank."""


class TooLarge(ValueError):
    """An evaluation would need more memory than its budget; the message is one line."""


def element(
    module: Module,
    inputs: BoxInputs,
    output: str,
    rank: int,
    index: Sequence[int],
    *,
    budget: int = DEFAULT_BUDGET,
) -> Number | str:
    """One element of an output on one rank, or why it can't be had.

    `inputs` gives any box of any input; inputs are equal on all ranks. Raises KeyError for an
    unknown output.
    """
    box = tuple((i, i + 1) for i in index)
    try:
        value = Evaluator(module, inputs, budget=budget).output(output, rank, box)
    except (InterpretError, TooLarge) as error:
        return str(error)
    result: Number = np.asarray(value).reshape(()).item()
    return result


class Evaluator:
    """Evaluates boxes of a module's values on demand; small boxes that decided a position are kept.

    `rounding_decided` tells whether a branch of anything evaluated so far was within rounding. `check` is
    called between operators and may raise (time limits).
    """

    def __init__(
        self,
        module: Module,
        inputs: BoxInputs,
        *,
        budget: int = DEFAULT_BUDGET,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._module = module
        self._check = check
        self._inputs = inputs
        self._budget = budget
        self._outputs = {o.name: o.value for o in module.outputs}
        self._input_values = {i.value for i in module.inputs}
        self._producers = {r: op for op in module.ops for r in op.results}
        self.rounding_decided = False
        self._positions: dict[tuple[Value, int, Box], Array] = {}
        depth: dict[Value, int] = {}
        for op in module.ops:
            level = 1 + max((depth.get(v, 0) for v in op.operands), default=0)
            depth.update(dict.fromkeys(op.results, level))
        self._depth = depth

    def output(self, name: str, rank: int, box: Box) -> Array:
        """A box of an output. Raises InterpretError, TooLarge, KeyError."""
        return self.values({(self._outputs[name], rank): box})[self._outputs[name], rank]

    def values(self, wanted: Mapping[_Key, Box]) -> dict[_Key, Array]:
        """Boxes of values on ranks. Raises InterpretError or TooLarge."""
        order = self._order([value for value, _ in wanted])
        steps, boxes = self._plan(order, wanted)
        self._check_memory(steps, boxes)
        return self._run(steps, boxes, wanted)

    def _order(self, values: Sequence[Value]) -> list[Op]:
        """The operators that `values` depend on; deep operands first, so that shallow ones live briefly."""
        done: set[Op] = set()
        order: list[Op] = []
        stack: list[tuple[Op, bool]] = [(self._producers[v], False) for v in values if v in self._producers]
        while stack:
            op, ready = stack.pop()
            if ready:
                order.append(op)
                continue
            if op in done:
                continue
            done.add(op)
            stack.append((op, True))
            producers = [self._producers[v] for v in op.operands if v in self._producers]
            producers.sort(key=lambda p: self._depth[p.result])
            stack.extend((p, False) for p in producers if p not in done)
        return order

    def _read(self, rank: int, value: Value, box: Box) -> Array:
        key = (value, rank, box)
        if key not in self._positions:
            self._positions[key] = self.values({(value, rank): box})[value, rank]
        return self._positions[key]

    def _plan(self, order: Sequence[Op], wanted: Mapping[_Key, Box]) -> tuple[list[_Step], dict[_Key, Box]]:
        """Backward: the box of each value on each rank, and the work that gives it."""
        boxes = dict(wanted)
        steps: list[_Step] = []

        def need(value: Value, rank: int, box: Box | None) -> _Use | None:
            if box is None or is_empty(box):
                return None
            key = (value, rank)
            boxes[key] = hull(boxes[key], box) if key in boxes else box
            return key, box

        for op in reversed(order):
            for rank in range(self._module.mesh.size):
                asked = [boxes[r, rank] for r in op.results if (r, rank) in boxes]
                if not asked:
                    continue
                box = asked[0]
                for other in asked[1:]:
                    box = hull(box, other)
                boxes.update({(r, rank): box for r in op.results})
                row = TABLE.get(op.opcode)
                work: Piece | Exchange | int
                if op.opcode == "rank_id":
                    work, uses = rank, []
                elif row is not None and "collective" in row.traits:
                    work = exchange_piece(op, rank, box)
                    uses = [need(op.operands[0], r, b) for r, b in work.needs]
                else:
                    work = piece(op, box, partial(self._read, rank))
                    uses = [need(v, rank, b) for v, b in zip(op.operands, work.needs, strict=True)]
                steps.append(_Step(op, rank, work, uses))
        steps.reverse()
        return steps, boxes

    def _check_memory(self, steps: Sequence[_Step], boxes: Mapping[_Key, Box]) -> None:
        def size(key: _Key) -> int:
            dtype = element_type(key[0].type.dtype)
            return int(np.prod(shape_of(boxes[key]), dtype=np.int64)) * dtype.itemsize

        remaining = Counter(key for step in steps for key, _ in step.needed())
        alive: set[_Key] = set()
        now = 0
        for step in steps:
            for key in (*((r, step.rank) for r in step.op.results), *(key for key, _ in step.needed())):
                if key not in alive:
                    alive.add(key)
                    now += size(key)
            copies = sum(size(key) for key, _ in step.needed()) if step.op.opcode in _COPYING else 0
            if now + copies > self._budget:
                where = f"evaluating {step.op.opcode} %{step.op.result.name} at its own shapes"
                have = f"the budget is {self._budget >> 20} MiB"
                raise TooLarge(f"{where} takes {(now + copies) >> 20} MiB, {have}")
            for key, _ in step.needed():
                remaining[key] -= 1
                if remaining[key] == 0:
                    alive.discard(key)
                    now -= size(key)
            for key in ((r, step.rank) for r in step.op.results):
                if key in alive and remaining[key] == 0:
                    alive.discard(key)
                    now -= size(key)

    def _run(
        self, steps: Sequence[_Step], boxes: Mapping[_Key, Box], wanted: Mapping[_Key, Box]
    ) -> dict[_Key, Array]:
        remaining = Counter(key for step in steps for key, _ in step.needed())
        store: dict[_Key, Array] = {}
        drawn: WeakValueDictionary[tuple[str, Box], Array] = WeakValueDictionary()

        def get(key: _Key) -> Array:
            if key not in store and key[0] in self._input_values:
                at = (key[0].name, boxes[key])
                array = drawn.get(at)
                if array is None:
                    array = np.asarray(self._inputs(*at))
                    drawn[at] = array
                store[key] = array
            return store[key]

        with np.errstate(all="ignore"):
            for step in steps:
                self._check()
                arrays: list[Array] = []
                for use in step.uses:
                    if use is None:
                        arrays.append(_NOTHING)
                    else:
                        key, box = use
                        arrays.append(get(key)[relative(box, boxes[key])])
                self.rounding_decided = self.rounding_decided or rounding_decides(step.op, arrays)
                for value, array in zip(step.op.results, step.run(arrays), strict=True):
                    key = (value, step.rank)
                    if remaining[key] or key in wanted:
                        store[key] = array
                del arrays
                for key, _ in step.needed():
                    remaining[key] -= 1
                    if remaining[key] == 0 and key not in wanted:
                        store.pop(key, None)
            return {key: get(key)[relative(box, boxes[key])] for key, box in wanted.items()}


_Use = tuple[_Key, Box]
_NOTHING: Array = np.zeros(0)
_COPYING = frozenset({"dot_general", "convolution", "custom_call"})


@dataclass(frozen=True, slots=True)
class _Step:
    """One operator on one rank; `uses` says where its operand boxes are."""

    op: Op
    rank: int
    work: Piece | Exchange | int
    uses: Sequence[_Use | None]

    def needed(self) -> Iterator[_Use]:
        return (use for use in self.uses if use is not None)

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        if isinstance(self.work, int):
            return (np.array(self.work, self.op.result.type.dtype.storage),)
        if isinstance(self.work, Exchange):
            return (self.work.run(arrays),)
        return self.work.run(arrays)
