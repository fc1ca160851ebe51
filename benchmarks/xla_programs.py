"""Programs for XLA to partition, in the form that `shardproof verify-xla` takes.

Each function of `PROGRAMS` returns (function, inputs, mesh, in_shardings, out_shardings, ranges).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

Case = tuple[Callable[..., Any], Any, dict[str, int], Any, Any, dict[str, tuple[int, int]]]
TP: Final = {"tp": 8}
BOTH: Final = {"dp": 2, "tp": 4}
RING: Final = {"r": 4}
PROGRAMS: dict[str, Callable[[], Case]] = {}


def real(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integer(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def program(build: Callable[[], Case]) -> Callable[[], Case]:
    PROGRAMS[build.__name__] = build
    return build


def mlp(x: Any, w_up: Any, w_down: Any) -> Any:
    return jax.nn.gelu(x @ w_up) @ w_down


def swiglu(x: Any, p: Any) -> Any:
    return (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]


def rms_norm(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    spread = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(spread + 1e-5) * scale + bias


def rotated(x: Any) -> Any:
    """Rotary positions along dim 1 of [batch, sequence, heads, width]."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-jnp.arange(half) / half)
    angle = jnp.arange(x.shape[1])[:, None] * rates
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(x: Any, p: Any, *, rotary: bool = False) -> Any:
    """Causal attention with grouped queries; `p` holds q [d,h,w], k and v [d,g,w], o [h,w,d]."""
    q, k, v = (jnp.einsum("bsd,dhw->bshw", x, p[n]) for n in "qkv")
    if rotary:
        q, k = rotated(q), rotated(k)
    groups = q.shape[2] // k.shape[2]
    q = q.reshape(*q.shape[:2], k.shape[2], groups, q.shape[3])
    scores = jnp.einsum("bsgmw,btgw->bgmst", q, k) / q.shape[-1] ** 0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)
    mixed = jnp.einsum("bgmst,btgw->bsgmw", weights, v)
    return jnp.einsum("bshw,hwd->bsd", mixed.reshape(*mixed.shape[:2], -1, mixed.shape[-1]), p["o"])


ATTENTION: Final = {"q": real(32, 8, 4), "k": real(32, 4, 4), "v": real(32, 4, 4), "o": real(8, 4, 32)}
ATTENTION_SPECS: Final = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "o": P("tp")}
MLP: Final = {"gate": real(32, 64), "up": real(32, 64), "down": real(64, 32)}
MLP_SPECS: Final = {"gate": P(None, "tp"), "up": P(None, "tp"), "down": P("tp")}


@program
def megatron_mlp() -> Case:
    shapes = (real(16, 32), real(32, 64), real(64, 32))
    return mlp, shapes, TP, (None, P(None, "tp"), P("tp")), P(), {}


@program
def megatron_mlp_gradient() -> Case:
    def gradients(x: Any, w_up: Any, w_down: Any) -> Any:
        return jax.value_and_grad(lambda *a: (mlp(*a) ** 2).sum(), (0, 1, 2))(x, w_up, w_down)

    shapes = (real(16, 32), real(32, 64), real(64, 32))
    specs = (P("dp"), P(None, "tp"), P("tp"))
    return gradients, shapes, BOTH, specs, (P(), specs), {}


@program
def swiglu_data_and_tensor() -> Case:
    return swiglu, (real(4, 8, 32), MLP), BOTH, (P("dp"), MLP_SPECS), P("dp"), {}


@program
def sequence_parallel_block() -> Case:
    def block(x: Any, scale: Any, p: Any) -> Any:
        h = lax.with_sharding_constraint(rms_norm(x, scale), P("dp", None, None))
        return lax.with_sharding_constraint(x + swiglu(h, p), P("dp", "tp", None))

    shapes = (real(4, 8, 32), real(32), MLP)
    return block, shapes, BOTH, (P("dp", "tp"), None, MLP_SPECS), P("dp", "tp"), {}


@program
def attention_grouped_queries() -> Case:
    return attention, (real(4, 8, 32), ATTENTION), BOTH, (P("dp"), ATTENTION_SPECS), P("dp"), {}


@program
def attention_rotary() -> Case:
    def run(x: Any, p: Any) -> Any:
        return attention(x, p, rotary=True)

    return run, (real(4, 8, 32), ATTENTION), BOTH, (P("dp"), ATTENTION_SPECS), P("dp"), {}


