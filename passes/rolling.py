"""Sums and maxima of parts as one reduction: blocks side by side, and every value of a rotated index.

Only where the algebra is wanted. `sum[j<m] x[j] + sum[j<n] x[m+j]` is `sum[k<m+n] x[k]`, single elements
being blocks of one, and so it is where several slots move on together; `x[r] + x[(r+1)%n] + ... +
x[(r+n-1)%n]` is `sum[q<n] x[q]`, since every value of the index occurs once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import ne
from typing import Any, Final, NamedTuple

import numpy as np

from shardproof.passes.access import Expr, index, shift
from shardproof.passes.classes import Coefficient, Store, Term
from shardproof.passes.folding import evaluate
from shardproof.passes.pieces import read

MOST: Final = 256
"""Most addends that are compared with each other."""
MOST_COMPARED: Final = 16
"""Most sums of which another is looked for that goes on where it ends."""


class Part(NamedTuple):
    """`coef * reduction[bound](cls[access])`."""

    coef: Coefficient
    cls: int
    access: tuple[Expr, ...]
    bound: tuple[int, ...]


class Block(NamedTuple):
    """A part as an interval of one slot: from `start`; `local` (None: one element) runs over it."""

    start: int
    size: int
    local: int | None
    part: Part


def roll(store: Store, terms: Sequence[Term], op: str) -> list[Term] | None:
    """The operands with parts of one reduction joined, or None where there are none."""
    rolled = _step(store, terms, op)
    last = None
    while rolled is not None:
        last = rolled
        rolled = _step(store, rolled, op)
    return last


def _step(store: Store, terms: Sequence[Term], op: str) -> list[Term] | None:
    if not 1 < len(terms) <= MOST:
        return None
    alike: dict[tuple[Any, ...], list[tuple[int, Part]]] = {}
    for n, t in enumerate(terms):
        part = _part(store, t, op)
        if part.access:
            key = (part.coef, part.cls, len(part.access))
            alike.setdefault(key, []).append((n, part))
    for group in alike.values():
        if len(group) < 2:
            continue
        joined = _side_by_side(store, group) or _continued(store, group) or _rotated(store, group)
        if joined is not None:
            used, part = joined
            whole = _term(store, part, op)
            return [*(t for n, t in enumerate(terms) if n not in used), whole]
    return None


def _part(store: Store, t: Term, op: str) -> Part:
    if store.classes[t.cls].op != op or (op == "max" and t.coef <= 0):
        return Part(t.coef, t.cls, t.access, ())
    (body,), bound = store.expand(t)
    body = read(store, body)
    if op == "max" and body.coef < 0:
        return Part(t.coef, t.cls, t.access, ())
    return Part(t.coef * body.coef, body.cls, body.access, tuple(bound))


def _term(store: Store, part: Part, op: str) -> Term:
    from shardproof.passes.reduction import reduce

    return reduce(store, op, set(part.bound), Term(part.coef, part.cls, part.access))


def _side_by_side(store: Store, group: Sequence[tuple[int, Part]]) -> tuple[set[int], Part] | None:
    """Two parts that are adjacent along a slot and alike in every other."""
    slots = len(group[0][1].access)
    for d in range(slots):
        at: dict[tuple[Any, ...], dict[int, tuple[int, Block]]] = {}
        for n, part in group:
            found = _block(store, part, d)
            if found is not None:
                key, block = found
                at.setdefault(key, {}).setdefault(block.start, (n, block))
        for blocks in at.values():
            for start, (n, block) in sorted(blocks.items()):
                after = blocks.get(start + block.size)
                if after is not None:
                    return {n, after[0]}, _joined(store, block, after[1].size, d)
    return None


def _block(store: Store, part: Part, d: int) -> tuple[tuple[Any, ...], Block] | None:
    """The part as a block along slot `d`, and what it must share with its neighbours."""
    e = part.access[d]
    others = [x for k, x in enumerate(part.access) if k != d]
    local = next(
        (t for t, s in e[1] if s == 1 and t in part.bound and all(t not in store.indices(x) for x in others)),
        None,
    )
    rest = tuple(x for x in e[1] if x[0] != local)
    if local is not None and local in set(store.indices((0, rest))):
        return None
    by: dict[int, Expr] = {}
    for x in (*others, (0, rest)):
        for i in store.indices(x):
            if i in part.bound and i not in by:
                by[i] = index(store.place("rolled", len(by), store.sizes[i]))
    unread = sorted(store.sizes[i] for i in part.bound if i not in by and i != local)
    if unread:
        return None
    key = (tuple(store.substitute(x, by) for x in others), store.substitute((0, rest), by))
    return key, Block(e[0], store.sizes[local] if local is not None else 1, local, part)


def _joined(store: Store, block: Block, more: int, d: int) -> Part:
    i = store.fresh(block.size + more)
    part = block.part
    e = part.access[d]
    rest = tuple(x for x in e[1] if x[0] != block.local)
    along = store.build(e[0], [*rest, (i, 1)])
    access = (*part.access[:d], along, *part.access[d + 1 :])
    bound = (*(b for b in part.bound if b != block.local), i)
    return Part(part.coef, part.cls, access, bound)


def _continued(store: Store, group: Sequence[tuple[int, Part]]) -> tuple[set[int], Part] | None:
    """Two parts of which the one goes on where the other ends, in every slot alike: `sum[j<m] f(j)` and
    `sum[j<n] f(m+j)`, or `f(m)`."""
    single = [(n, p) for n, p in group if len(p.bound) == 1][:MOST_COMPARED]
    for n, part in single:
        (j,) = part.bound
        m = store.sizes[j]
        for k, other in group:
            if k == n or len(other.bound) > 1:
                continue
            after = index(other.bound[0]) if other.bound else (0, ())
            moved = tuple(store.substitute(e, {j: shift(after, m)}) for e in part.access)
            if moved == other.access:
                size = m + (store.sizes[other.bound[0]] if other.bound else 1)
                i = store.fresh(size)
                access = tuple(store.substitute(e, {j: index(i)}) for e in part.access)
                return {n, k}, Part(part.coef, part.cls, access, (i,))
    return None


def _rotated(store: Store, group: Sequence[tuple[int, Part]]) -> tuple[set[int], Part] | None:
    """Parts that read a permuted index, every value of it once whatever the index is (ring passing)."""
    at: dict[tuple[Any, ...], list[Turn]] = {}
    for n, part in group:
        if len(part.bound) != len({i for x in part.access for i in store.indices(x)} & set(part.bound)):
            continue
        for term, base, values in _turns(store, part):
            size = max(values) + 1
            slots = [d for d, e in enumerate(part.access) if any(t == term for t, _ in e[1])]
            for where in (slots, *([d] for d in slots if len(slots) > 1)):
                turned = _replaced(store, part, term, size, where)
                at.setdefault((size, base, turned), []).append((n, part, term, values, where))
    for (size, _, _), found in at.items():
        chosen = _cover(found, size)
        if chosen is not None:
            _, part, term, _, where = chosen[0]
            q = store.fresh(size)
            access = _with(store, part.access, term, q, where)
            return {n for n, *_ in chosen}, Part(part.coef, part.cls, access, (*part.bound, q))
    return None


Turn = tuple[int, Part, int, tuple[int, ...], list[int]]
"""Number of the addend, the part, the term that turns, its values, the slots where it is replaced."""


def _cover(found: Sequence[Turn], size: int) -> list[Turn] | None:
    """`size` parts, each once, that have different values of the position wherever the index is."""
    chosen: list[Turn] = []
    for turn in found:
        if all(n != turn[0] and all(map(ne, v, turn[3])) for n, _, _, v, _ in chosen):
            chosen.append(turn)
    return chosen if len(chosen) == size > 1 else None


def _turns(store: Store, part: Part) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(term, the one free index it depends on, its value at each value of that index)."""
    seen = set()
    for e in part.access:
        for t, _ in e[1]:
            if t in seen:
                continue
            seen.add(t)
            inside = set(store.indices((0, ((t, 1),))))
            if len(inside) != 1 or not inside.isdisjoint(part.bound):
                continue
            (i,) = inside
            values = evaluate(store, (0, ((t, 1),)), {i: np.arange(store.sizes[i])})
            if values is not None and min(values) == 0:
                yield t, i, tuple(int(v) for v in values)


def _replaced(
    store: Store, part: Part, term: int, size: int, where: Sequence[int]
) -> tuple[Expr, ...]:
    """The access over placeholders, the term being one of them in the slots `where`."""
    access = _with(store, part.access, term, store.place("turned", 0, size), where)
    by: dict[int, Expr] = {}
    for e in access:
        for i in store.indices(e):
            if i in part.bound and i not in by:
                by[i] = index(store.place("rolled", len(by), store.sizes[i]))
    return tuple(store.substitute(e, by) for e in access)


def _with(
    store: Store, access: Sequence[Expr], term: int, by: int, where: Sequence[int]
) -> tuple[Expr, ...]:
    return tuple(
        store.build(e[0], [(by if t == term else t, s) for t, s in e[1]]) if d in where else e
        for d, e in enumerate(access)
    )
