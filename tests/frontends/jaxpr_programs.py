"""JAX functions that the tests of the jaxpr frontend run: by name, with the types of their arguments.

Each is called with random arguments, integers from 0 to 2. Imported only where jax is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Program = tuple[Callable[..., Any], list[Any]]


def f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def u(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.uint32)


def b(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bool_)


def typed(dtype: Any, *shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _unary(x: Any) -> Any:
    y = jnp.abs(x) + 0.5
    return (
        *(fn(x) for fn in (jnp.exp, jnp.expm1, jnp.tanh, jnp.sin, jnp.cos, jnp.tan, lax.erf, lax.erfc)),
        *(fn(x) for fn in (jnp.floor, jnp.ceil, jnp.round, lax.sign, jnp.cbrt, jnp.isfinite, jnp.negative)),
        *(fn(y) for fn in (jnp.log, jnp.log1p, jnp.sqrt, lax.rsqrt, jnp.exp2, jnp.log2, jnp.log10)),
        *(lax.integer_pow(y, n) for n in (-3, -1, 0, 1, 2, 5)),
        *(jnp.square(x), jnp.reciprocal(y), lax.logistic(x)),
        lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
        *(lax.round(x * 2, lax.RoundingMethod.AWAY_FROM_ZERO), jnp.trunc(x), jnp.sinc(x), jnp.sign(x)),
    )


def _binary(x: Any, y: Any) -> Any:
    return (
        *(fn(x, y) for fn in (jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum)),
        *(fn(x, y) for fn in (jnp.arctan2, lax.rem, jnp.fmod, jnp.mod, jnp.floor_divide, jnp.logaddexp)),
        *(fn(x, y) for fn in (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)),
        *(jnp.power(jnp.abs(x), y), jnp.hypot(x, y), x**2, x**-1, jnp.abs(x) ** 0.5, jnp.copysign(x, y)),
        *(jnp.clip(x, 0, 1), lax.clamp(-0.5, x, 0.5), lax.clamp(1.0, x, -1.0), jnp.nan_to_num(x / y)),
    )


def _integers(x: Any, y: Any) -> Any:
    x, y = x * 5 - 7, y * 3 - 4
    return (
        *(fn(x, y) for fn in (jnp.add, jnp.subtract, jnp.multiply, lax.div, lax.rem, jnp.floor_divide)),
        *(fn(x, y) for fn in (jnp.mod, jnp.maximum, jnp.minimum, jnp.bitwise_and, jnp.bitwise_or)),
        *(jnp.bitwise_xor(x, y), ~x, lax.population_count(x), lax.clz(x), abs(x), -x, jnp.sign(x)),
        *(x**3, x**2, lax.integer_pow(x, 5), lax.shift_left(x, abs(y)), lax.shift_right_logical(x, abs(y))),
        *(lax.shift_right_arithmetic(x, abs(y)), x << 40, x // 4, x % 4, lax.div(x, 0 * x)),
        lax.rem(x, 0 * x),
        *(x.astype(jnp.int8) * 37, x.astype(jnp.uint8), x.astype(jnp.float32), x.astype(jnp.bool_)),
        *(jnp.power(x, jnp.abs(y)), x.sum(), x.prod(), (x * 1000000007).sum(), (x > y).sum()),
        *(x.astype(jnp.int16) << 14, jnp.divmod(x, y), lax.max(x, y), x == y, x.astype(jnp.uint32) // 3),
    )


def _inverses(x: Any) -> Any:
    y = jnp.tanh(x)
    return (
        *(jnp.arccos(y), jnp.arcsin(y), jnp.arctan(x), jnp.arcsinh(x), jnp.arctanh(y)),
        jnp.arccosh(1 + x * x),
        *(jnp.sinh(x), jnp.cosh(x), lax.erf_inv(y), lax.lgamma(x)),
    )


CLOSED = jax.random.key(5)
"""A key that is a constant of the programs that use it."""


def _draws(seed: Any, words: Any, x: Any) -> Any:
    """Dropout and initial weights, by typed keys and by raw ones."""
    key = jax.random.key(seed)
    first, *rest = jax.random.split(key, 3)
    raw = jax.random.fold_in(words, 3)
    rows = jax.vmap(lambda k, n: jax.random.fold_in(k, n))(jax.random.split(key, 2), jnp.arange(2))
    return (
        jax.random.normal(first, (3, 5)),
        jax.random.normal(CLOSED, (2,)),
        jax.random.bernoulli(rest[0], 0.8, x.shape),
        jnp.where(jax.random.bernoulli(raw, 0.9, x.shape), x / 0.9, 0.0),
        jax.random.uniform(rest[1], (7,), minval=-1.0, maxval=2.0),
        jax.random.randint(raw, (4,), 0, 10),
        jax.random.key_data(rows),
        jax.random.key_data(jax.random.clone(key)),
        jax.vmap(lambda k: jax.random.normal(k, (2,)))(rows),
        jax.random.gumbel(first, (3,)),
        jax.random.categorical(raw, x),
        jax.random.key_data(jnp.stack([first, key]).reshape(2, 1)[:, 0][::-1]),
        jax.random.key_data(lax.cond(seed > 0, lambda: first, lambda: key)),
        lax.scan(lambda k, _: (jax.random.fold_in(k, 1), jax.random.uniform(k)), key, None, length=3)[1],
    )


def _ragged(x: Any, w: Any) -> Any:
    return lax.ragged_dot(x, w, jnp.array([2, 0, 3]))


def _unsigned(x: Any, y: Any) -> Any:
    x, y = x - 1, y + 3
    return (
        *(fn(x, y) for fn in (jnp.add, jnp.subtract, jnp.multiply, lax.div, lax.rem, jnp.maximum)),
        *(x < y, x.max(), x.min(), x.sum(), x >> 3, x << 3, ~x, lax.clz(x), -x, x.astype(jnp.int32)),
        *(x.astype(jnp.float32), x**2, jnp.cumsum(x), jnp.argmax(x), lax.shift_right_arithmetic(x, y)),
        *(x.astype(jnp.uint8) + 200, jnp.bitwise_and(x, 0xFF), x ^ y, lax.population_count(x)),
    )


def _booleans(p: Any, q: Any) -> Any:
    return (
        *(p & q, p | q, p ^ q, ~p, p.any(0), p.all(1), p.sum(0), jnp.logical_and(p, q), jnp.where(p, 1, 2)),
        *(p.max(0), p.min(0), p.astype(jnp.float32), p == q, p.argmax(1), jnp.cumsum(p, 0), p * q, p + q),
        *(jnp.count_nonzero(p), p.mean(), jnp.any(p), jnp.all(p)),
        lax.select_n(p, jnp.zeros((3, 4)), jnp.ones((3, 4))),
    )


def _casts(x: Any) -> Any:
    big = x * 1e10
    return (
        *(big.astype(jnp.int32), (x * 100).astype(jnp.int8), (x * 100).astype(jnp.uint8)),
        *((x * 3).astype(jnp.int32), x.astype(jnp.bool_), (x > 0).astype(jnp.float32)),
        (big * 0).astype(bool),
        *((jnp.nan * x).astype(jnp.int32), (-x).astype(jnp.uint32), x.view(jnp.int32), x.view(jnp.uint32)),
        *((x * jnp.inf).astype(jnp.int16), jnp.asarray(1.0, jnp.bfloat16), jnp.asarray(-0.0)),
    )


def _reductions(x: Any) -> Any:
    return (
        *(x.sum(0), x.sum(), x.prod(1), x.max(0), x.min(), x.mean((0, 2)), x.var(1), x.std(), jnp.ptp(x, 0)),
        *(jax.nn.logsumexp(x, -1), jnp.linalg.norm(x[0]), x.argmax(1), x.argmin(), jnp.median(x, 0)),
        *(lax.argmax(x, 2, jnp.int32), lax.argmin(x, 0, jnp.uint8), jnp.nanmax(x), jnp.average(x, 0)),
        *(jnp.all(x > 0, 1), jnp.any(x > 0), jnp.count_nonzero(x > 0, 2), jnp.cumsum(x, 1)),
        *(jnp.cumprod(x, 2), lax.cummax(x, 0), lax.cummin(x, 1, reverse=True)),
        lax.cumsum(x, 2, reverse=True),
        *(lax.associative_scan(jnp.add, x, axis=1), lax.associative_scan(jnp.multiply, x, reverse=True)),
        *(jnp.trace(x[:, :, 0]), jnp.diff(x, axis=1), jnp.convolve(x[0, 0], x[0, 1]), jnp.quantile(x, 0.3)),
    )


def _reduced(x: Any, y: Any) -> Any:
    return (
        lax.reduce(x, 0.0, lax.add, (0,)),
        lax.reduce(x, 2.0, lax.add, (1,)),
        lax.reduce(x, 2.0, lax.mul, (0, 1)),
        lax.reduce(x, -jnp.inf, lax.max, (0,)),
        lax.reduce(x, 0.5, lax.min, (0,)),
        lax.reduce(x > 0, False, lax.bitwise_or, (0,)),
        lax.reduce(x, 0.0, lambda a, c: jnp.add(c, a), (0,)),
    )


def _shapes(x: Any) -> Any:
    return (
        *(x.reshape(4, 6), x.ravel(), x.T, jnp.swapaxes(x, 0, 1), x[None], x[:, 0], x[1:, ::2], x[::-1, -1]),
        *(jnp.concatenate([x, 2 * x], 1), jnp.stack([x, x + 1], 2), *jnp.split(x, 3, 1)),
        jnp.tile(x, (2, 1, 3)),
        *(jnp.pad(x, ((1, 2), (0, 0), (1, 0)), constant_values=3.0), jnp.roll(x, 1, 1), jnp.flip(x, (0, 2))),
        *(lax.pad(x, 1.5, [(1, 2, 1), (-1, 0, 2), (0, -2, 0)]), jnp.repeat(x, 2, 1), jnp.moveaxis(x, 0, -1)),
        *(jnp.broadcast_to(x[:, :1], (2, 3, 4)), jnp.arange(6), jnp.linspace(0.0, 1.0, 5), jnp.eye(3)),
        jnp.tri(4),
        *(lax.expand_dims(x, (0, 2)), lax.squeeze(x[:, :1], (1,)), lax.reshape(x, (6, 4), (2, 0, 1))),
        *(lax.rev(x, (1,)), lax.slice(x, (0, 1, 1), (2, 3, 4), (1, 2, 2)), jnp.tril(x), jnp.triu(x, 1)),
        *(jnp.meshgrid(x[0, 0], x[0, :, 0]), jnp.unstack(x, axis=1) if hasattr(jnp, "unstack") else ()),
        *(jnp.rot90(x[0]), jnp.kron(x[0], x[1]), jnp.outer(x[0, 0], x[1, 0])),
        lax.broadcasted_iota(int, (2, 3), 1),
        *(jnp.diagonal(x[0]), jnp.pad(x, 1, mode="edge"), jnp.pad(x, 1, mode="reflect"), jnp.squeeze(x[:1])),
    )


def _contractions(x: Any, y: Any, z: Any) -> Any:
    return (
        *(jnp.einsum("bij,bjk->bik", x, y), jnp.einsum("bij,bjk->ik", x, y)),
        jnp.tensordot(x, y, ((2, 0), (1, 0))),
        *(x @ z, jnp.vecdot(x, x) if hasattr(jnp, "vecdot") else x, jnp.einsum("bii->b", x[:, :, :3])),
        *(lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))), jnp.matmul(x, y), jnp.inner(x, x)),
        lax.dot_general(x, z, (((2,), (0,)), ((), ())), preferred_element_type=jnp.float32),
        *(jnp.einsum("bij,jk,kl->bil", x, z, z.T), x.astype(jnp.int8) @ y.astype(jnp.int8)),
        lax.dot(x[0].astype(jnp.int8), z.astype(jnp.int8), preferred_element_type=jnp.int32),
        jnp.dot(x[0] > 0, z > 0),
        jnp.dot((x[0] * 9).astype(jnp.uint8), (z * 9).astype(jnp.uint8)),
    )


def _read(x: Any, ids: Any, row: Any) -> Any:
    far = ids * 4 - 3
    return (
        *(x[ids], x[:, ids], x[far], jnp.take(x, far, 0), jnp.take(x, far, 0, mode="clip"), x[ids, ids]),
        *(jnp.take(x, far, 0, mode="wrap"), jnp.take(x, far, 1, mode="fill", fill_value=7.0)),
        x.at[far].get(mode="clip"),
        *(x.at[ids].get(mode="promise_in_bounds"), jnp.take_along_axis(x, row, 1)),
        x.at[far].get(mode="drop"),
        *(jnp.take_along_axis(x, row * 4 - 3, 1), x[ids[0]], x[-1], x[far[0]], x.astype(jnp.int32)[far]),
        *(jax.vmap(lambda v, k: v[k])(x, row[:, 0]), jax.vmap(lambda v, k: v[k])(x, row), x[..., ids[None]]),
        jnp.choose(ids, [x[0, :3], x[1, :3], x[2, :3]], mode="clip"),
        jnp.select([x > 0, x < -1], [x, -x], 9.0),
        *(lax.dynamic_slice(x, (ids[0], far[1]), (2, 2)), lax.dynamic_slice_in_dim(x, far[0], 2, 1)),
        lax.dynamic_index_in_dim(x, far[2], 0),
        lax.dynamic_update_slice(x, x[:2, :2] * 9, (far[0], ids[1])),
        *(lax.dynamic_update_index_in_dim(x, x[0] + 5, far[1], 0), x.astype(jnp.uint8)[far]),
    )


def _written(x: Any, ids: Any, new: Any) -> Any:
    far = ids * 3 - 4
    distinct = jnp.array([2, 0, 3])
    return (
        *(x.at[ids].add(new), x.at[far].add(new), x.at[ids].max(new), x.at[ids].min(new), x.at[ids].mul(new)),
        *(x.at[distinct].set(new), x.at[far].add(new, mode="clip"), x.at[far].add(new, mode="drop")),
        *(x.at[:, 1].set(0.5), x.at[1].add(2.0), x.at[1:3, ::2].mul(3.0), x.at[-1].set(1.0)),
        x.at[0, 1].set(9),
        *(jax.ops.segment_sum(new, ids, 4), jax.ops.segment_max(new, ids, 4), jnp.bincount(ids, length=5)),
        *(jax.vmap(lambda v, k, n: v.at[k].add(n))(x[:3], ids, new[:, 0]), x.at[ids].divide(2.0)),
        *(x.at[distinct].set(new, unique_indices=True), jnp.zeros(6).at[far].add(1.0)),
        x.at[ids].subtract(new),
        *(x.at[ids].power(2.0), jax.ops.segment_prod(new, ids, 4)),
        *(x.at[jnp.array([5, -9])].set(1.0, mode="drop"), x.at[distinct[:2], distinct[1:]].add(1.0)),
    )


def _sorting(x: Any) -> Any:
    return (
        *(jnp.sort(x), jnp.argsort(x, 0), lax.top_k(x, 3), lax.sort((x, -x, x * 2), num_keys=1, dimension=0)),
        *(jnp.sort(x, descending=True), jnp.argsort(x, 1, descending=True), jnp.argsort(jnp.round(x), 1)),
        *(lax.top_k(x.T, 2), jnp.searchsorted(jnp.array([-1.0, 0.0, 1.0]), x)),
    )


def _windows(x: Any) -> Any:
    return (
        *(lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "SAME"),),
        *(lax.reduce_window(x, 0.0, lax.add, (1, 2, 3), (1, 1, 2), "VALID"),),
        *(lax.reduce_window(x, jnp.inf, lax.min, (2, 1, 2), (1, 1, 1), [(0, 0), (1, 0), (0, 2)]),),
        *(lax.reduce_window(x, 0.0, lax.add, (1, 2, 2), (1, 1, 1), "VALID", (1, 2, 1), (1, 1, 2)),),
        *(lax.reduce_window(x, 1.0, lax.mul, (1, 2, 2), (1, 1, 1), "VALID"),),
    )


def _convolve(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(
        x,
        k,
        (2, 1),
        [(1, 2), (0, 1)],
        lhs_dilation=(1, 2),
        rhs_dilation=(1, 2),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=2,
    )


def _strided(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _gradient(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    def loss(*arguments: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(function(*arguments)))

    return jax.grad(loss, tuple(range(count)))


def _attention(q: Any, k: Any, v: Any) -> Any:
    """Grouped queries, causal, a sliding window, segments, a cap on the scores, positions as a bias."""
    _, length, heads, width = q.shape
    k, v = (jnp.repeat(x, heads // k.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", _rotary(q), _rotary(k)) * width**-0.5
    scores = 5.0 * jnp.tanh(scores / 5.0)
    at = jnp.arange(length)
    slopes = 2.0 ** -jnp.arange(1, heads + 1, dtype=jnp.float32)
    scores = scores - slopes[None, :, None, None] * jnp.abs(at[:, None] - at[None])
    mask = (at[:, None] >= at[None]) & (at[:, None] - at[None] < 3)
    segments = at // 4
    mask = mask & (segments[:, None] == segments[None])
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _rotary(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] / 10000.0 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    a, c = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - c * sin, a * sin + c * cos], -1)


def _experts(x: Any, router: Any, up: Any, down: Any) -> Any:
    """Each token to its two best experts, by one-hot dispatch."""
    weights, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
    dispatch = jax.nn.one_hot(chosen, router.shape[1], dtype=x.dtype)
    hidden = jax.nn.silu(jnp.einsum("td,tke,edf->tkf", x, dispatch, up))
    return jnp.einsum("tkf,tke,efd,tk->td", hidden, dispatch, down, weights)


def _sorted_experts(x: Any, router: Any, up: Any) -> Any:
    """Tokens put in the order of their expert, and back."""
    expert = jnp.argmax(x @ router, -1)
    order = jnp.argsort(expert, stable=True)
    rows = jax.nn.one_hot(expert[order], router.shape[1], dtype=x.dtype)
    return jnp.zeros((x.shape[0], up.shape[2])).at[order].add(jnp.einsum("td,te,edf->tf", x[order], rows, up))


def _norms(x: Any, w: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    layer = centred * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * w
    rms = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w
    grouped = x.reshape(x.shape[0], 2, -1)
    group = jax.nn.standardize(grouped, axis=-1).reshape(x.shape)
    batch = (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)
    return layer, rms, group, batch


def _losses(logits: Any, labels: Any) -> Any:
    logp = jax.nn.log_softmax(logits)
    target = jax.nn.one_hot(labels, logits.shape[-1]) * 0.9 + 0.1 / logits.shape[-1]
    picked = jnp.take_along_axis(logp, labels[:, None], 1)[:, 0]
    z = jax.nn.logsumexp(logits, -1)
    right = jnp.argmax(logits, -1) == labels
    return -(logp * target).sum(-1).mean(), -picked.mean() + 1e-4 * (z**2).mean(), right


def _optimisers(p: Any, g: Any, m: Any, v: Any) -> Any:
    g = g * jnp.minimum(1.0, 1.0 / (jnp.sqrt(jnp.sum(g * g)) + 1e-6))
    m, v = 0.9 * m + 0.1 * g, 0.99 * jnp.abs(v) + 0.01 * g * g
    step = (m / (1 - 0.9**3)) / (jnp.sqrt(v / (1 - 0.99**3)) + 1e-8)
    ratio = jnp.linalg.norm(p) / (jnp.linalg.norm(step) + 1e-6)
    rows, columns = (g * g).mean(1), (g * g).mean(0)
    factored = g * lax.rsqrt(rows[:, None] * columns[None] / rows.mean() + 1e-30)
    return p - 1e-3 * step, p - 1e-3 * ratio * step, p - 1e-3 * factored, m, v


def _mixed(x: Any, w: Any) -> Any:
    y = x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
    z = jnp.dot(x.astype(jnp.float16), w.astype(jnp.float16), preferred_element_type=jnp.float32)
    return jax.nn.gelu(y.astype(jnp.float32)), z, lax.reduce_precision(x, 8, 7)


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1)


_clipped.defvjp(lambda x: (jnp.clip(x, -1, 1), x), lambda x, g: (jnp.where(jnp.abs(x) < 2, g, 0.0),))


@jax.custom_jvp
def _doubled(x: Any) -> Any:
    return x * 2


_doubled.defjvp(lambda primals, tangents: (primals[0] * 2, tangents[0] * 3))


def _called(x: Any) -> Any:
    saved = jax.checkpoint(lambda y: jnp.sin(jnp.cos(y)), policy=jax.checkpoint_policies.dots_saveable)
    plain = jax.remat(jnp.tanh)
    return (
        *(jax.jit(jnp.sin)(x), saved(x), plain(x), _clipped(x), _doubled(x)),
        lax.optimization_barrier((x, x + 1)),
        *(jax.grad(lambda y: _clipped(y).sum())(x), jax.grad(lambda y: _doubled(y).sum())(x)),
        lax.stop_gradient(x),
        *(jax.grad(lambda y: saved(y).sum())(x), jax.grad(lambda y: plain(y).sum())(x)),
        jax.named_call(jnp.exp)(x),
        *(jax.jvp(jnp.sin, (x,), (x,)), jax.linearize(jnp.exp, x)[1](x), jax.nn.relu(x), jax.nn.softplus(x)),
        *(jax.grad(lambda y: jax.nn.relu(y).sum())(x), jax.grad(lambda y: jax.nn.logsumexp(y))(x)),
        *(jax.nn.leaky_relu(x), jax.nn.elu(x), jax.nn.selu(x), jax.nn.hard_tanh(x)),
        jax.nn.gelu(x, approximate=False),
        *(jax.nn.relu6(x), jax.nn.glu(x), jax.nn.mish(x), jax.nn.squareplus(x), jax.nn.log_sigmoid(x)),
    )


def _branches(n: Any, x: Any) -> Any:
    return (
        lax.cond(n > 0, lambda y: y * 2, lambda y: y - 1, x),
        *(lax.switch(k, [jnp.sin, lambda y: y - 1, lambda y: y + y.sum()], x) for k in (n, n - 5, n + 9)),
        jnp.piecewise(x, [x < 0, x > 1], [lambda y: -y, lambda y: y * y, 3.0]),
    )


def _selected(which: Any, x: Any) -> Any:
    return lax.select_n(which, x, x + 1, x + 2)


def _complex(x: Any, y: Any) -> Any:
    z = lax.exp(lax.complex(x, y)) * lax.complex(y, x)
    return lax.real(z), lax.imag(lax.conj(z)), jnp.abs(z)


ONE_RANK: dict[str, Program] = {
    "complex": (_complex, [f(3, 4), f(3, 4)]),
    "placed": (lambda x: jax.device_put(x) + 1, [f(3)]),
    "unary": (_unary, [f(3, 4)]),
    "binary": (_binary, [f(3, 4), f(3, 4)]),
    "integers": (_integers, [i(3, 4), i(3, 4)]),
    "unsigned": (_unsigned, [u(3, 4), u(3, 4)]),
    "booleans": (_booleans, [b(3, 4), b(3, 4)]),
    "casts": (_casts, [f(3, 4)]),
    "reductions": (_reductions, [f(2, 3, 4)]),
    "reduced": (_reduced, [f(3, 4), f(3, 4)]),
    "shapes": (_shapes, [f(2, 3, 4)]),
    "contractions": (_contractions, [f(2, 3, 4), f(2, 4, 5), f(4, 5)]),
    "read": (_read, [f(3, 5), i(3), i(3, 2)]),
    "written": (_written, [f(4, 5), i(3), f(3, 5)]),
    "sorting": (_sorting, [f(4, 6)]),
    "windows": (_windows, [f(2, 5, 6)]),
    "convolution": (_convolve, [f(3, 9, 8, 4), f(3, 2, 2, 6)]),
    "convolution_gradient": (_gradient(_convolve, 2), [f(3, 9, 8, 4), f(3, 2, 2, 6)]),
    "strided_gradient": (_gradient(_strided, 2), [f(2, 7, 6, 3), f(3, 3, 3, 4)]),
    "convolution_mapped": (
        lambda x, k: jax.vmap(lambda y, c: lax.conv(y, c, (1, 1), "SAME"))(x, k),
        [f(2, 1, 3, 5, 5), f(2, 4, 3, 3, 3)],
    ),
    "average_pool_gradient": (
        _gradient(lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2), (1, 2, 1), "SAME"), 1),
        [f(2, 5, 6)],
    ),
    "attention": (_attention, [f(2, 8, 4, 16), f(2, 8, 2, 16), f(2, 8, 2, 16)]),
    "attention_gradient": (_gradient(_attention, 3), [f(2, 8, 4, 16), f(2, 8, 2, 16), f(2, 8, 2, 16)]),
    "library_attention": (
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(3, 0)),
        [f(2, 8, 4, 16), f(2, 8, 2, 16), f(2, 8, 2, 16)],
    ),
    "experts": (_experts, [f(6, 8), f(8, 4), f(4, 8, 5), f(4, 5, 8)]),
    "experts_gradient": (_gradient(_experts, 4), [f(6, 8), f(8, 4), f(4, 8, 5), f(4, 5, 8)]),
    "sorted_experts": (_sorted_experts, [f(6, 8), f(8, 4), f(4, 8, 5)]),
    "norms": (_norms, [f(4, 8), f(8)]),
    "norms_gradient": (_gradient(_norms, 2), [f(4, 8), f(8)]),
    "losses": (_losses, [f(5, 7), i(5)]),
    "losses_gradient": (_gradient(lambda x: _losses(x, jnp.array([1, 0, 4]))[:2], 1), [f(3, 7)]),
    "optimisers": (_optimisers, [f(3, 4), f(3, 4), f(3, 4), f(3, 4)]),
    "mixed": (_mixed, [f(3, 4), f(4, 5)]),
    "called": (_called, [f(3, 4)]),
    "branches": (_branches, [i(), f(4)]),
    "inverses": (_inverses, [f(3, 4)]),
    "draws": (_draws, [i(), u(2), f(4, 3)]),
    "ragged": (_ragged, [f(6, 4), f(3, 4, 5)]),
    "largest": (lambda x: jax.vmap(lambda y: lax.top_k(y, 2), 1, 1)(x), [f(5, 3)]),
    "selected": (_selected, [i(4), f(4)]),
    "scanned": (
        lambda x, w: lax.scan(lambda c, a: (jnp.tanh(c @ a), c.sum()), x, w, reverse=True),
        [f(4, 4), f(3, 4, 4)],
    ),
    "scan_gradient": (
        _gradient(lambda x, w: lax.scan(lambda c, a: (jnp.tanh(c @ a), c.sum()), x, w), 2),
        [f(4, 4), f(3, 4, 4)],
    ),
    "counted": (lambda x: lax.fori_loop(0, 5, lambda n, c: c * 0.5 + n, x), [f(4)]),
}
