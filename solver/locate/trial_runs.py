"""The implementation run again with some values changed, on the inputs that showed a difference.

Only for small programs, and only to say where to look: no verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from shardproof.ir.interpret import run, step
from shardproof.ir.module import Module, Op, Value
from shardproof.ir.numpy_meaning import InterpretError
from shardproof.ir.types import Array
from shardproof.solver.replay.draws import Ranges
from shardproof.solver.replay.replay import base_inputs, draw, output_read

LARGEST: Final = 1 << 20
"""Elements, over all values and ranks, up to which a program is run again and again."""
_CLOSE: Final = 1e-7
_MORE: Final = 1
"""How many draws there are beside the one that showed the difference."""

Values = Mapping[str, list[Array]]


@dataclass(frozen=True, slots=True)
class Edit:
    """Values of the implementation with the operators that make what stands in their place.

    The last operator's result takes the place of the value for all that read it; the operators may read the
    value itself and what is made before it. Without operators it is the value named that takes the place.
    """

    changes: Mapping[str, tuple[Op, ...] | str]


class TrialRuns:
    """Both programs on a few draws of inputs."""

    def __init__(
        self, reference: Module, implementation: Module, expected: Module, seed: int, ranges: Ranges
    ) -> None:
        self.implementation = implementation
        self.reference_values: list[Values] = []
        self.values: list[dict[str, list[Array]]] = []
        self.wanted: list[Values] = []
        inputs = base_inputs(reference, implementation)
        for k in range(_MORE + 1):
            drawn = draw(inputs, seed + k, ranges)
            first = run(reference, {i.name: drawn[i.name] for i in reference.inputs}, values=True)
            outputs = {o.name: first[o.value.name] for o in reference.outputs}
            given = {i.name: outputs[output_read(i.name)] for i in expected.inputs}
            fed = {n: np.stack(a) if reference.mesh.size > 1 else a[0] for n, a in given.items()}
            self.reference_values.append(first)
            self.wanted.append(run(expected, fed))
            own = {i.name: drawn[i.name] for i in implementation.inputs}
            self.values.append(run(implementation, own, values=True))

    @classmethod
    def of(
        cls, reference: Module, implementation: Module, expected: Module, seed: int, ranges: Ranges
    ) -> TrialRuns | None:
        """None for programs that are too large or can't be run."""
        for module in (reference, implementation, expected):
            size = sum(v.type.size for op in module.ops for v in op.results) * module.mesh.size
            if size > LARGEST:
                return None
        try:
            return cls(reference, implementation, expected, seed, ranges)
        except InterpretError:
            return None

    def vary(self, value: Value, groups: Sequence[Sequence[int]]) -> bool:
        """Whether the ranks of a group hold different values on some draw."""
        for values in self.values:
            arrays = values[value.name]
            for group in groups:
                first = arrays[group[0]]
                for r in group[1:]:
                    if arrays[r] is not first and not np.array_equal(arrays[r], first, equal_nan=True):
                        return True
        return False

    def numbers(self, value: Value) -> tuple[int, ...] | None:
        """The integer that each rank holds on all draws; None for other values."""
        if value.type.dtype.kind not in ("int", "uint") or value.type.shape:
            return None
        found = {tuple(int(a) for a in values[value.name]) for values in self.values}
        return next(iter(found)) if len(found) == 1 else None

    def failing(self, edit: Edit | None = None) -> frozenset[str]:
        """The outputs that differ on some draw, with an edit or as they are."""
        bad: set[str] = set()
        for base, wanted in zip(self.values, self.wanted, strict=True):
            changed = self._changed(base, edit) if edit is not None else {}
            for out in self.implementation.outputs:
                name = out.value.name
                if not _same(wanted[out.name], changed.get(name, base[name])):
                    bad.add(out.name)
        return frozenset(bad)

    def _changed(self, base: Values, edit: Edit) -> dict[str, list[Array]]:
        """The values that an edit changes."""
        found: dict[str, list[Array]] = {}
        ranks = self.implementation.mesh.size

        def value(name: str) -> list[Array]:
            return found[name] if name in found else base[name]

        with np.errstate(all="ignore"):
            for op in self.implementation.ops:
                edited = [v.name for v in op.results if v.name in edit.changes]
                if any(x.name in found for x in op.operands):
                    results = step(op, [value(x.name) for x in op.operands], ranks)
                    found |= {v.name: a for v, a in zip(op.results, results, strict=True)}
                for name in edited:
                    found[name] = self._instead(edit.changes[name], value, ranks)
        return found

    @staticmethod
    def _instead(
        change: tuple[Op, ...] | str, value: Callable[[str], list[Array]], ranks: int
    ) -> list[Array]:
        if isinstance(change, str):
            return value(change)
        made: dict[str, list[Array]] = {}
        for op in change:
            operands = [made[x.name] if x.name in made else value(x.name) for x in op.operands]
            made[op.result.name] = step(op, operands, ranks)[0]
        return made[change[-1].result.name]


def _same(wanted: Sequence[Any], found: Sequence[Any]) -> bool:
    seen: set[tuple[int, int]] = set()
    for a, b in zip(wanted, found, strict=True):
        if (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        if not close(a, b):
            return False
    return True


def close(a: Any, b: Any) -> bool:
    """Whether two arrays agree up to rounding, by the magnitude of the first."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    finite = np.isfinite(a)
    if not finite.all():
        return bool(np.array_equal(finite, np.isfinite(b))) and close(a[finite], b[finite])
    scale = float(np.max(np.abs(a), initial=0.0))
    return bool(np.all(np.abs(a - b) <= _CLOSE * scale))
