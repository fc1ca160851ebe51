"""Two terms compared at random points, so that a wrong rewriting shows at any extent.

A class is computed at a few positions only, straight from its definition. Classes below the compared terms
may be *cut*: each is then a random function of its positions that keeps what is recorded of its kind, range
and sign. Nothing is interned, and nothing here is shared with the rewriting that is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.passes.access import Element, Expr
from shardproof.passes.classes import UNKNOWN_SIGN, Class, Store, Term
from shardproof.passes.evaluate import CONSTANTS, POINTWISE, REDUCTIONS, WHOLE_INTEGERS, EvaluationError

Grid = Any
"""An array whose dims are those of the points and of the bound indices around it."""

POINTS: Final = 3
TRIALS: Final = 8
"""How many choices of random functions are tried until some point has a value, which a masked row has not."""
LEVELS: Final = 5
"""How often cuts are moved down before terms that still differ are different."""
WIDTH: Final = 48
"""Most classes that one level looks through."""
BUDGET: Final = 1 << 18
"""Most elements of one grid."""
VISITS: Final = 6_000
RELATIVE: Final = 1e-6
SMALL: Final = 1e-3
"""Values are drawn of a magnitude near 1; a difference below RELATIVE * SMALL is rounding."""


class TooLarge(Exception):
    """The terms cannot be computed within the budget."""


def difference(store: Store, a: Term, b: Term, parts: Iterable[int], seed: int = 0) -> str | None:
    """How two terms over the same indices differ at random points; None when they agree.

    `parts` are classes of which both are made, where cutting may begin. Raises TooLarge when the values
    can be compared at no point, EvaluationError for a read that is out of range.
    """
    indices = sorted(store.term_indices(a) | store.term_indices(b))
    draw = np.random.default_rng(seed)
    at = {i: draw.integers(0, store.sizes[i], POINTS) for i in indices}
    found: str | None = None
    cuts = Cuts(store, parts)
    for _ in range(LEVELS):
        try:
            outcome = _compared(store, a, b, at, frozenset(cuts.cut), seed)
        except (TooLarge, RecursionError, OverflowError):
            if found is None:
                raise TooLarge from None
            return None if _agree_apart(store, a, b, at, cuts, seed) else found
        if outcome == "":
            return None
        found = outcome or found
        last = cuts.copy()
        if not cuts.lower():
            break
        cuts.before = last
    if found is None:
        raise TooLarge
    return found


def _agree_apart(
    store: Store, a: Term, b: Term, at: Mapping[int, Grid], cuts: Cuts, seed: int
) -> bool:
    """Whether the terms agree when only one of the classes that were cut last is moved below."""
    if cuts.before is None:
        return False
    for cls in sorted(cuts.before.cut, reverse=True):
        own = cuts.before.copy()
        if not own.lower_one(cls):
            continue
        try:
            if _compared(store, a, b, at, frozenset(own.cut), seed) == "":
                return True
        except (TooLarge, RecursionError, OverflowError):
            continue
    return False


def _compared(
    store: Store, a: Term, b: Term, at: Mapping[int, Grid], cut: frozenset[int], seed: int
) -> str | None:
    """Empty when the terms agree, how they differ, or None when no point can be compared."""
    seen = False
    for trial in range(TRIALS):
        values = Sampling(store, cut, seed + trial // 2, positive=bool(trial % 2))
        with np.errstate(all="ignore"):
            x = np.broadcast_to(values.term(a, at, 1), (POINTS,))
            y = np.broadcast_to(values.term(b, at, 1), (POINTS,))
            usable = np.isfinite(x) & np.isfinite(y)
            if x.dtype.kind in "bi":
                wrong = x != y
            else:
                scale = np.maximum(np.maximum(np.abs(x), np.abs(y)), SMALL)
                wrong = usable & ~(np.abs(x - y) <= RELATIVE * scale)
        if wrong.any():
            k = int(np.argmax(wrong))
            return f"at a random point one side is {x[k]:.6g}, the other {y[k]:.6g}"
        seen = seen or bool(usable.any())
        if seen:
            break
    return "" if seen else None


class Cuts:
    """The classes at which evaluation stops: first those below `parts` that bind indices, then lower ones."""

    def __init__(self, store: Store, parts: Iterable[int]) -> None:
        self.store = store
        self.cut: set[int] = set()
        self.seen: set[int] = set()
        self.before: Cuts | None = None
        self._descend(list(parts))

    def copy(self) -> Cuts:
        other = Cuts(self.store, ())
        other.cut, other.seen = set(self.cut), set(self.seen)
        return other

    def lower(self) -> bool:
        """Move below the classes that are cut; False when nothing is left to move."""
        return self._below([c for c in self.cut if self.store.classes[c].operands])

    def lower_one(self, cls: int) -> bool:
        """Move below one class; False when nothing is below it."""
        return self._below([cls] if self.store.classes[cls].operands else [])

    def _below(self, above: list[int]) -> bool:
        if not above:
            return False
        self.cut -= set(above)
        self._descend([x for c in above for x in _classes(self.store, self.store.classes[c].operands)])
        return True

    def _descend(self, level: list[int]) -> None:
        classes = self.store.classes
        count = 0
        while level:
            cls = level.pop()
            if cls in self.seen and cls not in self.cut:
                continue
            self.seen.add(cls)
            c = classes[cls]
            if c.op in WHOLE_INTEGERS or c.op in CONSTANTS:
                continue
            count += 1
            if c.bound or not c.operands or c.op not in POINTWISE or count > WIDTH:
                self.cut.add(cls)
            else:
                level += _classes(self.store, c.operands)


def _classes(store: Store, terms: Iterable[Term]) -> Iterable[int]:
    """The classes of terms and of what their positions read."""
    for t in terms:
        yield t.cls
        yield from _read(store, t.access)


def _read(store: Store, access: Iterable[Expr]) -> Iterable[int]:
    for e in access:
        for t, _ in e[1]:
            if t < 0:
                atom = store.atom(t)
                if isinstance(atom, Element):
                    yield atom.cls
                yield from _read(store, store.inner(t))


class Sampling:
    """Values of classes at points, for one random choice of the functions that are cut or free."""

    def __init__(self, store: Store, cut: frozenset[int], seed: int, *, positive: bool) -> None:
        self.store = store
        self.cut = cut
        self.seed = seed
        self.positive = positive
        self.visits = 0
        self._known: dict[tuple[Any, ...], Grid] = {}

    def term(self, t: Term, at: Mapping[int, Grid], dims: int) -> Grid:
        """The value of a term; every grid in `at` has `dims` dims."""
        whole = WHOLE_INTEGERS.get(self.store.classes[t.cls].op)
        if whole is not None:
            value = whole(self._expression(t.access[0], at, dims))
        else:
            value = self._class(t.cls, [self._expression(e, at, dims) for e in t.access], dims)
        return value if t.coef == 1 else float(t.coef) * value

    def _expression(self, e: Expr, at: Mapping[int, Grid], dims: int) -> Grid:
        total: Grid = np.full((1,) * dims, e[0], np.int64)
        for t, stride in e[1]:
            if t > 0:
                value = at[t]
            else:
                atom = self.store.atom(t)
                if isinstance(atom, Element):
                    places = [self._expression(x, at, dims) for x in atom.access]
                    value = self._class(atom.cls, places, dims)
                else:
                    value = (self._expression(atom.expr, at, dims) // atom.div) % atom.mod
            total = total + stride * value
        return total

    def _class(self, cls: int, places: Sequence[Grid], dims: int) -> Grid:
        c = self.store.classes[cls]
        if c.op in CONSTANTS:
            return CONSTANTS[c.op]
        for place, extent in zip(places, c.extents, strict=True):
            if extent is not None and (np.min(place) < 0 or np.max(place) >= extent):
                raise EvaluationError(f"{c.op} class {cls} of extent {extent} is read out of range")
        if cls in self.cut or c.op in ("input", "draw", "opaque"):
            return self._random(cls, c, places, dims)
        self.visits += 1
        if self.visits > VISITS:
            raise TooLarge
        key = (cls, dims, *((p.shape, p.tobytes()) for p in places)) if _few(places) else None
        found = self._known.get(key) if key is not None else None
        if found is None:
            found = self._computed(c, places, dims)
            if key is not None:
                self._known[key] = found
        return found

    def _computed(self, c: Class, places: Sequence[Grid], dims: int) -> Grid:
        if c.op == "literal":
            return np.asarray(complex(c.attrs[0]) if c.kind == "complex" else float(c.attrs[0]))
        if c.op == "table":
            shape, dtype, content = c.attrs
            return np.frombuffer(content, dtype).reshape(shape)[tuple(places)]
        if c.op == "concat":
            return self._concat(c, places, dims)
        inner, count = self._bind(c.free, places, c.bound, dims)
        values = [self.term(t, inner, count) for t in c.operands]
        if c.bound:
            own = [self.store.sizes[b] for b in c.bound]
            around = np.broadcast_shapes((1,) * count, *(p.shape for p in inner.values()))[:dims]
            value = np.broadcast_to(values[0], (*around, *own))
            reduced = REDUCTIONS[c.op](value, tuple(range(dims, count)))
            return POINTWISE["prod"](c, [reduced]) if c.attrs else reduced
        function = POINTWISE.get(c.op)
        if function is None:
            raise EvaluationError(f"class operator {c.op} is not known")
        return function(c, values)

    def _bind(
        self, free: Sequence[int], places: Sequence[Grid], bound: Sequence[int], dims: int
    ) -> tuple[dict[int, Grid], int]:
        """Values of the free indices and of every value of the bound ones, in dims of their own."""
        sizes = [self.store.sizes[b] for b in bound]
        around = np.broadcast_shapes(*(p.shape for p in places)) if places else ()
        if prod(sizes) * prod(around) > BUDGET:
            raise TooLarge
        count = dims + len(bound)
        at = {i: p.reshape(p.shape + (1,) * len(bound)) for i, p in zip(free, places, strict=True)}
        for n, (b, size) in enumerate(zip(bound, sizes, strict=True)):
            at[b] = np.arange(size).reshape([-1 if k == dims + n else 1 for k in range(count)])
        return at, count

    def _concat(self, c: Class, places: Sequence[Grid], dims: int) -> Grid:
        outer = dict(zip(c.free[:-1], places[:-1], strict=True))
        where, start, first = places[-1], 0, 0
        value: Grid = np.zeros((1,) * dims)
        for n, (t, extent, count) in enumerate(zip(c.operands, c.attrs, c.groups, strict=True)):
            own, first = c.bound[first : first + count], first + count
            local = np.clip(where - start, 0, extent - 1)
            at, stride = dict(outer), 1
            for b in reversed(own):
                size = self.store.sizes[b]
                at[b], stride = (local // stride) % size, stride * size
            piece = self.term(t, at, dims)
            value = piece if n == 0 else np.where(where >= start, piece, value)
            start += extent
        return value

    def _random(self, cls: int, c: Class, places: Sequence[Grid], dims: int) -> Grid:
        """A random function of the positions with the class's kind, range and sign."""
        mixed: Grid = np.full((1,) * dims, (cls * 0x9E3779B97F4A7C15 + self.seed) % (1 << 64), np.uint64)
        for place in places:
            mixed = _hashed(mixed ^ place.astype(np.uint64))
        bits = _hashed(mixed)
        if c.kind == "bool":
            return bits % np.uint64(2) == 0
        if c.kind == "real":
            value = 0.25 + (bits >> np.uint64(11)).astype(np.float64) / float(1 << 53)
            if self.positive or c.sign != UNKNOWN_SIGN:
                return value
            return np.where(bits % np.uint64(2) == 0, value, -value)
        if c.kind == "complex":
            return (bits % np.uint64(97)).astype(np.float64) + 1j * (bits % np.uint64(89)).astype(np.float64)
        low, high = _range(c)
        return (bits % np.uint64(high - low + 1)).astype(np.int64) + low


def _few(places: Sequence[Grid]) -> bool:
    return sum(int(p.size) for p in places) <= 64


def _range(c: Class) -> tuple[int, int]:
    """A range of integers within the class's own: all of it, or a part near zero."""
    low = c.low if c.low is not None else min(-8, c.high or 0)
    high = c.high if c.high is not None else max(8, low)
    if high - low > 1 << 20:
        low, high = max(low, min(-8, high)), min(high, max(low, 8))
    return low, max(low, high)


def _hashed(x: Grid) -> Grid:
    """Bits of each element stirred (splitmix64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
