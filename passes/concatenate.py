"""The canonical concatenation of terms along an index."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shardproof.passes.access import Digit, Expr, constant, index, scale, shift
from shardproof.passes.application import Application, Groups
from shardproof.passes.canonical import node
from shardproof.passes.classes import Coefficient, Store, Term
from shardproof.passes.pieces import Cut, Rebuild, distribute, find_cut, piece, read, segments

Piece = tuple[int, int | None, Term]
"""Extent, the index that runs over it (None for extent 1), the value."""


def concatenate(store: Store, along: int, pieces: Sequence[Piece]) -> Term:
    """`pieces` side by side along index `along`, whose extent is the sum of theirs.

    Nested concatenations are flattened, adjacent pieces that continue one access are fused, equal pieces,
    and those whose access moves on steadily, become one read at the digits of the position, a common
    coefficient moves outside.
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
    _, local, term = fused[0]
    if len(fused) == 1:
        return term if local is None else store.substitute_term(term, {local: index(along)})
    steady = _steady(store, along, fused)
    if steady is not None:
        return steady
    low = _low_digit(store, fused)
    if low is not None:
        return _split(store, along, fused, low)
    lead: Coefficient = next((t.coef for _, _, t in fused if t.coef), 1)
    return _by_value(store, node_of(store, along, fused, lead))


def _by_value(store: Store, t: Term) -> Term:
    """The term, by its values where it joins integers or truth values that are known."""
    from shardproof.passes.literals import by_value

    return by_value(store, t) if store.classes[t.cls].op == "concat" and store.kind(t) != "real" else t


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


def _steady(store: Store, along: int, pieces: Sequence[Piece]) -> Term | None:
    """Equal pieces, or reads of one class that from piece to piece move on by a constant, as one read."""
    extent, local, first = pieces[0]
    reads = [_at(store, p, local) for p in pieces]
    if any(n != extent for n, _, _ in pieces) or any(t[:2] != first[:2] for t in reads):
        return None
    moves = []
    for p, q in zip(first.access, reads[1].access, strict=True):
        offset, rest = store.add(q, scale(p, -1))
        if rest:
            return None
        moves.append(offset)
    for k, t in enumerate(reads[2:], 2):
        if any(shift(p, k * by) != q for p, q, by in zip(first.access, t.access, moves, strict=True)):
            return None
    which = store.digit(index(along), extent, len(pieces))
    inside = {} if local is None else {local: store.digit(index(along), 1, extent)}
    placed = store.substitute_term(first, inside)
    access = tuple(store.add(p, scale(which, by)) for p, by in zip(placed.access, moves, strict=True))
    return Term(first.coef, first.cls, access)


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


def _along_position(store: Store, t: Term) -> Term:
    """`_split` undone: a concatenation read at the high digit of an index is one along the index where the
    rest of the access reads the low digit, if every piece then reads its position as a whole."""
    from shardproof.passes.arithmetic import scaled

    if store.classes[t.cls].op != "concat":
        return t
    high = _digit_of(store, t.access[-1])
    if high is None or high.div == 1 or high.mod != store.classes[t.cls].extents[-1]:
        return t
    ((root, _),) = high.expr[1]
    low = high.div
    if store.sizes[root] != low * high.mod:
        return t
    hi, lo = store.fresh(high.mod), store.fresh(low)
    halves: Expr = (0, tuple(sorted(((hi, low), (lo, 1)))))
    split = store.substitute_term(t, {root: halves})
    if split.access[-1] != index(hi) or any(hi in store.indices(e) for e in split.access[:-1]):
        return t
    pieces: list[Piece] = []
    for n, extent in enumerate(store.classes[t.cls].attrs):
        i = store.fresh(extent * low)
        part = piece(store, split, n, store.digit(index(i), low, extent))
        pieces.append((extent * low, i, store.substitute_term(part, {lo: store.digit(index(i), 1, low)})))
    if _low_digit(store, pieces) is not None:
        return t
    return scaled(concatenate(store, root, pieces), t.coef)


def _digit_of(store: Store, e: Expr) -> Digit | None:
    """The digit of an index that the expression is."""
    if e[0] or len(e[1]) != 1 or e[1][0][1] != 1 or e[1][0][0] > 0:
        return None
    atom = store.atom(e[1][0][0])
    if not isinstance(atom, Digit) or atom.expr[0] or len(atom.expr[1]) != 1:
        return None
    u, stride = atom.expr[1][0]
    return atom if u > 0 and stride == 1 else None


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
    """The term, with a concatenation read across its cuts as one along the index that crosses them, and one
    read at a digit of a position as one along the position, where another slot reads the digit below."""
    t = _along_position(store, read(store, t))
    if store.classes[t.cls].op != "concat":
        return t
    work = Application(store, [t], (), (), ())
    work.regroup()
    cut = find_cut(store, work.operands)
    whole = store.classes[t.cls].extents[-1]
    if cut is None or (work.operands[0].access[-1] == index(cut.index) and store.sizes[cut.index] == whole):
        return t
    made = distribute(store, work.operands, set(), cut, Rebuild(lambda ts, _: ts[0]))
    return store.substitute_term(made, work.outer)


def same(store: Store, a: Term, b: Term) -> bool:
    """Whether two terms are the same function of the same indices (soundness K6, N7)."""
    if a == b:
        return True
    a, b = settle(store, a), settle(store, b)
    if a == b:
        return True
    if a.coef != b.coef or a.cls != b.cls:
        return False
    return any(
        tuple(a.access[p] for p in permutation) == b.access
        for permutation in store.classes[a.cls].symmetries
    )
