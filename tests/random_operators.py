"""Ways to add one operator, or a few that belong together, to a random program."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from random_graphs import MESHES, SHAPES, Graph

from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType

Maker = Callable[[Graph], Any]


def _unary(g: Graph) -> None:
    v = g.pick()
    if v is None:
        return
    kind = v.type.dtype.kind
    names = {
        "real": [
            "negate",
            "abs",
            "exponential",
            "sign",
            "floor",
            "negate",
            "abs",
            "is_finite",
            "tanh",
            "logistic",
        ],
        "int": ["negate", "abs", "sign", "not", "popcnt"],
        "uint": ["not", "popcnt", "sign"],
        "bool": ["not"],
    }
    g.add(g.draw.choice(names[kind]), (v,))


def _binary(g: Graph) -> None:
    v = g.pick()
    w = g.like(v) if v else None
    if v is None or w is None:
        return
    kind = v.type.dtype.kind
    names = {
        "real": ["add", "subtract", "multiply", "maximum", "minimum", "add", "multiply", "subtract"],
        "int": ["add", "subtract", "multiply", "maximum", "minimum", "divide", "remainder", "and", "or"],
        "uint": ["add", "subtract", "multiply", "maximum", "minimum", "divide", "remainder", "xor"],
        "bool": ["and", "or", "xor", "add", "multiply", "maximum"],
    }
    g.add(g.draw.choice(names[kind]), (v, w))


def _scale(g: Graph) -> None:
    v = g.pick("real", "int", "uint")
    if v is None:
        return
    number = g.draw.choice([0, 1, 2, 3, 4, 6])
    if v.type.dtype.kind != "uint":
        number *= g.draw.choice([1, -1])
    c = g.scalar(v, number)
    b = g.add("broadcast_in_dim", (c,), TensorType(v.type.dtype, v.type.shape), dims=()) if c else None
    if b is not None:
        pair = (v, b) if g.draw.random() < 0.7 else (b, v)
        names = ["multiply", "add", "subtract", "maximum", "minimum"]
        if v.type.dtype.kind != "real" or number:
            names += ["divide"]
        g.add(g.draw.choice([*names, *(["remainder"] if v.type.dtype.kind != "real" else [])]), pair)


def _divide(g: Graph) -> None:
    """A quotient or a power of something positive."""
    v = g.pick("real")
    w = g.like(v) if v else None
    if v is None or w is None:
        return
    square = g.add("multiply", (w, w))
    one = g.scalar(v, 1.0)
    ones = g.add("broadcast_in_dim", (one,), v.type, dims=()) if one else None
    safe = g.add("add", (square, ones)) if square and ones else None
    if safe is None:
        return
    match g.draw.randrange(5):
        case 0:
            g.add("divide", (v, safe))
        case 1:
            g.add("sqrt", (safe,))
        case 2:
            g.add("rsqrt", (safe,))
        case 3:
            q = g.add("divide", (v, safe))
            if q:
                g.add("multiply", (q, safe))
        case _:
            c = g.scalar(v, g.draw.choice([0.5, -1.0, 2.0, -0.5, 3.0]))
            e = g.add("broadcast_in_dim", (c,), v.type, dims=()) if c else None
            if e:
                g.add("power", (safe, e))


def _compare(g: Graph) -> None:
    v = g.pick()
    w = g.like(v) if v else None
    if v and w:
        direction = g.draw.choice(["EQ", "NE", "LT", "LE", "GT", "GE"])
        g.add("compare", (v, w), direction=direction, total=False)


def _select(g: Graph) -> None:
    v = g.pick()
    w = g.like(v) if v else None
    p = g.like(v, "bool", same=False) if v else None
    if p is None:
        p = g.pick("bool", rank=0)
    if v and w and p:
        g.add("select", (p, v, w))


def _clamp(g: Graph) -> None:
    v = g.pick("real", "int")
    if v is None:
        return
    low, high = g.scalar(v, g.draw.choice([-2, 0, 0])), g.scalar(v, g.draw.choice([2, 3, 5]))
    if low and high:
        g.add("clamp", (low, v, high))


def _mask(g: Graph) -> None:
    """A comparison of positions, possibly with the rank."""
    v = g.pick(least=1)
    if v is None:
        return
    shape = v.type.shape
    type_ = TensorType(DType.S32, shape)
    a = g.add("iota", (), type_, dim=g.draw.randrange(len(shape)))
    if a is None:
        return
    if g.draw.random() < 0.5:
        b = g.add("iota", (), type_, dim=g.draw.randrange(len(shape)))
    else:
        s = g.start()
        b = g.add("broadcast_in_dim", (s,), type_, dims=()) if s else None
    if b is None:
        return
    p = g.add("compare", (a, b), direction=g.draw.choice(["EQ", "LT", "LE", "NE", "GE"]), total=False)
    w = g.like(v)
    if p and w and g.draw.random() < 0.7:
        if g.draw.random() < 0.5:
            zero = g.scalar(v, 0)
            w = g.add("broadcast_in_dim", (zero,), v.type, dims=()) if zero else None
        if w:
            g.add("select", (p, v, w))


def _one_hot(g: Graph) -> None:
    """`sum[j](where(j == e, x[j], 0))` and windows of it."""
    ids = g.pick("int", least=1)
    v = g.pick("real", rank=1)
    if ids is None or v is None or len(ids.type.shape) > 2:
        return
    n = v.type.shape[0]
    shape = (*ids.type.shape, n)
    wide = TensorType(DType.S32, shape)
    dims = tuple(range(len(shape) - 1))
    if ids.type.dtype is not DType.S32:
        return
    e = g.add("broadcast_in_dim", (ids,), wide, dims=dims)
    j = g.add("iota", (), wide, dim=len(shape) - 1)
    x = g.add("broadcast_in_dim", (v,), TensorType(v.type.dtype, shape), dims=(len(shape) - 1,))
    if e is None or j is None or x is None:
        return
    if g.draw.random() < 0.5:
        low, high = g.constant(0, DType.S32), g.constant(g.draw.choice([3, n - 1, 2 * n]), DType.S32)
        clamped = g.add("clamp", (low, e, high)) if low and high and e else None
        e = clamped or e
    if e is None:
        return
    if g.draw.random() < 0.4:
        k = g.constant(g.draw.choice([2, 3]), DType.S32)
        b = g.add("broadcast_in_dim", (k,), wide, dims=()) if k else None
        scaled = g.add("multiply", (j, b)) if b else None
        next_ = g.add("add", (scaled, b)) if scaled and b else None
        if scaled is None or next_ is None:
            return
        above = g.add("compare", (e, scaled), direction="GE", total=False)
        below = g.add("compare", (e, next_), direction="LT", total=False)
        p = g.add("and", (above, below)) if above and below else None
    else:
        p = g.add("compare", (e, j), direction="EQ", total=False)
    zero = g.scalar(x, 0)
    zeros = g.add("broadcast_in_dim", (zero,), x.type, dims=()) if zero else None
    if p is None or zeros is None or zero is None:
        return
    if g.draw.random() < 0.5:
        y = g.add("select", (p, x, zeros))
    else:
        c = g.add("convert", (p,), x.type)
        y = g.add("multiply", (c, x)) if c else None
    if y:
        g.add("reduce", (y, zero), dims=(len(shape) - 1,), kind="sum")


def _convert(g: Graph) -> None:
    v = g.pick()
    if v:
        dtype = g.draw.choice([DType.F32, DType.S32, DType.BOOL, DType.U8, DType.S8, DType.F32, DType.S32])
        g.add("convert", (v,), TensorType(dtype, v.type.shape))


def _reshape(g: Graph) -> None:
    v = g.pick()
    if v is None:
        return
    shapes = [
        s for s in (*SHAPES, (2, 2, 2), (3, 4), (4, 6), (6, 4), (2, 3, 2)) if int(np.prod(s)) == v.type.size
    ]
    if shapes:
        w = g.add("reshape", (v,), TensorType(v.type.dtype, g.draw.choice(shapes)))
        if w and g.draw.random() < 0.5 and len(w.type.shape) > 1:
            g.add("transpose", (w,), permutation=_permutation(g, len(w.type.shape)))


def _permutation(g: Graph, n: int) -> tuple[int, ...]:
    order = list(range(n))
    g.draw.shuffle(order)
    return tuple(order)


def _transpose(g: Graph) -> None:
    v = g.pick(least=1)
    if v:
        g.add("transpose", (v,), permutation=_permutation(g, len(v.type.shape)))


def _broadcast(g: Graph) -> None:
    v = g.pick()
    if v is None:
        return
    n = len(v.type.shape)
    extra = g.draw.randint(0, 1)
    dims = tuple(sorted(g.draw.sample(range(n + extra), n)))
    shape = [g.draw.choice([1, 2, 3]) for _ in range(n + extra)]
    for d, to in enumerate(dims):
        size = v.type.shape[d]
        shape[to] = size if size > 1 else g.draw.choice([1, 2])
    g.add("broadcast_in_dim", (v,), TensorType(v.type.dtype, tuple(shape)), dims=dims)


def _slice(g: Graph) -> None:
    v = g.pick(least=1)
    if v is None:
        return
    starts, limits, strides = [], [], []
    for n in v.type.shape:
        if g.draw.random() < 0.4 or not n:
            a, b, s = 0, n, 1
        else:
            a = g.draw.randint(0, n - (g.draw.random() < 0.95))
            b, s = g.draw.randint(min(a + 1, n), n), g.draw.choice([1, 1, 2, 3])
        starts.append(a)
        limits.append(b)
        strides.append(s)
    g.add("slice", (v,), starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))


def _halves(g: Graph) -> None:
    """Cut in two and join again, in one order or the other, perhaps with a function in between."""
    v = g.pick(least=1)
    if v is None:
        return
    d = g.draw.randrange(len(v.type.shape))
    n = v.type.shape[d]
    at = g.draw.randint(0, n)
    pieces = []
    for a, b in ((0, at), (at, n)):
        starts, limits = [0] * len(v.type.shape), list(v.type.shape)
        starts[d], limits[d] = a, b
        pieces.append(
            g.add("slice", (v,), starts=tuple(starts), limits=tuple(limits), strides=(1,) * len(starts))
        )
    if g.draw.random() < 0.4:
        pieces.reverse()
    if all(pieces):
        g.add("concatenate", tuple(p for p in pieces if p), dim=d)


def _reverse(g: Graph) -> None:
    v = g.pick(least=1)
    if v:
        n = len(v.type.shape)
        g.add("reverse", (v,), dims=tuple(sorted(g.draw.sample(range(n), g.draw.randint(1, n)))))


def _concatenate(g: Graph) -> None:
    v = g.pick(least=1)
    if v is None:
        return
    d = g.draw.randrange(len(v.type.shape))
    fit = [
        w
        for w in g.pool
        if w.type.dtype is v.type.dtype
        and len(w.type.shape) == len(v.type.shape)
        and all(a == b for k, (a, b) in enumerate(zip(w.type.shape, v.type.shape, strict=True)) if k != d)
    ]
    g.add("concatenate", tuple(g.draw.choice(fit) for _ in range(g.draw.randint(1, 3))), dim=d)


def _pad(g: Graph) -> None:
    v = g.pick(least=1)
    c = g.scalar(v, g.draw.choice([0, 0, 1])) if v else None
    if v is None or c is None:
        return
    n = len(v.type.shape)
    low, high = (tuple(g.draw.choice([-1, 0, 0, 1, 2]) for _ in range(n)) for _ in range(2))
    g.add("pad", (v, c), low=low, high=high, interior=tuple(g.draw.choice([0, 0, 1, 2]) for _ in range(n)))


_IDENTITY = {"sum": 0, "prod": 1, "and": 1, "or": 0}


def _reduce(g: Graph) -> None:
    v = g.pick(least=1)
    if v is None:
        return
    kind = g.draw.choice(["sum", "sum", "prod", "max", "min", "and", "or"])
    if kind in _IDENTITY:
        init: float = _IDENTITY[kind] if g.draw.random() < 0.8 else 1
    elif v.type.dtype.kind == "real":
        init = g.draw.choice([-np.inf if kind == "max" else np.inf, 2.0])
    else:
        init = g.draw.choice([0, 1])
    c = g.scalar(v, init) if np.isfinite(init) else _infinite(g, v, init)
    n = len(v.type.shape)
    if c:
        g.add("reduce", (v, c), dims=tuple(sorted(g.draw.sample(range(n), g.draw.randint(1, n)))), kind=kind)


def _infinite(g: Graph, v: Value, value: float) -> Value | None:
    before, g.special = g.special, True
    found = g.scalar(v, value)
    g.special = before
    if found is not None and not before:
        g.pool.remove(found)
    return found


def _window(g: Graph) -> None:
    v = g.pick("real", "int", least=1)
    c = g.scalar(v, 0) if v else None
    if v is None or c is None:
        return
    n = len(v.type.shape)

    def some(*choices: int) -> tuple[int, ...]:
        return tuple(g.draw.choice(choices) for _ in range(n))

    g.add(
        "reduce_window",
        (v, c),
        kind=g.draw.choice(["sum", "sum", "max"]),
        sizes=some(1, 2, 3),
        strides=some(1, 1, 2, 3),
        base_dilations=some(1, 1, 2),
        window_dilations=some(1, 1, 2),
        pad_low=some(0, 1, 2),
        pad_high=some(0, 0, 1),
    )


def _convolution(g: Graph) -> None:
    v = g.pick("real", rank=3)
    w = g.pick("real", rank=3)
    if v is None or w is None:
        return
    g.add(
        "convolution",
        (v, w),
        TensorType(v.type.dtype, ()),
        strides=(g.draw.choice([1, 2]),),
        pad_low=(g.draw.choice([0, 1]),),
        pad_high=(g.draw.choice([0, 1]),),
        lhs_dilation=(g.draw.choice([1, 2]),),
        rhs_dilation=(g.draw.choice([1, 2]),),
        reversal=(g.draw.random() < 0.3,),
        lhs_dims=_permutation(g, 3),
        rhs_dims=_permutation(g, 3),
        out_dims=_permutation(g, 3),
        feature_groups=g.draw.choice([1, 1, 2]),
        batch_groups=1,
    )


def _dot(g: Graph) -> None:
    v = g.pick("real", "int", "uint", least=1)
    if v is None:
        return
    fit = [w for w in g.pool if w.type.dtype is v.type.dtype and w.type.shape]
    w = g.draw.choice(fit)
    pairs = [(a, b) for a, m in enumerate(v.type.shape) for b, n in enumerate(w.type.shape) if m == n]
    g.draw.shuffle(pairs)
    chosen: list[tuple[int, int]] = []
    for a, b in pairs:
        if all(a != c and b != d for c, d in chosen) and len(chosen) < 2:
            chosen.append((a, b))
    split = g.draw.randint(0, min(1, len(chosen)))
    batch, contracting = chosen[:split], chosen[split:]
    if len(contracting) > 1 and g.draw.random() < 0.5:
        contracting = contracting[:1]
    wider = {DType.S8: DType.S32, DType.U8: DType.U32, DType.S32: DType.S64}
    dtype = wider.get(v.type.dtype, v.type.dtype) if g.draw.random() < 0.5 else v.type.dtype
    g.add(
        "dot_general",
        (v, w),
        TensorType(dtype, ()),
        lhs_contracting=tuple(a for a, _ in contracting),
        rhs_contracting=tuple(b for _, b in contracting),
        lhs_batch=tuple(a for a, _ in batch),
        rhs_batch=tuple(b for _, b in batch),
    )


def _gather(g: Graph) -> None:
    v = g.pick(least=1)
    ids = g.pick("int", "uint", least=1)
    if v is None or ids is None or len(ids.type.shape) > 2:
        return
    d = g.draw.randrange(len(v.type.shape))
    sizes = list(v.type.shape)
    sizes[d] = 1
    batch = len(ids.type.shape)
    rank = len(v.type.shape) - 1 + batch
    g.add(
        "gather",
        (v, ids),
        offset_dims=tuple(sorted(g.draw.sample(range(rank), rank - batch))),
        collapsed_slice_dims=(d,),
        start_index_map=(d,),
        index_vector_dim=batch,
        slice_sizes=tuple(sizes),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
    )


def _gather_windows(g: Graph) -> None:
    v = g.pick(least=1)
    ids = g.pick("int", rank=2)
    if v is None or ids is None:
        return
    vector = g.draw.randrange(2)
    count = ids.type.shape[vector]
    if count > len(v.type.shape):
        return
    dims = tuple(g.draw.sample(range(len(v.type.shape)), count))
    sizes = tuple(g.draw.randint(1, n) if n else 0 for n in v.type.shape)
    g.add(
        "gather",
        (v, ids),
        offset_dims=tuple(range(1, 1 + len(sizes))),
        collapsed_slice_dims=(),
        start_index_map=dims,
        index_vector_dim=vector,
        slice_sizes=sizes,
        operand_batching_dims=(),
        start_indices_batching_dims=(),
    )


def _dynamic_slice(g: Graph) -> None:
    v = g.pick(least=1)
    if v is None:
        return
    starts = [g.start() for _ in v.type.shape]
    sizes = tuple(g.draw.randint(1, n) if n else 0 for n in v.type.shape)
    if all(s is not None and s.type.dtype is DType.S32 for s in starts):
        g.add("dynamic_slice", (v, *(s for s in starts if s)), sizes=sizes)


def _dynamic_update(g: Graph) -> None:
    v = g.pick(least=1)
    if v is None:
        return
    fit = [
        w
        for w in g.pool
        if w.type.dtype is v.type.dtype
        and len(w.type.shape) == len(v.type.shape)
        and all(a <= b for a, b in zip(w.type.shape, v.type.shape, strict=True))
    ]
    starts = [g.start() for _ in v.type.shape]
    if fit and all(s is not None and s.type.dtype is DType.S32 for s in starts):
        g.add("dynamic_update_slice", (v, g.draw.choice(fit), *(s for s in starts if s)))


def _scatter(g: Graph) -> None:
    v = g.pick("real", least=1)
    ids = g.pick("int", rank=1)
    if v is None or ids is None:
        return
    d = g.draw.randrange(len(v.type.shape))
    window = [n for k, n in enumerate(v.type.shape) if k != d]
    fit = [w for w in g.pool if w.type.dtype is v.type.dtype and w.type.shape == (ids.type.shape[0], *window)]
    u = g.draw.choice(fit) if fit else g.input(v.type.dtype, (ids.type.shape[0], *window))
    g.add(
        "scatter",
        (v, ids, u),
        update_window_dims=tuple(range(1, 1 + len(window))),
        inserted_window_dims=(d,),
        scatter_dims_to_operand_dims=(d,),
        index_vector_dim=1,
        input_batching_dims=(),
        scatter_indices_batching_dims=(),
        kind=g.draw.choice(["sum", "set"]),
        unique=g.draw.random() < 0.5,
    )


def _sort(g: Graph) -> None:
    v = g.pick("real", "int", least=1)
    w = g.like(v) if v else None
    if v is None or w is None:
        return
    match g.draw.randrange(3):
        case 0:
            key = g.draw.choice(["lt:0", "gt:0", "lt:1"])
            operands = (v, w) if key == "lt:1" or g.draw.random() < 0.5 else (v,)
            g.add("sort", operands, dim=g.draw.randrange(len(v.type.shape)), comparator=key, stable=True)
        case 1:
            g.add(
                "argreduce",
                (v,),
                v.type,
                TensorType(DType.S32, ()),
                dim=g.draw.randrange(len(v.type.shape)),
                kind=g.draw.choice(["max", "min"]),
            )
        case _:
            g.add("top_k", (v,), k=g.draw.randint(1, max(1, v.type.shape[-1])))


def _literal(g: Graph) -> None:
    """A constant table: random, a triangle, two values, or positions."""
    shape = g.draw.choice([s for s in SHAPES if s])
    n = int(np.prod(shape))
    style = g.draw.randrange(5)
    if style == 0 and len(shape) == 2:
        g.constant(np.fromfunction(lambda i, j: i + g.draw.choice([0, 1, -1]) >= j, shape), DType.BOOL)
    elif style == 1:
        g.constant(np.array([g.draw.choice([0, 2]) for _ in range(n)]).reshape(shape), DType.F32)
    elif style == 2:
        g.constant(np.arange(n).reshape(shape) * g.draw.choice([1, 2, -1]) + 1, DType.S32)
    else:
        dtype = g.draw.choice([DType.F32, DType.S32, DType.BOOL, DType.U8])
        low = -3 if dtype.kind in ("real", "int") else 0
        g.constant(np.array([g.draw.randint(low, 4) for _ in range(n)]).reshape(shape), dtype)


def _special_literal(g: Graph) -> None:
    v = g.pick("real")
    if v is None or not g.special:
        return
    c = g.scalar(v, g.draw.choice([np.inf, -np.inf, np.nan, -np.inf]))
    b = g.add("broadcast_in_dim", (c,), v.type, dims=()) if c else None
    p = g.like(v, "bool", same=False)
    if b and p:
        m = g.add("select", (p, v, b))
        if m and g.draw.random() < 0.3:
            g.add("exponential", (m,))


def _collective(g: Graph) -> None:
    v = g.pick()
    if v is None:
        return
    groups, n = g.groups(), len(v.type.shape)
    kinds = ["sum", "sum", "max", "min", "prod"] if v.type.dtype.kind != "bool" else ["and", "or", "sum"]
    kind = g.draw.choice(kinds)
    match g.draw.randrange(6):
        case 0:
            g.add("all_reduce", (v,), kind=kind, groups=groups)
        case 1 if n:
            g.add("all_gather", (v,), dim=g.draw.randrange(n), groups=groups)
        case 2 if n:
            g.add("reduce_scatter", (v,), dim=g.draw.randrange(n), kind=kind, groups=groups)
        case 3 if n:
            g.add(
                "all_to_all",
                (v,),
                split_dim=g.draw.randrange(n),
                concat_dim=g.draw.randrange(n),
                groups=groups,
            )
        case 4:
            targets = g.draw.sample(range(g.mesh.size), g.draw.randint(1, g.mesh.size))
            sources = g.draw.sample(range(g.mesh.size), len(targets))
            g.add("collective_permute", (v,), pairs=tuple(zip(sources, targets, strict=True)))
        case 5:
            g.add("collective_broadcast", (v,), groups=groups)
        case _:
            return


def _own_block(g: Graph) -> None:
    """This rank's part of a dim."""
    v = g.pick(least=1)
    if v is None:
        return
    d = g.draw.randrange(len(v.type.shape))
    n = g.mesh.size
    if not v.type.shape[d] or v.type.shape[d] % n:
        return
    m = v.type.shape[d] // n
    r = g.add("rank_id", (), TensorType(DType.S32, ()))
    c = g.constant(m, DType.S32)
    s = g.add("multiply", (r, c)) if r and c else None
    zero = g.constant(0, DType.S32)
    if s is None or zero is None:
        return
    sizes = [m if k == d else x for k, x in enumerate(v.type.shape)]
    starts = [s if k == d else zero for k in range(len(sizes))]
    g.add("dynamic_slice", (v, *starts), sizes=tuple(sizes))


