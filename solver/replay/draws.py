"""Input values that are a pure function of seed, input name and position.

A tensor is never needed whole: any box of it can be drawn by itself and holds the same values as
the same box of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from math import isqrt, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shardproof.ir.module import Input
from shardproof.ir.types import Array, DType, TensorType
from shardproof.solver.names import is_uniform

Box = tuple[tuple[int, int], ...]
"""One half-open range per dim."""
BoxInputs = Callable[[str, Box], Array]
"""(input name, box) -> the values of that box, shaped like it."""
GridInputs = Callable[[str, Sequence[npt.NDArray[np.int64]]], Array]
"""(input name, positions along each dim) -> the values at all their combinations."""
Ranges = Mapping[str, tuple[int, int]]
"""Input name -> (low, high), high exclusive."""

POSITIVE = 1 << 20
"""Seeds from here on draw positive reals."""
_CHUNK = 1 << 15
_Words = npt.NDArray[np.uint64]


def whole(shape: Sequence[int]) -> Box:
    """The box that covers a tensor of this shape."""
    return tuple((0, n) for n in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """The shape of the values of a box."""
    return tuple(hi - lo for lo, hi in box)


def counter_inputs(inputs: Sequence[Input], seed: int, ranges: Ranges | None = None) -> BoxInputs:
    """Box-wise values of `inputs`.

    Reals are float64, near-normal, bounded away from 0 and from infinity, on a dyadic grid, and
    smaller in larger tensors so that deep products stay near 1; seeds from POSITIVE on give absolute
    values (for programs that draw square roots or logarithms of inputs). Integers are uniform in their
    range; without one they lie in 0 .. (smallest input extent above 1) - 1. Uniform random draws of a
    program are uniform from 0 to 1. Raises ValueError for an empty range.
    """
    at = grid_inputs(inputs, seed, ranges)
    return lambda name, box: at(name, [np.arange(lo, hi) for lo, hi in box])


def grid_inputs(
    inputs: Sequence[Input],
    seed: int,
    ranges: Ranges | None = None,
    scales: Mapping[str, float] | None = None,
) -> GridInputs:
    """The values of `counter_inputs` at chosen positions; `scales` gives reals of some inputs other sizes."""
    types = {i.name: i.value.type for i in inputs}
    extents = [n for t in types.values() for n in t.shape if n > 1]
    limit = min(extents, default=4)
    uniform = {i.name: (0, 1) for i in inputs if is_uniform(i.name)}
    bounds = uniform | dict(ranges or {})
    for name, (low, high) in bounds.items():
        if high <= low:
            raise ValueError(f"range {low} .. {high} of input {name} is empty, give low < high")

    def values(name: str, positions: Sequence[npt.NDArray[np.int64]]) -> Array:
        kind = types[name]
        scale = (scales or {}).get(name, _scale(kind.shape))
        convert = _conversion(kind, bounds.get(name), limit, seed % (2 * POSITIVE) >= POSITIVE, scale)
        return _draw(kind, _key(seed, name), positions, convert)

    return values


def _key(seed: int, name: str) -> int:
    return int.from_bytes(blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "little")


def _mix(x: _Words) -> _Words:
    """splitmix64, in place (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    x *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


def _draw(
    kind: TensorType,
    key: int,
    positions: Sequence[npt.NDArray[np.int64]],
    convert: Callable[[_Words], npt.NDArray[Any]],
) -> Array:
    strides = [prod(kind.shape[d + 1 :]) for d in range(len(positions))]
    lines = [at.astype(np.uint64) * np.uint64(s) for at, s in zip(positions, strides, strict=True)]
    rows = np.zeros((1,), np.uint64)
    for line in lines[:-1]:
        rows = (rows[:, None] + line[None, :]).reshape(-1)
    row = lines[-1] if lines else np.zeros((1,), np.uint64)
    out = np.empty((len(rows), len(row)), convert(np.zeros(1, np.uint64)).dtype)
    step = max(_CHUNK // max(len(row), 1), 1)
    with np.errstate(over="ignore"):
        rows = rows + np.uint64(key)
        for at in range(0, len(rows), step):
            out[at : at + step] = convert(_mix(rows[at : at + step, None] + row[None, :]))
    return out.reshape([len(at) for at in positions])


def _conversion(
    kind: TensorType, bounds: tuple[int, int] | None, limit: int, positive: bool, scale: float
) -> Callable[[_Words], npt.NDArray[Any]]:
    dtype = kind.dtype
    if dtype.kind in ("bool", "token"):
        return lambda words: words >> np.uint64(63) != 0
    if dtype.kind in ("int", "uint"):
        low, high = bounds or (0, _largest(dtype, limit))
        return lambda words: (low + (words % np.uint64(high - low)).astype(np.int64)).astype(dtype.storage)
    if bounds is not None:
        low, high = bounds
        return lambda words: low + (words >> np.uint64(11)).astype(np.float64) * ((high - low) * 2.0**-53)
    if dtype.kind == "complex":
        return lambda words: _normal(words, scale, False) + 1j * _normal(_mix(words.copy()), scale, False)
    return lambda words: _normal(words, scale, positive)


def _largest(dtype: DType, limit: int) -> int:
    return int(min(limit, 1 << (dtype.bits - 1)))


def _scale(shape: Sequence[int]) -> float:
    """A power of two near 1/sqrt(second largest extent)."""
    ordered = sorted(shape)
    second = ordered[-2] if len(ordered) > 1 else 1
    return 1.0 / (1 << (isqrt(max(second, 1)).bit_length() - 1))


def _normal(words: _Words, scale: float, positive: bool) -> npt.NDArray[np.float64]:
    """Sum of four 16-bit lanes, centred (standard deviation 1), and pushed 1/8 away from zero."""
    lane = np.uint64(0xFFFF)
    total = words & lane
    for shift in (16, 32, 48):
        total += (words >> np.uint64(shift)) & lane
    centred = total.astype(np.float64)
    centred -= 131070.5
    centred *= 2.0**-15 * scale
    if positive:
        np.abs(centred, out=centred)
    centred += np.copysign(scale / 8, centred)
    return centred
