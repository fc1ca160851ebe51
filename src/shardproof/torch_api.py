"""Programs straight from PyTorch: `capture_torch` and `verify_torch`, which import torch when called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from shardproof.solver.captured import Captured
    from shardproof.solver.verdict import Result

    Make = Callable[[], tuple[Any, Any]]

__all__ = ["capture_torch", "verify_torch"]


def capture_torch(make: Make, *, mesh: Mapping[str, int] | None = None, backward: bool = False) -> Captured:
    """The program that `make` builds, captured on every rank of `mesh`, as in `{"dp": 2, "tp": 4}`.

    `make()` is called once per rank, after a process group that never communicates is up, and returns
    (module or function, example inputs). Only shapes and element types of parameters and inputs matter.
    `backward` adds the gradients of the results. Raises `shardproof.ir.module.ModuleError` (a ValueError).
    """
    from shardproof.solver.capture import capture_torch as run

    return run(make, mesh=mesh, backward=backward)


def verify_torch(
    reference_make: Make,
    implementation_make: Make,
    *,
    mesh: Mapping[str, int],
    relation: str | Path | None = None,
    outputs: Literal["natural", "any"] = "natural",
    backward: bool = False,
) -> Result:
    """Prove or refute that a distributed PyTorch program computes the same as one on a single rank.

    Both are captured, the reference on one rank, the implementation on every rank of `mesh`. How the
    implementation's inputs are laid out is what DTensors state, then what `relation` (the path of a file)
    says of the rest; what is left is inferred, and listed. Raises as `capture_torch` and `verify` do.
    """
    from shardproof.solver.capture import capture_torch as run
    from shardproof.solver.verify import verify

    reference = run(reference_make, backward=backward)
    implementation = run(implementation_make, mesh=mesh, backward=backward)
    return verify(reference, implementation, relation=relation, outputs=outputs)
