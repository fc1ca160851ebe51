"""Reads at computed positions in a `define`: where a position is known, and that it is in range (N3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Define,
    Extent,
    Number,
    Position,
    Reduce,
    Take,
    Term,
    Variable,
    children,
)

LARGEST: Final = 1 << 22
"""Most positions that are computed one by one."""
_ARITHMETIC: Final[Mapping[str, Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "remainder": np.fmod,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negate": np.negative,
}
_COMPARE: Final[Mapping[str, Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


@dataclass(frozen=True, slots=True)
class Known:
    """Integers or truth values over the indices `dims`, in that order."""

    values: Any
    dims: tuple[str, ...]

    def line(self) -> tuple[str, int, int] | None:
        """(index, start, stride) of values that are affine in their one index, with a positive stride."""
        if len(self.dims) != 1:
            return None
        steps = np.diff(self.values)
        stride = int(steps[0]) if len(steps) else 1
        if stride < 1 or (steps != stride).any():
            return None
        return self.dims[0], int(self.values[0]), stride

    def within(self, size: int) -> bool:
        return bool((self.values >= 0).all() and (self.values < size).all())


def known(term: Term, sizes: Mapping[str, int]) -> Known | None:
    """The values of a term of positions, extents and integers alone; None for any other."""
    dims = tuple(dict.fromkeys(t.index for t in _walk(term) if isinstance(t, Position)))
    if prod(sizes[d] for d in dims) > LARGEST:
        return None
    grid = {
        d: np.arange(sizes[d], dtype=np.int64).reshape([-1 if d == e else 1 for e in dims]) for d in dims
    }
    found = _values(term, sizes, grid)
    if found is None:
        return None
    return Known(np.broadcast_to(found, [sizes[d] for d in dims]), dims)


def _values(term: Term, sizes: Mapping[str, int], grid: Mapping[str, Any]) -> Any:
    match term:
        case Number(value):
            whole = value.denominator == 1 and abs(value) < 1 << 31
            return np.int64(int(value)) if whole else None
        case Extent(index):
            return np.int64(sizes[index])
        case Position(index):
            return grid[index]
        case Compare(direction, left, right):
            a, b = _values(left, sizes, grid), _values(right, sizes, grid)
            return None if a is None or b is None else _COMPARE[direction](a, b)
        case Apply(op, operands) if op in _ARITHMETIC:
            parts = [_values(x, sizes, grid) for x in operands]
            if any(x is None for x in parts) or (op == "remainder" and (parts[1] == 0).any()):
                return None
            return _ARITHMETIC[op](*parts)
        case _:
            return None


def has_open_reads(define: Define) -> bool:
    """Whether the define reads at positions that are not known without the values of its operands."""
    return any(
        isinstance(t, Take) and any(isinstance(x, Variable | Reduce | Take) for x in _walk(t.position))
        for result in define.results
        for t in _walk(result.term)
    )


def _walk(term: Term) -> list[Term]:
    found, stack = [], [term]
    while stack:
        t = stack.pop()
        found.append(t)
        stack += children(t)
    return found
