"""Reductions over index sets of commutative monoids (soundness K2, K5, N4, N5)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from math import prod
from typing import Final

from shardproof.passes.access import Element, Expr, constant, index, scale, shift
from shardproof.passes.application import Application
from shardproof.passes.arithmetic import add, magnitude, maximum, multiply, power, scaled
from shardproof.passes.canonical import node
from shardproof.passes.classes import Store, Term
from shardproof.passes.logic import clamp, conjunction, largest, match, negate, real_of, smallest, step
from shardproof.passes.pieces import Rebuild, find_cut, read, segments
from shardproof.passes.selection import select

ENTERED: Final = 4
"""How many operators deep limits are simplified."""


def reduce(store: Store, op: str, bound: set[int], t: Term) -> Term:
    """The reduction `op` (sum, prod, max, min, and, or) of a term over the indices `bound`."""
    kind = store.kind(t)
    if kind == "bool":
        if op in ("and", "prod", "min"):
            return _all(store, bound, t)
        return negate(store, _all(store, bound, negate(store, t)))
    if kind != "real":
        return _integers(store, op, bound, t)
    if op == "sum":
        return total(store, bound, t)
    if op == "max":
        return _extremum(store, bound, t)
    if op == "min":
        return scaled(_extremum(store, bound, scaled(t, -1)), -1)
    return _product(store, bound, t)


def _split(store: Store, bound: set[int], t: Term) -> tuple[set[int], int, Term]:
    """The bound indices that the term reads, how often the others repeat each value, and the term.

    A bound index of which only digits are read is replaced by its digits first.
    """
    if any(u < 0 for e in t.access for u, _ in e[1]):
        work = Application(store, [t], tuple(bound), (), ())
        work.split()
        bound, t = work.bound, store.substitute_term(work.operands[0], work.outer)
    read_ones = bound & store.term_indices(t)
    return read_ones, prod(store.sizes[i] for i in bound - read_ones), t


def total(store: Store, bound: set[int], t: Term) -> Term:
    """The sum of a real term over `bound`."""
    bound, count, t = _split(store, bound, t)
    coef = t.coef * count
    t = Term(1, t.cls, t.access)
    if not bound:
        return scaled(t, coef)
    c = store.classes[t.cls]
    if c.op == "sum":
        (body,), inner = store.expand(t)
        return scaled(total(store, bound | set(inner), read(store, body)), coef)
    picked = _picked(store, bound, t)
    if picked is not None:
        return scaled(picked, coef)
    if c.op == "multiply":
        parts = _components(store, bound, [read(store, x) for x in store.expand(t)[0]])
        if len(parts) > 1:
            done = [
                multiply(store, fs) if not mine else total(store, mine, multiply(store, fs))
                for mine, fs in parts
            ]
            return scaled(multiply(store, done), coef)
        inward = _inward(store, bound, parts[0][1])
        if inward is not None:
            return scaled(total(store, *inward), coef)
    if c.op == "add":
        terms = [read(store, x) for x in store.expand(t)[0]]
        still = [x for x in terms if bound.isdisjoint(store.term_indices(x))]
        if still:
            moving = [x for x in terms if x not in still]
            n = prod(store.sizes[i] for i in bound)
            sums = [scaled(x, n) for x in still]
            if moving:
                sums.append(total(store, bound, add(store, moving)))
            return scaled(add(store, sums), coef)
        if any(_has_sum(store, x) for x in terms) and not any(map(store.special, terms)):
            return scaled(add(store, [total(store, bound, x) for x in terms]), coef)
    made = node(
        store,
        "sum",
        (),
        "real",
        [t],
        tuple(bound),
        rebuild=Rebuild(lambda ts, b: total(store, b, ts[0]), lambda ts: add(store, ts)),
    )
    return scaled(made, coef)


def contract(store: Store, bound: set[int], factors: Sequence[Term]) -> Term:
    """The sum over `bound` of a product of real terms; over a concatenation part by part."""
    cut = find_cut(store, factors, lambda cut: cut.index in bound)
    if cut is None:
        return total(store, bound, multiply(store, factors))
    sums = []
    for _, i, at in segments(store, cut):
        parts = [read(store, store.substitute_term(t, {cut.index: at})) for t in factors]
        sums.append(contract(store, bound - {cut.index} | ({i} if i is not None else set()), parts))
    return add(store, sums)


def _is_sum(store: Store, t: Term) -> bool:
    return store.classes[t.cls].op == "sum"


def _has_sum(store: Store, t: Term) -> bool:
    """Whether a term is a sum over an index, or a product with one."""
    inner = store.classes[t.cls]
    return inner.op == "sum" or (inner.op == "multiply" and any(_is_sum(store, x) for x in inner.operands))


def _gathers(store: Store, t: Term) -> bool:
    """Whether a sum of the term goes on in it: the term is one, or adds some."""
    inner = store.classes[t.cls]
    return inner.op == "sum" or (inner.op == "add" and any(_has_sum(store, x) for x in inner.operands))


def _components(
    store: Store, bound: set[int], factors: Sequence[Term]
) -> list[tuple[set[int], list[Term]]]:
    """Factors grouped by the bound indices they share; factors that read none stand alone, if finite."""
    groups: list[tuple[set[int], list[Term]]] = []
    loose: list[Term] = []
    held: list[Term] = []
    for t in factors:
        mine = bound & store.term_indices(t)
        if not mine:
            (held if store.special(t) else loose).append(t)
            continue
        together = [t]
        rest = []
        for other in groups:
            if other[0].isdisjoint(mine):
                rest.append(other)
            else:
                mine = mine | other[0]
                together = other[1] + together
        groups = [*rest, (mine, together)]
    if held or any(store.special(t) for _, fs in groups for t in fs):
        everything = [t for _, fs in groups for t in fs]
        groups = [(set().union(*(g for g, _ in groups)), everything)]
    if held:
        groups[0][1].extend(held)
    return ([(set(), loose)] if loose else []) + groups


def _inward(store: Store, bound: set[int], factors: Sequence[Term]) -> tuple[set[int], Term] | None:
    """The sum with indices that one factor alone reads, which is a sum or adds some, summed there."""
    if any(store.special(t) for t in factors):
        return None
    for n, t in enumerate(factors):
        if not _gathers(store, t):
            continue
        others = [*factors[:n], *factors[n + 1 :]]
        own = (bound & store.term_indices(t)).difference(*map(store.term_indices, others))
        if own:
            return bound - own, multiply(store, [total(store, own, t), *others])
    return None


def _extremum(store: Store, bound: set[int], t: Term) -> Term:
    """The largest value of a real term over `bound`; the smallest is the largest of the negated."""
    bound, _, t = _split(store, bound, t)
    if not bound or t.coef == 0:
        return t
    size = magnitude(t.coef)
    t = Term(1 if t.coef > 0 else -1, t.cls, t.access)
    if store.classes[t.cls].op == "max" and t.coef > 0:
        (body,), inner = store.expand(t)
        return scaled(_extremum(store, bound | set(inner), read(store, body)), size)
    made = node(
        store,
        "max",
        (),
        "real",
        [t],
        tuple(bound),
        rebuild=Rebuild(lambda ts, b: _extremum(store, b, ts[0]), lambda ts: maximum(store, ts)),
    )
    return scaled(made, size)


def _product(store: Store, bound: set[int], t: Term) -> Term:
    bound, count, t = _split(store, bound, t)
    coef = Fraction(t.coef) ** (count * prod(store.sizes[i] for i in bound))
    t = Term(1, t.cls, t.access)
    if not bound:
        return scaled(multiply(store, [t] * count) if count <= 8 else power(store, t, Fraction(count)), coef)
    if count > 1:
        return scaled(power(store, _product(store, bound, t), Fraction(count)), coef)
    if store.classes[t.cls].op == "prod":
        (body,), inner = store.expand(t)
        return scaled(_product(store, bound | set(inner), read(store, body)), coef)
    made = node(
        store,
        "prod",
        (),
        "real",
        [t],
        tuple(bound),
        rebuild=Rebuild(lambda ts, b: _product(store, b, ts[0]), lambda ts: multiply(store, ts)),
    )
    return scaled(made, coef)


def _all(store: Store, bound: set[int], t: Term) -> Term:
    bound, _, t = _split(store, bound, t)
    if not bound:
        return t
    if store.classes[t.cls].op == "all":
        (body,), inner = store.expand(t)
        return _all(store, bound | set(inner), read(store, body))
    if store.classes[t.cls].op == "not":
        (p,), _ = store.expand(t)
        told = _told(store, bound, p)
        if told is not None:
            j, e, others = told
            return _all(store, bound - {j}, negate(store, conjunction(store, _held_at(store, j, e, others))))
    return node(
        store,
        "all",
        (),
        "bool",
        [t],
        tuple(bound),
        rebuild=Rebuild(lambda ts, b: _all(store, b, ts[0]), lambda ts: conjunction(store, ts)),
    )


def _integers(store: Store, op: str, bound: set[int], t: Term) -> Term:
    """Reductions of exact integers; overflow is the caller's to state."""
    bound, count, t = _split(store, bound, t)
    if op == "sum" and count > 1:
        inner = _integers(store, op, bound, t)
        return store.integer(scale(store.expression(inner), count))
    if op == "prod" and count > 1:
        return node(store, "prod", ("repeated", count), "int", [t], tuple(bound))
    if not bound:
        return t

    def join(ts: list[Term]) -> Term:
        e = store.expression(ts[0])
        for x in ts[1:]:
            y = store.expression(x)
            join = store.add if op == "sum" else partial(largest if op == "max" else smallest, store)
            e = join(e, y)
        return store.integer(e)

    joins = op in ("sum", "max", "min")
    rebuild = Rebuild(lambda ts, b: _integers(store, op, b, ts[0]), join) if joins else None
    if store.classes[t.cls].op == op and joins:
        (body,), inner_bound = store.expand(t)
        return _integers(store, op, bound | set(inner_bound), read(store, body))
    operand = Term(1, store.POSITION, (store.expression(t),)) if t.cls != store.POSITION else t
    return node(store, op, (), "int", [operand], tuple(bound), rebuild=rebuild)


