"""Replay at a check's own shapes, on inputs with few distinct slices: cheap however large they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import numpy as np

from shardproof.ir.module import Input, Module, Op
from shardproof.ir.numpy_meaning import InterpretError, Unsupported, settle
from shardproof.ir.types import Array
from shardproof.solver.replay.draws import POSITIVE, Box, BoxInputs, Ranges, grid_inputs
from shardproof.solver.replay.folded import Folded, common, filled
from shardproof.solver.replay.folded_rules import sliced
from shardproof.solver.replay.folded_run import Draw, Run, Store
from shardproof.solver.replay.lazy import DEFAULT_BUDGET, TooLarge
from shardproof.solver.replay.outcome import Change, Outcome, magnitude, nudged, unchanged, widened
from shardproof.solver.replay.partitions import TooLong, classes_of, discrete, forget, single
from shardproof.solver.replay.replay import Replay, base_inputs, output_read, paired
from shardproof.solver.replay.structure import CLASSES, Structure, limits, literals

FOLDED: Final = 1 << 21
"""Seeds from here on are for inputs with few distinct slices."""
LOUD: Final = 1 << 22
"""Seeds from here on are for such inputs whose reals are larger: ..."""
STEP: Final = 1 << 24
_LOUDER: Final = 1.25
"""... by this factor for each step."""


class Strayed(ValueError):
    """The reference read or wrote outside of a tensor, so the inputs are not in its domain."""


class FoldedDraws:
    """Inputs with few distinct slices: a pure function of the two programs and a seed, from FOLDED on.

    Integers that the reference reads at lie in what they index, and half of them where the programs'
    literals are.
    """

    def __init__(self, reference: Module, implementation: Module, ranges: Ranges | None = None) -> None:
        both = (reference, implementation)
        self._inputs = base_inputs(*both)
        self._structure = Structure(both)
        self._bounds = limits(reference) | dict(ranges or {})
        self._edges = literals(both)
        self._scales = {i.name: _scale(i) for i in self._inputs}

    def inputs(self, seed: int) -> dict[str, Folded]:
        """The inputs of a seed. Raises TooLong."""
        parts = self._structure.parts(seed)
        louder = _LOUDER ** (seed // STEP)
        scales = {name: scale * louder for name, scale in self._scales.items()}
        at = grid_inputs(self._inputs, seed, self._bounds, scales)
        drawn = {}
        for i in self._inputs:
            own = parts[i.name]
            core = settle(at(i.name, [p.first for p in own]), i.value.type.dtype)
            if core.dtype == np.bool_:
                core = _mixed(core)
            elif i.name in self._bounds and core.dtype.kind in "iu":
                numbers = np.random.default_rng((seed, crc32(i.name.encode())))
                core = _at_edges(core, self._edges, self._bounds[i.name], numbers)
            drawn[i.name] = Folded(core, own)
        return drawn


def folded_boxes(drawn: Mapping[str, Folded]) -> BoxInputs:
    """Any box of folded inputs, for `shardproof.solver.replay.lazy`."""

    def values(name: str, box: Box) -> Array:
        return sliced(drawn[name], [(lo, hi, 1) for lo, hi in box]).dense()

    return values


def _at_edges(
    core: Array, edges: Sequence[int], bounds: tuple[int, int], numbers: np.random.Generator
) -> Array:
    """Half of the integers moved to edges within their bounds."""
    inside = [e for e in edges if bounds[0] <= e < bounds[1]]
    if not inside:
        return core
    moved = numbers.choice(np.array(inside), core.shape)
    return np.where(numbers.random(core.shape) < 0.5, moved, core).astype(core.dtype)


def _mixed(mask: Array) -> Array:
    """A mask without rows that are all true or all false, for a row with nothing left says little."""
    if not mask.ndim or mask.shape[-1] < 2:
        return mask
    uniform = np.all(mask == mask[..., :1], axis=-1)
    last = mask[..., -1:] ^ uniform[..., None]
    return np.concatenate([mask[..., :-1], last], axis=-1)


_ONE: Final[Mapping[int, tuple[int, int]]] = {16: (0x3C00, 11), 32: (0x3F800000, 24), 64: (0x3FF << 52, 53)}
"""The bits of the real 1 of each width, and how many of the last bits may vary below 4."""


def _memory(seed: int) -> Draw:
    """What an implementation draws, or reads of memory before it is written: bits of small real numbers."""

    def draw(op: Op, low: int, high: int, rank: int) -> Folded:
        dtype, shape = op.result.type.dtype, op.result.type.shape
        if dtype.kind not in ("int", "uint") or op.attrs["distribution"] != "uniform":
            raise Unsupported(op.opcode)
        numbers = np.random.default_rng((seed, rank, crc32(op.result.name.encode())))
        last = max((d for d, n in enumerate(shape) if n > 1), default=None)
        varied = [single(n) for n in shape]
        if last is not None:
            varied[last] = classes_of(numbers.integers(0, CLASSES, shape[last]))
        one, free = _ONE.get(dtype.bits, (0, dtype.bits - 2))
        words = one + numbers.integers(0, 1 << free, [p.count for p in varied])
        inside = np.where((words >= low) & (words < high), words, low)
        return Folded(inside.astype(dtype.storage), tuple(varied))

    return draw


def _scale(given: Input) -> float:
    """A power of two near 1 / (second largest extent), for sums of equal terms are large."""
    ordered = sorted(given.value.type.shape)
    second = ordered[-2] if len(ordered) > 1 else 1
    return 1.0 / (1 << (max(second, 1).bit_length() - 1))


def compare_folded(
    reference: Module,
    implementation: Module,
    expected: Module,
    *,
    seed: int,
    ranges: Ranges | None = None,
    trials: int = 1,
    budget: int = DEFAULT_BUDGET,
    check: Callable[[], None] = lambda: None,
    patience: float = math.inf,
) -> Replay | str:
    """As `replay.compare`, by its criteria, on the inputs of seeds FOLDED + `seed` and up.

    No new draw is begun after `patience` seconds. Draws under which the reference reads out of range do not
    count.
    """
    tested = skipped = unstable = 0
    end = time.monotonic() + patience
    reason = None
    try:
        draws = FoldedDraws(reference, implementation, ranges)
        for trial in range(FOLDED + seed, FOLDED + seed + trials):
            if time.monotonic() > end:
                break
            forget()
            try:
                for drawn_from in (trial, trial + POSITIVE):
                    runs = Runs(reference, implementation, expected, draws, drawn_from, budget, check)
                    outcome = Outcome(runs)
                    if outcome.compared > outcome.skipped:
                        break
            except Strayed as error:
                reason = str(error)
                continue
            skipped += outcome.skipped
            if outcome.candidates:
                found, lost = outcome.confirmed(drawn_from)
                unstable += lost
                if found:
                    return Replay(tuple(found), tested, skipped, unstable)
                tested += not lost
            else:
                tested += outcome.compared > 0
    except (InterpretError, TooLarge, TooLong) as error:
        return str(error)
    return reason if reason is not None and not tested else Replay((), tested, skipped, unstable)


@dataclass(frozen=True, slots=True)
class FoldedValues:
    """All values that the outputs depend on, by value name, one folded tensor per rank."""

    reference: Store
    implementation: Store
    expected: Store


def folded_values(
    reference: Module,
    implementation: Module,
    expected: Module,
    *,
    seed: int,
    ranges: Ranges | None = None,
    budget: int = DEFAULT_BUDGET,
    check: Callable[[], None] = lambda: None,
) -> FoldedValues | str:
    """The values of both programs on the inputs of this seed, from FOLDED on, or why they can't be had."""
    try:
        draws = FoldedDraws(reference, implementation, ranges)
        runs = Runs(reference, implementation, expected, draws, seed, budget, check)
        first, second, third = runs.all(unchanged, keep=True)
    except (InterpretError, TooLarge, TooLong, Strayed) as error:
        return str(error)
    return FoldedValues(first.values, second.values, third.values)


