"""Small composite operators over `Builder`, the layer between the tracer and the model."""

from __future__ import annotations

from builder import Builder, Tensor


def on_device(b: Builder, weight: Tensor) -> Tensor:
    """A weight as the device sees it: same values, another memory."""
    return b.custom_call("AwsNeuronTransferWithStaticRing", weight.dtype, weight.shape, (weight,))


def full(b: Builder, dtype: str, shape: tuple[int, ...], value: float) -> Tensor:
    return b.broadcast(b.constant(dtype, value), shape, ())


def rms_norm(b: Builder, x: Tensor, weight: Tensor, dim: int, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x * x over dim) + eps) * weight, computed in f32 and returned in x's type."""
    wide = b.convert("f32", x)
    operands = (wide, weight, b.constant("f32", eps))
    return b.custom_call("AwsNeuronRmsNorm", x.dtype, x.shape, operands, config=str(dim).encode())


def linear(b: Builder, x: Tensor, weight: Tensor) -> Tensor:
    """Contracts the last dim of a matrix with the first of a weight."""
    return b.dot(x, weight, (1, 0))


def silu(b: Builder, x: Tensor) -> Tensor:
    return b.binary("multiply", x, b.unary("logistic", x))


def softmax(b: Builder, x: Tensor) -> Tensor:
    """Over the last dim, after subtraction of its maximum."""
    last = len(x.shape) - 1
    kept = tuple(range(last))
    top = b.reduce("maximum", x, b.constant(x.dtype, float("-inf")), last)
    shifted = b.binary("subtract", x, b.broadcast(top, x.shape, kept))
    weights = b.unary("exponential", shifted)
    total = b.reduce("add", weights, b.constant(x.dtype, 0.0), last)
    return b.binary("divide", weights, b.broadcast(total, x.shape, kept))


def rotate(b: Builder, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of x[s, b, n, d] by tables over [s, d / 2]; the halves of d are the pairs."""
    half = x.shape[3] // 2
    low = b.slice(x, 3, 0, half)
    high = b.slice(x, 3, half, 2 * half)
    cos = b.broadcast(cosine, low.shape, (0, 3))
    sin = b.broadcast(sine, low.shape, (0, 3))
    new_low = b.binary("subtract", b.binary("multiply", low, cos), b.binary("multiply", high, sin))
    new_high = b.binary("add", b.binary("multiply", high, cos), b.binary("multiply", low, sin))
    return b.concatenate(3, new_low, new_high)


def repeat_heads(b: Builder, x: Tensor, times: int) -> Tensor:
    """x[s, b, g, d] with every head of dim 2 repeated `times` times in place."""
    s, n, g, d = x.shape
    wide = b.broadcast(x, (s, n, g, times, d), (0, 1, 2, 4))
    return b.reshape(wide, s, n, g * times, d)


def causal_mask(b: Builder, cache_ids: Tensor, start_ids: Tensor) -> Tensor:
    """pred[b, query, key]: key position <= the query's cache id, and >= the sequence's first token."""
    seq, batch = cache_ids.shape[0], start_ids.shape[0]
    positions = b.iota("s32", seq)
    keys = b.broadcast(positions, (seq, seq), (1,))
    queries = b.broadcast(cache_ids, (seq, seq), (0,))
    past = b.compare("LE", keys, queries)
    keys_of_batch = b.broadcast(positions, (batch, seq), (1,))
    first = b.broadcast(start_ids, (batch, seq), (0,))
    started = b.compare("GE", keys_of_batch, first)
    shape = (batch, seq, seq)
    return b.binary("and", b.broadcast(past, shape, (1, 2)), b.broadcast(started, shape, (0, 2)))