def _picked(store: Store, bound: set[int], t: Term) -> Term | None:
    """The sum of a value masked to 0, where the mask leaves one position or a range."""
    op = store.classes[t.cls].op
    if op == "indicator":
        (p,), _ = store.expand(t)
        return _pick(store, bound, p, store.real(1))
    if op == "select":
        p, x, y = store.expand(t)[0]
        return _pick(store, bound, p, x) if not y.coef else _both(store, bound, p, x, y)
    if op != "multiply" or not store.algebra:
        return None
    factors = [read(store, f) for f in store.expand(t)[0]]
    masks = [store.expand(f)[0][0] for f in factors if store.classes[f.cls].op == "indicator"]
    if not masks:
        return None
    rest = [f for f in factors if store.classes[f.cls].op != "indicator"]
    if any(store.special(f) for f in rest):
        return None
    return _pick(store, bound, conjunction(store, masks), multiply(store, rest))


def _both(store: Store, bound: set[int], p: Term, x: Term, y: Term) -> Term | None:
    """The sum of `x` where the mask holds and of `y` where not, if the mask is a range of a bound index."""
    if p.cls != store.STEP or len(p.access[0][1]) != 1 or p.access[0][1][0][0] not in bound:
        return None
    picked = [_pick(store, bound, q, z) for q, z in ((p, x), (negate(store, p), y))]
    found = [t for t in picked if t is not None]
    return add(store, found) if len(found) == 2 else None