class Runs:
    """Both programs run on folded tensors."""

    def __init__(
        self,
        reference: Module,
        implementation: Module,
        expected: Module,
        draws: FoldedDraws,
        seed: int,
        budget: int,
        check: Callable[[], None],
    ) -> None:
        self._seed = seed
        self._unsure = True
        self.modules = (reference, implementation, expected)
        self._drawn = draws.inputs(seed)
        self._budget = budget
        self._check = check

    def how(self, change: Change) -> Change:
        """What is done to the drawn values of an input."""
        return change

    def inputs(self, change: Change) -> dict[str, Folded]:
        """The inputs of this draw."""
        how = self.how(change)
        return {n: Folded(how(x.core), x.parts) for n, x in self._drawn.items()}

    def all(self, change: Change, *, keep: bool = False) -> tuple[Run, Run, Run]:
        """The runs of the reference, the implementation and the module of expected outputs."""
        reference, implementation, expected = self.modules
        drawn = self.inputs(change)
        watch = change is unchanged

        def run(module: Module, inputs: Mapping[str, Folded], draw: Draw | None = None) -> Run:
            budget = self._budget
            return Run(module, inputs, budget=budget, watch=watch, keep=keep, check=self._check, draw=draw)

        first = run(reference, drawn)
        if first.strayed:
            raise Strayed("the reference reads or writes out of range on the inputs that were drawn")
        outputs = {n: _stacked(xs) for n, xs in first.outputs.items()}
        read = [(i.name, output_read(i.name)) for i in expected.inputs]
        fed = {name: outputs[output] for name, output in read if output in outputs}
        return first, run(implementation, drawn, _memory(self._seed)), run(expected, fed)

    def pairs(self, change: Change) -> dict[str, list[_Pair]]:
        runs = self.all(change)
        if change is unchanged:
            self._unsure = any(run.unsure for run in runs)
        _, second, third = runs
        return paired(third.outputs, second.outputs, _Pair)

    def rounding_decided(self) -> bool:
        return self._unsure


