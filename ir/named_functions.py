"""What opaque operators with a well-known name compute, element by element, in NumPy.

They stay unknown functions to a proof; this is for runs only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from shardproof.ir.collectives import place
from shardproof.ir.module import Op
from shardproof.ir.numpy_meaning import Arrays, Unsupported, settle
from shardproof.ir.types import Array

_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry2x32(key0: Any, key1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Threefry-2x32 in 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011)."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))
            x1 = x0 ^ x1
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def _erf_inv(x: float) -> float:
    if not -1 < x < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    return NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2)


def _lgamma(x: float) -> float:
    if x <= 0 and x == math.floor(x):
        return math.inf
    return math.lgamma(x)


NAMED: Final[Mapping[str, Callable[..., Any]]] = {
    "erf_inv": np.vectorize(_erf_inv, otypes=[np.float64]),
    "lgamma": np.vectorize(_lgamma, otypes=[np.float64]),
    "threefry2x32": threefry2x32,
}


def is_named(op: Op) -> bool:
    """Whether an opaque operator works element by element and has a meaning here."""
    rank = len(op.results[0].type.shape)
    every = tuple(((d,) * len(op.operands), (d,) * len(op.results)) for d in range(rank))
    flat = all(len(v.type.shape) == rank for v in (*op.operands, *op.results))
    return op.attrs["name"] in NAMED and flat and tuple(op.attrs["free"]) == every


def opaque(op: Op, arrays: Arrays) -> tuple[Array, ...]:
    """Raises Unsupported for a name without a meaning."""
    if not is_named(op):
        raise Unsupported("opaque", f"%{op.results[0].name}{place(op)} has no NumPy meaning")
    found = NAMED[op.attrs["name"]](*arrays)
    results: Sequence[Any] = found if isinstance(found, tuple) else (found,)
    return tuple(settle(x, v.type.dtype) for x, v in zip(results, op.results, strict=True))
