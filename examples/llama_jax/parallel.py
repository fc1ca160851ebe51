"""The same decoder as every rank of a mesh {tp} or {dp, tp} runs it: bodies for `shard_map`.

Heads, the MLP and the vocabulary are divided over tp; between the blocks so is the sequence: an all-gather
before each block, a reduce-scatter after it. The batch is divided over dp. Where a mistake is named in
`Bug`, the body makes it; demo.py shows what becomes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import model
from jax import Array, lax
from jax.sharding import PartitionSpec
from model import Config, Layer, Parameters

Bug = Literal[
    "norm_gradient_not_summed",
    "attention_not_summed",
    "wrong_kv_head",
    "no_vocabulary_offset",
    "no_label_offset",
    "no_rotary_offset",
    "loss_divided_twice",
]
BUGS: tuple[Bug, ...] = get_args(Bug)

COLUMNS, ROWS, WHOLE = PartitionSpec(None, "tp"), PartitionSpec("tp", None), PartitionSpec()


@dataclass(frozen=True, slots=True)
class Plan:
    """The model, the extents of the mesh axes, and at most one mistake. tp divides what it shards."""

    config: Config
    mesh: dict[str, int]
    bug: Bug | None = None

    @property
    def tp(self) -> int:
        return self.mesh["tp"]

    @property
    def ranks(self) -> int:
        return self.tp * self.mesh.get("dp", 1)

    @property
    def shares_kv_heads(self) -> bool:
        """Fewer key-value heads than ranks: every rank holds all of them and takes the one it needs."""
        return self.config.kv_heads % self.tp != 0


def parameter_specs(plan: Plan) -> Parameters:
    """A PartitionSpec for each parameter."""
    key_value = WHOLE if plan.shares_kv_heads else COLUMNS
    layer = {
        "attention_norm": WHOLE,
        "query": COLUMNS,
        "key": key_value,
        "value": key_value,
        "output": ROWS,
        "mlp_norm": WHOLE,
        "gate": COLUMNS,
        "up": COLUMNS,
        "down": ROWS,
    }
    if plan.config.form == "list":
        layers: Any = [dict(layer) for _ in range(plan.config.layers)]
    else:
        layers = {name: PartitionSpec(None, *spec) for name, spec in layer.items()}
    return {"embed": ROWS, "layers": layers, "norm": WHOLE, "head": COLUMNS}


def token_spec(plan: Plan) -> PartitionSpec:
    return PartitionSpec("dp") if "dp" in plan.mesh else WHOLE


def logits_spec(plan: Plan) -> PartitionSpec:
    return PartitionSpec("dp" if "dp" in plan.mesh else None, None, "tp")


def whole_sequence(x: Array) -> Array:
    return lax.all_gather(x, "tp", axis=1, tiled=True)


def own_sequence(partial: Array) -> Array:
    """This rank's part of the sequence of the sum over ranks."""
    return lax.psum_scatter(partial, "tp", scatter_dimension=1, tiled=True)


def own_attended(partial: Array, plan: Plan) -> Array:
    """The same, of what the attention of each rank's heads adds."""
    if plan.bug != "attention_not_summed":
        return own_sequence(partial)
    part = partial.shape[1] // plan.tp
    whole = lax.all_gather(partial, "tp", axis=0).mean(axis=0)
    return lax.dynamic_slice_in_dim(whole, lax.axis_index("tp") * part, part, axis=1)


def own_rows(ids: Array, rows: int, offset_missing: bool) -> tuple[Array, Array]:
    """Where the ids are among the rows of this rank, and which of them are there."""
    local = ids if offset_missing else ids - lax.axis_index("tp") * rows
    return jnp.clip(local, 0, rows - 1), (local >= 0) & (local < rows)


def embed(table: Array, tokens: Array, plan: Plan) -> Array:
    rows, held = own_rows(tokens, table.shape[0], plan.bug == "no_vocabulary_offset")
    return own_sequence(jnp.where(held[..., None], table[rows], 0))


def rotary_tables(plan: Plan) -> tuple[Array, Array]:
    """Each rank computes the rows of its part of the sequence."""
    part = plan.config.sequence // plan.tp
    start = 0 if plan.bug == "no_rotary_offset" else lax.axis_index("tp") * part
    tables = model.rotary_tables(start + jnp.arange(part), plan.config)
    cosine, sine = (lax.all_gather(table, "tp", axis=0, tiled=True) for table in tables)
    return cosine, sine


