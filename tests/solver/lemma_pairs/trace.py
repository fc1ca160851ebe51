"""Traces the pairs with JAX and writes each program and relation file into `<pair>/traced/`.

Run it with jax 0.10.2: `python trace.py [PAIR...]`. What is written is checked in, so that the tests
need no JAX. Programs of one device are taken before optimisation, the others are bodies of `shard_map`
taken after partitioning: the program of each device, before fusion. Names of files and stack frames are
left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxlib import _hlo
from programs import (
    EPS,
    attention,
    baddbmm,
    cross_entropy,
    cross_entropy_backward,
    dense_experts,
    differentiated,
    embedding,
    flash,
    found_rows,
    full,
    gradient_norm,
    layer_norm,
    lora,
    mean_square,
    micro_batches,
    parallel_cross_entropy,
    parallel_experts,
    parallel_norm,
    plain_softmax,
    ring,
    routed,
    scanned_batches,
    shifted_softmax,
    squares,
    tied,
    train_step,
    weighted_backward,
)

Dims = tuple[int | None, ...]
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Layout:
    """How the inputs and outputs of a distributed program lie: per tensor the dim that is sharded."""

    axis: str
    ranks: int
    inputs: Dims
    outputs: Dims
    relation: str = "relation"


@dataclass(frozen=True)
class Traced:
    """The programs of one pair: name -> function, or (function of one rank, its layout)."""

    shapes: tuple[Any, ...]
    programs: dict[str, Any]
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)


def f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def flag(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bool_)


COLUMN = Layout("tp", 2, (None, 1, None, 1), (1,), "column")
ROW = Layout("tp", 2, (1, 0, 0, None), (None,), "row")
RING = Layout("cp", 4, (2, 2, 2), (2,))
EXPERTS = Layout("ep", 4, (0, 0, 0, 0, 0), (0,))
ROUTED = Layout("ep", 4, (0, 0, 0, None), (0,))
BATCH = Layout("dp", 4, (0, 0, None), (None, None), "data_parallel")
NORM = Layout("tp", 4, (0, 1, None), (None,))


def rows(ranks: int) -> Layout:
    return Layout("tp", ranks, (0, None), (None,))


def columns(ranks: int) -> Layout:
    return Layout("tp", ranks, (1, None), (None,))


TIED = Layout("tp", 4, (0, None, None, None), (2,))
BLOCKS = (f32(3, 2, 8, 5),) * 3

PAIRS: dict[str, Traced] = {
    "attention_scale": Traced(
        (f32(3, 2, 6, 16), f32(3, 2, 8, 16), f32(3, 2, 8, 5)),
        {
            "reference": partial(attention, score=0.25),
            "scaled_query": partial(attention, query=0.25),
            "scaled_key": partial(attention, key=0.25),
            "split_scale": partial(attention, query=0.5, key=0.5),
            "wrong_no_scale": attention,
            "wrong_scaled_twice": partial(attention, query=0.25, key=0.25),
        },
    ),
    "mean": Traced(
        (f32(3, 7, 6),),
        {
            "reference": lambda x: jnp.mean(x, 2),
            "sum_of_parts": lambda x: jnp.sum(x / 6, 2),
            "wrong_count": lambda x: jnp.sum(x / 5, 2),
            "wrong_uneven_parts": lambda x: (jnp.mean(x[:, :, :2], 2) + jnp.mean(x[:, :, 2:], 2)) / 2,
        },
    ),
    "softmax": Traced(
        (f32(3, 7),),
        {
            "reference": plain_softmax,
            "shifted_by_max": jax.nn.softmax,
            "log_sum_exp": lambda x: jnp.exp(x - jax.nn.logsumexp(x, 1, keepdims=True)),
            "wrong_shift_varies": partial(shifted_softmax, dim=0),
        },
    ),
    "rms_norm": Traced(
        (f32(3, 7, 6), f32(6)),
        {
            "reference": lambda x, w: x * lax.rsqrt(mean_square(x) + EPS) * w,
            "divided_by_root": lambda x, w: x / jnp.sqrt(mean_square(x) + EPS) * w,
            "power": lambda x, w: w * x * (mean_square(x) + EPS) ** -0.5,
            "wrong_eps_outside": lambda x, w: x / (jnp.sqrt(mean_square(x)) + EPS) * w,
            "wrong_no_root": lambda x, w: x / (mean_square(x) + EPS) * w,
        },
    ),
    "silu": Traced(
        (f32(3, 7),),
        {
            "reference": jax.nn.silu,
            "quotient": lambda x: x / (1 + jnp.exp(-x)),
            "wrong_sign": lambda x: x / (1 + jnp.exp(x)),
            "wrong_no_factor": jax.nn.sigmoid,
        },
    ),
    "layer_norm": Traced(
        (f32(3, 7, 6), f32(6), f32(6)),
        {
            "reference": partial(layer_norm, variance=lambda x, m: mean_square(x - m)),
            "moments": partial(layer_norm, variance=lambda x, m: mean_square(x) - jnp.square(m)),
            "library": partial(layer_norm, variance=lambda x, m: jnp.var(x, -1, keepdims=True)),
            "wrong_sign": partial(layer_norm, variance=lambda x, m: mean_square(x) + jnp.square(m)),
            "wrong_not_squared": partial(layer_norm, variance=lambda x, m: mean_square(x) + jnp.abs(m)),
        },
    ),
    "lora": Traced(
        (f32(3, 6), f32(6, 10), f32(6, 4), f32(4, 10)),
        {
            "reference": lambda x, w, a, b: x @ (w + 0.5 * (a @ b)),
            "unmerged": lora,
            "column_parallel": (lora, COLUMN),
            "row_parallel": (lambda *xs: lax.psum(lora(*xs), "tp"), ROW),
            "wrong_no_scale": partial(lora, scale=1),
            "wrong_column_parallel": (partial(lora, scale=1), COLUMN),
            "wrong_row_unreduced": (
                lambda x, w, a, b: lax.psum(x @ w, "tp") + 0.5 * ((x @ a) @ b),
                ROW,
            ),
        },
    ),
    "vocab_embedding": Traced(
        (f32(48, 5), i32(3, 7)),
        {
            "reference": lambda w, ids: jnp.take(w, ids, axis=0),
            **{f"tp{n}": (embedding, rows(n)) for n in (2, 4, 8)},
            "wrong_unmasked": (partial(embedding, masked=False), rows(4)),
            "wrong_unreduced": (found_rows, rows(4)),
        },
        {1: (0, 48)},
    ),
    "vocab_cross_entropy": Traced(
        (f32(6, 48), i32(6)),
        {
            "reference": cross_entropy,
            **{f"tp{n}": (parallel_cross_entropy, columns(n)) for n in (2, 4, 8)},
            **{
                f"wrong_{w}": (partial(parallel_cross_entropy, wrong=w), columns(4))
                for w in ("local_max", "unmasked", "sum_unreduced")
            },
        },
        {1: (0, 48)},
    ),
    "tied_embedding": Traced(
        (f32(24, 5), f32(5, 6), f32(6, 5), i32(3, 7)),
        {
            "reference": partial(tied, embedded=lambda w, ids: w[ids]),
            "tp4": (partial(tied, embedded=embedding), TIED),
            "wrong_unreduced": (partial(tied, embedded=found_rows), TIED),
        },
        {3: (0, 24)},
    ),
    "flash_attention": Traced(
        BLOCKS,
        {
            "reference": full,
            "two_blocks": flash,
            "wrong_accumulator_not_rescaled": partial(flash, wrong="accumulator"),
            "wrong_denominator_not_rescaled": partial(flash, wrong="denominator"),
            "wrong_not_rescaled": partial(flash, wrong="both"),
        },
    ),
    "ring_attention": Traced(
        BLOCKS,
        {
            "reference": full,
            "cp4": (ring, RING),
            "wrong_accumulator_not_rescaled": (partial(ring, wrong="accumulator"), RING),
            "wrong_denominator_not_rescaled": (partial(ring, wrong="denominator"), RING),
            "wrong_not_rescaled": (partial(ring, wrong="both"), RING),
            "wrong_value_stays": (partial(ring, wrong="value"), RING),
        },
    ),
    "causal_ring_attention": Traced(
        BLOCKS,
        {
            "reference": partial(full, causal=True),
            "cp4": (partial(ring, causal=True), RING),
            "wrong_source": (partial(ring, causal=True, wrong="source"), RING),
            "wrong_not_causal": (ring, RING),
        },
    ),
    "moe_dispatch": Traced(
        (f32(4, 3, 5), f32(8, 5, 7), f32(8, 7, 5), f32(4, 3, 8, 2), f32(4, 3, 8, 2)),
        {
            "reference": dense_experts,
            "ep4": (parallel_experts, EXPERTS),
            "wrong_dropped_expert": (partial(parallel_experts, wrong="dropped"), EXPERTS),
            "wrong_own_tokens_only": (partial(parallel_experts, wrong="own"), EXPERTS),
        },
    ),
    "moe_routing": Traced(
        (f32(4, 3, 5), f32(8, 5, 7), f32(8, 7, 5), f32(5, 8)),
        {
            "reference": partial(routed, experts=dense_experts),
            "ep4": (partial(routed, experts=parallel_experts), ROUTED),
            "wrong_dropped_expert": (
                partial(routed, experts=partial(parallel_experts, wrong="dropped")),
                ROUTED,
            ),
            "wrong_own_tokens_only": (
                partial(routed, experts=partial(parallel_experts, wrong="own")),
                ROUTED,
            ),
        },
    ),
    "gradient_accumulation": Traced(
        (f32(12, 5), f32(12), f32(5)),
        {
            "reference": train_step,
            "four_micro_batches": partial(micro_batches, cuts=(0, 3, 6, 9, 12)),
            "scanned_batches": scanned_batches,
            "dp4": (lambda *xs: lax.pmean(train_step(*xs), "dp"), BATCH),
            "wrong_uneven": partial(micro_batches, cuts=(0, 5, 8, 10, 12)),
            "wrong_not_divided": partial(micro_batches, cuts=(0, 3, 6, 9, 12), divide=False),
            "wrong_dp4_not_divided": (lambda *xs: lax.psum(train_step(*xs), "dp"), BATCH),
        },
    ),
    "gradient_norm": Traced(
        (f32(8, 5), f32(6, 12), f32(7)),
        {
            "reference": gradient_norm,
            "tp4": (parallel_norm, NORM),
            "wrong_counted_four_times": (
                lambda a, b, c: jnp.sqrt(lax.psum(squares(a) + squares(b) + squares(c), "tp")),
                NORM,
            ),
            "wrong_sum_of_roots": (
                lambda a, b, c: lax.psum(jnp.sqrt(squares(a) + squares(b)), "tp") + jnp.sqrt(squares(c)),
                NORM,
            ),
        },
    ),
    "baddbmm": Traced(
        (f32(3, 4, 6), f32(3, 4, 5), f32(3, 5, 6)),
        {
            "reference": partial(baddbmm, beta=0.5, alpha=2),
            "scaled_factor": lambda m, a, b: (2 * a) @ b + m / 2,
            "wrong_no_input": lambda m, a, b: 2 * (a @ b),
            "wrong_no_beta": partial(baddbmm, beta=1, alpha=2),
            "wrong_no_alpha": partial(baddbmm, beta=0.5, alpha=1),
        },
    ),
    "cross_entropy_backward": Traced(
        (f32(6, 7), i32(6), flag(6), f32(6)),
        {
            "reference": cross_entropy_backward,
            "weighted": weighted_backward,
            "differentiated": differentiated,
            "wrong_no_upstream": lambda x, t, k, u: cross_entropy_backward(x, t, k, jnp.ones_like(u)),
            "wrong_no_mask": lambda x, t, k, u: cross_entropy_backward(x, t, jnp.ones_like(k), u),
            "wrong_no_target": lambda x, t, k, u: jnp.where(k[:, None], jax.nn.softmax(x) * u[:, None], 0),
            "wrong_softmax_only": lambda x, t, k, u: jax.nn.softmax(x),
        },
        {1: (0, 7)},
    ),
}


def text(module: Any) -> str:
    """HLO text without metadata."""
    options = _hlo.HloPrintOptions()
    options.print_metadata = False
    options.print_large_constants = True
    return str(module.to_string(options))


def spec(dim: int | None, axis: str) -> Any:
    return jax.sharding.PartitionSpec() if dim is None else jax.sharding.PartitionSpec(*[None] * dim, axis)


def distributed(function: Callable[..., Any], layout: Layout, shapes: tuple[Any, ...]) -> str:
    """The program of one device after partitioning."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[: layout.ranks]), (layout.axis,))
    outputs = tuple(spec(dim, layout.axis) for dim in layout.outputs)
    body = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=tuple(spec(dim, layout.axis) for dim in layout.inputs),
        out_specs=outputs if len(outputs) > 1 else outputs[0],
        check_vma=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
        }
        jax.jit(body, keep_unused=True).lower(*shapes).compile(compiler_options=options)
        found = next(Path(folder).glob("*after_spmd-partitioning*.txt")).read_text()
    return text(_hlo.hlo_module_from_text(found))


