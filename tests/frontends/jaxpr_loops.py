"""JAX programs with loops for the tests: a reference, the same on ranks, and that with a mistake.

Imported only where jax is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

P = jax.sharding.PartitionSpec
Function = Callable[..., Any]
L = 6
"""Layers."""


def f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


class Case(NamedTuple):
    """Functions of `inputs`, the last two on the ranks of `mesh`; with `induction` no loop is written out."""

    reference: Function
    right: Function
    wrong: Function
    mesh: Mapping[str, int]
    inputs: Mapping[str, Any]
    in_specs: Mapping[str, Any]
    out_specs: Any
    induction: bool = True
    ranges: Mapping[str, tuple[int, int]] = {}


CASES: dict[str, Case] = {}
TP, DP = {"tp": 2}, {"dp": 2}
BATCH = (DP, {"x": f(8, 8), "w": f(L, 8, 8)}, {"x": P("dp"), "w": P()})
COLUMNS = (TP, {"x": f(8, 8), "w": f(L, 8, 8)}, {"x": P(), "w": P(None, None, "tp")})
PAIR = (
    {"tp": 4},
    {"x": f(16, 8), "w1": f(L, 8, 32), "w2": f(L, 32, 8)},
    {"x": P(), "w1": P(None, None, "tp"), "w2": P(None, "tp")},
)
STEPS = (DP, {"x": f(5, 8, 8), "w": f(8)}, {"x": P(None, "dp"), "w": P()})
HEADS = (
    TP,
    {"q": f(4, 8, 4), "k": f(4, 12, 4), "v": f(4, 12, 4)},
    {"q": P("tp"), "k": P("tp"), "v": P("tp")},
)


def same(x: Any) -> Any:
    return x


def total(axis: Any) -> Function:
    return lambda x: lax.psum(x, axis)


def mean(axis: Any) -> Function:
    return lambda x: lax.pmean(x, axis)


def whole(axis: str, dim: int) -> Function:
    return lambda x: lax.all_gather(x, axis, axis=dim, tiled=True)


COLUMNS_OF = whole("tp", 1)


# layers


def with_loss(reduced: Function, counted: Function) -> Function:
    """Layers that also carry a sum of what they compute."""

    def fn(x: Any, w1: Any, w2: Any) -> Any:
        def layer(c: Any, w: Any) -> Any:
            x, loss = c
            h = jax.nn.gelu(x @ w[0])
            return (x + reduced(h @ w[1]), loss + counted(jnp.sum(h * h))), None

        return lax.scan(layer, (x, jnp.float32(0)), (w1, w2))[0]

    return fn


def after(post: Function) -> Function:
    """The same, completed once, after all layers."""

    def fn(x: Any, w1: Any, w2: Any) -> Any:
        y, loss = with_loss(total("tp"), same)(x, w1, w2)
        return y, post(loss)

    return fn


CASES["carried loss"] = Case(
    with_loss(same, same),
    with_loss(total("tp"), total("tp")),
    with_loss(total("tp"), same),
    *PAIR,
    (P(), P()),
)
CASES["partial loss"] = Case(with_loss(same, same), after(total("tp")), after(same), *PAIR, (P(), P()))


def counting(gather: Function, by: int = 1) -> Function:
    """Layers scaled by their number, which is carried."""

    def fn(x: Any, w: Any) -> Any:
        def layer(c: Any, w: Any) -> Any:
            x, i = c
            return (x + gather(jnp.tanh(x @ w)) * (i + 1).astype(jnp.float32), i + by), None

        return lax.scan(layer, (x, jnp.int32(0)), w)[0][0]

    return fn


CASES["counted layers"] = Case(counting(same), counting(COLUMNS_OF), counting(COLUMNS_OF, 2), *COLUMNS, P())


def every_other(gather: Function, first: int = 0) -> Function:
    def fn(x: Any, w: Any) -> Any:
        def layer(x: Any, wi: Any) -> Any:
            y = gather(x @ wi[0])
            return jnp.where(wi[1] % 2 == first, jnp.tanh(y), jnp.sin(y)), None

        return lax.scan(layer, x, (w, jnp.arange(L)))[0]

    return fn


CASES["every other layer"] = Case(
    every_other(same), every_other(COLUMNS_OF), every_other(COLUMNS_OF, 1), *COLUMNS, P()
)


def last_special(gather: Function, last: int = L - 1) -> Function:
    """A branch by the number of the layer, with a collective in both cases."""

    def fn(x: Any, w: Any) -> Any:
        def layer(c: Any, w: Any) -> Any:
            x, i = c
            y = lax.cond(i == last, lambda: gather(x @ w), lambda: gather(jnp.tanh(x @ w)))
            return (y, i + 1), None

        return lax.scan(layer, (x, 0), w)[0][0]

    return fn


CASES["another last layer"] = Case(
    last_special(same), last_special(COLUMNS_OF), last_special(COLUMNS_OF, 0), *COLUMNS, P()
)


def two_meshes(reduced: Function) -> Function:
    def fn(x: Any, w1: Any, w2: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return x + reduced(jax.nn.silu(x @ w[0]) @ w[1]), None

        return lax.scan(layer, x, (w1, w2))[0]

    return fn


CASES["dp x tp"] = Case(
    two_meshes(same),
    two_meshes(total("tp")),
    two_meshes(total(("dp", "tp"))),
    {"dp": 2, "tp": 2},
    {"x": f(8, 8), "w1": f(L, 8, 16), "w2": f(L, 16, 8)},
    {"x": P("dp"), "w1": P(None, None, "tp"), "w2": P(None, "tp")},
    P("dp"),
)


@jax.custom_vjp
def entered(x: Any) -> Any:
    """What every rank computes with: the gradients of all are summed."""
    return x


@jax.custom_vjp
def summed(x: Any) -> Any:
    return lax.psum(x, "tp")


entered.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "tp"),))
summed.defvjp(lambda x: (lax.psum(x, "tp"), None), lambda _, g: (g,))


def layer_gradient(enter: Function, leave: Function) -> Function:
    """The gradient of layers that are computed again on the way back."""

    def fn(x: Any, w1: Any, w2: Any) -> Any:
        @jax.checkpoint
        def layer(x: Any, w: Any) -> Any:
            return x + leave(jax.nn.silu(enter(x) @ w[0]) @ w[1]), None

        return jax.grad(lambda w: jnp.sum(lax.scan(layer, x, w)[0] ** 2))((w1, w2))

    return fn


CASES["gradient of layers"] = Case(
    layer_gradient(same, same),
    layer_gradient(entered, summed),
    layer_gradient(same, summed),
    *PAIR,
    (P(None, None, "tp"), P(None, "tp")),
)


def nested(gather: Function, reverse: bool = False) -> Function:
    """Blocks of layers."""

    def fn(x: Any, w: Any) -> Any:
        def block(x: Any, ws: Any) -> Any:
            y = lax.scan(lambda x, w: (x + gather(jnp.tanh(x @ w)), None), x, ws, reverse=reverse)[0]
            return jnp.sin(y), None

        return lax.scan(block, x, w)[0]

    return fn


CASES["loops in a loop"] = Case(
    nested(same),
    nested(COLUMNS_OF),
    nested(COLUMNS_OF, True),
    TP,
    {"x": f(8, 8), "w": f(3, 4, 8, 8)},
    {"x": P(), "w": P(None, None, None, "tp")},
    P(),
)


def gathered_weights(axis: int) -> Function:
    def fn(x: Any, w: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            own = lax.all_gather(w, "dp", axis=axis, tiled=True).reshape(8, 8)
            return x + jnp.tanh(x @ own), None

        return lax.scan(layer, x, w)[0]

    return fn


CASES["gathered weights"] = Case(
    lambda x, w: lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, w)[0],
    gathered_weights(0),
    gathered_weights(1),
    DP,
    BATCH[1],
    {"x": P("dp"), "w": P(None, "dp")},
    P("dp"),
)


def keyed(seed: int) -> Function:
    """Dropout by a key that is split in every layer."""

    def fn(x: Any, w: Any) -> Any:
        def layer(c: Any, w: Any) -> Any:
            key, own = jax.random.split(c[1])
            kept = jax.random.bernoulli(own, 0.5, (8,)).astype(jnp.float32)
            return (jnp.tanh(c[0] @ w) * kept, key), None

        return lax.scan(layer, (x, jax.random.PRNGKey(seed)), w)[0][0]

    return fn


CASES["carried key"] = Case(keyed(0), keyed(0), keyed(1), *BATCH, P("dp"))


# counted loops


def rows(x: Any, w: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]


def by_number(row: Callable[[Any], Any], first: int = 0, last: int = L) -> Function:
    return lambda x, w: lax.fori_loop(first, last, lambda i, x: jnp.tanh(x @ w[row(i)]), x)


CASES["rows by number"] = Case(rows, by_number(same), by_number(lambda i: L - 1 - i), *BATCH, P("dp"))
CASES["rows from 1"] = Case(
    lambda x, w: rows(x, w[1:]), by_number(same, 1), by_number(same, 0, L - 1), *BATCH, P("dp"), False
)
CASES["rows backwards"] = Case(
    lambda x, w: lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w, reverse=True)[0],
    by_number(lambda i: L - 1 - i),
    by_number(same),
    *BATCH,
    P("dp"),
    False,
)


def written(shift: int, by: str) -> Function:
    """Results that are written row by row."""

    def fn(x: Any, w: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            y, at = jnp.tanh(c[0] @ w[i]), (i + shift) % L
            if by == "scatter":
                return y, c[1].at[at].set(y)
            return y, lax.dynamic_update_index_in_dim(c[1], y, at, 0)

        return lax.fori_loop(0, L, step, (x, jnp.zeros((L, *x.shape))))[1]

    return fn


def all_rows(x: Any, w: Any) -> Any:
    def step(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y, y

    return lax.scan(step, x, w)[1]


for _by in ("update", "scatter"):
    CASES[f"rows written by {_by}"] = Case(all_rows, written(0, _by), written(1, _by), *BATCH, P(None, "dp"))
CASES["rows written in both"] = Case(
    written(0, "update"), written(0, "update"), written(1, "update"), *BATCH, P(None, "dp")
)


def while_loop(gather: Function, count: int) -> Function:
    def fn(x: Any, w: Any) -> Any:
        def step(c: Any) -> Any:
            return c[0] + 1, gather(jnp.tanh(c[1] @ w[0]))

        return lax.while_loop(lambda c: c[0] < count, step, (0, x))[1]

    return fn


CASES["while"] = Case(
    while_loop(same, 7), while_loop(COLUMNS_OF, 7), while_loop(COLUMNS_OF, 6), *COLUMNS, P(), True
)


# sequences


def recurrence(decay: float = 1.0) -> Function:
    def fn(x: Any, a: Any, b: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.exp(-a * decay) * h + b * x
            return h, jnp.tanh(h)

        return lax.scan(step, jnp.zeros(x.shape[1]), x)[1]

    return fn


SEQUENCE = (TP, {"x": f(10, 8), "a": f(8), "b": f(8)}, {"x": P(None, "tp"), "a": P("tp"), "b": P("tp")})
CASES["recurrence"] = Case(recurrence(), recurrence(), recurrence(2.0), *SEQUENCE, P(None, "tp"))


def recurrence_gradient(first: int = 0) -> Function:
    def fn(x: Any, a: Any, b: Any) -> Any:
        return jax.grad(lambda a, b: jnp.sum(recurrence()(x, a, b)[first:] ** 2), (0, 1))(a, b)

    return fn


CASES["gradient of a recurrence"] = Case(
    recurrence_gradient(), recurrence_gradient(), recurrence_gradient(1), *SEQUENCE, (P("tp"), P("tp"))
)


def gates(gather: Function, order: tuple[int, ...] = (0, 1, 2, 3)) -> Function:
    """Two carried values, one of which is gathered in every step."""

    def fn(x: Any, wx: Any, wh: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            z = jnp.einsum("bi,igj->gbj", x, wx) + jnp.einsum("bi,igj->gbj", gather(c[0]), wh)
            i, g, o, u = (z[k] for k in order)
            cell = jax.nn.sigmoid(g) * c[1] + jax.nn.sigmoid(i) * jnp.tanh(u)
            h = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (h, cell), h

        zero = jnp.zeros((4, wx.shape[2]))
        return lax.scan(step, (zero, zero), x)[1]

    return fn


CASES["gates"] = Case(
    gates(same),
    gates(COLUMNS_OF),
    gates(COLUMNS_OF, (1, 0, 2, 3)),
    TP,
    {"x": f(10, 4, 8), "wx": f(8, 4, 8), "wh": f(8, 4, 8)},
    {"x": P(), "wx": P(None, None, "tp"), "wh": P(None, None, "tp")},
    P(None, None, "tp"),
)


def blocks(size: int, rescaled: bool = True) -> Function:
    """Attention over blocks of keys, with a running maximum."""

    def fn(q: Any, k: Any, v: Any) -> Any:
        def cut(x: Any) -> Any:
            return x.reshape(x.shape[0], -1, size, x.shape[2]).transpose(1, 0, 2, 3)

        def step(c: Any, kv: Any) -> Any:
            m, l, o = c
            s = jnp.einsum("hqd,hkd->hqk", q, kv[0])
            top = jnp.maximum(m, s.max(-1))
            p, by = jnp.exp(s - top[..., None]), jnp.exp(m - top)
            return (
                top,
                (l * by if rescaled else l) + p.sum(-1),
                o * by[..., None] + jnp.einsum("hqk,hkd->hqd", p, kv[1]),
            ), None

        zero = jnp.zeros(q.shape[:2])
        (_, l, o), _ = lax.scan(step, (zero - jnp.inf, zero, jnp.zeros_like(q)), (cut(k), cut(v)))
        return o / l[..., None]

    return fn


def attention(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k), -1), v)


CASES["attention by blocks"] = Case(blocks(4), blocks(4), blocks(4, False), *HEADS, P("tp"))
CASES["attention and blocks"] = Case(attention, blocks(4), blocks(4, False), *HEADS, P("tp"), False)


def ring(rounds: int) -> Function:
    """Attention in which keys and values go round the ranks."""

    def fn(q: Any, k: Any, v: Any) -> Any:
        turn = [(i, (i + 1) % 4) for i in range(4)]

        def step(c: Any, _: Any) -> Any:
            m, l, o, k, v = c
            s = q @ k.T
            top = jnp.maximum(m, s.max(-1))
            p, by = jnp.exp(s - top[:, None]), jnp.exp(m - top)
            own = (top, l * by + p.sum(-1), o * by[:, None] + p @ v)
            return (*own, lax.ppermute(k, "sp", turn), lax.ppermute(v, "sp", turn)), None

        zero = jnp.zeros(q.shape[0])
        start = (zero - jnp.inf, zero, jnp.zeros_like(q), k, v)
        _, l, o, *_ = lax.scan(step, start, None, length=rounds)[0]
        return o / l[:, None]

    return fn


CASES["ring attention"] = Case(
    lambda q, k, v: jax.nn.softmax(q @ k.T, -1) @ v,
    ring(4),
    ring(3),
    {"sp": 4},
    {"q": f(16, 4), "k": f(16, 4), "v": f(16, 4)},
    {"q": P("sp"), "k": P("sp"), "v": P("sp")},
    P("sp"),
    False,
)


def ring_product(sign: int) -> Function:
    """A product whose rows arrive round by round."""

    def fn(x: Any, w: Any) -> Any:
        turn, rank = [(i, (i + 1) % 4) for i in range(4)], lax.axis_index("tp")

        def step(i: Any, c: Any) -> Any:
            out, own = c
            out = lax.dynamic_update_slice(out, own @ w, (((rank - sign * i) % 4) * 4, 0))
            return out, lax.ppermute(own, "tp", turn)

        return lax.fori_loop(0, 4, step, (jnp.zeros((16, 8)), x))[0]

    return fn


CASES["ring product"] = Case(
    lambda x, w: x @ w,
    ring_product(1),
    ring_product(-1),
    {"tp": 4},
    {"x": f(16, 8), "w": f(8, 8)},
    {"x": P("tp"), "w": P()},
    P(),
    False,
)


def loss(x: Any, w: Any, y: Any) -> Any:
    z = x @ w
    return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, y[:, None], 1)[:, 0])


def loss_by_chunks(shift: int, bound: Function) -> Function:
    """The loss over a vocabulary that the ranks share, a few positions at a time."""

    def fn(x: Any, w: Any, y: Any) -> Any:
        rank, own = lax.axis_index("tp"), w.shape[1]

        def step(c: Any, xy: Any) -> Any:
            z = xy[0] @ w
            top = bound(lax.stop_gradient(z.max(-1)))
            norm = top + jnp.log(lax.psum(jnp.exp(z - top[:, None]).sum(-1), "tp"))
            at = xy[1] - (rank + shift) * own
            here = jnp.take_along_axis(z, jnp.clip(at, 0, own - 1)[:, None], 1)[:, 0]
            target = lax.psum(jnp.where((at >= 0) & (at < own), here, 0.0), "tp")
            return c + jnp.sum(norm - target), None

        total, _ = lax.scan(step, jnp.float32(0), (x.reshape(4, -1, 8), y.reshape(4, -1)))
        return total / x.shape[0]

    return fn


def largest(x: Any) -> Any:
    return lax.pmax(x, "tp")


CHUNKS = (
    TP,
    {"x": f(16, 8), "w": f(8, 12), "y": jax.ShapeDtypeStruct((16,), jnp.int32)},
    {"x": P(), "w": P(None, "tp"), "y": P()},
    P(),
    False,
    {"y": (0, 12)},
)
CASES["loss by chunks"] = Case(loss, loss_by_chunks(0, largest), loss_by_chunks(1, largest), *CHUNKS)


# training


def batch_loss(w: Any, x: Any) -> Any:
    return jnp.sum(rows(x, w) ** 2)


def in_parts(reduced: Function, count: int = 4) -> Function:
    """Loss and gradient summed over parts of the batch, each with a loop of its own."""

    def fn(x: Any, w: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            loss, g = jax.value_and_grad(batch_loss)(w, x)
            return (c[0] + loss, c[1] + g), None

        parts = x.reshape(count, -1, 8)
        loss, g = lax.scan(step, (jnp.float32(0), jnp.zeros_like(w)), parts)[0]
        return lax.psum(loss, "dp"), reduced(g)

    return fn


CASES["gradient of parts"] = Case(
    lambda x, w: jax.value_and_grad(batch_loss)(w, x),
    in_parts(total("dp")),
    in_parts(mean("dp")),
    *BATCH,
    (P(), P()),
)


def part_loss(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def momentum(reduced: Function, rate: float = 0.1) -> Function:
    def fn(x: Any, w: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            m = 0.9 * c[1] + 0.1 * reduced(jax.grad(part_loss)(c[0], x))
            return (c[0] - rate * m, m), None

        return lax.scan(step, (w, jnp.zeros_like(w)), x)[0]

    return fn


CASES["momentum"] = Case(momentum(same), momentum(total("dp")), momentum(same), *STEPS, (P(), P()))


def sharded_momentum(rate: float) -> Function:
    """Each rank keeps its part of the momentum and updates its part of the weight."""

    def fn(x: Any, w: Any) -> Any:
        rank = lax.axis_index("dp")

        def step(c: Any, x: Any) -> Any:
            g = lax.psum_scatter(jax.grad(part_loss)(c[0], x), "dp", scatter_dimension=0, tiled=True)
            m = 0.9 * c[1] + 0.1 * g
            own = lax.dynamic_slice_in_dim(c[0], rank * 4, 4, 0) - rate * m
            return (lax.all_gather(own, "dp", axis=0, tiled=True), m), None

        return lax.scan(step, (w, jnp.zeros(4)), x)[0]

    return fn


CASES["sharded momentum"] = Case(
    momentum(same), sharded_momentum(0.1), sharded_momentum(0.2), *STEPS, (P(), P("dp"))
)


def adam(reduced: Function, start: int = 0) -> Function:
    def fn(x: Any, w: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            w, m, v, t = c
            g, t = reduced(jax.grad(part_loss)(w, x)), t + 1
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
            by = jnp.sqrt(v / (1 - 0.99**t)) + 1e-8
            return (w - 0.1 * m / (1 - 0.9**t) / by, m, v, t), None

        zero = jnp.zeros_like(w)
        return lax.scan(step, (w, zero, zero, jnp.float32(start)), x)[0][0]

    return fn


CASES["adam"] = Case(adam(same), adam(total("dp")), adam(total("dp"), 1), *STEPS, P())


def stages(rounds: int) -> Function:
    """A pipeline of four stages over six parts of a batch."""

    def fn(x: Any, w: Any) -> Any:
        rank, on = lax.axis_index("pp"), [(i, i + 1) for i in range(3)]

        def step(c: Any, i: Any) -> Any:
            given = jnp.where(rank == 0, x[jnp.minimum(i, 5)], c[0])
            y = jnp.tanh(given @ w[0])
            kept = lax.dynamic_update_index_in_dim(c[1], y, jnp.maximum(i - 3, 0), 0)
            return (lax.ppermute(y, "pp", on), jnp.where(i >= 3, kept, c[1])), None

        start = (jnp.zeros((2, 8)), jnp.zeros((6, 2, 8)))
        ys = lax.scan(step, start, jnp.arange(rounds))[0][1]
        return lax.psum(jnp.where(rank == 3, ys, 0.0), "pp")

    return fn


CASES["pipeline"] = Case(
    lambda x, w: partial(lax.fori_loop, 0, 4)(lambda i, x: jnp.tanh(x @ w[i]), x),
    stages(9),
    stages(8),
    {"pp": 4},
    {"x": f(6, 2, 8), "w": f(4, 8, 8)},
    {"x": P(), "w": P("pp")},
    P(),
    False,
)
