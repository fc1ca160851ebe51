"""The usual mistakes of weight loaders, each tried on a tensor that is not what it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Final

import numpy as np

from shardproof.frontends.codes import cast, values_of
from shardproof.ir.types import Array, DType
from shardproof.solver.relations.relation import Segments, Spec
from shardproof.solver.relations.steps import Layout, Pattern, Step, show

ORDERS: Final = 4
"""Most segments or dims of which all orders are tried."""
NARROWER: Final = (DType.BF16, DType.F16, DType.F8E4M3FN, DType.F8E5M2)


@dataclass(frozen=True, slots=True)
class Case:
    """A rank's tensor `found` (codes) that differs from `expected[rank]`, and how the latter is made.

    `made` gives every rank's tensor for another layout of a reference tensor, None where it does not
    fit. `others` are further tensors: name, layout, source.
    """

    spec: Spec
    source: str
    shape: tuple[int, ...]
    rank: int
    ranks: int
    dtype: DType | None
    expected: tuple[Array, ...]
    found: Array
    made: Callable[[Spec, str], list[Array] | None]
    others: tuple[tuple[str, Spec, str], ...]

    def is_found(self, other: Array) -> bool:
        return other.shape == self.found.shape and bool(np.array_equal(other, self.found))


def explain(case: Case) -> str | None:
    """The first mistake that makes exactly the tensor that was found, in words; None when none does."""
    return next(_causes(case), None)


def _causes(case: Case) -> Iterator[str]:
    found = case.found
    if found.size and not found.any():
        yield "it is all zeros: it was never loaded, or padding took its place"
    for q in range(case.ranks):
        if q != case.rank and case.is_found(case.expected[q]):
            yield f"it is the shard of rank {q}: the ranks are in another order"
    for words, spec in variants(case.spec, case.shape, case.ranks, case.source):
        arrays = case.made(spec, spec.source or case.source)
        if arrays is None:
            continue
        if case.is_found(arrays[case.rank]):
            yield words
        for q in range(case.ranks):
            if q != case.rank and case.is_found(arrays[q]):
                yield f"{words}, and it is the shard of rank {q}"
    yield from _rearranged(case)
    yield from _scaled(case)
    for name, spec, source in case.others:
        arrays = case.made(spec, source)
        if arrays is None:
            continue
        for q in (case.rank, *(q for q in range(case.ranks) if q != case.rank)):
            if case.is_found(arrays[q]):
                yield f"it is the shard of `{name}`" + (f" on rank {q}" if q != case.rank else "")


def _rearranged(case: Case) -> Iterator[str]:
    """Dims in another order, or the same elements in another shape."""
    expected, found = case.expected[case.rank], case.found
    dims = expected.ndim
    if 2 <= dims <= ORDERS:
        for order in permutations(range(dims)):
            if order != tuple(range(dims)) and case.is_found(expected.transpose(order)):
                yield f"it is transposed: its dims are those expected in the order {order}"
    if expected.shape != found.shape and np.array_equal(expected.reshape(-1), found.reshape(-1)):
        yield "it holds the right elements in order, in another shape"


def _scaled(case: Case) -> Iterator[str]:
    """A constant factor, or a round trip through a narrower type."""
    dtype = case.dtype
    wanted = case.expected[case.rank]
    if dtype is None or dtype.kind != "real" or wanted.shape != case.found.shape or wanted.size < 2:
        return
    for narrow in NARROWER:
        there = cast(wanted, dtype, narrow) if narrow.bits < dtype.bits else None
        back = cast(there, narrow, dtype) if there is not None else None
        if back is not None and case.is_found(back):
            yield f"it went through {narrow.value}: its values are rounded"
    a: Any = values_of(wanted, dtype).astype(np.float64)
    b: Any = values_of(case.found, dtype).astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or np.count_nonzero(a) < 2:
        return
    factor = float(b.reshape(-1)[np.argmax(np.abs(a))] / a.reshape(-1)[np.argmax(np.abs(a))])
    step = 2.0**-dtype.mantissa
    if factor not in (0.0, 1.0) and np.allclose(b, a * factor, rtol=2 * step, atol=0.0):
        yield f"it is {factor:.6g} times what is expected"


def variants(spec: Spec, shape: tuple[int, ...], ranks: int, source: str) -> Iterator[tuple[str, Spec]]:
    """Layouts of `source` that a loader may use in place of `spec` by mistake, in words and as a layout."""
    if isinstance(spec, Layout):
        first = spec.steps[0] if spec.steps else None
        if isinstance(first, Step) and first.name == "concat" and len(first.args) <= ORDERS:
            for head, *tail in permutations((source, *first.args[1:])):
                if head != source:
                    moved = replace(first, args=(first.args[0], *tail))
                    words = f"its parts are joined in the order {_names((head, *tail))}"
                    yield words, Layout(head, (moved, *spec.steps[1:]))
        for words, steps in _changed(spec.steps, shape, ranks):
            yield words, replace(spec, steps=steps)
        return
    yield from _ordered(spec)
    joined = _joined(spec, source)
    if joined is not None:
        each = {part.steps for _, part in spec.parts}
        if len(each) == 1:
            whole = replace(joined, steps=(*joined.steps, *next(iter(each))))
            yield "it is cut as one tensor, not each segment for itself", whole
        yield "it is not sharded", joined
    alike: dict[str, list[tuple[int | None, Layout]]] = {}
    for number, (size, part) in enumerate(spec.parts):
        own = shape if size is None else (*shape[: spec.dim], size, *shape[spec.dim + 1 :])
        for words, changed in _changed(part.steps, own, ranks):
            parts = list(spec.parts)
            parts[number] = (size, replace(part, steps=changed))
            yield f"segment {number}: {words}", replace(spec, parts=tuple(parts))
            alike.setdefault(words, []).append(parts[number])
    for words, changed_parts in alike.items():
        if len(changed_parts) == len(spec.parts) > 1:
            yield f"every segment: {words}", replace(spec, parts=tuple(changed_parts))


def _joined(spec: Segments, source: str) -> Layout | None:
    """All segments' sources side by side, as they are; None where several are made of one."""
    if all(size is not None for size, _ in spec.parts):
        return Layout(spec.source, ())
    first, *rest = (part.source or source for _, part in spec.parts)
    if len({first, *rest}) < len(spec.parts):
        return None
    return Layout(first, (Step("concat", (spec.dim, *rest)),))


