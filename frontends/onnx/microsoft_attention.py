"""Attention and rotary embedding of onnxruntime (domain com.microsoft)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardproof.frontends.onnx.attention import repeated, weighting
from shardproof.frontends.onnx.contract import matmul
from shardproof.frontends.onnx.indexing import taken
from shardproof.frontends.onnx.microsoft import attributes
from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import DType

_MASKED: Final = -10000.0
"""What the kernels add to a score that a mask of integers hides."""
_COMMON: Final[Mapping[str, Any]] = {
    "num_heads": None,
    "unidirectional": 0,
    "scale": 0.0,
    "mask_filter_value": _MASKED,
}


# rotary embedding


def _rotary_embedding(s: Lowering, n: Node) -> Value:
    names = ("interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim")
    told = attributes(s, n, {**dict.fromkeys(names, 0), "scale": 1.0})
    if told["is_packed_batching"] or told["scale"] != 1:
        s.fail("is packed, or has a scale, which is not supported")
    x, at, cosines, sines = (n.operand(k) for k in range(4))
    rank = len(x.type.shape)
    if rank == 3:
        size = 2 * cosines.type.shape[1]
        count = told["num_heads"] or x.type.shape[2] // size
        heads = _heads(s, x, count)
    elif rank == 4:
        heads = x
    else:
        s.fail(f"turns {x.type}, three or four dims are needed")
    batch, _, rows, _ = heads.type.shape
    if at.type.size == 1:
        first = s.spread(s.reshape(at, (1, 1)), (batch, rows))
        at = s.pair("add", first, s.iota(at.type.dtype, (batch, rows), 1))
    cosine, sine = (taken(s, table, at, 0) for table in (cosines, sines))
    turned = rotated(s, heads, cosine, sine, interleaved=bool(told["interleaved"]))
    return _joined(s, turned) if rank == 3 else turned


def rotated(s: Lowering, x: Value, cosines: Value, sines: Value, *, interleaved: bool) -> Value:
    """The first features of (batch, heads, rows, features) turned by tables of (batch, rows, angles)."""
    half = cosines.type.shape[-1]
    if cosines.type.shape != sines.type.shape or 2 * half > x.type.shape[3]:
        s.fail(f"turns {x.type} by tables of {cosines.type} and {sines.type}")
    batch, heads, rows, size = x.type.shape
    cosine, sine = (s.place(t, (0, 2, 3), (batch, heads, rows, half)) for t in (cosines, sines))
    if interleaved:
        pairs = s.reshape(s.slice(x, 3, 0, 2 * half), (batch, heads, rows, half, 2))
        parts = [s.reshape(s.slice(pairs, 4, k, k + 1), cosine.type.shape) for k in (0, 1)]
    else:
        parts = [s.slice(x, 3, k * half, (k + 1) * half) for k in (0, 1)]
    first = s.emit("subtract", s.emit("multiply", parts[0], cosine), s.emit("multiply", parts[1], sine))
    second = s.emit("add", s.emit("multiply", parts[0], sine), s.emit("multiply", parts[1], cosine))
    if interleaved:
        columns = [s.reshape(v, (*cosine.type.shape, 1)) for v in (first, second)]
        turned = s.reshape(s.emit("concatenate", *columns, dim=4), (batch, heads, rows, 2 * half))
        found = [turned]
    else:
        found = [first, second]
    rest = [s.slice(x, 3, 2 * half, size)] if 2 * half < size else []
    whole = [*found, *rest]
    return whole[0] if len(whole) == 1 else s.emit("concatenate", *whole, dim=3)


# attention


def _heads(s: Lowering, x: Value, count: int | None) -> Value:
    """(batch, rows, heads * features) as (batch, heads, rows, features)."""
    if len(x.type.shape) != 3 or not count or x.type.shape[2] % count:
        s.fail(f"has {count} heads of {x.type}, which do not fit")
    batch, rows, features = x.type.shape
    return s.transpose(s.reshape(x, (batch, rows, count, features // count)), (0, 2, 1, 3))


def _joined(s: Lowering, x: Value) -> Value:
    batch, heads, rows, size = x.type.shape
    return s.reshape(s.transpose(x, (0, 2, 1, 3)), (batch, rows, heads * size))


def attend(
    s: Lowering,
    q: Value,
    k: Value,
    v: Value,
    *,
    scale: float,
    added: Sequence[Value | None] = (),
    causal: bool = False,
    softcap: float = 0.0,
) -> Value:
    """Attention of (batch, heads, rows, features); a scale of 0 is the usual one.

    `added` are added to the scores. Of `causal` attention the last row may read all keys.
    """
    scores = matmul(s, q, s.transpose(k, (0, 1, 3, 2)))
    scores = s.pair("multiply", scores, scale or 1 / math.sqrt(q.type.shape[3]))
    if softcap:
        scores = s.pair("multiply", s.emit("tanh", s.pair("divide", scores, softcap)), softcap)
    for bias in added:
        scores = scores if bias is None else s.pair("add", scores, bias)
    rows, columns = q.type.shape[2], k.type.shape[2]
    if causal:
        if columns < rows:
            s.fail(f"masks {columns} keys for {rows} rows causally")
        row = s.pair("add", s.iota(DType.S64, (rows, columns), 0), columns - rows)
        allowed = s.compare("LE", s.iota(DType.S64, (rows, columns), 1), row)
        scores = s.select(allowed, scores, s.like(scores, -math.inf))
    return _joined(s, matmul(s, weighting(s, scores, guarded=False), v))


def _hidden(s: Lowering, mask: Value | None, value: float, q: Value, k: Value) -> Value | None:
    """What a mask of integers, 0 where a key is hidden, adds to the scores."""
    if mask is None:
        return None
    batch, _, rows, _ = q.type.shape
    columns = k.type.shape[2]
    shapes = {(batch, columns): (batch, 1, 1, columns), (batch, rows, columns): (batch, 1, rows, columns)}
    shape = shapes.get(mask.type.shape)
    if shape is None:
        s.fail(f"has a mask {mask.type}, one of {' or '.join(str(list(x)) for x in shapes)} is supported")
    hidden = s.reshape(s.compare("LE", mask, 0), shape)
    return s.select(hidden, s.full(value, DType.F32, shape), s.full(0, DType.F32, shape))


def _appended(s: Lowering, past: Value | None, x: Value) -> Value:
    return x if past is None else s.emit("concatenate", past, x, dim=2)


def _multi_head(s: Lowering, n: Node) -> list[Value | None]:
    """The operands are projected already; the bias of their projections, if any, is added here."""
    told = attributes(s, n, _COMMON)
    q, k, v, bias, mask, added, *past = (n.given(at) for at in range(8))
    if any(n.given(at) is not None for at in (8, 9)) or n.wants(3) or q is None or k is None or v is None:
        s.fail("is packed, shares its cache, or gives its scores, which is not supported")
    count = told["num_heads"]
    if bias is not None:
        at = 0
        parts = []
        for x in (q, k, v):
            if len(x.type.shape) != 3:
                s.fail("adds a bias to keys of another attention")
            parts.append(s.pair("add", x, s.slice(bias, 0, at, at + x.type.shape[2])))
            at += x.type.shape[2]
        q, k, v = parts
    q, k, v = (x if len(x.type.shape) == 4 else _heads(s, x, count) for x in (q, k, v))
    k, v = (_appended(s, old, x) for old, x in zip(past, (k, v), strict=True))
    hidden = _hidden(s, mask, told["mask_filter_value"], q, k)
    causal = bool(told["unidirectional"])
    return [attend(s, q, k, v, scale=told["scale"], added=(hidden, added), causal=causal), k, v]


def _attention(s: Lowering, n: Node) -> list[Value | None]:
    """One product by the weights of queries, keys and values side by side, then attention."""
    more = dict.fromkeys(("do_rotary", "past_present_share_buffer", "rotary_embedding_dim"), 0)
    told = attributes(s, n, {**_COMMON, **more, "qkv_hidden_sizes": None})
    if told["do_rotary"] or told["past_present_share_buffer"] or n.given(6) is not None:
        s.fail("turns its operands or shares its cache, which is not supported")
    x, weights, bias, mask, past, added = (n.given(at) for at in range(6))
    if x is None or weights is None:
        s.fail("has no weights")
    whole = matmul(s, x, weights)
    whole = whole if bias is None else s.pair("add", whole, bias)
    width = whole.type.shape[2]
    sizes = told["qkv_hidden_sizes"] or (width // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != width:
        s.fail(f"cuts {whole.type} into {list(sizes)}")
    starts = [sum(sizes[:k]) for k in range(3)]
    q, k, v = (
        _heads(s, s.slice(whole, 2, start, start + size), told["num_heads"])
        for start, size in zip(starts, sizes, strict=True)
    )
    if past is not None:
        old = [s.reshape(s.slice(past, 0, at, at + 1), past.type.shape[1:]) for at in (0, 1)]
        k, v = (_appended(s, p, x) for p, x in zip(old, (k, v), strict=True))
    hidden = _hidden(s, mask, told["mask_filter_value"], q, k)
    causal = bool(told["unidirectional"])
    out = attend(s, q, k, v, scale=told["scale"], added=(hidden, added), causal=causal)
    if not n.wants(1):
        return [out, None]
    stacked = [s.reshape(y, (1, *y.type.shape)) for y in (k, v)]
    return [out, s.emit("concatenate", *stacked, dim=0)]


_GROUPED: Final[Mapping[str, Any]] = {
    "num_heads": None,
    "kv_num_heads": None,
    "scale": 0.0,
    "softcap": 0.0,
    "do_rotary": 0,
    "rotary_interleaved": 0,
    "causal": 1,
}
_SUPPORTED: Final[Mapping[str, Sequence[Any]]] = {
    "local_window_size": (-1,),
    "smooth_softmax": (-1, 0),
    "sliding_window_cache": (0,),
    "qk_output": (0,),
    "kv_cache_bit_width": (0,),
    "k_quant_type": ("NONE",),
    "v_quant_type": ("NONE",),
}
"""Other attributes, with the only values that are supported, the default first."""


def _grouped(s: Lowering, n: Node) -> list[Value | None]:
    """Causal attention with shared key heads, after a cache that is full up to the new rows."""
    told = attributes(s, n, {**_GROUPED, **{name: values[0] for name, values in _SUPPORTED.items()}})
    for name, values in _SUPPORTED.items():
        if told[name] not in values:
            s.fail(f"has {name} {told[name]!r}, which is not supported")
    if any(n.given(at) is not None for at in range(11, 17)) or n.wants(3):
        s.fail("has sinks, scales, norms or lengths of queries, or gives its scores, which is not supported")
    q, k, v = _parts(s, n, told["num_heads"], told["kv_num_heads"])
    rows = q.type.shape[2]
    past = [n.given(at) for at in (3, 4)]
    before = 0 if past[0] is None else past[0].type.shape[2]
    lengths = s.integers(n.operand(5), "the number of cached keys")
    total = s.integer(n.operand(6), "the number of all keys")
    if {length + 1 for length in lengths} != {total} or total != before + rows:
        s.fail(f"has {list(lengths)} + 1 of {total} keys, {before} cached and {rows} new ones are supported")
    if told["do_rotary"]:
        if n.given(9) is not None:
            s.fail("is told positions, which is not supported")
        tables = (s.slice(n.operand(at), 0, before, total) for at in (7, 8))
        cosine, sine = (s.spread(t, (q.type.shape[0], *t.type.shape)) for t in tables)
        interleaved = bool(told["rotary_interleaved"])
        q, k = (rotated(s, x, cosine, sine, interleaved=interleaved) for x in (q, k))
    k, v = (_appended(s, old, x) for old, x in zip(past, (k, v), strict=True))
    heads = q.type.shape[1]
    out = attend(
        s,
        q,
        repeated(s, k, heads),
        repeated(s, v, heads),
        scale=told["scale"],
        added=(n.given(10),),
        causal=bool(told["causal"]),
        softcap=told["softcap"],
    )
    return [out, k, v]


def _parts(s: Lowering, n: Node, heads: int, shared: int) -> list[Value]:
    """Queries, keys and values by head; they may stand side by side in the first operand."""
    x, k, v = n.operand(0), n.given(1), n.given(2)
    if k is not None and v is not None:
        return [_heads(s, x, heads), _heads(s, k, shared), _heads(s, v, shared)]
    if k is not None or v is not None or x.type.shape[-1] % (heads + 2 * shared):
        s.fail(f"has the operand {x.type} for {heads} heads of queries and {shared} of keys")
    size = x.type.shape[-1] // (heads + 2 * shared)
    edges = (0, heads * size, (heads + shared) * size, (heads + 2 * shared) * size)
    counts = (heads, shared, shared)
    return [
        _heads(s, s.slice(x, 2, low, high), count)
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]


RULES: Final[Mapping[str, Rule]] = {
    "Attention": _attention,
    "GroupQueryAttention": _grouped,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary_embedding,
}