def relation(traced: Traced, layout: Layout | None) -> str:
    def words(letter: str, dims: Dims) -> str:
        stated = ("replicate" if dim is None else f"shard({dim})" for dim in dims)
        return "".join(f'{letter}{n} = "{word}"\n' for n, word in enumerate(stated))

    parts = []
    if layout is not None:
        parts += [f"[inputs]\n{words('p', layout.inputs)}", f"[outputs]\n{words('o', layout.outputs)}"]
    if traced.ranges:
        ranges = "".join(f"p{n} = [{low}, {high}]\n" for n, (low, high) in traced.ranges.items())
        parts.append(f"[ranges]\n{ranges}")
    return "\n".join(parts)


def main(names: list[str]) -> None:
    for name in names or PAIRS:
        traced = PAIRS[name]
        folder = FOLDER / name / "traced"
        folder.mkdir(parents=True, exist_ok=True)
        if traced.ranges:
            (folder / "relation.toml").write_text(relation(traced, None))
        for stem, program in traced.programs.items():
            if isinstance(program, tuple):
                function, layout = program
                found = distributed(function, layout, traced.shapes)
                (folder / f"{layout.relation}.toml").write_text(relation(traced, layout))
            else:
                lowered = jax.jit(program, keep_unused=True).lower(*traced.shapes)
                found = text(lowered.compiler_ir("hlo").get_hlo_module())
            (folder / f"{stem}.hlo.txt").write_text(found)


if __name__ == "__main__":
    main(sys.argv[1:])
