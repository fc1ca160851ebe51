"""Traces functions with JAX, on abstract arrays: no device is used, no weight has memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardproof.ir.module import ModuleError


@dataclass(frozen=True, slots=True)
class Traced:
    """A `ClosedJaxpr`, and names for its inputs and outputs: paths in what the function takes and returns."""

    closed: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def trace(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Traced:
    """`function` called with `inputs` by name, arrays in any containers. What it raises goes through."""
    import jax

    leaves, tree = jax.tree_util.tree_flatten(dict(inputs))
    names = _names(dict(inputs), "")
    shapes: list[Any] = []

    def flat(*arrays: Any) -> Any:
        result = called(function, jax.tree_util.tree_unflatten(tree, arrays))
        found, shape = jax.tree_util.tree_flatten(result)
        shapes[:] = [jax.tree_util.tree_unflatten(shape, range(len(found)))]
        return found

    closed = jax.make_jaxpr(flat)(*leaves)
    return Traced(closed, names, _names(shapes[0], "out"))


def called(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """`function` on inputs by name, in the place of parameters of these names, which `jax.grad` counts."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    rest, placed = dict(inputs), []
    for p in parameters:
        if p.name not in rest or p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            break
        placed.append(rest.pop(p.name))
    return function(*placed, **rest)


def sharded(
    body: Callable[..., Any],
    mesh: Mapping[str, int],
    inputs: Mapping[str, Any],
    in_specs: Mapping[str, Any],
    out_specs: Any,
) -> Callable[..., Any]:
    """The function of whole arrays that runs `body` on every rank of an abstract mesh.

    Raises ModuleError for specs that name no input, and for inputs without one.
    """
    import jax

    if inputs.keys() != in_specs.keys():
        missing = sorted(inputs.keys() ^ in_specs.keys())
        raise ModuleError(f"`inputs` and `in_specs` name different inputs: {', '.join(missing)}")
    names = list(inputs)

    def by_position(*arguments: Any) -> Any:
        return called(body, dict(zip(names, arguments, strict=True)))

    specs = tuple(in_specs[n] for n in names)
    if hasattr(jax, "shard_map"):
        mapped = jax.shard_map(
            by_position, mesh=abstract(mesh), in_specs=specs, out_specs=out_specs, check_vma=False
        )
    else:
        from jax.experimental.shard_map import shard_map

        mapped = shard_map(
            by_position, mesh=abstract(mesh), in_specs=specs, out_specs=out_specs, check_rep=False
        )
    return lambda **given: mapped(*(given[n] for n in names))


def abstract(mesh: Mapping[str, int]) -> Any:
    """A mesh without devices."""
    from jax import sharding

    sizes, names = tuple(mesh.values()), tuple(mesh)
    if hasattr(sharding, "AxisType"):
        auto = (sharding.AxisType.Auto,) * len(names)
        return sharding.AbstractMesh(sizes, names, axis_types=auto)
    return sharding.AbstractMesh(tuple(zip(names, sizes, strict=True)))


def _names(tree: Any, root: str) -> tuple[str, ...]:
    """The path of every leaf, its parts joined by dots."""
    import jax

    found = []
    for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
        parts = [str(getattr(p, "key", getattr(p, "idx", getattr(p, "name", p)))) for p in path]
        found.append(".".join([root, *parts] if root else parts))
    return tuple(found)
