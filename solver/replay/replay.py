"""Runs both programs of a check on the same inputs and compares what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from shardproof.ir.interpret import run
from shardproof.ir.module import Input, Module, Value
from shardproof.ir.numpy_meaning import InterpretError, element_type
from shardproof.ir.types import Array
from shardproof.solver.replay.draws import POSITIVE, Box, BoxInputs, Ranges, counter_inputs, whole
from shardproof.solver.replay.lazy import DEFAULT_BUDGET, Evaluator, TooLarge
from shardproof.solver.replay.outcome import (
    Change,
    Difference,
    Outcome,
    agree,
    differs,
    nudged,
    number,
    widened,
)
from shardproof.solver.replay.steadiness import can_jump, rounding_decided

_PLAIN: Final = 1e-2
_SIZEABLE: Final = 1e-3

Store = Mapping[str, list[Array]]
"""Name -> one array per rank."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The worst difference of each output that differs; without one, `tested` equal draws of inputs.

    `skipped` counts elements that were not compared because the reference is infinite or NaN there;
    `unstable` those whose difference may be rounding, overflow or a rounding-dependent branch.
    """

    differences: tuple[Difference, ...]
    tested: int
    skipped: int
    unstable: int


def draw(inputs: Sequence[Input], seed: int, ranges: Ranges | None = None) -> dict[str, Array]:
    """Whole inputs; the same values as `counter_inputs` gives box by box."""
    values = counter_inputs(inputs, seed, ranges)
    return {i.name: values(i.name, whole(i.value.type.shape)) for i in inputs}


def base_inputs(reference: Module, implementation: Module) -> list[Input]:
    """The inputs that either program reads, each name once; their order does not depend on the caller."""
    return list({i.name: i for i in (*implementation.inputs, *reference.inputs)}.values())


def compare(
    reference: Module,
    implementation: Module,
    expected: Module,
    *,
    seed: int,
    ranges: Ranges | None = None,
    trials: int = 1,
    budget: int = DEFAULT_BUDGET,
) -> Replay | str:
    """Draw inputs up to `trials` times (seeds `seed`, `seed + 1`, ...) until an output differs.

    `expected` reads the reference's outputs by name, a trailing `@` aside (stacked in a leading dim
    when the reference has several ranks), and gives, under the implementation's output names, what
    each rank must hold.
    A difference is kept only if it exceeds a tolerance from the output's magnitude and persists in
    extended precision and under a relative nudge of the inputs near rounding level, and if no branch
    was decided within rounding. Gives a reason
    when the programs can't be run, in `budget` bytes or at all.
    """
    reason = too_large((reference, implementation, expected), budget)
    if reason is not None:
        return reason
    inputs = base_inputs(reference, implementation)
    tested = skipped = unstable = 0
    try:
        for trial in range(seed, seed + trials):
            for drawn_from in (trial, trial + POSITIVE):
                drawn = draw(inputs, drawn_from, ranges)
                outcome = Outcome(_Whole(reference, implementation, expected, drawn, budget))
                if outcome.compared:
                    break
            skipped += outcome.skipped
            if outcome.candidates:
                found, lost = outcome.confirmed(drawn_from)
                unstable += lost
                if found:
                    return Replay(tuple(found), tested, skipped, unstable)
                tested += not lost
            else:
                tested += outcome.compared > 0
    except InterpretError as error:
        return str(error)
    return Replay((), tested, skipped, unstable)


def confirm(
    reference: Module,
    implementation: Module,
    expected: Module,
    *,
    output: str,
    rank: int,
    index: Sequence[int],
    seed: int,
    ranges: Ranges | None = None,
    budget: int = DEFAULT_BUDGET,
    check: Callable[[], None] = lambda: None,
    hinted: bool = False,
    drawn: BoxInputs | None = None,
) -> Difference | str | None:
    """Evaluate one element of both programs at their own shapes, on the inputs of this seed.

    Gives the difference if there is one by the criteria of `compare` (the magnitude being that of
    the element itself), None if the two agree or can't be told apart, or why it can't be evaluated.
    `hinted` says that `compare` has confirmed the difference on smaller programs: then a plain one is not
    confirmed once more. `drawn` gives other inputs than those of `counter_inputs` for the seed.
    """
    drawn = drawn or counter_inputs(base_inputs(reference, implementation), seed, ranges)
    box = tuple((i, i + 1) for i in index)

    def pair(inputs: BoxInputs, share: int) -> tuple[Any, Any] | None:
        """The two values, or None if they don't differ or a branch was within rounding."""
        first = Evaluator(reference, inputs, budget=share, check=check)
        goal = Evaluator(expected, _from_outputs(first, reference), budget=share, check=check)
        second = Evaluator(implementation, inputs, budget=share, check=check)
        a = goal.output(output, rank, box).reshape(())
        b = second.output(output, rank, box).reshape(())
        if any(e.rounding_decided for e in (first, goal, second)):
            return None
        return (a, b) if differs(a, b, max(abs(number(a)), abs(number(b)))) else None

    try:
        seen = pair(drawn, budget)
        if seen is None:
            return None
        others = []
        if not (hinted and _plain(*seen)):
            others.append((_changed(drawn, nudged), budget))
        if others and np.isfinite(number(seen[1])):
            others.append((_changed(drawn, widened), budget // 2))
        for inputs, share in others:
            other = pair(inputs, share)
            if other is None or not agree(seen, other):
                return None
    except (InterpretError, TooLarge) as error:
        return str(error)
    a, b = seen
    return Difference(output, rank, tuple(index), a.item(), b.item(), seed)


def _plain(a: Any, b: Any) -> bool:
    """Whether a difference, seen before on smaller programs, is far above what rounding could make."""
    gap, scale = abs(number(a) - number(b)), max(abs(number(a)), abs(number(b)))
    return bool(np.isfinite(gap) and gap > _PLAIN * scale and scale > _SIZEABLE)


def too_large(modules: Sequence[Module], budget: int) -> str | None:
    """Why running whole modules would take more than `budget` bytes, or None."""
    for module in modules:
        size = peak_bytes(module)
        if size > budget:
            return (
                f"replaying {module.name or 'a module'} at its own shapes takes {size >> 20} MiB, "
                f"the budget is {budget >> 20} MiB"
            )
    return None


def peak_bytes(module: Module) -> int:
    """Upper estimate of the memory that running a module takes, all inputs drawn whole."""
    ranks = module.mesh.size
    dependent: set[Value] = set()
    last: dict[Value, int] = {o.value: len(module.ops) for o in module.outputs}
    for at, op in reversed(list(enumerate(module.ops))):
        for v in op.operands:
            last.setdefault(v, at)
    now = sum(_bytes(i.value) for i in module.inputs)
    peak = now
    inputs = {i.value for i in module.inputs}
    for at, op in enumerate(module.ops):
        shared = op.opcode in ("all_reduce", "all_gather") and len(op.attrs["groups"]) == 1
        if not shared and (op.opcode == "rank_id" or any(v in dependent for v in op.operands)):
            dependent.update(op.results)
        sizes = {v: _bytes(v) * (ranks if v in dependent else 1) for v in (*op.operands, *op.results)}
        now += sum(sizes[r] for r in op.results)
        copies = sum(sizes[v] // (ranks if v in dependent else 1) for v in op.operands)
        peak = max(peak, now + copies)
        now -= sum(sizes[v] for v in {*op.operands, *op.results} - inputs if last.get(v, at) <= at)
    return peak


def _values(module: Module) -> list[Value]:
    return [i.value for i in module.inputs] + [r for op in module.ops for r in op.results]


def _total_bytes(modules: Sequence[Module]) -> int:
    return sum(_bytes(v) * m.mesh.size for m in modules for v in _values(m))


def _bytes(value: Value) -> int:
    return value.type.size * element_type(value.type.dtype).itemsize


def _read_by(module: Module, drawn: Mapping[str, Array]) -> dict[str, Array]:
    return {i.name: drawn[i.name] for i in module.inputs}


def output_read(name: str) -> str:
    """The reference output that an input of an expected-outputs module stands for (`y` or `y@`)."""
    return name.removesuffix("@")


def _fed(reference: Module, expected: Module, outputs: Store) -> dict[str, Array]:
    """The inputs of `expected` from the reference's outputs, those of several ranks stacked."""
    read = [i.name for i in expected.inputs if output_read(i.name) in outputs]
    if reference.mesh.size == 1:
        return {name: outputs[output_read(name)][0] for name in read}
    return {name: np.stack(outputs[output_read(name)]) for name in read}


def _from_outputs(evaluator: Evaluator, reference: Module) -> BoxInputs:
    names = {o.name for o in reference.outputs}

    def inputs(name: str, box: Box) -> Array:
        output = output_read(name)
        if output not in names:
            raise InterpretError(f"the reference has no output {output}")
        if reference.mesh.size == 1:
            return evaluator.output(output, 0, box)
        (first, last), inner = box[0], box[1:]
        return np.stack([evaluator.output(output, rank, inner) for rank in range(first, last)])

    return inputs


def _changed(inputs: BoxInputs, change: Change) -> BoxInputs:
    return lambda name, box: change(inputs(name, box))


T = TypeVar("T")
P = TypeVar("P")


def paired(
    goal: Mapping[str, Sequence[T]], got: Mapping[str, Sequence[T]], make: Callable[[T, T], P]
) -> dict[str, list[P]]:
    """What each output must hold with what it holds, rank by rank."""
    missing = sorted(goal.keys() - got.keys())
    if missing:
        raise InterpretError(f"the implementation has no output {missing[0]}")
    return {n: [make(a, b) for a, b in zip(goals, got[n], strict=True)] for n, goals in goal.items()}


class _Whole:
    """Both programs run on whole tensors."""

    def __init__(
        self,
        reference: Module,
        implementation: Module,
        expected: Module,
        drawn: Mapping[str, Array],
        budget: int,
    ) -> None:
        self._modules = (reference, implementation, expected)
        self._drawn = drawn
        self._budget = budget

    def pairs(self, change: Change) -> dict[str, list[_Pair]]:
        reference, implementation, expected = self._modules
        drawn = {n: change(a) for n, a in self._drawn.items()}
        goal = run(expected, _fed(reference, expected, run(reference, _read_by(reference, drawn))))
        got = run(implementation, _read_by(implementation, drawn))
        return paired(goal, got, _Pair)

    def rounding_decided(self) -> bool:
        reference, implementation, expected = self._modules
        if not any(map(can_jump, self._modules)):
            return False
        if _total_bytes(self._modules) > self._budget:
            return True
        first = run(reference, _read_by(reference, self._drawn), values=True)
        outputs = {o.name: first[o.value.name] for o in reference.outputs}
        stores = (
            first,
            run(implementation, _read_by(implementation, self._drawn), values=True),
            run(expected, _fed(reference, expected, outputs), values=True),
        )
        return any(rounding_decided(m, store) for m, store in zip(self._modules, stores, strict=True))


@dataclass(frozen=True, slots=True)
class _Pair:
    goal: Array
    got: Array

    @property
    def key(self) -> tuple[int, int]:
        return id(self.goal), id(self.got)

    def arrays(self) -> tuple[Array, Array]:
        return self.goal, self.got

    def index(self, at: tuple[int, ...]) -> tuple[int, ...]:
        return at

    def element(self, index: tuple[int, ...]) -> tuple[Any, Any]:
        return self.goal[index], self.got[index]
