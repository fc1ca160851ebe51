"""What XLA's SPMD partitioner makes of a JAX function: `verify_xla`, which imports jax when called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from shardproof.solver.verdict import Result

__all__ = ["verify_xla"]


def verify_xla(
    function: Callable[..., Any],
    inputs: Any,
    mesh: Any,
    in_shardings: Any,
    out_shardings: Any,
    *,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    partitioner: Literal["shardy", "gspmd"] | None = None,
    timeout: float | None = None,
    lemmas: Sequence[str | Path] = (),
    certificate: str | Path | None = None,
) -> Result:
    """Prove or refute that XLA's SPMD partitioner kept the meaning of `function`.

    The function is traced; XLA partitions the trace for as many CPU devices as `mesh` has, in a process of
    its own; the program of one device is compared with the trace. No device is used here, and no array
    made. `inputs` is a tuple of arguments, a dict of keyword arguments, or the one argument: pytrees of
    `jax.ShapeDtypeStruct` with global shapes. `mesh` is a mapping axis -> size, or a JAX mesh. Shardings are
    pytrees of `PartitionSpec`, or prefixes of them as in `jax.jit`; None is a replicated input, and an output
    whose sharding XLA chooses. `ranges` bounds integer inputs by name (`ids`, `batch.ids`): low, high
    (exclusive). `partitioner` is "shardy" or "gspmd"; without it, the one that jax uses. `timeout` is in
    seconds, for XLA and for the proof. `lemmas` and `certificate` are as in `shardproof.verify`.

    Raises `shardproof.ir.module.ModuleError` (a ValueError) when these do not fit together, a dim does not
    divide evenly, or XLA refuses the program; what tracing raises goes through.
    """
    from shardproof.solver.xla import prepared

    found = prepared(
        function,
        inputs,
        mesh,
        in_shardings,
        out_shardings,
        ranges=ranges,
        partitioner=partitioner,
        timeout=timeout,
    )
    return found.verify(timeout=timeout, lemmas=lemmas, certificate=certificate)
