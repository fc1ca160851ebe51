"""JAX functions: traced, lowered, and their layouts as a relation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardproof.frontends.jaxpr.lower import Lowered, lower
from shardproof.frontends.jaxpr.tracing import Traced, sharded, trace
from shardproof.frontends.jaxpr.walk import NotRead
from shardproof.frontends.locate import configured_wrapper_files
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.verify import verify as verify_module
from shardproof.solver.collection import rare_collection
from shardproof.solver.relations.relation_file import Declared
from shardproof.solver.verdict import Blocked, OutputVerdict, Place, Result, Verdict
from shardproof.solver.verify import verify


def capture_jax(
    function: Callable[..., Any],
    *,
    inputs: Mapping[str, Any],
    mesh: Mapping[str, int] | None,
    in_specs: Mapping[str, Any] | None,
    out_specs: Any,
) -> Module:
    """As `shardproof.capture_jax`."""
    traced = trace(_of_ranks(function, inputs, mesh, in_specs, out_specs), inputs)
    module = _lowered(traced, _name(function, "program")).module
    verify_module(module)
    return module


def verify_jax(
    reference: Callable[..., Any],
    implementation: Callable[..., Any],
    *,
    inputs: Mapping[str, Any],
    mesh: Mapping[str, int] | None,
    in_specs: Mapping[str, Any] | None,
    out_specs: Any,
    ranges: Mapping[str, tuple[int, int]],
    **options: Any,
) -> Result:
    """As `shardproof.verify_jax`; `options` are those of `verify`."""
    names = _name(reference, "reference"), _name(implementation, "implementation")
    implementation = _of_ranks(implementation, inputs, mesh, in_specs, out_specs)
    first, second = trace(reference, inputs), trace(implementation, inputs)
    return verify_traced(first, second, ranges=ranges, names=names, **options)


@rare_collection()
def verify_traced(
    reference: Traced,
    implementation: Traced,
    *,
    ranges: Mapping[str, tuple[int, int]],
    names: tuple[str, str] = ("reference", "implementation"),
    **options: Any,
) -> Result:
    """The verdict on two traced functions of the same inputs; `unknown` where one is not supported."""
    try:
        first, second = (
            _lowered(traced, name) for traced, name in zip((reference, implementation), names, strict=True)
        )
    except NotRead as error:
        return not_read(error, reference.outputs)
    unknown = sorted(set(ranges) - set(reference.inputs))
    if unknown:
        raise ModuleError(f"`ranges` names {unknown[0]!r}; the inputs are {', '.join(reference.inputs)}")
    whole = dict.fromkeys(implementation.inputs, "replicate")
    declared = Declared(
        mesh=second.module.mesh if second.module.mesh.size > 1 else None,
        reference_mesh=first.module.mesh if first.module.mesh.size > 1 else None,
        inputs={**whole, **second.inputs},
        outputs={**dict.fromkeys(implementation.outputs, "replicate"), **second.outputs},
        reference=first.inputs,
        reference_outputs=first.outputs,
        ranges=dict(ranges),
    )
    return verify(first.module, second.module, relation=declared, **options)


def not_read(error: NotRead, outputs: Sequence[str]) -> Result:
    """`unknown`, for the primitive that is not supported, where it was written."""
    place = Place.at(error.primitive, error.primitive, error.location)
    return Result(
        verdict=Verdict.UNKNOWN,
        code="U15",
        message=f"`{error.primitive}` is not supported: {error.reason}",
        location=place,
        blocked=(Blocked(error.primitive, failed_condition=error.reason),),
        outputs=tuple(OutputVerdict(name, "not checked", Verdict.UNKNOWN) for name in outputs),
    )


def _lowered(traced: Traced, name: str) -> Lowered:
    """Raises NotRead, also for what no one primitive is about."""
    try:
        return lower(
            traced.closed,
            name=name,
            inputs=traced.inputs,
            outputs=traced.outputs,
            wrapper_files=configured_wrapper_files(Path.cwd()),
        )
    except NotRead:
        raise
    except ModuleError as error:
        raise NotRead(name, None, str(error)) from None


def _of_ranks(
    function: Callable[..., Any],
    inputs: Mapping[str, Any],
    mesh: Mapping[str, int] | None,
    in_specs: Mapping[str, Any] | None,
    out_specs: Any,
) -> Callable[..., Any]:
    """The function of whole arrays that runs `function` on every rank, where a mesh and specs are given."""
    given = (mesh is not None, in_specs is not None, out_specs is not None)
    if any(given) and not all(given):
        raise ModuleError("give `mesh`, `in_specs` and `out_specs` together, for a function of one rank")
    if mesh is None or in_specs is None:
        return function
    return sharded(function, mesh, inputs, in_specs, out_specs)


def _name(function: Any, role: str) -> str:
    """What a function is called, or its role."""
    name = str(getattr(function, "__name__", role))
    return role if name == "<lambda>" else name
