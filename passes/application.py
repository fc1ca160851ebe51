"""One operator application while it is brought to its canonical form (soundness K1 to K6, N1, N2, N7).

`passes.canonical` describes the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import islice, pairwise, permutations, product
from typing import Any, Final

from shardproof.passes.access import Digit, Element, Expr, index, scale
from shardproof.passes.classes import Coefficient, Store, Term
from shardproof.passes.plans import Groups as Groups

ORDER_LIMIT: Final = 48
"""How many tied operand orders are tried; more only costs completeness."""

LAST: Final = 1 << 60
"""Where the constant (class 0) stands in an order."""


class Application:
    """One operator application in the making; indices are local, `outer` says what free ones stand for."""

    __slots__ = ("bound", "groups", "operands", "out", "outer", "store")

    def __init__(
        self, store: Store, operands: Sequence[Term], bound: Sequence[int], groups: Groups, out: Sequence[int]
    ) -> None:
        self.store = store
        self.operands = list(operands)
        self.bound = set(bound)
        self.groups = [list(g) for g in groups]
        self.out = list(out)
        self.outer: dict[int, Expr] = {}

    def held(self) -> set[int]:
        """Indices that belong to an ordered binder or are output positions."""
        return {i for g in self.groups for i in g} | set(self.out)

    def see(self, i: int) -> Expr:
        """The outer expression of a local free index."""
        return self.outer.get(i) or index(i)

    def occurrences(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Per index the (place, stride) pairs at which it is read; equal accesses and atoms count once."""
        found: dict[int, list[tuple[int, int]]] = {}
        seen: set[int] = set()
        place = 0
        for access in self.accesses():
            stack = [access]
            while stack:
                e = stack.pop()
                place += 1
                for t, s in e[1]:
                    if t > 0:
                        found.setdefault(t, []).append((place, s))
                    elif t not in seen:
                        seen.add(t)
                        stack.extend(self.store.inner(t))
        return {i: tuple(o) for i, o in found.items()}

    def accesses(self) -> dict[Expr, None]:
        """The accesses of all operands, each once, in order of occurrence."""
        return dict.fromkeys([e for access in {t.access: None for t in self.operands} for e in access])

    def _rewrite(self, f: Callable[[Expr], Expr]) -> None:
        """Apply `f` to every access."""
        made = {access: tuple([f(e) for e in access]) for access in {t.access: None for t in self.operands}}
        self.operands = [Term(t.coef, t.cls, made[t.access]) for t in self.operands]

    def regroup(self) -> None:
        """Split and merge until neither changes anything."""
        self.split()
        self.merge()
        while self._find_cut() is not None:
            self.split()
            self.merge()

    # split

    def split(self) -> None:
        """Replace indices by their digits until no digit of a single index is left."""
        store = self.store
        while True:
            cut = self._find_cut()
            if cut is None:
                return
            i, low = cut
            hi, lo = store.fresh(store.sizes[i] // low), store.fresh(low)
            by = {i: (0, tuple(sorted(((hi, low), (lo, 1)))))}
            self._rewrite(partial(store.substitute, by=by))
            if i in self.bound:
                self.bound = (self.bound - {i}) | {hi, lo}
            elif i in self.held():
                self.groups = [[x for y in g for x in ((hi, lo) if y == i else (y,))] for g in self.groups]
            else:
                outer = self.see(i)
                self.outer[hi] = store.digit(outer, low, store.sizes[hi])
                self.outer[lo] = store.digit(outer, 1, low)

    def _find_cut(self) -> tuple[int, int] | None:
        store = self.store
        stack = [e for e in self.accesses() if any(t < 0 for t, _ in e[1])][::-1]
        while stack:
            for t, _ in stack.pop()[1]:
                if t > 0:
                    continue
                atom = store.atom(t)
                stack.extend(store.inner(t))
                if not isinstance(atom, Digit):
                    continue
                for u, s in atom.expr[1]:
                    if u < 0 or s < 0 or u in self.out:
                        continue
                    size = store.sizes[u]
                    for edge in (atom.div, atom.div * atom.mod):
                        if s < edge < s * size and edge % s == 0 and size % (edge // s) == 0:
                            return u, edge // s
        return None

    # merge

    def merge(self) -> None:
        """Join indices that every access reads together (N1)."""
        store = self.store
        occurrences = self.occurrences()
        if len(occurrences) < 2:
            return
        held = self.held()
        sides = {i: (i in self.bound, i in held) for i in occurrences}
        at: dict[tuple[tuple[tuple[int, int], ...], tuple[bool, bool]], list[int]] = {}
        for i, o in occurrences.items():
            at.setdefault((o, sides[i]), []).append(i)
        before: dict[int, int] = {}
        for g in self.groups:
            before.update(zip(g[1:], g[:-1], strict=True))
        dropped: set[int] = set()
        root: dict[int, int] = {}
        for lo in list(occurrences):
            if lo in dropped:
                continue
            o, side = occurrences[lo], sides[lo]
            current = root.get(lo, lo)
            if current in self.out or len(at[o, side]) > 1:
                continue
            while True:
                size = store.sizes[current]
                found = at.get((tuple([(p, s * size) for p, s in o]), side))
                if found is None or len(found) != 1:
                    break
                base = found[0]
                hi = root.get(base, base)
                if base in dropped or hi == current or not self._together(hi, current, held, before):
                    break
                joined = store.fresh(store.sizes[hi] * size)
                self._replace(hi, current, joined, held, before)
                dropped.add(base)
                root[lo] = current = joined
        if dropped:
            renamed = {lo: i for lo, i in root.items() if lo not in dropped}
            self._rewrite(lambda e: store.collapse(e, dropped, renamed))

    def _together(self, hi: int, lo: int, held: set[int], before: dict[int, int]) -> bool:
        if hi in held or lo in held:
            return hi not in self.out and lo not in self.out and before.get(lo) == hi
        return (hi in self.bound) == (lo in self.bound)

    def _replace(self, hi: int, lo: int, joined: int, held: set[int], before: dict[int, int]) -> None:
        if lo in self.bound:
            self.bound -= {hi, lo}
            self.bound.add(joined)
        elif lo in held:
            for g in self.groups:
                if lo in g:
                    g[g.index(hi) : g.index(lo) + 1] = [joined]
                    before.update(zip(g[1:], g[:-1], strict=True))
            held.add(joined)
        else:
            low = self.store.sizes[lo]
            self.outer[joined] = self.store.add(scale(self.see(hi), low), self.see(lo))

    # factor

    def factor(self) -> None:
        """Move accesses of free indices out of the class: each becomes a whole index of its own (N2).

        Every slot that reads the same expression over the same extent shares that index; what an
        integer without bounds reads of the expression is rewritten in it too. An index that is read
        in several expressions is so read at several positions of one larger class.
        """
        store = self.store
        slots: dict[tuple[Expr, int], list[tuple[int, int]]] = {}
        infinite: dict[tuple[int, int], Expr] = {}
        for k, term in enumerate(self.operands):
            extents = store.classes[term.cls].extents
            for d, e in enumerate(term.access):
                extent = extents[d]
                if extent is None:
                    infinite[k, d] = e
                else:
                    slots.setdefault((e, extent), []).append((k, d))
        held = self.bound | self.held()
        by: dict[tuple[int, int], Expr] = {}
        lifted: list[tuple[Expr, int]] = []
        for (e, extent), places in slots.items():
            if e[0] == 0 and len(e[1]) == 1 and e[1][0][1] == 1:
                i = e[1][0][0]
                if i > 0 and store.sizes[i] == extent:
                    continue
            if extent == 1 or not held.isdisjoint(store.indices(e)):
                continue
            every = (*slots, *((x, None) for x in infinite.values()))
            if store.inside and self._read_otherwise((e, extent), every):
                continue
            w = store.fresh(extent)
            self.outer[w] = store.substitute(e, self.outer)
            by.update((place, index(w)) for place in places)
            if e[1]:
                lifted.append((e, w))
        if lifted:
            by.update((place, _in_terms_of(store, x, lifted)) for place, x in infinite.items())
        if by:
            self.operands = [
                Term(t.coef, t.cls, tuple([by.get((k, d), e) for d, e in enumerate(t.access)]))
                for k, t in enumerate(self.operands)
            ]

    def _read_otherwise(self, slot: tuple[Expr, int], others: Iterable[tuple[Expr, int | None]]) -> bool:
        """Whether a computed position, or an index within a larger extent, is read in another slot, too."""
        e, _ = slot
        computed = any(u < 0 and isinstance(self.store.atom(u), Element) for u, _ in e[1])
        within = e[0] == 0 and len(e[1]) == 1 and e[1][0][0] > 0 and e[1][0][1] == 1
        own = set(self.store.indices(e))
        return (computed or within) and any(
            x != slot and not own.isdisjoint(self.store.indices(x[0])) for x in others
        )

    # number

    def numbered(
        self, operands: Sequence[Term], scaled: bool
    ) -> tuple[tuple[Any, ...], Coefficient, list[int], list[int]]:
        """The key of the application with operands in this order, its scale, free and bound indices."""
        store = self.store
        by: dict[int, Expr] = {}
        free: list[int] = []
        bound: list[int] = []
        for g in self.groups:
            for i in g:
                by[i] = index(store.place("bound", len(bound), store.sizes[i]))
                bound.append(i)
        outs = set(self.out)

        def number(i: int) -> None:
            if i in self.bound:
                by[i] = index(store.place("bound", len(bound), store.sizes[i]))
                bound.append(i)
            else:
                by[i] = index(store.place("free", len(free), store.sizes[i]))
                free.append(i)

        sizes = store.sizes
        for term in operands:
            for e in term.access:
                terms = e[1]
                if len(terms) > 1:
                    terms = tuple(sorted(terms, key=lambda x: (-x[1], sizes[x[0]] if x[0] > 0 else 0, x[0])))
                for t, _ in terms:
                    if t > 0:
                        if t not in by and t not in outs:
                            number(t)
                    else:
                        for i in self._inside(t):
                            if i not in by and i not in outs:
                                number(i)
        for i in sorted(self.bound.difference(bound), key=lambda i: sizes[i]):
            number(i)
        for i in self.out:
            by[i] = index(store.place("free", len(free), sizes[i]))
            free.append(i)
        placed: dict[tuple[Expr, ...], tuple[Expr, ...]] = {}
        for term in operands:
            if term.access not in placed:
                placed[term.access] = tuple([store.substitute(e, by) for e in term.access])
        lead, moved = related(operands, [placed[t.access] for t in operands], scaled)
        key = (
            tuple([sizes[i] for i in free]),
            tuple([sizes[i] for i in bound]),
            tuple([len(g) for g in self.groups]),
            moved,
        )
        return key, lead, free, bound

    def _inside(self, t: int) -> Iterator[int]:
        for e in self.store.inner(t):
            for u, _ in sorted(e[1], key=lambda x: (-x[1], x[0])):
                if u > 0:
                    yield u
                else:
                    yield from self._inside(u)

    # order

    def orders(self, operands: Sequence[Term]) -> Iterator[list[Term]]:
        """Operand orders worth trying: sorted by structure, tied ones permuted."""
        ordered = sorted(operands, key=by_class)
        if all(a.cls != b.cls for a, b in pairwise(ordered)):
            yield ordered
            return
        colours = self._colours()
        signed = sorted(((t.cls or LAST, self._signature(t, colours)), n) for n, t in enumerate(operands))
        runs: list[list[Term]] = []
        last = None
        for signature, n in signed:
            if signature == last:
                runs[-1].append(operands[n])
            else:
                runs.append([operands[n]])
                last = signature
        tied = [islice(permutations(r), ORDER_LIMIT) if len(set(r)) > 1 else [tuple(r)] for r in runs]
        for choice in islice(product(*tied), ORDER_LIMIT):
            yield [t for run in choice for t in run]

    def variants(self, operands: Sequence[Term]) -> Iterator[list[Term]]:
        """The operands, and those with accesses permuted by a symmetry of their class (N7)."""
        classes = self.store.classes
        choices = [
            [
                t,
                *(
                    Term(t.coef, t.cls, tuple([t.access[p] for p in q]))
                    for q in sorted(classes[t.cls].symmetries)
                ),
            ]
            for t in operands
        ]
        return map(list, islice(product(*choices), ORDER_LIMIT))

    def _signature(self, t: Term, colours: dict[int, Any]) -> tuple[Any, ...]:
        slots = []
        for e in t.access:
            slots.append(
                (e[0], tuple(sorted((s, repr(colours.get(u)) if u > 0 else "atom") for u, s in e[1])))
            )
        return (tuple(slots), str(abs(t.coef)))

    def _colours(self) -> dict[int, Any]:
        seen: dict[int, list[Any]] = {}
        for t in self.operands:
            for d, e in enumerate(t.access):
                for u, s in e[1]:
                    if u > 0:
                        seen.setdefault(u, []).append((t.cls, d, s))
        return {
            i: (self.store.sizes[i], i in self.bound, tuple(sorted(reads))) for i, reads in seen.items()
        }


def _in_terms_of(store: Store, x: Expr, lifted: Sequence[tuple[Expr, int]]) -> Expr:
    """`x` with multiples of expressions replaced by those of the indices that stand for them.

    All together, where no term of any of them is left, as in `i - j` of `2*r + i` and `2*r + j`; else each
    of which none is left.
    """
    count: dict[int, int] = {}
    for e, _ in lifted:
        for t, _ in e[1]:
            count[t] = count.get(t, 0) + 1
    y = x
    for e, w in lifted:
        own = next(((t, s) for t, s in e[1] if count[t] == 1), None)
        times = dict(y[1]).get(own[0], 0) if own is not None else 0
        if own is not None and times % own[1] == 0:
            y = store.add(y, store.add(scale(e, -times // own[1]), scale(index(w), times // own[1])))
    if not any(t in count for t, _ in y[1]):
        return y
    for e, w in lifted:
        lead, stride = e[1][0]
        times = dict(x[1]).get(lead, 0)
        if times == 0 or times % stride:
            continue
        rest = store.add(x, scale(e, -times // stride))
        inside = dict(e[1])
        if not any(t in inside for t, _ in rest[1]):
            x = store.add(rest, scale(index(w), times // stride))
    return x


def _ratio(a: Coefficient, b: Coefficient) -> Coefficient:
    q = Fraction(a) / Fraction(b)
    return q.numerator if q.denominator == 1 else q


def related(
    operands: Sequence[Term], accesses: Sequence[tuple[Expr, ...]], scaled: bool
) -> tuple[Coefficient, tuple[Term, ...]]:
    """The coefficient that moves outside, and the operands at `accesses` without it."""
    lead: Coefficient = operands[0].coef if scaled else 1
    if lead == 1:
        return lead, tuple([Term(t.coef, t.cls, e) for t, e in zip(operands, accesses, strict=True)])
    placed = []
    own: Coefficient = lead
    ratio: Coefficient = 1
    for t, e in zip(operands, accesses, strict=True):
        if t.coef is not own:
            own, ratio = t.coef, _ratio(t.coef, lead)
        placed.append(Term(ratio, t.cls, e))
    return lead, tuple(placed)


def by_class(t: Term) -> int:
    return t.cls or LAST
