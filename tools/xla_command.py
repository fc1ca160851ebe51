"""`shardproof verify-xla`: what XLA's SPMD partitioner makes of a JAX function."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shardproof.tools.capture_command import found, of_user
from shardproof.tools.failure import UsageProblem, guarded
from shardproof.tools.options import (
    CertificateOption,
    Format,
    FormatOption,
    GoalsOption,
    LemmasOption,
    OutputOption,
    TimeoutOption,
    VerboseOption,
    answered,
    check_writable,
)

if TYPE_CHECKING:
    from shardproof.solver.xla import Partitioned, Unread

DEVICES: Final = 64
"""Fake CPU devices for a function that makes a `jax.Mesh` of its own."""


class Partitioner(StrEnum):
    """Who chooses shardings in XLA."""

    SHARDY = "shardy"
    GSPMD = "gspmd"


def verify_xla(
    make: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Where the case is, such as train.model:case.")
    ],
    partitioner: Annotated[
        Partitioner | None, typer.Option(help="XLA's partitioner; without it, the one that jax uses.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Accept no guess or merely tested lemma.")
    ] = False,
    lemmas: LemmasOption = None,
    save_relation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the shardings as a relation to FILE.")
    ] = None,
    certificate: CertificateOption = None,
    goals: GoalsOption = None,
    format: FormatOption = Format.TEXT,
    output: OutputOption = None,
    timeout: TimeoutOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Prove or refute that XLA's SPMD partitioner keeps the meaning of a JAX function.

    FUNCTION takes no arguments and returns (function, inputs, mesh, in_shardings, out_shardings), and may
    add the ranges of integer inputs. It is imported and called in this process, and its function traced: use
    only code that you would run. No array is made. Exit codes: 0 verified, 1 refuted, 2 unknown, 3 bad input
    or usage, 4 internal error.
    """

    def run() -> int:
        check_writable(output, lemmas or [])
        check_writable(save_relation, lemmas or [])
        check_writable(certificate, lemmas or [])
        if goals is not None and goals.exists() and not goals.is_dir():
            raise UsageProblem(f"cannot write to {goals}: it is no folder")
        if timeout is not None and not 0 < timeout < float("inf"):
            raise UsageProblem(f"--timeout needs a positive number of seconds, found {timeout:g}")
        way = None if partitioner is None else partitioner.value
        programs = of_user(make, lambda: _partition(make, way, timeout))
        from shardproof.tools.progress import PhaseBar

        with PhaseBar() as bar:
            result = programs.verify(
                strict=strict,
                timeout=timeout,
                lemmas=tuple(lemmas or ()),
                save_relation=save_relation,
                certificate=certificate,
                goals=goals,
                progress=bar.report,
            )
        return answered(result, format, output, verbose=verbose)

    return guarded(run, json=format is Format.JSON, verbose=verbose)


def _partition(make: str, partitioner: str | None, timeout: float | None) -> Partitioned | Unread:
    _without_devices()
    case: Any = found(make)()
    if not isinstance(case, tuple) or len(case) not in (5, 6):
        raise UsageProblem(
            f"{make} returns {type(case).__name__}, (function, inputs, mesh, in_shardings, out_shardings) "
            "is needed, perhaps with ranges of integer inputs"
        )
    from shardproof.solver.xla import prepared

    ranges = case[5] if len(case) == 6 else None
    return prepared(*case[:5], ranges=ranges, partitioner=partitioner, timeout=timeout)


def _without_devices() -> None:
    """Has jax, which is not imported yet, use fake CPU devices, as many as a mesh may need."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={DEVICES}".strip()
