"""The canonical concatenation of terms along an index."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shardproof.passes.access import Digit, constant, index, scale, shift
from shardproof.passes.canonical import Application, Groups, node
from shardproof.passes.classes import Coefficient, Store, Term
from shardproof.passes.pieces import Cut, Rebuild, distribute, find_cut, read, segments

Piece = tuple[int, int | None, Term]
"""Extent, the index that runs over it (None for extent 1), the value."""


def concatenate(store: Store, along: int, pieces: Sequence[Piece]) -> Term:
    """`pieces` side by side along index `along`, whose extent is the sum of theirs.

    Nested concatenations are flattened, adjacent pieces that continue one access are fused, equal
    pieces become one that is read modulo its extent, a common coefficient moves outside.
    """
    flat: list[Piece] = []
    for p in pieces:
        flat += _flatten(store, p)
    fused: list[Piece] = []
    for p in flat:
        joined = _fuse(store, fused[-1], p) if fused else None
        if joined is None:
            fused.append(p)
        else:
            fused[-1] = joined
    extent, local, term = fused[0]
    if len(fused) == 1:
        return term if local is None else store.substitute_term(term, {local: index(along)})
    if all(e == extent and _at(store, p, local) == term for p in fused[1:] for e in (p[0],)):
        if local is None:
            return term
        return store.substitute_term(term, {local: store.digit(index(along), 1, extent)})
    low = _low_digit(store, fused)
    if low is not None:
        return _split(store, along, fused, low)
    lead: Coefficient = next((t.coef for _, _, t in fused if t.coef), 1)
    return node_of(store, along, fused, lead)


def node_of(store: Store, along: int, pieces: Sequence[Piece], lead: Coefficient) -> Term:
    """The interned class of pieces that nothing simplifies."""
    from shardproof.passes.arithmetic import scaled

    operands = [scaled(t, lead, inverse=True) for _, _, t in pieces]
    groups = tuple(() if local is None else (local,) for _, local, _ in pieces)
    extents = tuple(extent for extent, _, _ in pieces)
    swapped = _outward(store, along, operands, groups, extents)
    if swapped is not None:
        return scaled(swapped, lead)
    made = node(
        store,
        "concat",
        extents,
        store.kind(operands[0]),
        operands,
        groups=groups,
        out=(along,),
    )
    return scaled(made, lead)


def _low_digit(store: Store, pieces: Sequence[Piece]) -> int | None:
    """The extent of a lowest digit that a piece reads apart from the rest, if it divides every piece."""
    found = set()
    for _, local, term in pieces:
        for e in term.access:
            for t, _ in e[1]:
                atom = store.atom(t) if t < 0 else None
                if isinstance(atom, Digit) and atom.expr == index(local or 0) and atom.div == 1:
                    found.add(atom.mod)
    low = min(found, default=0)
    return low if low and all(extent % low == 0 for extent, _, _ in pieces) else None


def _split(store: Store, along: int, pieces: Sequence[Piece], low: int) -> Term:
    """The concatenation with the lowest digit of the position as an index of its own."""
    hi, lo = store.fresh(store.sizes[along] // low), store.fresh(low)
    parts: list[Piece] = []
    for extent, local, term in pieces:
        assert local is not None
        n = extent // low
        i = store.fresh(n) if n > 1 else None
        at = (0, ((lo, 1),)) if i is None else (0, tuple(sorted(((i, low), (lo, 1)))))
        parts.append((n, i, store.substitute_term(term, {local: at})))
    made = concatenate(store, hi, parts)
    whole = index(along)
    halves = {hi: store.digit(whole, low, store.sizes[hi]), lo: store.digit(whole, 1, low)}
    return store.substitute_term(made, halves)


def _outward(
    store: Store, along: int, operands: Sequence[Term], groups: Groups, extents: tuple[int, ...]
) -> Term | None:
    """Of two nested concatenations the one with the larger extent (then extents) is the outer one."""
    work = Application(store, operands, (), groups, (along,))
    work.merge()
    held = work.held()

    def larger(cut: Cut) -> bool:
        size = store.sizes[cut.index]
        parts = tuple(b - a for a, b in pairwise((0, *cut.at, size)))
        return cut.index not in held and (size, parts) > (sum(extents), extents)

    cut = find_cut(store, work.operands, larger)
    if cut is None:
        return None
    locals_ = [g[0] if g else None for g in groups]

    def again(ts: list[Term], _: set[int]) -> Term:
        return concatenate(store, along, list(zip(extents, locals_, ts, strict=True)))

    made = distribute(store, work.operands, set(), cut, Rebuild(again))
    return store.substitute_term(made, work.outer)


def _flatten(store: Store, p: Piece) -> list[Piece]:
    extent, local, term = p
    term = read(store, term)
    if local is None:
        return [(extent, local, term)]
    cut = find_cut(store, [term])
    if cut is None or cut.index != local:
        return [(extent, local, term)]
    out: list[Piece] = []
    for size, i, at in segments(store, Cut(local, cut.at)):
        out += _flatten(store, (size, i, store.substitute_term(term, {local: at})))
    return out


def _at(store: Store, p: Piece, local: int | None) -> Term:
    _, mine, term = p
    if mine is None or local is None:
        return term
    return store.substitute_term(term, {mine: index(local)})


def _fuse(store: Store, a: Piece, b: Piece) -> Piece | None:
    """`a` then `b` as one piece, if one access continues the other."""
    (m, i, t), (n, j, u) = a, b
    if t.cls != u.cls or t.coef != u.coef:
        return None
    if not t.access:
        x = store.fresh(m + n)
        return m + n, x, t
    x = store.fresh(m + n)
    if i is not None:
        from_a = store.substitute_term(t, {i: index(x)})
        if j is not None:
            same = from_a == store.substitute_term(u, {j: shift(index(x), -m)})
        else:
            same = store.substitute_term(from_a, {x: constant(m)}) == u
        return (m + n, x, from_a) if same else None
    if j is not None:
        from_b = store.substitute_term(u, {j: shift(index(x), -m)})
        return (m + n, x, from_b) if store.substitute_term(from_b, {x: constant(0)}) == t else None
    steps = []
    for p, q in zip(t.access, u.access, strict=True):
        offset, rest = store.add(q, scale(p, -1))
        if rest:
            return None
        steps.append(offset)
    access = tuple([store.add(p, scale(index(x), s)) for p, s in zip(t.access, steps, strict=True)])
    return m + n, x, Term(t.coef, t.cls, access)


def settle(store: Store, t: Term) -> Term:
    """The term, with a concatenation read across its cuts as one along the index that crosses them."""
    t = read(store, t)
    if store.classes[t.cls].op != "concat":
        return t
    work = Application(store, [t], (), (), ())
    work.regroup()
    cut = find_cut(store, work.operands)
    if cut is None or work.operands[0].access[-1] == index(cut.index):
        return t
    made = distribute(store, work.operands, set(), cut, Rebuild(lambda ts, _: ts[0]))
    return store.substitute_term(made, work.outer)
