"""Pairs of functions of whole arrays to verify: one of a single device, one that is divided over a mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import model
import parallel
from jax.sharding import PartitionSpec
from parallel import Plan


@dataclass(frozen=True, slots=True)
class Pair:
    """Two functions of the same `inputs`, by name; `ranges` are those of the integer ones."""

    reference: Callable[..., Any]
    implementation: Callable[..., Any]
    inputs: dict[str, Any]
    ranges: dict[str, tuple[int, int]]


def forward(plan: Plan, *, check: bool = False) -> Pair:
    """The logits."""
    on_mesh = _on_mesh(parallel.forward, plan, parallel.logits_spec(plan), check)

    def reference(parameters: Any, tokens: Any) -> Any:
        return model.forward(parameters, tokens, plan.config)

    def implementation(parameters: Any, tokens: Any) -> Any:
        return on_mesh(parameters, tokens)

    inputs = {k: v for k, v in _inputs(plan).items() if k != "labels"}
    return Pair(reference, implementation, inputs, {"tokens": (0, plan.config.vocab)})


def loss(plan: Plan, *, check: bool = False) -> Pair:
    """The mean cross-entropy."""
    on_mesh = _on_mesh(parallel.loss, plan, PartitionSpec(), check)
    return _trained(plan, _loss(plan), on_mesh)


def outer_gradients(plan: Plan, *, check: bool = False) -> Pair:
    """`jax.grad` of the loss, of the function that calls `shard_map` as a whole."""
    on_mesh = _on_mesh(parallel.loss, plan, PartitionSpec(), check)
    return _trained(plan, _gradient(plan), jax.grad(on_mesh))


def inner_gradients(plan: Plan) -> Pair:
    """`jax.grad` within the body of `shard_map`, which sums the gradients of what is replicated itself."""
    on_mesh = _on_mesh(parallel.gradients, plan, parallel.parameter_specs(plan), False)
    return _trained(plan, _gradient(plan), on_mesh)


def _loss(plan: Plan) -> Callable[..., Any]:
    return partial(model.loss, config=plan.config)


def _gradient(plan: Plan) -> Callable[..., Any]:
    gradient: Callable[..., Any] = jax.grad(_loss(plan))
    return gradient


def _on_mesh(body: Any, plan: Plan, out_specs: Any, check: bool) -> Callable[..., Any]:
    mapped: Callable[..., Any] = parallel.sharded(
        body, plan, parallel.abstract_mesh(plan), out_specs, check=check
    )
    return mapped


def _inputs(plan: Plan) -> dict[str, Any]:
    tokens = model.abstract_tokens(plan.config)
    return {"parameters": model.abstract_parameters(plan.config), "tokens": tokens, "labels": tokens}


def _trained(plan: Plan, whole: Callable[..., Any], divided: Callable[..., Any]) -> Pair:
    def reference(parameters: Any, tokens: Any, labels: Any) -> Any:
        return whole(parameters, tokens, labels)

    def implementation(parameters: Any, tokens: Any, labels: Any) -> Any:
        return divided(parameters, tokens, labels)

    ids = (0, plan.config.vocab)
    return Pair(reference, implementation, _inputs(plan), {"tokens": ids, "labels": ids})
