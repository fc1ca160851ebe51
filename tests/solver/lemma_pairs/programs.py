"""The programs of the pairs, in JAX: of one device, or of one device among those of a named axis."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

EPS = 1e-5


# one device


def attention(q: Any, k: Any, v: Any, *, query: float = 1, key: float = 1, score: float = 1) -> Any:
    if query != 1:
        q = q * query
    if key != 1:
        k = k * key
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    if score != 1:
        s = s * score
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(s), v)


def shifted_softmax(x: Any, dim: int) -> Any:
    e = jnp.exp(x - jnp.max(x, dim, keepdims=True))
    return e / jnp.sum(e, 1, keepdims=True)


def plain_softmax(x: Any) -> Any:
    return jnp.exp(x) / jnp.sum(jnp.exp(x), 1, keepdims=True)


def mean_square(x: Any) -> Any:
    return jnp.mean(jnp.square(x), -1, keepdims=True)


def layer_norm(x: Any, w: Any, b: Any, *, variance: Callable[[Any, Any], Any]) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance(x, mean) + EPS) * w + b


def baddbmm(m: Any, a: Any, b: Any, *, beta: float, alpha: float) -> Any:
    return beta * m + alpha * jnp.einsum("bij,bjk->bik", a, b)


def cross_entropy_backward(x: Any, target: Any, kept: Any, upstream: Any) -> Any:
    one_hot = jax.nn.one_hot(target, x.shape[1])
    gradient = (jax.nn.softmax(x) - one_hot) * upstream[:, None]
    return jnp.where(kept[:, None], gradient, 0)


def weighted_backward(x: Any, target: Any, kept: Any, upstream: Any) -> Any:
    u = jnp.where(kept, upstream, 0)[:, None]
    return plain_softmax(x) * u - jnp.where(jnp.arange(x.shape[1]) == target[:, None], u, 0)


def differentiated(x: Any, target: Any, kept: Any, upstream: Any) -> Any:
    def loss(x: Any) -> Any:
        each = -jnp.sum(jax.nn.one_hot(target, x.shape[1]) * jax.nn.log_softmax(x), 1)
        return jnp.where(kept, each, 0)

    return jax.vjp(loss, x)[1](upstream)[0]


def loss_of(w: Any, x: Any, t: Any) -> Any:
    return jnp.mean(jnp.square(x @ w - t))


def train_step(x: Any, t: Any, w: Any) -> Any:
    return jax.value_and_grad(loss_of)(w, x, t)


def micro_batches(x: Any, t: Any, w: Any, *, cuts: tuple[int, ...], divide: bool = True) -> Any:
    loss, gradient = jnp.zeros(()), jnp.zeros_like(w)
    for low, high in pairwise(cuts):
        one, change = train_step(x[low:high], t[low:high], w)
        loss, gradient = loss + one, gradient + change
    return (loss / 4, gradient / 4) if divide else (loss, gradient)


def scanned_batches(x: Any, t: Any, w: Any) -> Any:
    def body(carry: Any, batch: Any) -> Any:
        inputs, targets = batch
        one, change = train_step(inputs, targets, w)
        return (carry[0] + one, carry[1] + change), None

    start = jnp.zeros(()), jnp.zeros_like(w)
    (loss, gradient), _ = lax.scan(body, start, (x.reshape(4, 3, 5), t.reshape(4, 3)))
    return loss / 4, gradient / 4


def lora(x: Any, w: Any, a: Any, b: Any, *, scale: float = 0.5) -> Any:
    return x @ w + scale * ((x @ a) @ b)


# attention in blocks


def first_block(s: Any, v: Any) -> tuple[Any, Any, Any]:
    m = jnp.max(s, -1)
    p = jnp.exp(s - m[..., None])
    return m, jnp.sum(p, -1), jnp.einsum("bhqk,bhkd->bhqd", p, v)


def next_block(state: tuple[Any, Any, Any], s: Any, v: Any, wrong: str) -> tuple[Any, Any, Any]:
    """The online softmax over one more block of keys."""
    m, total, mixed = state
    top = jnp.maximum(m, jnp.max(s, -1))
    p = jnp.exp(s - top[..., None])
    scale = jnp.exp(m - top)
    total = (total if wrong in ("denominator", "both") else total * scale) + jnp.sum(p, -1)
    mixed = mixed if wrong in ("accumulator", "both") else mixed * scale[..., None]
    return top, total, mixed + jnp.einsum("bhqk,bhkd->bhqd", p, v)


def full(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 0.5
    if causal:
        row, column = jnp.arange(8)[:, None], jnp.arange(8)[None, :]
        s = jnp.where(column <= row, s, -30000.0)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(s), v)


def flash(q: Any, k: Any, v: Any, *, wrong: str = "") -> Any:
    s = [jnp.einsum("bhqd,bhkd->bhqk", q, part) * 0.5 for part in (k[:, :, :5], k[:, :, 5:])]
    state = next_block(first_block(s[0], v[:, :, :5]), s[1], v[:, :, 5:], wrong)
    return state[2] / state[1][..., None]


def ring(q: Any, k: Any, v: Any, *, causal: bool = False, wrong: str = "") -> Any:
    rank, around = lax.axis_index("cp"), [(i, (i + 1) % 4) for i in range(4)]
    state = None
    for turn in range(4):
        s = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 0.5
        if causal:
            source = (rank - turn) % 4 if wrong != "source" else (rank + turn) % 4
            row, column = rank * 2 + jnp.arange(2)[:, None], source * 2 + jnp.arange(2)[None, :]
            s = jnp.where(column <= row, s, -30000.0)
        state = first_block(s, v) if state is None else next_block(state, s, v, wrong)
        if turn < 3:
            k = lax.ppermute(k, "cp", around)
            v = v if wrong == "value" else lax.ppermute(v, "cp", around)
    assert state is not None
    return state[2] / state[1][..., None]


# vocabularies


def found_rows(w: Any, ids: Any, *, masked: bool = True) -> Any:
    """The addend of one rank: the rows of its own block of the table, zeros for other ids."""
    own = ids - lax.axis_index("tp") * w.shape[0]
    miss = (own < 0) | (own >= w.shape[0])
    rows = jnp.take(w, jnp.where(miss, 0, own), axis=0)
    return jnp.where(miss[..., None], 0, rows) if masked else rows


def embedding(w: Any, ids: Any, *, masked: bool = True) -> Any:
    return lax.psum(found_rows(w, ids, masked=masked), "tp")


def cross_entropy(x: Any, target: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x), target[:, None], 1)[:, 0]


def parallel_cross_entropy(x: Any, target: Any, *, wrong: str = "") -> Any:
    size = x.shape[1]
    top = jnp.max(x, 1)
    x = x - (top if wrong == "local_max" else lax.pmax(top, "tp"))[:, None]
    own = target - lax.axis_index("tp") * size
    miss = (own < 0) | (own >= size)
    found = jnp.take_along_axis(x, jnp.where(miss, 0, own)[:, None], 1)[:, 0]
    predicted = lax.psum(found if wrong == "unmasked" else jnp.where(miss, 0, found), "tp")
    total = jnp.sum(jnp.exp(x), 1)
    return jnp.log(total if wrong == "sum_unreduced" else lax.psum(total, "tp")) - predicted


def tied(w: Any, mix: Any, back: Any, ids: Any, *, embedded: Callable[[Any, Any], Any]) -> Any:
    return jnp.tanh(embedded(w, ids) @ mix) @ back @ w.T


# experts


def expert(h: Any, w1: Any, w2: Any) -> Any:
    return jnp.einsum("e...f,efd->e...d", jnp.tanh(jnp.einsum("e...d,edf->e...f", h, w1)), w2)


def dense_experts(x: Any, w1: Any, w2: Any, dispatch: Any, combine: Any) -> Any:
    h = jnp.einsum("gtec,gtd->egcd", dispatch, x)
    return jnp.einsum("gtec,egcd->gtd", combine, expert(h, w1, w2))


def parallel_experts(x: Any, w1: Any, w2: Any, dispatch: Any, combine: Any, *, wrong: str = "") -> Any:
    h = jnp.einsum("gtec,gtd->egcd", dispatch, x)[:, 0]
    if wrong == "dropped":
        h = h.at[7].set(0)
    h = lax.all_to_all(h, "ep", 0, 1, tiled=True)
    h = expert(h, w1, w2)
    if wrong == "own":
        h = lax.all_gather(h, "ep", axis=0, tiled=True)[:, :2]
    else:
        h = lax.all_to_all(h, "ep", 1, 0, tiled=True)
    return jnp.einsum("gtec,ecd->gtd", combine, h)


def routed(x: Any, w1: Any, w2: Any, router: Any, *, experts: Callable[..., Any]) -> Any:
    """Top-1 routing with two places per expert and group of tokens."""
    gates = jax.nn.softmax(x @ router)
    chosen = jax.nn.one_hot(jnp.argmax(gates, -1), 8)
    place = jnp.cumsum(chosen, 1) - 1
    dispatch = chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), 2)
    return experts(x, w1, w2, dispatch, dispatch * gates[..., None])


# norms


def squares(x: Any) -> Any:
    return jnp.sum(jnp.square(x))


def gradient_norm(a: Any, b: Any, c: Any) -> Any:
    return jnp.sqrt(squares(a) + squares(b) + squares(c))


def parallel_norm(a: Any, b: Any, c: Any) -> Any:
    return jnp.sqrt(lax.psum(squares(a) + squares(b), "tp") + squares(c))
