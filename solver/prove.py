"""The proof: both programs as views over one store, and each output compared with what it must be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shardproof.ir.module import Module
from shardproof.passes.access import constant, index
from shardproof.passes.algebra import Views
from shardproof.passes.classes import Store
from shardproof.passes.collectives import Ranks
from shardproof.passes.decompose import decompose
from shardproof.passes.mesh_axes import refined
from shardproof.passes.normalise import Normalised, input_view, new_store, normalise, same
from shardproof.passes.views import View, align
from shardproof.solver.relation import BASE, Composed


class TimeUp(Exception):
    """The time limit was reached."""


class Clock:
    """A time limit in seconds, or none; `check` raises TimeUp."""

    def __init__(self, limit: float | None) -> None:
        self.end = None if limit is None else time.monotonic() + limit

    def check(self) -> None:
        if self.end is not None and time.monotonic() > self.end:
            raise TimeUp

    def left(self) -> float | None:
        """Seconds left, or None without a limit."""
        return None if self.end is None else max(0.0, self.end - time.monotonic())


@dataclass(slots=True)
class Proof:
    """Both programs normalised; `proved` holds, per implementation output, whether it is as expected.

    `uneven` are reference outputs that its own ranks do not agree on.
    """

    store: Store
    composed: Composed
    reference: Normalised
    implementation: Normalised
    expected: Normalised
    proved: dict[str, bool] = field(default_factory=dict)
    uneven: set[str] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return bool(self.proved) and all(self.proved.values()) and not self.uneven


Seconds = dict[str, float]


def prove(
    composed: Composed,
    clock: Clock,
    *,
    folding: bool = False,
    lenient: bool = False,
    reading: bool = False,
    begin: Callable[[Store], None] | None = None,
    seconds: Seconds | None = None,
    bounds: Mapping[str, tuple[int, int]] | None = None,
) -> Proof:
    """Normalise the composed programs and compare every output.

    `folding` computes closed terms by value, `lenient` allows rewritings that rest on listed assumptions,
    `reading` rounded literals to be read as the numbers they stand for. `begin` starts the rewriting of
    the store by lemmas, which goes with its algebra. `bounds` are assumed ranges (low, high exclusive) of
    integer base tensors.
    """
    store = new_store(folding=folding, lenient=lenient, reading=reading, algebra=begin is not None)
    store.check = clock.check
    if begin is not None:
        begin(store)
    spent = seconds if seconds is not None else {}
    ranges = {**(bounds or {}), **composed.ranges}
    for name, (low, high) in (bounds or {}).items():
        if name not in composed.ranges and low < high:
            text = f"every element of {name.removeprefix(BASE)} is at least {low} and less than {high}"
            store.assume("index_range", text, name.removeprefix(BASE))
    base = {}
    for own in composed.implementation.inputs:
        low, high = ranges.get(own.name, (0, 0))
        bounded = low < high
        base[own.name] = input_view(
            store, own.value, low=low if bounded else None, high=high - 1 if bounded else None
        )
    start = time.perf_counter()
    reference = _run(store, composed.reference, base, clock)
    middle = time.perf_counter()
    implementation = _run(store, composed.implementation, base, clock)
    end = time.perf_counter()
    spent["reference"] = spent.get("reference", 0.0) + middle - start
    spent["implementation"] = spent.get("implementation", 0.0) + end - middle
    given = {}
    uneven = set()
    for out, wanted in zip(composed.reference.outputs, composed.expected.inputs, strict=True):
        view = reference.views[out.value.name]
        if composed.reference.mesh.size > 1:
            if out.name in composed.even and not _even(store, view, reference.algebra.ranks):
                uneven.add(out.name)
            view = stacked(store, view, reference.algebra.ranks)
        given[wanted.name] = view
    expected = _run(store, composed.expected, given, clock, algebra=implementation.algebra)
    proof = Proof(store, composed, reference, implementation, expected)
    for out, goal in zip(composed.implementation.outputs, composed.expected.outputs, strict=True):
        a, b = expected.views[goal.value.name], implementation.views[out.value.name]
        proof.proved[out.name] = equal(store, a, b)
    proof.uneven = uneven
    spent["compare"] = spent.get("compare", 0.0) + time.perf_counter() - end
    return proof


def _run(
    store: Store, module: Module, given: Mapping[str, View], clock: Clock, *, algebra: Views | None = None
) -> Normalised:
    module = decompose(module)
    algebra = algebra or Views(store, Ranks(store, refined(module)))
    return normalise(store, module, given, algebra=algebra, check=clock.check)


def _even(store: Store, view: View, ranks: Ranks) -> bool:
    """Whether every rank holds the tensor that rank 0 holds."""
    first = store.substitute_term(view.term, {i: constant(0) for _, i in ranks.axes})
    return equal(store, view, View(first, view.dims, view.shape, view.dtype))


def stacked(store: Store, view: View, ranks: Ranks) -> View:
    """The tensors of all ranks as one, the flat rank as its first dim."""
    own = [i for _, i in ranks.axes]
    new = tuple(store.fresh(store.sizes[i]) for i in own)
    term = store.substitute_term(view.term, {i: index(j) for i, j in zip(own, new, strict=True)})
    return View(term, (new, *view.dims), (ranks.mesh.size, *view.shape), view.dtype)


def equal(store: Store, a: View, b: View) -> bool:
    """Whether two views of one shape are the same tensor on every rank."""
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return False
    if 0 in a.shape:
        return True
    _, (s, t) = align(store, (a, b), [range(len(a.shape))] * 2)
    return same(store, s, t)


Progress = Callable[[str, float], None]