def _pick(store: Store, bound: set[int], p: Term, x: Term) -> Term | None:
    """`sum[j](x where j == e else 0)` is x at `j = e` where e is a value of j, else 0 (one-hot).

    Also for a window: `0 <= e - s*j < s` says that j is `e // s`.
    """
    told = _told(store, bound, p)
    if told is not None:
        return _at(store, bound, *told, x)
    parts = store.expand(p)[0] if store.classes[p.cls].op == "and" else [p]
    for n, part in enumerate(parts):
        if part.cls == store.STEP and len(part.access[0][1]) == 1 and part.access[0][1][0][0] in bound:
            return _from_edge(store, bound, part.access[0], parts[:n] + parts[n + 1 :], x)
        if part.cls == store.STEP:
            found = _window(store, bound, parts, n)
            if found is not None:
                j, e, others = found
                return _at(store, bound, j, e, others, x)
    return None


def _told(store: Store, bound: set[int], p: Term) -> tuple[int, Expr, list[Term]] | None:
    """A bound index, what it must be for `p` to hold (it reads no bound index), and the other conditions."""
    parts = store.expand(p)[0] if store.classes[p.cls].op == "and" else [p]
    for n, part in enumerate(parts):
        for j, s in part.access[0][1] if part.cls == store.MATCH else ():
            if j in bound and abs(s) == 1:
                rest = store.add(part.access[0], scale((0, ((j, s),)), -1))
                others = parts[:n] + parts[n + 1 :]
                if bound.isdisjoint(store.indices(rest)):
                    return j, scale(rest, -s), others
                lowest = _lowest(store, bound, j, scale(rest, -s))
                if lowest is not None:
                    return j, lowest[0], [lowest[1], *others]
    return None


