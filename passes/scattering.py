"""Scatter as a guarded sum over the updates (soundness E3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardproof.passes import views
from shardproof.passes.access import Expr, constant, scale, shift
from shardproof.passes.arithmetic import add, select
from shardproof.passes.classes import Store, Term
from shardproof.passes.logic import clamp, conjunction, match, negate, step, within
from shardproof.passes.pieces import read
from shardproof.passes.reduction import reduce
from shardproof.passes.views import Unsupported, View


def scatter(store: Store, x: View, starts: View, update: View, attrs: Mapping[str, Any]) -> View:
    """`x` with blocks of `update` added or set at computed positions; blocks out of range are dropped.

    Setting several blocks needs distinct positions: when the program states them, a listed assumption,
    else unsupported. `starts` and `update` share no index with `x`.
    """
    kind = attrs["kind"]
    if kind not in ("sum", "set") or (x.dtype.kind != "real" and kind == "sum"):
        raise Unsupported(f"scatter that combines {x.dtype.value} by {kind}")
    if 0 in update.shape:
        return x
    vector = attrs["index_vector_dim"]
    batch_dims = [d for d in range(len(starts.shape)) if d != vector]
    update_batch = [d for d in range(len(update.shape)) if d not in attrs["update_window_dims"]]
    common, (at, value) = views.align(store, (starts, update), (batch_dims, update_batch))
    batch = dict(zip(batch_dims, common, strict=True))
    hidden = {*attrs["inserted_window_dims"], *attrs["input_batching_dims"]}
    windows = [d for d in range(len(x.shape)) if d not in hidden]
    window_of = dict(zip(windows, attrs["update_window_dims"], strict=True))
    begin: dict[int, Expr] = {}
    for n, d in enumerate(attrs["scatter_dims_to_operand_dims"]):
        component = at
        if vector < len(starts.shape):
            by: dict[int, Expr] = {}
            views.split_into(store, starts.dims[vector], constant(n), by)
            component = read(store, store.substitute_term(component, by))
        begin[d] = store.expression(component)
    for d, b in zip(attrs["input_batching_dims"], attrs["scatter_indices_batching_dims"], strict=True):
        begin[d] = store.flatten(batch[b])
    guard: list[Term] = []
    local: dict[int, Expr] = {}
    for d, n in enumerate(x.shape):
        here = store.flatten(x.dims[d])
        offset = store.add(here, scale(begin.get(d, constant(0)), -1))
        if d in hidden:
            guard.append(match(store, offset))
            continue
        m = update.shape[window_of[d]]
        if d in begin:
            guard.append(step(store, begin[d]))
            guard.append(step(store, shift(scale(begin[d], -1), n - m)))
        if d in begin or m < n:
            guard += within(store, offset, m)
            offset = clamp(store, offset, 0, m - 1)
        views.split_into(store, update.dims[window_of[d]], offset, local)
    value = read(store, store.substitute_term(value, local))
    hit = conjunction(store, guard)
    bound = {i for digits in common for i in digits}
    if kind == "sum":
        if attrs["unique"] and bound:
            store.assume("distinct_indices", "a scatter marked unique writes no element twice")
        landed = reduce(store, "sum", bound, select(store, hit, value, store.real(0)))
        return View(add(store, (x.term, landed)), x.dims, x.shape, x.dtype)
    if not bound:
        return View(select(store, hit, value, x.term), x.dims, x.shape, x.dtype)
    if not attrs["unique"] or x.dtype.kind != "real" or store.special(value):
        raise Unsupported("scatter that sets elements at positions not known to be distinct")
    store.assume("distinct_indices", "a scatter marked unique writes no element twice")
    landed = reduce(store, "sum", bound, select(store, hit, value, store.real(0)))
    touched = negate(store, reduce(store, "and", bound, negate(store, hit)))
    return View(select(store, touched, landed, x.term), x.dims, x.shape, x.dtype)