def _local(g: Graph, v: Value) -> None:
    """The row of this rank: a value that differs from rank to rank."""
    r = g.add("rank_id", (), TensorType(DType.S32, ()))
    zero = g.constant(0, DType.S32)
    if r and zero:
        rest = v.type.shape[1:]
        row = g.add("dynamic_slice", (v, r, *[zero] * len(rest)), sizes=(1, *rest))
        if row:
            g.add("reshape", (row,), TensorType(v.type.dtype, rest))


MAKERS: tuple[Maker, ...] = (
    *(
        _unary,
        _binary,
        _binary,
        _scale,
        _divide,
        _compare,
        _select,
        _clamp,
        _mask,
        _one_hot,
        _convert,
        _convert,
    ),
    *(
        _reshape,
        _reshape,
        _transpose,
        _broadcast,
        _slice,
        _slice,
        _halves,
        _reverse,
        _concatenate,
        _concatenate,
    ),
    *(_pad, _reduce, _reduce, _reduce, _window, _convolution, _dot, _dot, _gather, _gather_windows),
    *(_dynamic_slice, _dynamic_update, _scatter, _sort, _literal, _own_block, _own_block),
)


def random_graph(draw: Random, *, size: int = 14) -> Graph:
    """A program of about `size` operators on one of the meshes."""
    g = Graph(draw, draw.choice(MESHES), special=draw.random() < 0.25)
    g.input(DType.F32, draw.choice(SHAPES))
    g.input(draw.choice([DType.F32, DType.S32]), draw.choice(SHAPES))
    g.input(draw.choice([DType.F32, DType.S32, DType.BOOL, DType.U8]), draw.choice(SHAPES))
    g.input(DType.S32, ())
    if g.mesh.size > 1:
        _local(g, g.input(draw.choice([DType.F32, DType.S32]), (g.mesh.size, *draw.choice(SHAPES))))
    makers: list[Maker] = [*MAKERS, _special_literal, _special_literal]
    if g.mesh.size > 1:
        makers += [_collective] * 8
    favoured = [draw.choice(makers) for _ in range(4)]
    while len(g.ops) < size and draw.random() > 0.02:
        draw.choice(favoured if draw.random() < 0.5 else makers)(g)
    return g
