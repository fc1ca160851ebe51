"""Random programs in which lemmas and algebra apply often: sides of lemmas, softmax fragments, blocks, rings,
masks and one-hot sums, some with infinities."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, Final

import numpy as np
from evaluated import agree, equal_views, ranks_of, text
from random_operators import MAKERS
from random_sides import LemmaGraph, add_lemma, masked

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.lemmas.terms import Lemma
from shardproof.passes.classes import Store
from shardproof.passes.evaluate import Evaluation
from shardproof.passes.normalise import Normalised, input_view, new_store, normalise
from shardproof.solver.search.rewriting import Rules, Search

MESHES: Final = (Mesh(), Mesh(), Mesh((("tp", 2),)), Mesh((("tp", 3),)), Mesh((("tp", 4),)))
LARGEST_CLASS: Final = 1e9
SECONDS: Final = 10.0
"""A program that takes longer to normalise has blown up."""


class Slow(Exception):
    """Normalising took longer than it may."""


# fragments


def _function(g: LemmaGraph) -> None:
    v = g.pick("real")
    if v:
        names = ["exponential", "exponential", "log", "logistic", "tanh", "sqrt", "rsqrt", "negate"]
        g.add(g.draw.choice(names), (v,))


def _combine(g: LemmaGraph) -> None:
    v = g.pick("real")
    w = g.like(v) if v else None
    if v and w:
        names = ["add", "subtract", "subtract", "multiply", "multiply", "divide", "maximum", "minimum"]
        g.add(g.draw.choice(names), (v, w))


def _like_inputs(g: LemmaGraph) -> None:
    v = g.pick("real")
    if v:
        g.input(v.type.dtype, v.type.shape)


def _small(g: LemmaGraph) -> None:
    v = g.pick("real", least=1)
    if v:
        c = g.number(g.draw.choice([0.5, 0.25, 2, -1, -0.5, 3]), v.type.shape, v.type.dtype)
        if c:
            g.add("multiply", (v, c))


def reduced(g: LemmaGraph, v: Value, dims: tuple[int, ...], kind: str) -> Value | None:
    """The sum, maximum or minimum over `dims`."""
    start = {"sum": 0.0, "max": -np.inf, "min": np.inf}[kind]
    before, g.special = g.special, True
    c = g.constant(np.asarray(start), v.type.dtype)
    g.special = before
    if c is None:
        return None
    if kind != "sum":
        g.pool.remove(c)
    return g.add("reduce", (v, c), dims=dims, kind=kind)


def _softmax(g: LemmaGraph) -> None:
    """A softmax or part of it, shifted by a maximum, by something constant, or by something that is not."""
    v = g.pick("real", least=1)
    if v is None:
        return
    if g.special and g.draw.random() < 0.5:
        v = masked(g, v) or v
    n = len(v.type.shape)
    d = g.draw.randrange(n)
    kept = tuple(k for k in range(n) if k != d)
    style = g.draw.randrange(5)
    shift: Value | None = None
    if style <= 1:
        m = reduced(g, v, (d,), g.draw.choice(["max", "max", "min", "sum"]))
        shift = g.spread(m, v.type.shape, kept) if m else None
    elif style == 2:
        shape = tuple(v.type.shape[k] for k in kept)
        fit = [w for w in g.pool if w.type.dtype is v.type.dtype and w.type.shape == shape]
        shift = g.spread(g.draw.choice(fit), v.type.shape, kept) if fit else None
    elif style == 3:
        shift = g.like(v)
    x = g.add("subtract", (v, shift)) if shift else v
    e = g.add("exponential", (x,)) if x else None
    if e is None:
        return
    if g.draw.random() < 0.3:
        w = g.like(e)
        e = (g.add("multiply", (e, w)) if w else None) or e
    s = reduced(g, e, (d,), "sum")
    if s is None:
        return
    if g.draw.random() < 0.3:
        log = g.add("log", (s,))
        m = g.pool[-1]
        if log and shift is not None and style <= 1:
            same = [w for w in g.pool if w.type.shape == log.type.shape and w.type.dtype is log.type.dtype]
            g.add("add", (log, g.draw.choice(same)))
        return
    wide = g.spread(s, v.type.shape, kept)
    if wide:
        g.add("divide", (e, wide))


def _blocks(g: LemmaGraph) -> None:
    """Slices of one value, each reduced or mapped, combined again."""
    v = g.pick("real", "int", "bool", least=1)
    if v is None:
        return
    n = len(v.type.shape)
    d = g.draw.randrange(n)
    size = v.type.shape[d]
    cuts = sorted({0, size, *(g.draw.randint(0, size) for _ in range(g.draw.randint(1, 3)))})
    parts: list[Value] = []
    how = g.draw.choice(["sum", "max", "exp", "none"])
    if how in ("sum", "max", "exp") and v.type.dtype.kind != "real":
        how = "none"
    for a, b in pairwise(cuts):
        starts, limits = [0] * n, list(v.type.shape)
        starts[d], limits[d] = a, b
        p = g.add("slice", (v,), starts=tuple(starts), limits=tuple(limits), strides=(1,) * n)
        if p is None:
            return
        q: Value | None = p
        if how in ("sum", "max"):
            q = reduced(g, p, (d,), how)
        elif how == "exp":
            e = g.add("exponential", (p,))
            q = reduced(g, e, (d,), "sum") if e else None
        if q is None:
            return
        parts.append(q)
    if g.draw.random() < 0.3:
        g.draw.shuffle(parts)
    if not parts:
        return
    if how == "none":
        g.add("concatenate", tuple(parts), dim=d)
        return
    total = parts[0]
    for p in parts[1:]:
        joined = g.add("maximum" if how == "max" else "add", (total, p))
        if joined is None:
            return
        total = joined


def _ring(g: LemmaGraph) -> None:
    """What the ranks hold, passed around and combined at each turn; or read from a copy by the rank."""
    n = g.mesh.size
    v = g.pick("real")
    if v is None or n == 1:
        return
    step = g.draw.choice([1, 1, 1, -1, 2])
    turns = g.draw.choice([n, n, n, n - 1])
    weigh = g.draw.random() < 0.4
    total: Value | None = None
    x: Value | None = v
    kind = g.draw.choice(["add", "add", "maximum"])
    for _ in range(turns):
        if x is None:
            return
        y: Value | None = x
        if weigh:
            y = g.add("multiply", (x, v))
        elif g.draw.random() < 0.1:
            y = g.add("exponential", (x,))
        if y is None:
            return
        total = y if total is None else g.add(kind, (total, y))
        if total is None:
            return
        x = g.add("collective_permute", (x,), pairs=tuple((r, (r + step) % n) for r in range(n)))


def _turned(g: LemmaGraph) -> None:
    """Blocks of a copy read at (rank + t) % n or rank - t, combined."""
    n = g.mesh.size
    v = g.pick("real", least=1)
    if v is None or n == 1:
        return
    dims = [d for d, m in enumerate(v.type.shape) if m and m % n == 0]
    if not dims:
        return
    d = g.draw.choice(dims)
    m = v.type.shape[d] // n
    r = g.add("rank_id", (), TensorType(DType.S32, ()))
    zero = g.constant(0, DType.S32)
    if r is None or zero is None:
        return
    total: Value | None = None
    scale = g.draw.choice([m, m, m, 1])
    kind = g.draw.choice(["add", "add", "maximum"])
    for t in range(n):
        c, size, k = g.constant(t, DType.S32), g.constant(n, DType.S32), g.constant(scale, DType.S32)
        s = g.add("add", (r, c)) if c else None
        if g.draw.random() < 0.95:
            s = g.add("remainder", (s, size)) if s and size else None
        start = g.add("multiply", (s, k)) if s and k else None
        if start is None:
            return
        sizes = [m if j == d else x for j, x in enumerate(v.type.shape)]
        starts = [start if j == d else zero for j in range(len(sizes))]
        part = g.add("dynamic_slice", (v, *starts), sizes=tuple(sizes))
        if part is not None and g.draw.random() < 0.5:
            part = reduced(g, part, (d,), "sum")
        if part is None:
            return
        total = part if total is None else g.add(kind, (total, part))
        if total is None:
            return


def _collected(g: LemmaGraph) -> None:
    v = g.pick("real")
    if v is None or g.mesh.size == 1:
        return
    groups = (tuple(range(g.mesh.size)),)
    n = len(v.type.shape)
    match g.draw.randrange(4):
        case 0 | 1:
            g.add("all_reduce", (v,), kind=g.draw.choice(["sum", "sum", "max"]), groups=groups)
        case 2 if n:
            w = g.add("all_gather", (v,), dim=g.draw.randrange(n), groups=groups)
            if w:
                reduced(g, w, (g.draw.randrange(n),), g.draw.choice(["sum", "max"]))
        case 3 if n:
            split, joined = g.draw.randrange(n), g.draw.randrange(n)
            g.add("all_to_all", (v,), split_dim=split, concat_dim=joined, groups=groups)


def _positions(g: LemmaGraph) -> None:
    """A mask of positions, with constants, each other or the rank; then a selection, nested sometimes."""
    v = g.pick("real", least=1)
    if v is None:
        return
    shape = v.type.shape
    wide = TensorType(DType.S32, shape)
    a = g.add("iota", (), wide, dim=g.draw.randrange(len(shape)))
    style = g.draw.randrange(4)
    if style == 0:
        b = g.add("iota", (), wide, dim=g.draw.randrange(len(shape)))
    elif style == 1:
        r = g.add("rank_id", (), TensorType(DType.S32, ()))
        c = g.constant(g.draw.choice([1, 2]), DType.S32)
        s = g.add("multiply", (r, c)) if r and c else None
        b = g.spread(s, shape, ()) if s else None
    else:
        b = g.number(g.draw.randint(-1, 3), shape, DType.S32)
    if a is None or b is None:
        return
    if g.draw.random() < 0.3:
        shifted = g.add("add", (a, b))
        a = g.add(g.draw.choice(["maximum", "minimum"]), (a, b)) or a
        a = shifted or a
    p = g.add("compare", (a, b), direction=g.draw.choice(["EQ", "LT", "LE", "NE", "GE", "GT"]), total=False)
    if p is None:
        return
    q = g.like(v, "bool", same=False)
    if q and g.draw.random() < 0.4:
        p = g.add(g.draw.choice(["and", "or"]), (p, q)) or p
    zero = g.number(g.draw.choice([0, 0, 0, 1, -50]), shape, v.type.dtype)
    w = g.like(v) if g.draw.random() < 0.3 else zero
    if g.draw.random() < 0.4:
        one = g.add("convert", (p,), v.type)
        if one:
            g.add("multiply", (one, v))
    elif w:
        made = g.add("select", (p, v, w) if g.draw.random() < 0.6 else (p, w, v))
        if made and g.draw.random() < 0.5:
            again = g.add("select", (p, made, v))
            if again:
                reduced(g, again, (g.draw.randrange(len(shape)),), g.draw.choice(["sum", "max"]))


def _infinite(g: LemmaGraph) -> None:
    v = g.pick("real", least=1)
    if v and g.special:
        m = masked(g, v)
        if m and g.draw.random() < 0.5:
            reduced(g, m, (g.draw.randrange(len(v.type.shape)),), g.draw.choice(["max", "sum", "max"]))


def _again(g: LemmaGraph) -> None:
    """A value computed twice, as a difference or a quotient of equal things."""
    v = g.pick("real")
    w = g.like(v) if v else None
    if v is None or w is None:
        return
    x, y = g.add("add", (v, w)), g.add("add", (w, v))
    if x and y:
        z = g.add("subtract", (x, y))
        if z:
            g.add("add", (z, v))


def _distributed(g: LemmaGraph) -> None:
    """`a*b + a*c`, sums of products along a dim with factors that do not read it."""
    v = g.pick("real", least=1)
    w = g.like(v) if v else None
    u = g.like(v) if v else None
    if v is None or w is None or u is None:
        return
    a, b = g.add("multiply", (v, w)), g.add("multiply", (v, u))
    s = g.add(g.draw.choice(["add", "subtract"]), (a, b)) if a and b else None
    if s:
        d = g.draw.randrange(len(v.type.shape))
        t = reduced(g, s, (d,), "sum")
        kept = tuple(k for k in range(len(v.type.shape)) if k != d)
        wide = g.spread(t, v.type.shape, kept) if t else None
        if wide:
            g.add("multiply", (wide, v))


FRAGMENTS: Final[tuple[Callable[[LemmaGraph], Any], ...]] = (
    *(_function, _function, _combine, _combine, _combine, _like_inputs, _small, _softmax, _softmax),
    *(_blocks, _blocks, _ring, _turned, _collected, _positions, _positions, _again, _distributed, _infinite),
)

SHAPES: Final = ((2,), (3,), (4,), (6,), (2, 3), (3, 2), (4, 3), (2, 4), (1, 3), (2, 2, 3), (4, 4))


def random_lemma_graph(draw: Random, lemmas: list[Lemma], *, size: int = 24) -> LemmaGraph:
    """A program of about `size` operators with a few sides of `lemmas` in it."""
    g = LemmaGraph(draw, draw.choice(MESHES), special=draw.random() < 0.35)
    g.input(DType.F64, draw.choice(SHAPES))
    g.input(DType.F64, draw.choice(SHAPES))
    if g.mesh.size > 1:
        v = g.input(DType.F64, (g.mesh.size, *draw.choice(SHAPES)))
        r = g.add("rank_id", (), TensorType(DType.S32, ()))
        zero = g.constant(0, DType.S32)
        if r and zero:
            rest = v.type.shape[1:]
            row = g.add("dynamic_slice", (v, r, *[zero] * len(rest)), sizes=(1, *rest))
            if row:
                g.add("reshape", (row,), TensorType(v.type.dtype, rest))
    favoured = [draw.choice(FRAGMENTS) for _ in range(3)]
    tries = 0
    while len(g.ops) < size and tries < 4 * size:
        tries += 1
        style = draw.random()
        if lemmas and style < 0.25:
            add_lemma(g, draw.choice(lemmas))
        elif style < 0.55:
            draw.choice(favoured)(g)
        elif style < 0.9:
            draw.choice(FRAGMENTS)(g)
        else:
            draw.choice(MAKERS)(g)
    return g


# checking


def check_lemma_graph(
    g: LemmaGraph, rules: Rules | None, *, lenient: bool = False, algebra: bool = True
) -> Counter[str]:
    """Every value and every rewritten class equals plain interpretation; how often each lemma was used.

    Raises AssertionError with the program, or Slow.
    """
    store = new_store(folding=True, lenient=lenient, algebra=algebra)
    end = time.monotonic() + SECONDS

    def check() -> None:
        if time.monotonic() > end:
            raise Slow(text(g))

    store.check = check
    search = Search(store, rules) if rules is not None else None
    if search is not None:
        search.begin()
    inputs = {}
    for x in g.inputs:
        low, high = g.ranges.get(x.name, (None, None))
        inputs[x.name] = input_view(store, x.value, low=low, high=high)
    state = normalise(store, g.module(), inputs)
    used = Counter(i.lemma for i in search.instances) if search is not None else Counter()
    if any(kind in ("ids_in_range", "distinct_indices", "finite_value") for kind, _ in store.assumptions):
        return used
    if lenient and g.special:
        return used
    _check_values(g, store, state)
    return used


def _check_values(g: LemmaGraph, store: Store, state: Normalised) -> None:
    evaluation = Evaluation(store, {x.name: g.values[x.name][0] for x in g.inputs})
    drawn: set[str] = set()
    for op in g.ops:
        names = {v.name for v in op.results}
        if names & state.opaque.keys() or drawn & {v.name for v in op.operands}:
            drawn |= names
    places = list(ranks_of(state))
    for v in g.pool:
        if v.name in drawn:
            continue
        for rank, at in enumerate(places):
            found = evaluation.view(state.views[v.name], at)
            wanted = g.values[v.name][rank]
            message = f"{v.name} on rank {rank}: {found.tolist()} is not {wanted.tolist()}\n{text(g)}"
            assert agree(found, wanted), message
    _check_rewritten(g, store, evaluation)
    for n, a in enumerate(g.pool):
        for b in g.pool[:n]:
            x, y = state.views[a.name], state.views[b.name]
            if x.shape != y.shape or 0 in x.shape or x.dtype is not y.dtype or x.term.cls != y.term.cls:
                continue
            if equal_views(store, x, y):
                for p, q in zip(g.values[a.name], g.values[b.name], strict=True):
                    assert agree(p, q), f"{a.name} and {b.name} have equal views\n{text(g)}"


def _exact_enough(store: Store, evaluation: Evaluation) -> bool:
    """Whether no class is so large that its rounding shows in differences."""
    for cls, c in enumerate(store.classes):
        if c.kind == "real" and None not in c.extents:
            table = evaluation.table(cls)
            if table.size and np.abs(np.where(np.isfinite(table), table, 0)).max() > LARGEST_CLASS:
                return False
    return True


def _check_rewritten(g: LemmaGraph, store: Store, evaluation: Evaluation) -> None:
    if not _exact_enough(store, evaluation):
        return
    for cls, made in list(store.rewritten.items()):
        if made is None or cls >= len(store.classes):
            continue
        c = store.classes[cls]
        table = evaluation.table(cls)
        at = {
            i: np.arange(n).reshape([n if k == d else 1 for k in range(len(made.slots))])
            for d, (i, n) in enumerate(zip(made.slots, table.shape, strict=True))
        }
        with np.errstate(all="ignore"):
            new = np.broadcast_to(evaluation.term(made.term, at), table.shape)
        finite = np.isfinite(table.astype(np.float64)) & np.isfinite(new.astype(np.float64))
        ok = np.isclose(table, new, rtol=1e-6, atol=1e-5) | ~finite if not c.special else np.isclose(
            table, new, rtol=1e-6, atol=1e-5, equal_nan=True
        )
        message = f"class {cls} {c.op}: {table.tolist()} is rewritten to {new.tolist()}\n{text(g)}"
        assert bool(np.all(ok)), message
