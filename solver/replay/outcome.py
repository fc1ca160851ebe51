"""Where the outputs of two programs differ on one draw of inputs, and whether rounding may be why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from shardproof.ir.numpy_meaning import InterpretError
from shardproof.ir.types import Array

TOLERANCE: Final = 1e-6
"""A difference counts when it is larger than this times the largest magnitude of its output."""
_STEADY: Final = 0.25
"""... and when neither wider arithmetic nor a nudge of the inputs changes it by more than this part."""
_NUDGE: Final = 2.0**-44
_TRIED: Final = 16

Number = int | float | complex
Change = Callable[[Array], Array]
"""What is done to the drawn values of an input before the programs run."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An element of an implementation output that is not what the reference makes it be."""

    output: str
    rank: int
    index: tuple[int, ...]
    reference: Number
    implementation: Number
    seed: int


class Pair(Protocol):
    """An output on one rank: what it must hold and what it holds."""

    @property
    def key(self) -> tuple[int, int]:
        """Equal for pairs of the same values."""

    def arrays(self) -> tuple[Array, Array]:
        """Both as arrays of one shape that hold every value there is."""

    def index(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Where the element at this place of the arrays is in the output."""

    def element(self, index: tuple[int, ...]) -> tuple[Any, Any]:
        """Both values of an element of the output."""


class Evaluation(Protocol):
    """Both programs on one draw of inputs."""

    def pairs(self, change: Change) -> Mapping[str, Sequence[Pair]]:
        """For each output, a pair per rank."""

    def rounding_decided(self) -> bool:
        """Whether a branch of either program may have been decided by rounding."""


class Outcome:
    """Both programs' outputs on one draw, and the elements where they seem to differ.

    `compared` and `skipped` count elements that are finite in the reference, and that are not.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self.compared = self.skipped = 0
        self.candidates: dict[str, list[tuple[Any, int, tuple[int, ...]]]] = {}
        self._pairs = evaluation.pairs(unchanged)
        with np.errstate(all="ignore"):
            for name, pairs in self._pairs.items():
                self._judge(name, pairs)

    def _judge(self, name: str, pairs: Sequence[Pair]) -> None:
        both = [pair.arrays() for pair in pairs]
        scale = max((magnitude(x) for ab in both for x in ab), default=0.0)
        found = []
        seen: set[tuple[int, int]] = set()
        for rank, (pair, (a, b)) in enumerate(zip(pairs, both, strict=True)):
            if a.shape != b.shape:
                raise InterpretError(f"output {name} has shape {b.shape} on rank {rank}, expected {a.shape}")
            finite = _finite(a)
            self.compared += int(np.count_nonzero(finite))
            self.skipped += int(a.size - np.count_nonzero(finite))
            if pair.key in seen:
                continue
            seen.add(pair.key)
            different = differs(a, b, scale)
            if np.any(different):
                gap = np.abs(np.asarray(number(b) - number(a), np.complex128))
                gap = np.where(different, np.nan_to_num(gap, nan=np.finfo(np.float64).max), -1.0)
                worst = np.argsort(gap, axis=None)[::-1][:_TRIED]
                for flat in worst:
                    at = tuple(int(i) for i in np.unravel_index(int(flat), gap.shape))
                    if different[at]:
                        found.append((float(gap[at]), rank, pair.index(at)))
        if found:
            self.candidates[name] = sorted(found, key=lambda f: -f[0])[:_TRIED]

    def confirmed(self, seed: int) -> tuple[list[Difference], int]:
        """The worst steady difference of each output, and how many outputs had only unsteady ones."""
        if self._evaluation.rounding_decided():
            return [], len(self.candidates)
        others = self._evaluation.pairs(widened), self._evaluation.pairs(nudged)
        kept, lost = [], 0
        with np.errstate(all="ignore"):
            for name, places in self.candidates.items():
                for _, rank, at in places:
                    seen = self._pairs[name][rank].element(at)
                    if all(agree(seen, other[name][rank].element(at)) for other in others):
                        a, b = map(_scalar, seen)
                        kept.append(Difference(name, rank, at, a, b, seed))
                        break
                else:
                    lost += 1
        return kept, lost


def _scalar(x: Any) -> Number:
    value: Number = float(x) if np.asarray(x).dtype.kind == "f" else np.asarray(x).item()
    return value


def unchanged(array: Array) -> Array:
    """The drawn values as they are."""
    return array


def widened(array: Array) -> Array:
    """The drawn values in extended precision, in which everything is then computed."""
    return array.astype(np.longdouble) if array.dtype.kind == "f" else array


def nudged(array: Any) -> Array:
    """The drawn values changed near rounding level; equal values are changed alike."""
    if array.dtype.kind != "f":
        return np.asarray(array)
    mantissa = np.frexp(array)[0]
    return np.asarray(array * (1 + _NUDGE * np.sin(1e4 * mantissa)))


def number(x: Any) -> Any:
    """A number that can be subtracted and compared without wrapping."""
    return x.astype(np.float64) if x.dtype.kind in "biu" else x


def _finite(x: Any) -> Any:
    return np.isfinite(x) if x.dtype.kind in "fc" else np.ones(x.shape, np.bool_)


def differs(a: Any, b: Any, scale: Any) -> Any:
    """Where `b` is not `a`: exactly for integers, beyond the tolerance (or not finite) for reals."""
    if a.dtype.kind in "biu" and b.dtype.kind in "biu":
        return np.not_equal(a, b)
    gap = np.abs(number(b) - number(a))
    return _finite(a) & ~(gap <= TOLERANCE * scale)


def agree(pair: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether the difference seen in one evaluation is the one seen in another."""
    (a, b), (c, d) = pair, other
    if not np.isfinite(number(c)):
        return False
    if not np.isfinite(number(b)):
        return not np.isfinite(number(d))
    slack = _STEADY * abs(number(b) - number(a))
    return bool(abs(number(c) - number(a)) <= slack and abs(number(d) - number(b)) <= slack)


def magnitude(x: Any) -> float:
    """The largest finite magnitude of some reals, 0 for none."""
    if x.size == 0 or x.dtype.kind in "biu":
        return 0.0
    sizes = np.abs(x[np.isfinite(x)])
    return float(sizes.max()) if sizes.size else 0.0
