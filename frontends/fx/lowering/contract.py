"""Matrix products and attention."""

from __future__ import annotations

import math
from typing import Final

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.create import dropped_out
from shardproof.frontends.fx.lowering.pointwise import scaled
from shardproof.frontends.fx.lowering.state import Arguments, Lowering
from shardproof.frontends.fx.lowering.views import repeated, swapped, triangle
from shardproof.ir.module import Value
from shardproof.ir.types import DType


def product(s: Lowering, x: Value, y: Value) -> Value:
    """The product of matrices in the last two dims; the dims before are alike."""
    rank = len(x.type.shape)
    if x.type.dtype is not y.type.dtype or len(y.type.shape) != rank or rank < 2:
        s.fail(f"multiplies {x.type} and {y.type}")
    batch = tuple(range(rank - 2))
    return s.dot(x, y, (rank - 1, rank - 2), (batch, batch))


def _mm(s: Lowering, a: Arguments) -> Value:
    return product(s, a["self"], a["mat2"])


def _added(s: Lowering, a: Arguments, inner: Value) -> Value:
    """`beta*self + alpha*inner`; with beta 0 nothing of `self` is read, be it nan."""
    result = scaled(s, inner, a["alpha"], inner.type.dtype)
    if a["beta"] == 0:
        return result
    if a["self"].type.dtype is not inner.type.dtype:
        s.fail(f"adds {a['self'].type} to {inner.type}")
    first = scaled(s, a["self"], a["beta"], inner.type.dtype)
    return s.pair("add", s.spread(first, inner.type.shape), result)


def _addmm(s: Lowering, a: Arguments) -> Value:
    return _added(s, a, product(s, a["mat1"], a["mat2"]))


def _addmv(s: Lowering, a: Arguments) -> Value:
    return _added(s, a, matmul(s, a["mat"], a["vec"]))


def matmul(s: Lowering, x: Value, y: Value) -> Value:
    """`torch.matmul`: vectors are rows on the left and columns on the right, batch dims broadcast."""
    if not x.type.shape or not y.type.shape:
        s.fail(f"multiplies {x.type} and {y.type}")
    row, column = len(x.type.shape) == 1, len(y.type.shape) == 1
    if row:
        x = s.reshape(x, (1, *x.type.shape))
    if column:
        y = s.reshape(y, (*y.type.shape, 1))
    if len(y.type.shape) == 2:
        if x.type.dtype is not y.type.dtype:
            s.fail(f"multiplies {x.type} and {y.type}")
        result = s.dot(x, y, (len(x.type.shape) - 1, 0), ((), ()))
    else:
        batch = _batch(s, x, y)
        result = product(s, *(s.spread(v, (*batch, *v.type.shape[-2:])) for v in (x, y)))
    shape = list(result.type.shape)
    if column:
        del shape[-1]
    if row:
        del shape[len(shape) - (0 if column else 1) - 1]
    return s.reshape(result, shape)


def _batch(s: Lowering, *values: Value) -> tuple[int, ...]:
    """The common batch dims of stacks of matrices."""
    shape: list[int] = []
    for v in values:
        mine = [1] * max(len(shape) - len(v.type.shape) + 2, 0) + list(v.type.shape[:-2])
        shape = [1] * (len(mine) - len(shape)) + shape
        for d, n in enumerate(mine):
            if n != shape[d] and 1 not in (n, shape[d]):
                s.fail(f"operands {', '.join(str(o.type) for o in values)} do not broadcast")
            shape[d] = n if shape[d] == 1 else shape[d]
    return tuple(shape)


def _matmul(s: Lowering, a: Arguments) -> Value:
    return matmul(s, a["self"], a["other"])


def _linear(s: Lowering, a: Arguments) -> Value:
    x, weight, bias = a["input"], a["weight"], a["bias"]
    if len(weight.type.shape) != 2 or not x.type.shape or x.type.dtype is not weight.type.dtype:
        s.fail(f"multiplies {x.type} with the weight {weight.type}")
    result = s.dot(x, weight, (len(x.type.shape) - 1, 1), ((), ()))
    return result if bias is None else s.pair("add", result, bias)


def scores(s: Lowering, a: Arguments) -> tuple[Value, bool]:
    """Scaled and masked products of queries and keys, and whether a row may be masked whole."""
    query, key, mask = a["query"], a["key"], a["attn_mask"]
    scale = a["scale"] if a["scale"] is not None else 1 / math.sqrt(query.type.shape[-1])
    rank = len(query.type.shape)
    found = s.pair("multiply", product(s, query, swapped(s, key, rank - 2, rank - 1)), scale)
    lost = s.like(found, -math.inf) if mask is not None or a["is_causal"] else found
    if a["is_causal"]:
        if mask is not None:
            s.fail("has a mask and is causal, only one is possible")
        found = s.select(triangle(s, found.type.shape, 0, lower=True), found, lost)
    elif mask is not None and mask.type.dtype is DType.BOOL:
        found = s.select(mask, found, lost)
    elif mask is not None:
        found = s.pair("add", found, s.convert(mask, found.type.dtype))
    return found, mask is not None


def weights(s: Lowering, x: Value, *, safe: bool) -> tuple[Value, Value]:
    """Softmax over the last dim and its sums; with `safe`, rows of -inf only become 0."""
    last = (len(x.type.shape) - 1,)
    powers = s.emit("exponential", x)
    total = s.reduce(powers, last, "sum", keepdim=True)
    found = s.pair("divide", powers, total)
    if safe:
        dead = s.reduce(s.compare("EQ", x, -math.inf), last, "and", keepdim=True)
        found = s.select(dead, s.like(found, 0), found)
    return found, total


