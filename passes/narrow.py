"""Terms made again over the positions that are read of them, with masks of constant edges as pieces.

A window of a concatenation, as in a convolution or a running sum over padding, is one class over the whole
extent and another over a part of it; and what a mask with a constant edge leaves is a part and zeros side by
side. Where ranks stand side by side, what each holds is such a part: they are compared in this form.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, Final

from shardproof.passes.access import Expr, constant, index, shift
from shardproof.passes.arithmetic import scaled
from shardproof.passes.classes import Store, Term
from shardproof.passes.concatenate import Piece, concatenate
from shardproof.passes.given import conditions, given
from shardproof.passes.logic import conjunction, negate, step
from shardproof.passes.pieces import piece, read
from shardproof.passes.plans import renamed
from shardproof.passes.remake import KEPT, remade

MADE: Final = 4000
"""Most terms, up to names of indices, that are made again; more only costs completeness."""


class Narrowing:
    """What was made of the terms of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.known: dict[tuple[Any, ...], tuple[list[int], Term]] = {}

    def term(self, t: Term) -> Term:
        """The same function of the same indices."""
        store = self.store
        t = read(store, t)
        access, names = renamed(store, t.access)
        key = (t.coef, t.cls, access, *[store.sizes[i] for i in names])
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MADE:
                return t
            self.known[key] = names, t
            found = self.known[key] = names, self._made(t)
        own, made = found
        return store.substitute_term(made, {i: index(j) for i, j in zip(own, names, strict=True) if i != j})

    def _made(self, t: Term) -> Term:
        store, c = self.store, self.store.classes[t.cls]
        store.check()
        if t.cls == store.STEP:
            return _cut(store, t.access[0])
        if c.op == "concat":
            return self._trimmed(t)
        if not c.operands or c.op in KEPT:
            return t
        operands, bound = store.expand(t)
        operands = list(map(self.term, operands))
        if c.op == "select":
            operands = _chosen(store, *operands)
        made = remade(store, c.op, c.attrs, c.kind, operands, bound)
        return t if made is None else scaled(made, t.coef)

    def _trimmed(self, t: Term) -> Term:
        """A concatenation without the pieces, or parts of pieces, that the access never reads."""
        store, c = self.store, self.store.classes[t.cls]
        spans = [self._span(e, extent) for e, extent in zip(t.access, c.extents, strict=True)]
        slots = [store.fresh(high - low + 1) for low, high in spans]
        at_slots = [
            constant(low) if low == high else shift(index(i), low)
            for i, (low, high) in zip(slots, spans, strict=True)
        ]
        own = Term(1, t.cls, tuple(at_slots))
        edges = [0, *accumulate(c.attrs)]
        pieces: list[Piece] = []
        for n, (start, stop) in enumerate(pairwise(edges)):
            first, last = max(start, spans[-1][0]), min(stop, spans[-1][1] + 1)
            if first >= last:
                continue
            i = store.fresh(last - first) if last - first > 1 else None
            at = constant(first - start) if i is None else shift(index(i), first - start)
            pieces.append((last - first, i, self.term(piece(store, own, n, at))))
        made = concatenate(store, slots[-1], pieces)
        by = {i: shift(e, -low) for i, e, (low, _) in zip(slots, t.access, spans, strict=True)}
        return scaled(store.substitute_term(made, by), t.coef)

    def _span(self, e: Expr, extent: int | None) -> tuple[int, int]:
        """The positions of a dim that are read, from the first to the last."""
        assert extent is not None
        low, high = self.store.range(e)
        return max(low or 0, 0), min(extent - 1 if high is None else high, extent - 1)


def _chosen(store: Store, p: Term, a: Term, b: Term) -> list[Term]:
    """A selection with each case as it is where it is chosen, and two that fall back to one value as one."""
    a = given(store, a, conditions(store, p))
    b = given(store, b, conditions(store, negate(store, p)))
    for case, other, holds in ((a, b, p), (b, a, negate(store, p))):
        if store.classes[case.cls].op != "select" or case.coef != 1:
            continue
        q, x, y = (read(store, operand) for operand in store.expand(case)[0])
        if y == other:
            return [_both(store, holds, q), x, y]
        if x == other:
            return [_both(store, holds, negate(store, q)), y, x]
    return [p, a, b]


def _both(store: Store, p: Term, q: Term) -> Term:
    """Both conditions, without parts of one that hold where an integer is what the other says."""
    parts = [x for t in (p, q) for x in conditions(store, t) if store.classes[x.cls].op != "and"]
    told = [x for x in parts if x.cls == store.MATCH]
    rest = [given(store, x, told) for x in parts if x.cls != store.MATCH]
    return conjunction(store, [*told, *rest])


def _cut(store: Store, e: Expr) -> Term:
    """`e >= 0`; of one index that crosses zero, what holds up to a position and from there side by side."""
    made = step(store, e)
    if made.cls != store.STEP or len(made.access[0][1]) != 1 or made.access[0][1][0][0] < 0:
        return made
    offset, ((i, stride),) = made.access[0]
    size = store.sizes[i]
    first = -(offset // stride) if stride > 0 else offset // -stride + 1
    pieces = [
        (extent, store.fresh(extent) if extent > 1 else None, store.truth(holds))
        for extent, holds in ((first, stride < 0), (size - first, stride > 0))
    ]
    return concatenate(store, i, pieces)
