"""Proves that a distributed deep-learning program computes the same as its reference.

    import shardproof

    result = shardproof.verify("tp1.pb", "tp8.pb")
    if result.verdict is shardproof.Verdict.VERIFIED: ...

Importing this package loads nothing else; `verify` loads what it needs when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shardproof.jax_api import capture_jax as capture_jax
    from shardproof.jax_api import verify_jax as verify_jax
    from shardproof.solver.programs import Program as Program
    from shardproof.solver.verdict import Result as Result
    from shardproof.solver.verdict import Verdict as Verdict
    from shardproof.torch_api import capture_torch as capture_torch
    from shardproof.torch_api import verify_torch as verify_torch
    from shardproof.xla_api import verify_xla as verify_xla

__all__ = [
    "Result",
    "Verdict",
    "__version__",
    "capture_jax",
    "capture_torch",
    "verify",
    "verify_jax",
    "verify_torch",
    "verify_xla",
]
__version__ = "0.1.0"


def verify(
    reference: Program,
    implementation: Program | Sequence[Program],
    *,
    relation: str | Path | None = None,
    mesh: str | Mapping[str, int] | None = None,
    outputs: Literal["natural", "any"] = "natural",
    timeout: float | None = None,
    lemmas: Sequence[str | Path] = (),
    certificate: str | Path | None = None,
    goals: str | Path | None = None,
) -> Result:
    """Prove or refute that `implementation` computes the same outputs as `reference`.

    Programs are paths (HLO, StableHLO, ONNX, PyTorch code dumps, `.pt2`, `.spf`, what an installed frontend
    reads, the folder of a saved capture), captures, modules, or live PyTorch graphs
    (`torch.export.ExportedProgram`, `torch.fx.GraphModule` of ATen calls); a sequence holds the programs of
    ranks 0, 1, ... of one run. `relation` is the path of a relation file; without one the layout of the
    inputs is inferred, and the result says so. `mesh` names the axes, as "dp=2,tp=4" or a mapping.
    `outputs` is the placement an output without declaration must have: "natural" (equal on every rank, or
    contiguous shards in rank order) or "any". `timeout` is in seconds; reaching it gives `unknown`.
    `certificate` is where a `verified` writes its certificate (docs/soundness.md); `goals` is the folder
    where an `unknown` writes what is left to prove as lemma files (docs/lemmas.md). `lemmas` are files with
    lemmas and definitions beyond the library (docs/lemmas.md).

    Raises `shardproof.ir.module.ModuleError` (a ValueError) when a program or relation is not valid, and
    `shardproof.lemmas.errors.LemmaError` (a ValueError) for a lemma file that is not.
    """
    from shardproof.solver.verify import verify as run

    return run(
        reference,
        implementation,
        relation=relation,
        mesh=mesh,
        outputs=outputs,
        timeout=timeout,
        lemmas=lemmas,
        certificate=certificate,
        goals=goals,
    )


def __getattr__(name: str) -> Any:
    if name in ("Result", "Verdict"):
        from shardproof.solver import verdict

        return getattr(verdict, name)
    if name in ("capture_jax", "verify_jax"):
        from shardproof import jax_api

        return getattr(jax_api, name)
    if name == "verify_xla":
        from shardproof import xla_api

        return xla_api.verify_xla
    if name in ("capture_torch", "verify_torch"):
        from shardproof import torch_api

        return getattr(torch_api, name)
    raise AttributeError(f"module 'shardproof' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