def attention(s: Lowering, a: Arguments) -> tuple[Value, Value]:
    """The attended values and the logarithm of the sums of each row."""
    query = a["query"]
    rank = len(query.type.shape)
    shapes = [v.type.shape for v in (a["key"], a["value"])]
    if rank < 3 or any(len(n) != rank or n[:-2] != query.type.shape[:-2] for n in shapes):
        s.fail(f"attends {query.type} to {a['key'].type} and {a['value'].type}")
    found, masked = scores(s, a)
    probabilities, total = weights(s, found, safe=masked)
    if a["dropout_p"] > 0:
        probabilities, _ = dropped_out(s, probabilities, a["dropout_p"])
    sums = s.reshape(s.emit("log", total), total.type.shape[:-1])
    return product(s, probabilities, a["value"]), sums


def _attention(s: Lowering, a: Arguments) -> Value:
    if not a["enable_gqa"]:
        return attention(s, a)[0]
    heads = len(a["query"].type.shape) - 3
    times = a["query"].type.shape[heads] // a["key"].type.shape[heads]
    grown = {name: repeated(s, a[name], heads, times) for name in ("key", "value")}
    return attention(s, {**a, **grown})[0]


def _attention_with_sums(s: Lowering, a: Arguments) -> tuple[Value, Value]:
    out, sums = attention(s, a)
    told = s.declared.get(1)
    return out, s.convert(sums, told.dtype if told is not None else DType.F32)


def _attention_on_device(s: Lowering, a: Arguments) -> tuple[Value | None, ...]:
    """The kernels of accelerators, whose results after the first two hold the state of the draws."""
    out, sums = attention(
        s, {"attn_mask": None, **a} if "attn_bias" not in a else {**a, "attn_mask": a["attn_bias"]}
    )
    told = s.declared.get(1)
    fits = told is None or told.shape == sums.type.shape
    count = max(s.declared, default=1) + 1
    saved = s.convert(sums, told.dtype if told is not None else DType.F32) if fits else None
    return out, saved, *(None for _ in range(max(count, 9) - 2))


def _attention_on_device_backward(s: Lowering, a: Arguments) -> tuple[Value | None, ...]:
    bias = a.get("attn_bias")
    if bias is not None and a["grad_input_mask"][3]:
        s.fail("asks for the gradient of its mask, which is not supported")
    return *_attention_backward(s, {**a, "attn_mask": bias}), None


def _attention_backward(s: Lowering, a: Arguments) -> tuple[Value, Value, Value]:
    if a["dropout_p"] > 0:
        s.fail("drops out within attention, whose backward is not supported")
    grad, query, key, value = (a[n] for n in ("grad_out", "query", "key", "value"))
    rank = len(query.type.shape)

    def turned(x: Value) -> Value:
        return swapped(s, x, rank - 2, rank - 1)

    found, masked = scores(s, a)
    p, _ = weights(s, found, safe=masked)
    upstream = product(s, grad, turned(value))
    inner = s.reduce(s.pair("multiply", upstream, p), (rank - 1,), "sum", keepdim=True)
    change = s.pair("multiply", p, s.pair("subtract", upstream, inner))
    scale = a["scale"] if a["scale"] is not None else 1 / math.sqrt(query.type.shape[-1])
    change = s.pair("multiply", change, scale)
    return product(s, change, key), product(s, turned(change), query), product(s, turned(p), grad)


def _dot(s: Lowering, a: Arguments) -> Value:
    return s.dot(a["self"], a["tensor"], (0, 0), ((), ()))


_SHARED: Final = "query key value"


TABLE: Final[Table] = {
    **entries("self mat2", _mm, "aten.mm", "aten.bmm"),
    **entries("self other", _matmul, "aten.matmul"),
    **entries("self vec:other", _matmul, "aten.mv"),
    **entries("self tensor", _dot, "aten.dot"),
    **entries("self mat1 mat2 beta=1 alpha=1", _addmm, "aten.addmm"),
    **entries("self batch1:mat1 batch2:mat2 beta=1 alpha=1", _addmm, "aten.baddbmm"),
    **entries("self mat vec beta=1 alpha=1", _addmv, "aten.addmv"),
    **entries("input weight bias=None", _linear, "aten.linear"),
    **entries(
        f"{_SHARED} attn_mask=None dropout_p=0 is_causal=False scale=None enable_gqa=False",
        _attention,
        "aten.scaled_dot_product_attention",
    ),
    **entries(
        f"{_SHARED} dropout_p=0 is_causal=False attn_mask=None scale=None",
        _attention_with_sums,
        "aten._scaled_dot_product_flash_attention_for_cpu",
    ),
    **entries(
        f"{_SHARED} dropout_p=0 is_causal=False return_debug_mask=False scale=None",
        _attention_on_device,
        "aten._scaled_dot_product_flash_attention",
    ),
    **entries(
        f"{_SHARED} attn_bias compute_log_sumexp dropout_p=0 is_causal=False scale=None",
        _attention_on_device,
        "aten._scaled_dot_product_efficient_attention",
    ),
    **entries(
        f"grad_out {_SHARED} out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal philox_seed "
        "philox_offset scale=None",
        _attention_on_device_backward,
        "aten._scaled_dot_product_flash_attention_backward",
    ),
    **entries(
        f"grad_out_:grad_out {_SHARED} attn_bias out logsumexp philox_seed philox_offset dropout_p "
        "grad_input_mask is_causal=False scale=None",
        _attention_on_device_backward,
        "aten._scaled_dot_product_efficient_attention_backward",
    ),
    **entries(
        f"grad_out {_SHARED} out logsumexp dropout_p is_causal attn_mask=None scale=None",
        _attention_backward,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
    ),
}