@program
def attention_gradient() -> Case:
    def gradients(x: Any, p: Any) -> Any:
        return jax.grad(lambda x, p: (attention(x, p) ** 2).sum(), (0, 1))(x, p)

    specs = (P("dp"), ATTENTION_SPECS)
    return gradients, (real(4, 8, 32), ATTENTION), BOTH, specs, specs, {}


@program
def attention_context_parallel() -> Case:
    """Queries divided along the sequence, keys and values gathered."""

    def run(x: Any, p: Any) -> Any:
        return lax.with_sharding_constraint(attention(x, p), P(None, "tp"))

    return run, (real(2, 16, 32), ATTENTION), TP, (P(None, "tp"), None), P(None, "tp"), {}


def loss_of(x: Any, w: Any, labels: Any) -> Any:
    logits = x @ w
    peak = lax.stop_gradient(logits.max(-1, keepdims=True))
    total = jnp.log(jnp.exp(logits - peak).sum(-1)) + peak[..., 0]
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (total - picked).mean()


@program
def vocabulary_embedding() -> Case:
    shapes = (real(64, 16), integer(4, 8))
    return (lambda table, ids: table[ids]), shapes, TP, (P("tp"), None), P(), {"ids": (0, 64)}


@program
def vocabulary_embedding_gradient() -> Case:
    def gradient(table: Any, ids: Any, up: Any) -> Any:
        return jax.grad(lambda t: (t[ids] * up).sum())(table)

    shapes = (real(64, 16), integer(4, 8), real(4, 8, 16))
    return gradient, shapes, BOTH, (P("tp"), P("dp"), P("dp")), P("tp"), {"ids": (0, 64)}


@program
def vocabulary_loss() -> Case:
    shapes = (real(8, 16), real(16, 64), integer(8))
    return loss_of, shapes, BOTH, (P("dp"), P(None, "tp"), P("dp")), P(), {"labels": (0, 64)}