def own_kv_head(layer: Layer, plan: Plan) -> Layer:
    """The layer with only those columns of key and value that belong to this rank's queries."""
    if not plan.shares_kv_heads:
        return layer
    width, heads, rank = plan.config.head_dim, plan.config.kv_heads, lax.axis_index("tp")
    head = rank % heads if plan.bug == "wrong_kv_head" else rank // (plan.tp // heads)
    own = {n: lax.dynamic_slice_in_dim(layer[n], head * width, width, axis=1) for n in ("key", "value")}
    return {**layer, **own}


def forward(parameters: Parameters, tokens: Array, plan: Plan) -> Array:
    """This rank's columns of the logits, [batch / dp, sequence, vocab / tp], float32."""
    config = plan.config
    tables = rotary_tables(plan)

    def block(x: Array, layer: Layer) -> Array:
        normed = whole_sequence(model.rms_norm(x, layer["attention_norm"], config.eps))
        attended = model.attention(normed, own_kv_head(layer, plan), tables, config.head_dim)
        x = x + own_attended(attended, plan)
        normed = whole_sequence(model.rms_norm(x, layer["mlp_norm"], config.eps))
        return x + own_sequence(model.gated_mlp(normed, layer))

    x = model.apply_layers(block, embed(parameters["embed"], tokens, plan), parameters["layers"], config)
    x = whole_sequence(model.rms_norm(x, parameters["norm"], config.eps))
    return (x @ parameters["head"]).astype(jnp.float32)


def token_losses(logits: Array, labels: Array, plan: Plan) -> Array:
    """Cross-entropy of each token, from this rank's columns of the logits."""
    highest = lax.pmax(lax.stop_gradient(logits.max(axis=-1)), "tp")
    total = lax.psum(jnp.exp(logits - highest[..., None]).sum(axis=-1), "tp")
    columns, held = own_rows(labels, logits.shape[-1], plan.bug == "no_label_offset")
    picked = jnp.take_along_axis(logits, columns[..., None], axis=-1)[..., 0]
    return jnp.log(total) + highest - lax.psum(jnp.where(held, picked, 0), "tp")


def own_loss(parameters: Parameters, tokens: Array, labels: Array, plan: Plan) -> Array:
    """The mean over this rank's part of the batch."""
    mean = token_losses(forward(parameters, tokens, plan), labels, plan).mean()
    return mean / plan.tp if plan.bug == "loss_divided_twice" else mean


def loss(parameters: Parameters, tokens: Array, labels: Array, plan: Plan) -> Array:
    """The mean over the whole batch, the same on every rank."""
    mean = own_loss(parameters, tokens, labels, plan)
    return lax.pmean(mean, "dp") if "dp" in plan.mesh else mean


def gradients(parameters: Parameters, tokens: Array, labels: Array, plan: Plan) -> Parameters:
    """Gradients of the loss, each laid out like its parameter; for shard_map without replication checks.

    There a sum over ranks is differentiated to a sum over ranks: what comes out is the gradient of the
    total of all ranks' losses, hence the division.
    """

    def objective(parameters: Parameters) -> Array:
        return own_loss(parameters, tokens, labels, plan) / plan.ranks

    def over_ranks(path: Any, gradient: Array, spec: PartitionSpec) -> Array:
        missing = {"tp"} if plan.bug == "norm_gradient_not_summed" and "norm" in path[-1].key else set()
        axes = tuple(axis for axis in plan.mesh if axis not in {*spec, *missing})
        return lax.psum(gradient, axes) if axes else gradient

    own = jax.grad(objective)(parameters)
    summed: Parameters = jax.tree_util.tree_map_with_path(over_ranks, own, parameter_specs(plan))
    return summed


def sharded(body: Any, plan: Plan, mesh: Any, out_specs: Any, *, check: bool) -> Any:
    """`body(parameters, tokens[, labels], plan)` as a function of global arrays over `mesh`.

    `check` lets shard_map follow which values are the same on all ranks, which its name depends on.
    """

    def call(*arguments: Any) -> Any:
        specs = (parameter_specs(plan), token_spec(plan), token_spec(plan))[: len(arguments)]
        own = lambda *shards: body(*shards, plan)  # noqa: E731
        if hasattr(jax, "shard_map"):
            mapped = jax.shard_map(own, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=check)
        else:
            from jax.experimental.shard_map import shard_map

            mapped = shard_map(own, mesh=mesh, in_specs=specs, out_specs=out_specs, check_rep=check)
        return mapped(*arguments)

    return call


def abstract_mesh(plan: Plan) -> Any:
    """A mesh without devices, for tracing."""
    from jax.sharding import AbstractMesh

    names, extents = tuple(plan.mesh), tuple(plan.mesh.values())
    try:
        return AbstractMesh(extents, names)
    except (TypeError, ValueError):
        return AbstractMesh(tuple(plan.mesh.items()))  # type: ignore[call-arg,arg-type,unused-ignore]