def _lowest(store: Store, bound: set[int], j: int, e: Expr) -> tuple[Expr, Term] | None:
    """What j is where `j == e`, and the condition left, if what `e` has of bound indices is a multiple of j's
    extent: j is the lowest digit of the rest, its higher ones are the multiple."""
    size = store.sizes[j]
    above = tuple(x for x in e[1] if x[0] in bound)
    value = (e[0], tuple(x for x in e[1] if x[0] not in bound))
    low, high = store.range(value)
    if low is None or low < 0 or high is None or any(s % size for _, s in above):
        return None
    if not bound.isdisjoint(store.indices(value)):
        return None
    higher = store.digit(value, size, high // size + 1)
    rest = store.add(higher, (0, tuple((i, s // size) for i, s in above)))
    return store.digit(value, 1, size), match(store, rest)


def _held_at(store: Store, j: int, e: Expr, conditions: list[Term]) -> list[Term]:
    """That `e` is a value of index `j`, and the conditions there."""
    last = store.sizes[j] - 1
    by = {j: clamp(store, e, 0, last)}
    guard = [step(store, e), step(store, shift(scale(e, -1), last))]
    return guard + [refresh(store, store.substitute_term(q, by)) for q in conditions]


def _from_edge(store: Store, bound: set[int], e: Expr, others: list[Term], x: Term) -> Term:
    """The sum over the part of a bound index where `e >= 0`, `e` affine in that index alone."""
    ((j, s),) = e[1]
    size = store.sizes[j]
    low, high = (max(0, -(e[0] // s)), size) if s > 0 else (0, min(size, e[0] // -s + 1))
    extent = high - low
    if extent <= 0:
        return store.real(0)
    i = store.fresh(extent) if extent > 1 else None
    by = {j: constant(low) if i is None else shift(index(i), low)}
    guard = conjunction(store, [refresh(store, store.substitute_term(q, by)) for q in others])
    value = read(store, refresh(store, store.substitute_term(x, by)))
    rest = bound - {j} | ({i} if i is not None else set())
    return total(store, rest, select(store, guard, value, store.real(0)))


def _window(store: Store, bound: set[int], parts: list[Term], n: int) -> tuple[int, Expr, list[Term]] | None:
    below = parts[n].access[0]
    for j, s in below[1]:
        if j not in bound or s >= 0:
            continue
        size = -s
        e = store.add(below, (0, ((j, size),)))
        if not bound.isdisjoint(store.indices(e)):
            continue
        above = (size - 1 - e[0], tuple(sorted([*((t, -v) for t, v in e[1]), (j, size)])))
        for m, other in enumerate(parts):
            if other.cls == store.STEP and other.access[0] == above:
                low, high = store.range(e)
                rest = [p for k, p in enumerate(parts) if k not in (n, m)]
                if low is not None and low >= 0 and high is not None:
                    return j, store.digit(e, size, high // size + 1), rest
                extent = store.sizes[j]
                last = size * extent - 1
                inside = smallest(store, largest(store, e, constant(0)), constant(last))
                guard = [step(store, e), step(store, shift(scale(e, -1), last))]
                return j, store.digit(inside, size, extent), [*guard, *rest]
    return None


def _at(store: Store, bound: set[int], j: int, e: Expr, others: list[Term], x: Term) -> Term:
    guard = _held_at(store, j, e, others)
    by = {j: clamp(store, e, 0, store.sizes[j] - 1)}
    value = read(store, refresh(store, store.substitute_term(x, by)))
    return total(store, bound - {j}, select(store, conjunction(store, guard), value, store.real(0)))


def refresh(store: Store, t: Term) -> Term:
    """The term with limits inside its accesses simplified at the positions where they are now read."""
    c = store.classes[t.cls]
    if c.operands and not c.bound and c.kind == "real" and _limits(store, t.cls, ENTERED):
        from shardproof.passes.remake import remade

        operands = [refresh(store, read(store, x)) for x in store.expand(t)[0]]
        made = remade(store, c.op, c.attrs, c.kind, operands, ())
        return t if made is None else scaled(made, t.coef)
    return Term(t.coef, t.cls, tuple(_refresh(store, e) for e in t.access)) if t.cls not in (
        store.STEP,
        store.MATCH,
        store.REAL,
    ) else _rebuilt(store, t)


def _limits(store: Store, cls: int, depth: int) -> bool:
    """Whether a limit occurs in an access inside a class, a few operators deep."""
    c = store.classes[cls]
    if c.bound or depth == 0:
        return False
    for t in c.operands:
        for e in t.access:
            for u, _ in e[1]:
                atom = store.atom(u) if u < 0 else None
                if isinstance(atom, Element) and store.classes[atom.cls].op in ("maximum", "minimum"):
                    return True
    return any(_limits(store, t.cls, depth - 1) for t in c.operands)


def _rebuilt(store: Store, t: Term) -> Term:
    e = _refresh(store, t.access[0])
    if t.cls == store.STEP:
        return step(store, e)
    if t.cls == store.REAL:
        return scaled(real_of(store, e), t.coef)
    return match(store, e)


def _refresh(store: Store, e: Expr) -> Expr:
    out: Expr = constant(e[0])
    for t, s in e[1]:
        inner: Expr = (0, ((t, 1),))
        atom = store.atom(t) if t < 0 else None
        if isinstance(atom, Element) and store.classes[atom.cls].op in ("maximum", "minimum"):
            (a, b), _ = store.expand(Term(1, atom.cls, atom.access))
            limit = largest if store.classes[atom.cls].op == "maximum" else smallest
            inner = limit(
                store, _refresh(store, store.expression(a)), _refresh(store, store.expression(b))
            )
        out = store.add(out, scale(inner, s))
    return out
