"""Scatter as a guarded sum over the updates (soundness E3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardproof.passes import views
from shardproof.passes.access import Expr, constant, scale, shift
from shardproof.passes.arithmetic import add
from shardproof.passes.classes import Store, Term
from shardproof.passes.logic import clamp, conjunction, match, negate, step, wish, within
from shardproof.passes.pieces import read
from shardproof.passes.reduction import reduce
from shardproof.passes.selection import select
from shardproof.passes.views import Unsupported, View


def scatter(store: Store, x: View, starts: View, update: View, attrs: Mapping[str, Any]) -> View:
    """`x` with blocks of `update` added or set at computed positions; blocks out of range are dropped.

    Setting several blocks needs distinct positions: shown by dims that each block has to itself, or when the
    program states them, a listed assumption, else unsupported. `starts` and `update` share no index with `x`.
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
        if len(begin[d][1]) > 1:
            wish(store, begin[d], 0, x.shape[d] - (update.shape[window_of[d]] if d in window_of else 1))
    for d, b in zip(attrs["input_batching_dims"], attrs["scatter_indices_batching_dims"], strict=True):
        begin[d] = store.flatten(batch[b])
    if not any(common):
        block = _block(x, update, value, window_of)
        placed = _placed(store, x, block, [begin.get(d, constant(0)) for d in range(len(x.shape))], kind)
        if placed is not None:
            return placed
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
    apart = _apart(store, guard, bound)
    if not (attrs["unique"] or apart):
        raise Unsupported("scatter that sets elements at positions not known to be distinct")
    if x.dtype.kind != "real" or store.special(value):
        raise Unsupported("scatter that sets elements that are no reals, or not known to be finite")
    if not apart:
        store.assume("distinct_indices", "a scatter marked unique writes no element twice")
    landed = reduce(store, "sum", bound, select(store, hit, value, store.real(0)))
    if not x.term.coef:
        return View(landed, x.dims, x.shape, x.dtype)
    touched = negate(store, reduce(store, "and", bound, negate(store, hit)))
    return View(select(store, touched, landed, x.term), x.dims, x.shape, x.dtype)


def _block(x: View, update: View, value: Term, window_of: Mapping[int, int]) -> View:
    """The only block of the updates, with the dims of `x`."""
    own = [window_of.get(d) for d in range(len(x.shape))]
    dims = tuple(() if w is None else update.dims[w] for w in own)
    shape = tuple(1 if w is None else update.shape[w] for w in own)
    return View(value, dims, shape, update.dtype)


def _placed(store: Store, x: View, block: View, starts: Sequence[Expr], kind: str) -> View | None:
    """`x` with one block at a constant position as a concatenation; None for a position that is none."""
    ends = [n - m for n, m in zip(x.shape, block.shape, strict=True)]
    moving = [d for d, n in enumerate(ends) if n]
    if len(moving) > 1 or any(e[1] or not 0 <= e[0] <= n for e, n in zip(starts, ends, strict=True)):
        return None

    def cut(d: int, start: int, end: int) -> View:
        low, high = [0] * len(x.shape), list(x.shape)
        low[d], high[d] = start, end
        return views.slice_(store, x, low, high, [1] * len(x.shape))

    d = moving[0] if moving else None
    inner = x if d is None else cut(d, starts[d][0], starts[d][0] + block.shape[d])
    if kind == "sum":
        block = views.pointwise(store, (inner, views.rename(store, block)), x.dtype, lambda t: add(store, t))
    if d is None:
        return View(block.term, block.dims, x.shape, x.dtype)
    end = starts[d][0] + block.shape[d]
    return views.join(store, [cut(d, 0, starts[d][0]), block, cut(d, end, x.shape[d])], d)


def _apart(store: Store, guard: list[Term], bound: set[int]) -> bool:
    """Whether at most one block lands on an element: which one it is follows from positions that it needs."""
    told: set[int] = set()
    for t in guard:
        if t.cls != store.MATCH:
            continue
        own = [(s, i) for i, s in t.access[0][1] if i in bound]
        rest = (0, tuple(x for x in t.access[0][1] if x[0] not in bound))
        reach = 0
        for s, i in sorted((abs(s), i) for s, i in own):
            if s <= reach:
                break
            reach += s * (store.sizes[i] - 1)
        else:
            if bound.isdisjoint(store.indices(rest)):
                told |= {i for _, i in own}
    return bound <= told