def _ordered(spec: Segments) -> Iterator[tuple[str, Spec]]:
    """The segments in other orders."""
    count = len(spec.parts)
    if count > ORDERS:
        return
    for order in permutations(range(count)):
        if order == tuple(range(count)):
            continue
        moved = [n for n, m in enumerate(order) if n != m]
        words = f"its segments are in the order {order}"
        if len(moved) == 2:
            words = f"segments {moved[0]} and {moved[1]} are swapped"
        yield words, replace(spec, parts=_reordered(spec, order))


def _reordered(spec: Segments, order: Sequence[int]) -> tuple[tuple[int | None, Layout], ...]:
    """Segment `order[n]` at place n, each cut out of the whole by a slice of its own."""
    parts: list[tuple[int | None, Layout]] = []
    at, starts = 0, []
    for size, _ in spec.parts:
        starts.append(at)
        at += size or 0
    for n in order:
        size, part = spec.parts[n]
        if size is not None:
            own = Step("slice", (spec.dim, starts[n], starts[n] + size))
            part = replace(part, steps=(own, *part.steps))
        parts.append((None, part))
    return tuple(parts)


def _changed(
    steps: Sequence[Step | Pattern], shape: tuple[int, ...], ranks: int
) -> Iterator[tuple[str, tuple[Step | Pattern, ...]]]:
    """The steps with one of them done wrongly."""
    for n, step in enumerate(steps):
        before, after = tuple(steps[:n]), tuple(steps[n + 1 :])
        sharded = isinstance(step, Step) and step.name == "shard"
        if sharded and after and isinstance(after[0], Step) and after[0].name == "ranks":
            yield "it is not sharded", (*before, *after[1:])
        else:
            yield "it is not sharded" if sharded else f"`{show(step)}` is left out", (*before, *after)
        if not isinstance(step, Step):
            continue
        if step.name == "shard":
            for dim in range(len(shape)):
                if dim != step.args[0]:
                    words = f"it is a shard of dim {dim}, not of dim {step.args[0]}"
                    yield words, (*before, replace(step, args=(dim, *step.args[1:])), *after)
            yield from _dealt(step, before, after, shape, ranks)
        if step.name == "concat" and 2 < len(step.args) <= ORDERS + 1:
            for order in permutations(step.args[1:]):
                if order != step.args[1:]:
                    other = replace(step, args=(step.args[0], *order))
                    yield f"its parts are joined in the order {_names(order)}", (*before, other, *after)
        if step.name == "repeat":
            yield from _repeated(step, before, after, shape)


def _dealt(
    step: Step,
    before: tuple[Step | Pattern, ...],
    after: tuple[Step | Pattern, ...],
    shape: tuple[int, ...],
    ranks: int,
) -> Iterator[tuple[str, tuple[Step | Pattern, ...]]]:
    """Every n-th position in place of a contiguous part."""
    dim = step.args[0]
    if not 0 <= dim < len(shape):
        return
    for count in range(2, ranks + 1):
        if shape[dim] % count or ranks % count:
            continue
        names = [(f"d{d}",) for d in range(len(shape))]
        left: list[tuple[str, ...]] = [*names[:dim], ("m", "r"), *names[dim + 1 :]]
        right: list[tuple[str, ...]] = [*names[:dim], ("r", "m"), *names[dim + 1 :]]
        pattern = Pattern(tuple(left), tuple(right), (("r", count),))
        words = f"it holds every {_ordinal(count)} position of dim {dim}, not a contiguous part"
        yield words, (*before, pattern, step, *after)


def _names(names: Sequence[object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _ordinal(n: int) -> str:
    return {2: "second", 3: "third"}.get(n, f"{n}th")


def _repeated(
    step: Step, before: tuple[Step | Pattern, ...], after: tuple[Step | Pattern, ...], shape: tuple[int, ...]
) -> Iterator[tuple[str, tuple[Step | Pattern, ...]]]:
    """Another block in a repetition: each position, or the whole dim."""
    dim, times, *rest = step.args
    block = dict(step.named).get("block", rest[0] if rest else 1)
    if not 0 <= dim < len(shape):
        return
    for other in {1, shape[dim]} - {block}:
        words = f"blocks of {other} are repeated, not of {block}"
        yield words, (*before, Step("repeat", (dim, times), (("block", other),)), *after)