class WideRuns(Runs):
    """As `Runs`, in extended precision: another nudge takes the place of wider arithmetic."""

    def how(self, change: Change) -> Change:
        if change is unchanged:
            return widened
        return lambda x: widened(nudged(x) if change is nudged else nudged(nudged(x)))

    def largest(self, names: Collection[str]) -> float:
        """The largest magnitude of some values of the reference."""
        drawn = self.inputs(unchanged)
        run = Run(self.modules[0], drawn, budget=self._budget, keep=True, check=self._check)
        return max((magnitude(x.core) for n in names for x in run.values.get(n, ())), default=0.0)


def _stacked(tensors: Sequence[Folded]) -> Folded:
    """An output of the only rank, or those of all ranks along a new first dim."""
    if len(tensors) == 1:
        return tensors[0]
    parts = common(tensors)
    return Folded(np.stack([filled(x, parts) for x in tensors]), (discrete(len(tensors)), *parts))


@dataclass(frozen=True, slots=True)
class _Pair:
    goal: Folded
    got: Folded

    @property
    def key(self) -> tuple[int, int]:
        return id(self.goal), id(self.got)

    def arrays(self) -> tuple[Array, Array]:
        if self.goal.shape != self.got.shape:
            raise InterpretError(f"an output has shape {self.got.shape}, expected {self.goal.shape}")
        parts = common((self.goal, self.got))
        return filled(self.goal, parts), filled(self.got, parts)

    def index(self, at: tuple[int, ...]) -> tuple[int, ...]:
        parts = common((self.goal, self.got))
        return tuple(int(p.first[i]) for p, i in zip(parts, at, strict=True))

    def element(self, index: tuple[int, ...]) -> tuple[Any, Any]:
        return self.goal.at(index), self.got.at(index)
