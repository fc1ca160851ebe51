"""Programs straight from JAX: `verify_jax`, which imports jax when called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from shardproof.solver.verdict import Result

__all__ = ["verify_jax"]


def verify_jax(
    reference: Callable[..., Any],
    implementation: Callable[..., Any],
    *,
    inputs: Mapping[str, Any],
    mesh: Mapping[str, int] | None = None,
    in_specs: Mapping[str, Any] | None = None,
    out_specs: Any = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    outputs: Literal["natural", "any"] = "natural",
    timeout: float | None = None,
    lemmas: Sequence[str | Path] = (),
    certificate: str | Path | None = None,
    layers: bool = True,
) -> Result:
    """Prove or refute that a distributed JAX function computes what `reference` does.

    Both are called with `inputs` by name, and only traced: no device is used. `inputs` are
    `jax.ShapeDtypeStruct`s of global shapes, or containers of those. With `mesh` (axis -> size), `in_specs`
    (input -> PartitionSpec) and `out_specs`, `implementation` is the function of one rank as `shard_map`
    takes it; without, it takes and gives whole arrays and calls `shard_map` itself. `ranges` bounds integer
    inputs: low, high (exclusive). Without `layers` every one of equal layers is proved by itself. The others
    are as in `shardproof.verify`. A primitive that is not supported makes the verdict `unknown` (U15) and is
    named with its source line. Raises `shardproof.ir.module.ModuleError` (a ValueError) for arguments that
    don't fit together; what tracing raises goes through.
    """
    from shardproof.solver.jax_programs import verify_jax as run

    return run(
        reference,
        implementation,
        inputs=inputs,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        ranges=ranges or {},
        outputs=outputs,
        timeout=timeout,
        lemmas=lemmas,
        certificate=certificate,
        layers=layers,
    )
