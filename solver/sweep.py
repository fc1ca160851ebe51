"""The sweep: both programs as views over one store, and each output compared with what it must be.

Proof and certificate checker run it alike; what rewrites the store's classes by lemmas is theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from shardproof.ir.module import Module, Output
from shardproof.passes.access import constant, index
from shardproof.passes.algebra import Views
from shardproof.passes.classes import Store, Term
from shardproof.passes.collectives import Ranks
from shardproof.passes.mesh_axes import refined
from shardproof.passes.narrow import Narrowing
from shardproof.passes.normalise import Normalised, input_view, normalise, same
from shardproof.passes.views import View, align
from shardproof.solver.families import families, rows
from shardproof.solver.names import BASE as BASE

OF: Final = "@"
"""Ending of the name of a reference value where it is an input of `expected`."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """A relation as programs: base tensors -> reference inputs, base tensors -> implementation inputs,
    implementation outputs -> the tensors that are compared (partial sums completed)."""

    reference: Module
    implementation: Module
    compared: Module


@dataclass(frozen=True, slots=True)
class Composed:
    """Both programs over the base tensors, and what every rank must hold.

    `expected` runs on the implementation's mesh; its inputs are the reference's outputs by name, with
    a leading dim of reference ranks when there are several, its outputs are named like the
    implementation's. `ranges` are by base tensor. `even` are the outputs of a distributed
    reference that its ranks must agree on. `assumed` makes implementation values, by name, of reference
    values (named as for `expected`) that they are taken to be.
    """

    reference: Module
    implementation: Module
    expected: Module
    ranges: Mapping[str, tuple[int, int]]
    layouts: Layouts
    even: Collection[str] = frozenset()
    assumed: Module | None = None


def joined(
    reference: Module,
    implementation: Module,
    layouts: Layouts,
    expected: Module,
    ranges: Mapping[str, tuple[int, int]],
    even: Collection[str],
    assumed: Module | None = None,
) -> Composed:
    """The layouts put before and after both programs; values are joined by their names."""
    after = layouts.compared
    return Composed(
        replace(
            reference,
            inputs=layouts.reference.inputs,
            ops=(*layouts.reference.ops, *reference.ops),
            outputs=tuple(Output(o.name, o.value) for o in reference.outputs),
        ),
        replace(
            implementation,
            inputs=layouts.implementation.inputs,
            ops=(*layouts.implementation.ops, *implementation.ops, *after.ops),
            outputs=after.outputs,
        ),
        expected,
        ranges,
        layouts,
        even,
        assumed,
    )


@dataclass(slots=True)
class Swept:
    """Both programs normalised, and what is expected of the implementation's outputs.

    `uneven` are reference outputs that its own ranks do not agree on.
    """

    reference: Normalised
    implementation: Normalised
    expected: Normalised
    uneven: set[str] = field(default_factory=set)


def sweep(
    store: Store,
    composed: Composed,
    check: Callable[[], None],
    *,
    bounds: Mapping[str, tuple[int, int]] | None = None,
    seconds: dict[str, float] | None = None,
) -> Swept:
    """Normalise the composed programs. `bounds` are assumed ranges (low, high exclusive) of integer base
    tensors; `seconds` is added to, by phase; `check` is called now and then and may raise."""
    spent = seconds if seconds is not None else {}
    ranges = {**(bounds or {}), **composed.ranges}
    for name, (low, high) in (bounds or {}).items():
        if name not in composed.ranges and low < high:
            text = f"every element of {name.removeprefix(BASE)} is at least {low} and less than {high}"
            store.assume("ids_in_range", text, name.removeprefix(BASE))
    base: dict[str, View] = {}
    for members in families(composed.reference):
        base.update(rows(store, members))
    for own in composed.implementation.inputs:
        if own.name in base:
            continue
        low, high = ranges.get(own.name, (0, 0))
        bounded = low < high
        base[own.name] = input_view(
            store, own.value, low=low if bounded else None, high=high - 1 if bounded else None
        )
    start = time.perf_counter()
    own_algebra = Views(store, Ranks(store, refined(composed.reference)))
    reference = normalise(store, composed.reference, base, algebra=own_algebra, check=check)
    middle = time.perf_counter()
    algebra = Views(store, Ranks(store, refined(composed.implementation)))
    replaced = {}
    if composed.assumed is not None:
        held = {
            i.name: _held(store, composed, reference, i.name.removesuffix(OF))
            for i in composed.assumed.inputs
        }
        taken = normalise(store, composed.assumed, held, algebra=algebra, check=check)
        replaced = {o.name: taken.views[o.value.name] for o in composed.assumed.outputs}
    implementation = normalise(
        store, composed.implementation, base, algebra=algebra, replaced=replaced, check=check
    )
    end = time.perf_counter()
    spent["reference"] = spent.get("reference", 0.0) + middle - start
    spent["implementation"] = spent.get("implementation", 0.0) + end - middle
    given = {}
    uneven = set()
    for out, wanted in zip(composed.reference.outputs, composed.expected.inputs, strict=True):
        view = reference.views[out.value.name]
        several = composed.reference.mesh.size > 1
        if several and out.name in composed.even and not _even(store, view, reference.algebra.ranks):
            uneven.add(out.name)
        given[wanted.name] = _held(store, composed, reference, out.value.name)
    expected = normalise(store, composed.expected, given, algebra=algebra, check=check)
    spent["compare"] = spent.get("compare", 0.0) + time.perf_counter() - end
    return Swept(reference, implementation, expected, uneven)


def compare(store: Store, composed: Composed, swept: Swept) -> dict[str, bool]:
    """Whether each output of the implementation is as expected, by name.

    Parts of dims are told apart once more where that may help: on one rank, or with assumptions.
    """
    found = {}
    narrowing = Narrowing(store)
    for out in composed.implementation.outputs:
        a, b = outcome(composed, swept, out.name)
        found[out.name] = equal(store, a, b)
        tried = not found[out.name] and (store.lenient or composed.implementation.mesh.size == 1)
        both = sides(store, a, b) if tried else None
        if both is not None:
            found[out.name] = same(store, *map(narrowing.term, both))
    return found


def outcome(composed: Composed, swept: Swept, output: str) -> tuple[View, View]:
    """What is expected of an output, and what it is."""
    goal = next(o.value.name for o in composed.expected.outputs if o.name == output)
    own = next(o.value.name for o in composed.implementation.outputs if o.name == output)
    return swept.expected.views[goal], swept.implementation.views[own]


def sides(store: Store, a: View, b: View) -> tuple[Term, Term] | None:
    """Elements of two views as terms over the same indices; None for views of other kinds or shapes.

    New indices are made; where terms are compared by further instances that happens within `undone`.
    """
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind or 0 in a.shape:
        return None
    _, (s, t) = align(store, (a, b), [range(len(a.shape))] * 2)
    return s, t


def _held(store: Store, composed: Composed, reference: Normalised, name: str) -> View:
    """A value of the reference; of all its ranks as one if there are several."""
    view = reference.views[name]
    return stacked(store, view, reference.algebra.ranks) if composed.reference.mesh.size > 1 else view


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
    both = sides(store, a, b)
    return both is not None and same(store, *both)
