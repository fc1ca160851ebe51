"""A module as views of canonical classes: the sweep over its operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shardproof.ir.index_meaning import Algebra
from shardproof.ir.module import Module, Op, Value
from shardproof.ir.ops import TABLE
from shardproof.passes.algebra import Views
from shardproof.passes.classes import Store
from shardproof.passes.collectives import Ranks
from shardproof.passes.computed import meet_computed
from shardproof.passes.concatenate import concatenate, settle
from shardproof.passes.concatenate import same as same
from shardproof.passes.facts import ANYTHING
from shardproof.passes.pieces import read
from shardproof.passes.views import Unsupported, View, empty, fresh


@dataclass(slots=True)
class Normalised:
    """The views of a program's values, and the values whose operator has no meaning as views.

    `rounds` has, by the first result of a loop, what one of its rounds computes.
    """

    algebra: Views
    views: dict[str, View]
    opaque: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, Normalised] = field(default_factory=dict)


def new_store(
    *,
    folding: bool = False,
    lenient: bool = False,
    reading: bool = False,
    algebra: bool = False,
    inside: bool = False,
) -> Store:
    """An empty store.

    `folding` computes closed booleans and integers by value; `algebra` moves common factors and rolls
    up sums of parts; `inside` keeps a computed position in the class of what reads its indices in other
    ways, too, so that a sum over these is one of that class; `lenient` and `reading` allow rewritings
    that list what they assume.
    """
    store = Store(folding=folding, lenient=lenient, reading=reading, algebra=algebra, inside=inside)
    store.builders["concat"] = concatenate
    store.builders["settle"] = settle
    store.builders["read"] = read
    return store


def input_view(store: Store, value: Value, *, low: int | None = None, high: int | None = None) -> View:
    """A free tensor: one class, read whole. `low` and `high` bound integers (inclusive)."""
    shape, dtype = value.type.shape, value.type.dtype
    if 0 in shape:
        return empty(store, shape, dtype)
    dims = tuple(fresh(store, n) for n in shape)
    indices = [i for d in dims for i in d]
    extents = tuple(store.sizes[i] for i in indices)
    kind = "int" if dtype.kind == "uint" else dtype.kind
    facts: dict[str, int | None] = {}
    if kind == "int":
        signed = dtype.kind == "int"
        facts["low"] = low if low is not None else (-(1 << dtype.bits - 1) if signed else 0)
        facts["high"] = high if high is not None else (1 << dtype.bits - signed) - 1
    cls = store.leaf("input", (value.name,), kind, extents, **facts)
    return View(store.whole(cls, indices), dims, shape, dtype)


def normalise(
    store: Store,
    module: Module,
    inputs: Mapping[str, View],
    *,
    algebra: Views | None = None,
    replaced: Mapping[str, View] | None = None,
    check: Callable[[], None] | None = None,
) -> Normalised:
    """Views of every value of `module`, its inputs given as views.

    `replaced` gives the views of some values instead of computing them. `check` is called now and
    then and may raise (time limits).
    """
    state = Normalised(algebra or Views(store, Ranks(store, module.mesh)), dict(inputs))
    continue_from(state, module.ops, replaced or {}, check)
    return state


def continue_from(
    state: Normalised,
    ops: Sequence[Op],
    replaced: Mapping[str, View],
    check: Callable[[], None] | None = None,
) -> None:
    """Add the views of `ops`, in order, to `state`."""
    views = state.views
    for n, op in enumerate(ops):
        if check is not None and n % 16 == 0:
            check()
        results = apply(state, op, [views[x.name] for x in op.operands])
        for value, view in zip(op.results, results, strict=True):
            views[value.name] = replaced.get(value.name, view)


def apply(state: Normalised, op: Op, operands: Sequence[View]) -> tuple[View, ...]:
    """The views of an operator's results."""
    algebra = state.algebra
    meaning = TABLE[op.opcode].index
    reason = "no meaning as views"
    try:
        if op.opcode == "scan":
            from shardproof.passes.loops import scan

            return scan(state, op, operands)
        results = _meant(meaning, algebra, op, operands) if meaning is not None else None
        if results is not None:
            return results
    except Unsupported as e:
        reason = str(e)
    for value in op.results:
        state.opaque[value.name] = reason
    return tuple(_unknown(algebra, op, value) for value in op.results)


def _meant(
    meaning: Callable[[Algebra, Op, Sequence[View]], View | tuple[View, ...] | None],
    algebra: Views,
    op: Op,
    operands: Sequence[View],
) -> tuple[View, ...] | None:
    found = meaning(algebra, op, operands)
    if found is None:
        return None
    results = found if isinstance(found, tuple) else (found,)
    for view, value in zip(results, op.results, strict=True):
        assert view.shape == value.type.shape, (op.opcode, view.shape, value.type.shape)
    return tuple(
        meet_computed(
            algebra.store, View(v.term, v.dims, v.shape, value.type.dtype), op.opcode == "constant"
        )
        for v, value in zip(results, op.results, strict=True)
    )


def _unknown(algebra: Views, op: Op, value: Value) -> View:
    """A fresh class of any values on every rank: equal to nothing, so it can prove nothing."""
    return algebra.draw(f"{op.opcode} {value.name}", value.type, ANYTHING)
