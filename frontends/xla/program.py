"""A function, the shapes of its inputs and their shardings, traced once and lowered for XLA."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from shardproof.frontends.jaxpr.tracing import abstract
from shardproof.frontends.xla.shardings import Placed, from_spec
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Mesh

PARTITIONERS: Final = ("shardy", "gspmd")
"""The ways XLA has of choosing shardings."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of the function: its name, global shape, and how it is divided over the mesh.

    `placed` is None for an output whose sharding XLA chooses.
    """

    name: str
    shape: tuple[int, ...]
    placed: Placed | None


@dataclass(frozen=True, slots=True)
class Traced:
    """A function for all ranks of `mesh`.

    `jaxpr` is the ClosedJaxpr of the function, its inputs and outputs in the order of `inputs` and `outputs`;
    `stablehlo` is the same as MLIR bytecode, with shardings that are Shardy's (`shardy`) or GSPMD's.
    """

    name: str
    mesh: Mesh
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    jaxpr: Any
    stablehlo: bytes
    shardy: bool


def mesh_of(mesh: Any) -> Mesh:
    """The axes of a mapping axis -> size, or of a JAX Mesh or AbstractMesh."""
    axes = mesh if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
    if not isinstance(axes, Mapping):
        raise ModuleError(f"the mesh is {type(mesh).__name__}: give a dict of axes and sizes, or a jax Mesh")
    found = tuple((name, size) for name, size in axes.items())
    if not all(isinstance(name, str) and name and type(size) is int and size > 0 for name, size in found):
        raise ModuleError(f"mesh {dict(axes)}: every axis has a name and at least one rank")
    return Mesh(found)


def trace(
    function: Callable[..., Any],
    inputs: Any,
    mesh: Any,
    in_shardings: Any,
    out_shardings: Any,
    *,
    partitioner: str | None = None,
) -> Traced:
    """The function traced with its inputs as shapes only, and lowered with its shardings.

    `inputs` is a tuple of arguments, a dict of keyword arguments, or the one argument: pytrees of
    `jax.ShapeDtypeStruct`. Shardings are pytrees of `PartitionSpec` (or `NamedSharding`), or prefixes of
    them; None stands for a replicated input, and for an output whose sharding XLA chooses.
    Raises ModuleError when these do not fit together, and what the function raises.
    """
    try:
        import jax
        from jax.extend.core import jaxpr_as_fun
    except ImportError as error:
        raise ModuleError(f"needs jax, which can't be imported ({error}): pip install jax") from None
    if partitioner is not None and partitioner not in PARTITIONERS:
        raise ModuleError(f"the partitioner is one of {', '.join(PARTITIONERS)}, not `{partitioner}`")
    shardy = jax.config.jax_use_shardy_partitioner if partitioner is None else partitioner == "shardy"
    axes = mesh_of(mesh)
    if axes.size == 1:
        raise ModuleError(f"the mesh {axes} has one rank: there is nothing to partition")
    without_devices = abstract(dict(axes.axes))
    arguments, call, names = _arguments(function, inputs)
    leaves, structure = jax.tree_util.tree_flatten_with_path(arguments)
    for path, leaf in leaves:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            found = f"{type(leaf).__name__}, a jax.ShapeDtypeStruct is needed"
            raise ModuleError(f"the input at {jax.tree_util.keystr(path)} is {found}")
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for _, leaf in leaves]
    with _within(jax, without_devices):
        jaxpr, returned = jax.make_jaxpr(
            lambda *flat: call(structure.unflatten(flat)), return_shape=True
        )(*shapes)
        results, _ = jax.tree_util.tree_flatten_with_path(returned)
        specs = [s or () for s in _spread(jax, in_shardings, arguments, axes, "in_shardings")]
        wanted = _spread(jax, out_shardings, returned, axes, "out_shardings")
        own = [
            Tensor(name, tuple(s.shape), from_spec(spec, tuple(s.shape), axes, f"input `{name}`"))
            for name, s, spec in zip(_named(leaves, names), shapes, specs, strict=True)
        ]
        outputs = [
            Tensor(name, tuple(leaf.shape), _placed(spec, tuple(leaf.shape), axes, f"output `{name}`"))
            for name, (_, leaf), spec in zip(_named(results, "out"), results, wanted, strict=True)
        ]
        flat = jaxpr_as_fun(jaxpr)
        flat = _titled(flat, getattr(function, "__name__", "function"))
        sharded = jax.jit(
            flat,
            in_shardings=tuple(_sharding(jax, without_devices, t.placed) for t in own),
            out_shardings=[_sharding(jax, without_devices, t.placed) for t in outputs],
            keep_unused=True,
        )
        with _choosing(jax, shardy):
            lowered = sharded.trace(*shapes).lower(lowering_platforms=("cpu",))
    return Traced(
        name=flat.__name__,
        mesh=axes,
        inputs=tuple(own),
        outputs=tuple(outputs),
        jaxpr=jaxpr,
        stablehlo=_bytecode(lowered),
        shardy=shardy,
    )


def _arguments(function: Callable[..., Any], inputs: Any) -> tuple[Any, Callable[[Any], Any], Any]:
    """(the arguments as one pytree, a function of it, names of its top entries)."""
    import inspect

    if isinstance(inputs, Mapping):
        return dict(inputs), lambda tree: function(**tree), None
    positional = tuple(inputs) if type(inputs) in (tuple, list) else (inputs,)
    try:
        bound = inspect.signature(function).bind(*positional)
    except TypeError as error:
        raise ModuleError(f"the function does not take {len(positional)} inputs: {error}") from None
    except ValueError:
        return positional, lambda tree: function(*tree), [f"arg{k}" for k in range(len(positional))]
    names: list[str] = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        several = kind is inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}{k}" for k in range(len(value))] if several else [name]
    return positional, lambda tree: function(*tree), names


def _titled(function: Callable[..., Any], name: str) -> Any:
    def titled(*arguments: Any) -> Any:
        return function(*arguments)

    titled.__name__ = titled.__qualname__ = name if name.isidentifier() else "function"
    return titled


def _within(jax: Any, mesh: Any) -> Any:
    """The context in which `PartitionSpec`s inside the function mean axes of the mesh."""
    use = getattr(jax.sharding, "use_abstract_mesh", None)
    return nullcontext() if use is None else use(mesh)


@contextmanager
def _choosing(jax: Any, shardy: bool) -> Iterator[None]:
    """Within it jax writes shardings as Shardy's, or as GSPMD's."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def _bytecode(lowered: Any) -> bytes:
    out = BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(out)
    return out.getvalue()


