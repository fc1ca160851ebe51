"""Runs the decoder whole and divided, on eight fake devices, and prints how far they are apart.

Prints one JSON object: for each case the largest deviation over all elements and ranks, as a part of the
largest value of the reference. `python numerics.py` exits with 1 if a right program deviates or a wrong
one does not.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"

import jax
import jax.numpy as jnp
import model
import numpy as np
import parallel
from jax.sharding import Mesh, PartitionSpec
from model import Config
from parallel import BUGS, Plan

TOLERANCE = 1e-5
VISIBLE = 1e-2
"""What a right program stays below, and a wrong one exceeds."""

PLANS = {
    "dp2 tp4 remat": (Plan(Config(remat=True), {"dp": 2, "tp": 4}), (False, True)),
    "dp2 tp2 scanned remat": (Plan(Config(form="scanned", remat=True), {"dp": 2, "tp": 2}), (False,)),
    "tp4 shared kv": (Plan(Config(form="stacked", kv_heads=2), {"tp": 4}), (True,)),
}
"""Plans, and whether shard_map checks replication."""
WRONG = Plan(Config(layers=1, kv_heads=2), {"tp": 4})
WRONG_CHECKS: tuple[bool, ...] = ()


def random_arguments(config: Config) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(7)
    shapes = model.abstract_parameters(config)
    parameters = jax.tree.map(lambda s: jnp.asarray(draw.normal(size=s.shape) * 0.5, s.dtype), shapes)
    tokens, labels = (
        jnp.asarray(draw.integers(0, config.vocab, (config.batch, config.sequence)), jnp.int32)
        for _ in range(2)
    )
    return parameters, tokens, labels


def deviation(found: Any, expected: Any) -> float:
    """Largest over all leaves and, of each, over the copy or part that every device holds."""

    def of_leaf(f: Any, e: Any) -> float:
        whole = np.asarray(e, np.float64)
        scale = np.abs(whole).max()
        parts = [(np.asarray(s.data, np.float64), whole[s.index]) for s in f.addressable_shards]
        return float(max(np.abs(own - part).max() for own, part in parts) / scale)

    leaves: list[float] = jax.tree.leaves(jax.tree.map(of_leaf, found, expected))
    return max(leaves)


def deviations(plan: Plan, *checks: bool) -> dict[str, float]:
    """Of the forward pass, the loss, and both ways to take gradients."""
    config, arguments = plan.config, random_arguments(plan.config)
    devices = np.array(jax.devices()[: plan.ranks]).reshape(tuple(plan.mesh.values()))
    mesh = Mesh(devices, tuple(plan.mesh))
    scalar, parameters = PartitionSpec(), parallel.parameter_specs(plan)

    def whole(parameters: Any, tokens: Any, labels: Any) -> Any:
        logits = model.forward(parameters, tokens, config)
        return logits, jax.value_and_grad(partial(model.loss, config=config))(parameters, tokens, labels)

    def divided(*arguments: Any) -> Any:
        found = {}
        for check in checks:
            on_mesh = partial(parallel.sharded, plan=plan, mesh=mesh, check=check)
            logits = on_mesh(parallel.forward, out_specs=parallel.logits_spec(plan))(*arguments[:2])
            outer = jax.value_and_grad(on_mesh(parallel.loss, out_specs=scalar))
            found[check] = logits, *outer(*arguments)
        return found, parallel.sharded(parallel.gradients, plan, mesh, parameters, check=False)(*arguments)

    expected_logits, (expected_loss, expected) = jax.jit(whole)(*arguments)
    found, inner = jax.jit(divided)(*arguments)
    result = {"inner gradients": deviation(inner, expected)}
    for check, (logits, loss, gradients) in found.items():
        note = " checked" if check else ""
        result[f"forward{note}"] = deviation(logits, expected_logits)
        result[f"loss{note}"] = deviation(loss, expected_loss)
        result[f"outer gradients{note}"] = deviation(gradients, expected)
    return result


def main() -> int:
    found: dict[str, float] = {}
    for name, (plan, checks) in PLANS.items():
        found |= {f"{name}: {case}": d for case, d in deviations(plan, *checks).items()}
    for bug in BUGS:
        found[f"wrong: {bug}"] = max(deviations(replace(WRONG, bug=bug), *WRONG_CHECKS).values())
    print(json.dumps(found, indent=1))
    ok = all(d > VISIBLE if name.startswith("wrong") else d < TOLERANCE for name, d in found.items())
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
