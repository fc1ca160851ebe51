"""The weight loader of this example: every rank's parameters from the whole ones, and where outputs lie.

It is the ground truth that the relation files describe.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from model import Config, Decoder
from variants import VOCABULARY_PART, InterleavedQkv, PaddedHeads, PermutedHead, SequenceParallel

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]


def whole_inputs(config: Config, seed: int) -> list[Array]:
    """Parameters of the single-rank program, in its order; reals as float64."""
    rng = np.random.default_rng(seed)
    c = config

    def real(*shape: int) -> Floats:
        return rng.uniform(-1, 1, shape)

    inputs: list[Array] = [
        real(c.sequence, c.batch, c.hidden),
        rng.permutation(c.sequence).astype(np.int32),
        rng.integers(0, 3, c.batch, dtype=np.int32),
        rng.integers(0, c.sequence, 1, dtype=np.int32),
    ]
    for _ in range(2 * c.layers):
        inputs.append(real(c.sequence, c.batch, c.kv_heads, c.head_dim))
    columns = (c.heads + 2 * c.kv_heads) * c.head_dim
    for _ in range(c.layers):
        inputs += [real(c.hidden), real(c.hidden, columns), real(c.heads * c.head_dim, c.hidden)]
        inputs += [real(c.hidden), real(c.hidden, c.mlp), real(c.hidden, c.mlp), real(c.mlp, c.hidden)]
    return [*inputs, real(c.hidden), real(c.hidden, c.vocab)]


def rank_inputs(decoder: Decoder, whole: list[Array], reference: Config) -> list[list[Array]]:
    """For each parameter of `decoder`'s program, the array of every rank.

    `whole` are the parameters of the single-rank program of `reference`, which may have fewer heads
    and a smaller MLP than `decoder` pads them to.
    """
    c = decoder.config
    ranks = range(c.dp * c.tp)
    layers = c.layers

    def copies(x: Array) -> list[Array]:
        return [x for _ in ranks]

    def by_tp(x: Array, dim: int) -> list[Array]:
        parts = np.split(x, c.tp, axis=dim)
        return [parts[r % c.tp] for r in ranks]

    def by_dp(x: Array, dim: int) -> list[Array]:
        parts = np.split(x, c.dp, axis=dim)
        return [parts[r // c.tp] for r in ranks]

    hidden = by_tp(whole[0], 0) if isinstance(decoder, SequenceParallel) else by_dp(whole[0], 1)
    result = [hidden, copies(whole[1]), by_dp(whole[2], 0), copies(whole[3])]
    for cache in whole[4 : 4 + 2 * layers]:
        result.append(head_shards(decoder, cache, reference))
    for layer in range(layers):
        norm, qkv, o_proj, mlp_norm, gate, up, down = whole[4 + 2 * layers + 7 * layer :][:7]
        result.append(copies(norm))
        result.append(qkv_shards(decoder, qkv, reference))
        result.append(by_tp(padded(o_proj, 0, decoder.heads * c.tp * c.head_dim), 0))
        result.append(copies(mlp_norm))
        result += [by_tp(padded(gate, 1, c.mlp), 1), by_tp(padded(up, 1, c.mlp), 1)]
        result.append(by_tp(padded(down, 0, c.mlp), 0))
    head = by_tp(whole[-1], 1)
    if isinstance(decoder, PermutedHead):
        head = [head[VOCABULARY_PART[r]] for r in ranks]
    return [*result, copies(whole[-2]), head]


def padded(x: Array, dim: int, extent: int) -> Array:
    """`x` with zeros after its end along `dim`, up to `extent`."""
    widths = [(0, extent - n if d == dim else 0) for d, n in enumerate(x.shape)]
    return np.pad(x, widths)


def per_head(decoder: Decoder, x: Array, dim: int, reference: Config) -> Array:
    """Whole heads along `dim`, repeated and padded as `decoder` holds them."""
    if not isinstance(decoder, PaddedHeads):
        return x
    repeated = np.repeat(x, reference.heads // reference.kv_heads, axis=dim)
    return padded(repeated, dim, decoder.heads * decoder.config.tp)


def head_shards(decoder: Decoder, x: Array, reference: Config) -> list[Array]:
    """Keys or values [sequence, batch, heads, head_dim] of every rank."""
    c = decoder.config
    heads = np.split(per_head(decoder, x, 2, reference), c.tp, axis=2)
    return [np.split(heads[r % c.tp], c.dp, axis=1)[r // c.tp] for r in range(c.dp * c.tp)]


def qkv_shards(decoder: Decoder, x: Array, reference: Config) -> list[Array]:
    """Every rank's fused projection from the reference's [hidden, q | k | v]."""
    c, d = decoder.config, reference.head_dim
    h, q, kv = reference.hidden, reference.heads, reference.kv_heads
    query = x[:, : q * d].reshape(h, q, d)
    key = x[:, q * d : (q + kv) * d].reshape(h, kv, d)
    value = x[:, (q + kv) * d :].reshape(h, kv, d)
    query = padded(query, 1, decoder.heads * c.tp)
    key, value = per_head(decoder, key, 1, reference), per_head(decoder, value, 1, reference)
    if isinstance(decoder, InterleavedQkv):
        grouped = query.reshape(h, kv, q // kv, d)
        fused = np.concatenate([grouped, key[:, :, None], value[:, :, None]], axis=2)
        parts = [p.reshape(h, -1) for p in np.split(fused, c.tp, axis=1)]
    else:
        cut = [np.split(p, c.tp, axis=1) for p in (query, key, value)]
        parts = [np.concatenate(p, axis=1).reshape(h, -1) for p in zip(*cut, strict=True)]
    return [parts[r % c.tp] for r in range(c.dp * c.tp)]


def rank_outputs(decoder: Decoder, whole: list[Array], reference: Config) -> list[list[Array]]:
    """What every rank must return, given what the single-rank program returns."""
    c = decoder.config
    ranks = range(c.dp * c.tp)

    def split(x: Array, dim: int, parts: int, part: Callable[[int], int]) -> list[Array]:
        pieces = np.split(x, parts, axis=dim)
        return [pieces[part(r)] for r in ranks]

    def tp_rank(r: int) -> int:
        return r % c.tp

    if isinstance(decoder, PermutedHead):
        logits = [whole[0] for _ in ranks]
    else:
        by_vocabulary = split(whole[0], 2, c.tp, tp_rank)
        logits = [np.split(by_vocabulary[r], c.dp, axis=1)[r // c.tp] for r in ranks]
    states = whole[1 : 1 + 2 * c.layers]
    result = [logits, *(head_shards(decoder, x, reference) for x in states)]
    if c.mean_output:
        result.append(split(whole[-1], 1, c.tp, tp_rank))
    return result
