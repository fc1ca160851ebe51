"""Access expressions: which element of a class is read, as a function of named indices.

An expression is `(offset, ((term, stride), ...))` with the terms in ascending order, each once and
with a nonzero stride. A positive term is an index; a negative one is an interned *atom*, an integer
computed elsewhere:

- `Digit(e, div, mod)`: `(e // div) % mod`, both floored;
- `Element(cls, access)`: the value of the integer class `cls` at an access.

Expressions are exact integer functions; every rewriting below is an identity for all values of the
indices within their extents. See docs/soundness.md for the rules that callers keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

Expr = tuple[int, tuple[tuple[int, int], ...]]
Range = tuple[int | None, int | None]
"""Smallest and largest value, None where unbounded."""

ZERO: Expr = (0, ())


class Digit(NamedTuple):
    """`(expr // div) % mod`."""

    expr: Expr
    div: int
    mod: int


class Element(NamedTuple):
    """The value of integer class `cls` read at `access`."""

    cls: int
    access: tuple[Expr, ...]


Atom = Digit | Element


def index(i: int) -> Expr:
    """The expression that is index `i` itself."""
    return (0, ((i, 1),))


def constant(value: int) -> Expr:
    """A constant expression."""
    return (value, ())


def scale(e: Expr, k: int) -> Expr:
    """`k * e`."""
    if k == 1:
        return e
    if k == 0:
        return ZERO
    return (e[0] * k, tuple((t, s * k) for t, s in e[1]))


def shift(e: Expr, k: int) -> Expr:
    """`e + k`."""
    return (e[0] + k, e[1])


class Accesses:
    """Extents of indices, interned atoms, and the algebra of expressions over them."""

    def __init__(self) -> None:
        self.sizes: list[int] = [1]
        self._atoms: list[Atom] = [Digit(ZERO, 1, 1)]
        self._ids: dict[Atom, int] = {}
        self._support: list[frozenset[int]] = [frozenset()]
        self.element_range: Callable[[int], Range] = lambda cls: (None, None)

    def fresh(self, size: int) -> int:
        """A new index of `size` >= 2 values."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def atom(self, term: int) -> Atom:
        """The atom behind a negative term."""
        return self._atoms[-term]

    def element(self, cls: int, access: tuple[Expr, ...]) -> Expr:
        """The expression that reads integer class `cls` at `access`."""
        return (0, ((self._intern(Element(cls, access)), 1),))

    def _intern(self, atom: Atom) -> int:
        found = self._ids.get(atom)
        if found is None:
            inner = (atom.expr,) if isinstance(atom, Digit) else atom.access
            self._atoms.append(atom)
            self._support.append(frozenset(i for e in inner for i in self.indices(e)))
            found = self._ids[atom] = 1 - len(self._atoms)
        return found

    def indices(self, e: Expr) -> Iterable[int]:
        """Every index that `e` depends on, also through atoms."""
        for t, _ in e[1]:
            if t > 0:
                yield t
            else:
                yield from self._support[-t]

    def inner(self, term: int) -> tuple[Expr, ...]:
        """The expressions inside an atom."""
        atom = self._atoms[-term]
        return (atom.expr,) if isinstance(atom, Digit) else atom.access

    # ranges

    def range(self, e: Expr) -> Range:
        """Bounds of the values of `e`, exact for affine expressions."""
        lo: int | None = e[0]
        hi: int | None = e[0]
        for t, s in e[1]:
            a, b = self.term_range(t)
            if s < 0:
                a, b = b, a
            lo = None if lo is None or a is None else lo + s * a
            hi = None if hi is None or b is None else hi + s * b
        return lo, hi

    def term_range(self, t: int) -> Range:
        if t > 0:
            return 0, self.sizes[t] - 1
        atom = self._atoms[-t]
        if isinstance(atom, Digit):
            return 0, atom.mod - 1
        return self.element_range(atom.cls)

    def within(self, e: Expr, lo: int, hi: int) -> bool:
        """Whether `lo <= e < hi` for all values of its indices."""
        a, b = self.range(e)
        return a is not None and b is not None and lo <= a and b < hi

    # algebra

    def add(self, a: Expr, b: Expr) -> Expr:
        """`a + b`."""
        if not b[1]:
            return (a[0] + b[0], a[1])
        if not a[1]:
            return (a[0] + b[0], b[1])
        return self.build(a[0] + b[0], a[1] + b[1])

    def build(self, offset: int, terms: Iterable[tuple[int, int]]) -> Expr:
        """The expression with these terms, like terms and adjacent digits of one expression joined."""
        total: dict[int, int] = {}
        digits = 0
        for t, s in terms:
            total[t] = total.get(t, 0) + s
            if t < 0 and isinstance(self._atoms[-t], Digit):
                digits += 1
        if digits:
            joined = self._join_digits(total) if digits > 1 else None
            if joined is None:
                joined = self._remainder(total)
            if joined is not None:
                return (joined[0] + offset, joined[1])
        return (offset, tuple(sorted((t, s) for t, s in total.items() if s)))

    def _join_digits(self, total: Mapping[int, int]) -> Expr | None:
        digits = [(t, a) for t in total if t < 0 and isinstance(a := self._atoms[-t], Digit) and total[t]]
        for t, low in digits:
            for u, high in digits:
                if (
                    t != u
                    and low.expr == high.expr
                    and high.div == low.div * low.mod
                    and total[u] == total[t] * low.mod
                ):
                    whole = scale(self.digit(low.expr, low.div, low.mod * high.mod), total[t])
                    rest = [(v, s) for v, s in total.items() if v != t and v != u]
                    return self.build(whole[0], [*whole[1], *rest])
        return None

    def _remainder(self, total: Mapping[int, int]) -> Expr | None:
        """`k*e - k*d*(e // d)` as `k * (e % d)`, where the digit is the whole quotient."""
        for t, s in total.items():
            if t > 0:
                continue
            atom = self._atoms[-t]
            if not isinstance(atom, Digit) or s % atom.div:
                continue
            if not self.within(atom.expr, 0, atom.div * atom.mod):
                continue
            k = -s // atom.div
            if k and atom.expr[1] and all(total.get(u) == k * v for u, v in atom.expr[1]):
                rest = scale(self.digit(atom.expr, 1, atom.div), k)
                gone = {t, *(u for u, _ in atom.expr[1])}
                kept = [(u, v) for u, v in total.items() if u not in gone]
                return self.build(rest[0] - k * atom.expr[0], [*rest[1], *kept])
        return None

    def digit(self, e: Expr, div: int, mod: int) -> Expr:
        """`(e // div) % mod` in simplest form."""
        period = div * mod
        if div == 1:
            e = self._unreduced(e, mod)
        terms = tuple((t, s) for t, s in e[1] if s % period)
        offset = e[0] % period
        low = tuple((t, s) for t, s in terms if s % div)
        if self.within((offset % div, low), 0, div):
            high: Expr = (offset // div, tuple((t, s // div) for t, s in terms if s % div == 0))
            lo, hi = self.range(high)
            if lo is not None and hi is not None and lo // mod == hi // mod:
                return shift(high, -(lo // mod) * mod)
            if div > 1:
                return self.digit(high, 1, mod)
        carried = self._carried((offset, terms), low, div, mod)
        if carried is not None:
            return carried
        apart = self._apart((offset, terms), div, mod)
        if apart is not None:
            return apart
        lo, hi = self.range((offset, terms))
        if lo is not None and hi is not None and lo >= 0:
            mod = min(mod, hi // div + 1)
        if mod == 1:
            return ZERO
        if offset == 0 and len(terms) == 1 and terms[0][0] < 0 and terms[0][1] == 1:
            atom = self._atoms[-terms[0][0]]
            if isinstance(atom, Digit) and atom.mod % div == 0 and (atom.mod // div) % mod == 0:
                return self.digit(atom.expr, atom.div * div, mod)
        return (0, ((self._intern(Digit((offset, terms), div, mod)), 1),))

    def _unreduced(self, e: Expr, mod: int) -> Expr:
        """`e` up to multiples of `mod`, with what is reduced by a multiple of it already not reduced."""
        e = (e[0], tuple(x for x in e[1] if x[1] % mod))
        for t, s in e[1]:
            atom = self._atoms[-t] if t < 0 else None
            if isinstance(atom, Digit) and atom.div == 1 and s * atom.mod % mod == 0:
                rest = (e[0], tuple(x for x in e[1] if x[0] != t))
                return self._unreduced(self.add(rest, scale(atom.expr, s)), mod)
        return e

    def _carried(self, e: Expr, low: tuple[tuple[int, int], ...], div: int, mod: int) -> Expr | None:
        """`(div*h + l) // div` as `h + l // div`, where that stays below `mod`."""
        lowest: Expr = (e[0] % div, low)
        high: Expr = (e[0] // div, tuple((t, s // div) for t, s in e[1] if s % div == 0))
        lo, hi = self.range(lowest)
        if high == ZERO or lo is None or hi is None or lo < 0:
            return None
        total = self.add(high, self.digit(lowest, div, hi // div + 1))
        return total if self.within(total, 0, mod) else None

    def _apart(self, e: Expr, div: int, mod: int) -> Expr | None:
        """`(g*h + l) // (g*d)` as `h // d`, `(g*h + l) % (g*m)` as `g * (h % m) + l`, where `0 <= l < g`."""
        whole = div if div > 1 else mod
        for g in sorted({abs(s) for _, s in e[1] if whole % s == 0 and abs(s) > 1}, reverse=True):
            low: Expr = (e[0] % g, tuple((t, s) for t, s in e[1] if s % g))
            if not self.within(low, 0, g):
                continue
            high: Expr = (e[0] // g, tuple((t, s // g) for t, s in e[1] if s % g == 0))
            if div > 1:
                return self.digit(high, div // g, mod)
            return self.add(scale(self.digit(high, 1, mod // g), g), low)
        return None

    def substitute(self, e: Expr, by: Mapping[int, Expr]) -> Expr:
        """`e` with indices replaced; indices not in `by` stay."""
        offset, terms = e
        if not terms:
            return e
        if len(terms) == 1:
            t, s = terms[0]
            if t > 0:
                r = by.get(t)
                if r is None:
                    return e
                if s == 1:
                    return (r[0] + offset, r[1]) if offset else r
                return (offset + r[0] * s, tuple((u, v * s) for u, v in r[1]))
        out: list[tuple[int, int]] = []
        changed = False
        for t, s in terms:
            if t > 0:
                r = by.get(t)
                if r is None:
                    out.append((t, s))
                    continue
            else:
                if self._support[-t].isdisjoint(by):
                    out.append((t, s))
                    continue
                r = self._rebuild(t, lambda x: self.substitute(x, by))
            changed = True
            offset += r[0] * s
            for u, v in r[1]:
                out.append((u, v * s))
        return self.build(offset, out) if changed else e

    def _rebuild(self, t: int, f: Callable[[Expr], Expr]) -> Expr:
        atom = self._atoms[-t]
        if isinstance(atom, Digit):
            return self.digit(f(atom.expr), atom.div, atom.mod)
        return self.element(atom.cls, tuple(f(x) for x in atom.access))

    def collapse(self, e: Expr, dropped: frozenset[int] | set[int], renamed: Mapping[int, int]) -> Expr:
        """`e` after merges: terms of `dropped` indices vanish, merged low indices take their new name."""
        out: list[tuple[int, int]] = []
        changed = False
        offset = e[0]
        for t, s in e[1]:
            if t > 0:
                if t in dropped:
                    changed = True
                elif t in renamed:
                    out.append((renamed[t], s))
                    changed = True
                else:
                    out.append((t, s))
                continue
            support = self._support[-t]
            if support.isdisjoint(dropped) and support.isdisjoint(renamed):
                out.append((t, s))
                continue
            changed = True
            r = self._rebuild(t, lambda x: self.collapse(x, dropped, renamed))
            offset += r[0] * s
            out += [(u, v * s) for u, v in r[1]]
        return self.build(offset, out) if changed else e

    def flatten(self, indices: Iterable[int]) -> Expr:
        """The row-major position of a list of indices."""
        terms, stride = [], 1
        for i in reversed(tuple(indices)):
            terms.append((i, stride))
            stride *= self.sizes[i]
        return (0, tuple(sorted(terms)))
