"""Programs straight from JAX: `capture_jax` and `verify_jax`, which import jax when called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from shardproof.ir.module import Module
    from shardproof.solver.verdict import Result

__all__ = ["capture_jax", "verify_jax"]


def capture_jax(
    function: Callable[..., Any],
    *,
    inputs: Mapping[str, Any],
    mesh: Mapping[str, int] | None = None,
    in_specs: Mapping[str, Any] | None = None,
    out_specs: Any = None,
) -> Module:
    """The program of a JAX function, for `shardproof.verify` against one of any other kind.

    The function is only traced; the arguments mean what they mean in `verify_jax`: with `mesh`, `in_specs`
    and `out_specs` it is the function of one rank as `shard_map` takes it. Inputs are called by their paths,
    as `parameters.layers.0.query`, the results `out`, `out.0`, ... How `in_specs` divide an input is kept as
    a hint for the inference of layouts; a relation file declares it. `shardproof.ir.text.to_text` gives the
    text of an `.spf` file, which `shardproof verify` reads without JAX.

    Raises `shardproof.ir.module.ModuleError` (a ValueError) for arguments that don't fit together and for a
    primitive that is not supported; what tracing raises goes through.
    """
    from shardproof.solver.jax_programs import capture_jax as run

    return run(function, inputs=inputs, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


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