@program
def vocabulary_loss_one_hot_gradient() -> Case:
    def loss(x: Any, w: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(x @ w)
        return -(jax.nn.one_hot(labels, 64) * logs).sum(-1).mean()

    def gradients(x: Any, w: Any, labels: Any) -> Any:
        return jax.value_and_grad(loss, (0, 1))(x, w, labels)

    shapes = (real(8, 16), real(16, 64), integer(8))
    specs = (P("dp"), P(None, "tp"), P("dp"))
    return gradients, shapes, BOTH, specs, (P(), specs[:2]), {"labels": (0, 64)}


@program
def layer_norm_over_shards() -> Case:
    shapes = (real(8, 32), real(32), real(32))
    return layer_norm, shapes, TP, (P(None, "tp"), P("tp"), P("tp")), P(None, "tp"), {}


@program
def layer_norm_gradient() -> Case:
    def gradients(x: Any, scale: Any, bias: Any, up: Any) -> Any:
        return jax.grad(lambda *a: (layer_norm(*a) * up).sum(), (0, 1, 2))(x, scale, bias)

    shapes = (real(8, 32), real(32), real(32), real(8, 32))
    return gradients, shapes, BOTH, (P("dp"), None, None, P("dp")), (P("dp"), P(), P()), {}


@program
def expert_dispatch() -> Case:
    """Top-1 routing with a capacity, by one-hot products; experts divided over tp."""

    def run(x: Any, router: Any, w_in: Any, w_out: Any) -> Any:
        gates = jax.nn.softmax(x @ router)
        best = jnp.argmax(gates, -1)
        chosen = jax.nn.one_hot(best, 8)
        place = (jnp.cumsum(chosen, 0) - 1) * chosen
        slots = jax.nn.one_hot(place.sum(-1).astype(jnp.int32), 4)
        dispatch = chosen[:, :, None] * slots[:, None, :]
        combine = dispatch * gates.max(-1)[:, None, None]
        inner = jnp.einsum("tec,td->ecd", dispatch, x)
        outer = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", inner, w_in)), w_out)
        return jnp.einsum("tec,ecd->td", combine, outer)

    shapes = (real(16, 32), real(32, 8), real(8, 32, 16), real(8, 16, 32))
    return run, shapes, TP, (None, None, P("tp"), P("tp")), P(), {}


@program
def experts_all_to_all() -> Case:
    """Tokens divided over data ranks, experts over the same ranks."""

    def run(x: Any, w: Any) -> Any:
        y = lax.with_sharding_constraint(x, P(None, "tp"))
        z = lax.with_sharding_constraint(jax.nn.relu(jnp.einsum("gecd,edf->gecf", y, w)), P(None, "tp"))
        return lax.with_sharding_constraint(z, P("tp"))

    return run, (real(8, 8, 4, 16), real(8, 16, 32)), TP, (P("tp"), P("tp")), P("tp"), {}


def convolved(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@program
def convolution_halo() -> Case:
    return convolved, (real(2, 16, 8, 4), real(3, 3, 4, 8)), RING, (P(None, "r"), None), P(None, "r"), {}


@program
def convolution_features() -> Case:
    def run(x: Any, k: Any, k2: Any) -> Any:
        return convolved(jax.nn.relu(convolved(x, k)), k2)

    shapes = (real(4, 8, 8, 4), real(3, 3, 4, 16), real(3, 3, 16, 4))
    specs = (P("dp"), P(None, None, None, "tp"), P(None, None, "tp"))
    return run, shapes, BOTH, specs, P("dp"), {}


@program
def convolution_gradient() -> Case:
    def gradients(x: Any, k: Any) -> Any:
        return jax.grad(lambda x, k: (convolved(x, k) ** 2).sum(), (0, 1))(x, k)

    shapes = (real(4, 8, 8, 4), real(3, 3, 4, 8))
    specs = (P("dp"), P(None, None, None, "tp"))
    return gradients, shapes, BOTH, specs, specs, {}


@program
def cumulative_sum() -> Case:
    return (lambda x: jnp.cumsum(x, 0)), (real(16, 8),), RING, (P("r"),), P("r"), {}


@program
def cumulative_sum_other_dim() -> Case:
    return (lambda x: jnp.cumsum(x * x, 1)), (real(16, 8),), RING, (P("r"),), P("r"), {}


@program
def gather_and_scatter() -> Case:
    def run(x: Any, ids: Any, up: Any) -> Any:
        return x.at[ids].add(up), jnp.take(x, ids, axis=0, mode="clip")

    shapes = (real(32, 8), integer(6), real(6, 8))
    return run, shapes, RING, (P("r"), None, None), (P("r"), P()), {"ids": (0, 32)}


@program
def gather_of_batch() -> Case:
    """Along an undivided dim, the batch divided."""

    def run(x: Any, ids: Any) -> Any:
        return jnp.take_along_axis(x, ids[..., None], 1)

    shapes = (real(8, 16, 4), integer(8, 3))
    return run, shapes, RING, (P("r"), P("r")), P("r"), {"ids": (0, 16)}


@program
def reshape_merges_dims() -> Case:
    return (lambda x: x.reshape(8, 64) * 2), (real(8, 4, 16),), RING, (P(None, "r"),), P(None, "r"), {}


@program
def reshape_splits_dims() -> Case:
    def run(x: Any) -> Any:
        return jnp.exp(x).reshape(8, 16, 4).transpose(1, 0, 2).reshape(16, 32)

    return run, (real(8, 64),), BOTH, (P("dp", "tp"),), P("tp", "dp"), {}


@program
def rows_to_columns() -> Case:
    return (lambda x: (x + 1).T), (real(16, 32),), BOTH, (P(("dp", "tp")),), P("dp", "tp"), {}


@program
def optimizer_step() -> Case:
    """Momentum with weights and states divided over the data ranks."""

    def step(p: Any, m: Any, x: Any, y: Any) -> Any:
        g = jax.grad(lambda p: ((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2).mean())(p)
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
        return jax.tree.map(lambda p, m: p - 0.01 * m, p, m), m

    weights, own = {"a": real(16, 32), "b": real(32, 8)}, {"a": P("dp", "tp"), "b": P("tp", "dp")}
    shapes = (weights, weights, real(8, 16), real(8, 8))
    return step, shapes, BOTH, (own, own, P("dp"), P("dp")), (own, own), {}


@program
def decode_step() -> Case:
    """One position against a cache divided by heads."""

    def step(q: Any, k: Any, v: Any, cache_k: Any, cache_v: Any, at: Any) -> Any:
        cache_k = lax.dynamic_update_slice(cache_k, k, (0, at, 0, 0))
        cache_v = lax.dynamic_update_slice(cache_v, v, (0, at, 0, 0))
        scores = jnp.einsum("bohw,bthw->bhot", q, cache_k) * 0.5
        seen = jnp.arange(cache_k.shape[1]) <= at
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1)
        return jnp.einsum("bhot,bthw->bohw", weights, cache_v), cache_k, cache_v

    one, cache = real(2, 1, 8, 4), real(2, 16, 8, 4)
    heads = P("dp", None, "tp")
    specs = (heads, heads, heads, heads, heads, None)
    return step, (one, one, one, cache, cache, integer()), BOTH, specs, (heads,) * 3, {"at": (0, 16)}


@program
def cache_update_over_shards() -> Case:
    """A position written into a cache divided along the sequence."""

    def step(cache: Any, row: Any, at: Any) -> Any:
        return lax.dynamic_update_slice(cache, row, (at, 0))

    return step, (real(16, 8), real(1, 8), integer()), RING, (P("r"), None, None), P("r"), {"at": (0, 16)}


@program
def roll() -> Case:
    return (lambda x: jnp.roll(x, 1, 0) + x), (real(16, 4),), RING, (P("r"),), P("r"), {}


@program
def layers_by_scan() -> Case:
    def run(x: Any, layers: Any) -> Any:
        return lax.scan(lambda h, p: (h + swiglu(h, p), None), x, layers)[0]

    layers = {n: real(4, *s.shape) for n, s in MLP.items()}
    specs = {n: P(None, *s) for n, s in MLP_SPECS.items()}
    return run, (real(4, 8, 32), layers), BOTH, (P("dp"), specs), P("dp"), {}


@program
def top_k_of_rows() -> Case:
    def run(x: Any) -> Any:
        values, places = lax.top_k(x, 3)
        return values, places, jnp.sort(x, -1)

    return run, (real(16, 8),), RING, (P("r"),), P("r"), {}


@program
def argmax_over_shards() -> Case:
    return (lambda x: (jnp.argmax(x, -1), x.max(-1))), (real(8, 32),), RING, (P(None, "r"),), P(), {}


@program
def softmax_over_shards() -> Case:
    return jax.nn.softmax, (real(8, 32),), RING, (P(None, "r"),), P(None, "r"), {}


@program
def concatenate_shards() -> Case:
    def run(x: Any, y: Any) -> Any:
        return jnp.concatenate([x, y * 2], 0)

    return run, (real(8, 4), real(16, 4)), RING, (P("r"), P("r")), P("r"), {}


@program
def pad_shards() -> Case:
    return (lambda x: jnp.pad(x, ((2, 6), (0, 0)))), (real(16, 4),), RING, (P("r"),), P("r"), {}


@program
def slice_shards() -> Case:
    return (lambda x: x[4:20] * 3), (real(32, 4),), RING, (P("r"),), P("r"), {}


@program
def reverse_shards() -> Case:
    return (lambda x: jnp.flip(x, 0)), (real(16, 4),), RING, (P("r"),), P("r"), {}


@program
def pool_over_shards() -> Case:
    def run(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    return run, (real(2, 16, 8, 4),), RING, (P(None, "r"),), P(None, "r"), {}


def llama_layer(x: Any, p: Any) -> Any:
    x = x + attention(rms_norm(x, p["norm1"]), p["attention"], rotary=True)
    return x + swiglu(rms_norm(x, p["norm2"]), p["mlp"])


LAYER: Final = {"norm1": real(32), "norm2": real(32), "attention": ATTENTION, "mlp": MLP}
LAYER_SPECS: Final = {"norm1": P(), "norm2": P(), "attention": ATTENTION_SPECS, "mlp": MLP_SPECS}


def llama_loss(p: Any, ids: Any, labels: Any) -> Any:
    x = p["embed"][ids]
    for layer in p["layers"]:
        x = llama_layer(x, layer)
    return loss_of(rms_norm(x, p["norm"]), p["head"], labels)


def llama(layers: int) -> tuple[Any, Any]:
    shapes = {"embed": real(64, 32), "layers": [LAYER] * layers, "norm": real(32), "head": real(32, 64)}
    specs = {"embed": P("tp"), "layers": [LAYER_SPECS] * layers, "norm": P(), "head": P(None, "tp")}
    return shapes, specs


@program
def llama_forward() -> Case:
    shapes, specs = llama(2)
    ids = integer(4, 8)
    ranges = {"ids": (0, 64), "labels": (0, 64)}
    return llama_loss, (shapes, ids, ids), BOTH, (specs, P("dp"), P("dp")), P(), ranges


@program
def llama_gradient() -> Case:
    shapes, specs = llama(1)
    ids = integer(4, 8)
    ranges = {"ids": (0, 64), "labels": (0, 64)}
    step = jax.value_and_grad(llama_loss)
    return step, (shapes, ids, ids), BOTH, (specs, P("dp"), P("dp")), (P(), specs), ranges