def _is_spec(jax: Any, value: Any) -> bool:
    return value is None or isinstance(value, jax.sharding.PartitionSpec | jax.sharding.Sharding)


def _spread(jax: Any, prefix: Any, tree: Any, mesh: Mesh, what: str) -> list[Any]:
    """For each leaf of `tree` the PartitionSpec, or None, that `prefix` gives it."""
    found: list[Any] = []

    def give(spec: Any, below: Any) -> None:
        found.extend([_spec(jax, spec, mesh, what)] * len(jax.tree_util.tree_leaves(below)))

    if type(prefix) is list and type(tree) is tuple:
        prefix = tuple(prefix)
    try:
        jax.tree_util.tree_map(give, prefix, tree, is_leaf=lambda value: _is_spec(jax, value))
    except ValueError as error:
        text = " ".join(str(error).split())
        raise ModuleError(f"{what} is no prefix of the tree that it is for: {text}") from None
    return found


def _spec(jax: Any, given: Any, mesh: Mesh, what: str) -> Any:
    if given is None or isinstance(given, jax.sharding.PartitionSpec):
        return given
    if not isinstance(given, jax.sharding.NamedSharding):
        raise ModuleError(f"{what} holds {type(given).__name__}: give a PartitionSpec")
    if mesh_of(given.mesh) != mesh:
        raise ModuleError(f"{what} holds a sharding over {mesh_of(given.mesh)}, the mesh given is {mesh}")
    return given.spec


def _placed(spec: Any, shape: tuple[int, ...], mesh: Mesh, where: str) -> Placed | None:
    return None if spec is None else from_spec(spec, shape, mesh, where)


def _sharding(jax: Any, mesh: Any, placed: Placed | None) -> Any:
    if placed is None:
        return None
    entries = [own if len(own) > 1 else own[0] if own else None for own in placed.axes]
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*entries))


def _named(leaves: Sequence[tuple[Any, Any]], top: str | Sequence[str] | None) -> list[str]:
    """A distinct name for each leaf: its path with dots, as in `params.layers.0.w`.

    `top` is put in front, or names the first step of each path.
    """
    found: list[str] = []
    for path, _ in leaves:
        steps = [_step(key) for key in path]
        if isinstance(top, str):
            steps = [top, *steps]
        elif top is not None:
            steps[0] = top[int(steps[0])]
        plain = re.sub(r"[^\w.\-]", "_", ".".join(steps)) or "input"
        name, count = plain, 1
        while name in found:
            name, count = f"{plain}-{count}", count + 1
        found.append(name)
    return found


def _step(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
