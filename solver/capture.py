"""`capture_torch`: a PyTorch program, rank by rank, without a device and without communication."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from shardproof.ir.module import ModuleError
from shardproof.ir.types import Mesh
from shardproof.solver.captured import Captured

if TYPE_CHECKING:
    from shardproof.frontends.fx.capture.trace import Make


def capture_torch(make: Make, *, mesh: Mapping[str, int] | None = None, backward: bool = False) -> Captured:
    """The program that `make` builds on each rank of `mesh` (axes and sizes, outermost first).

    `make()` is called once per rank, with a process group up that knows the rank and never communicates; it
    returns (module or function, example inputs). Parameters, buffers and the tensors among the example
    inputs become inputs of the program, parameters by the model's names. With `backward` the results are
    those of the call and the gradients of parameters and of inputs that need one, for given tangents.
    Raises ModuleError when torch is missing, a process group is up already, or the program can't be captured.
    """
    try:
        from shardproof.frontends.fx.capture.trace import trace
    except ImportError as error:
        raise ModuleError(
            f"capture: needs torch, which can't be imported ({error}): pip install torch"
        ) from None
    axes = dict(mesh or {})
    if any(type(n) is not int or n < 1 for n in axes.values()):
        raise ModuleError(f"capture: mesh {axes}: every axis has at least one rank")
    size = prod(axes.values())
    return Captured(
        Mesh(tuple(axes.items())), tuple(trace(make, rank, size, backward=backward) for rank in range(size))
    )
