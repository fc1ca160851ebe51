"""`shard_map`: which part of each argument a rank holds, and how the results are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.frontends.jaxpr.walk import equations, evaluate
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import Mesh, TensorType

Spec = Mapping[int, tuple[str, ...]]
"""The axes that divide each dim, outermost first; dims that none divides are left out."""


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The parameters of a `shard_map` equation, whichever JAX made it."""

    mesh: Mesh
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    manual: frozenset[str]
    body: Any

    @classmethod
    def of(cls, eqn: Any) -> ShardMap:
        p = eqn.params
        mesh = mesh_of(p["mesh"])
        names = frozenset(name for name, _ in mesh.axes)
        if "in_names" in p:
            inputs, outputs = p["in_names"], p["out_names"]
            manual = names - frozenset(p.get("auto") or ())
        else:
            inputs = tuple(map(spec_of, p["in_specs"]))
            outputs = tuple(map(spec_of, p["out_specs"]))
            manual = frozenset(p.get("newly_manual_axes") or p.get("manual_axes") or names)
        return cls(mesh, tuple(map(dict, inputs)), tuple(map(dict, outputs)), manual, p["jaxpr"])


def spec_of(spec: Any) -> Spec:
    """A `PartitionSpec` as axes by dim."""
    found = {}
    if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
        raise ModuleError(f"the partition {spec} leaves sums over ranks open")
    for dim, entry in enumerate(spec):
        axes = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        if not all(isinstance(a, str) for a in axes):
            raise ModuleError(f"the partition {spec} leaves open how dim {dim} is divided")
        if axes:
            found[dim] = tuple(axes)
    return found


def mesh_of(mesh: Any) -> Mesh:
    """Axes and sizes of a JAX mesh."""
    return Mesh(tuple((str(name), int(size)) for name, size in mesh.shape.items()))


def mesh_in(body: Any) -> Mesh | None:
    """The mesh of the `shard_map`s in a program; None without any. Raises ModuleError when they differ."""
    found: Mesh | None = None
    for eqn in equations(body):
        if eqn.primitive.name == "shard_map":
            own = mesh_of(eqn.params["mesh"])
            if found is not None and own != found:
                raise ModuleError(f"maps over {found} and over {own}: one mesh is needed")
            found = own
    return found


def words(spec: Spec) -> str:
    """The spec in the words of relation files."""
    return " | ".join(f"shard({d}, {', '.join(axes)})" for d, axes in sorted(spec.items())) or "replicate"


def cut(spec: Spec, rank: int, mesh: Mesh) -> tuple[int, ...] | None:
    """The number of parts of each of `rank` dims, shard i of a dim on rank i; None in any other order."""
    sizes, order = dict(mesh.axes), [name for name, _ in mesh.axes]
    for axes in spec.values():
        if list(axes) != [name for name in order if name in axes]:
            return None
    return tuple(prod(sizes[a] for a in spec.get(dim, ())) for dim in range(rank))


def _part(state: Lowering, x: Value, spec: Spec) -> Value:
    for dim, axes in sorted(spec.items()):
        count = state.size(axes)
        if dim >= len(x.type.shape) or x.type.shape[dim] % count:
            raise ModuleError(f"divides dim {dim} of {x.type} into {count} parts")
        x = state.ranks.part(x, dim, count, state.ranks.along(axes))
    return x


def _whole(state: Lowering, x: Value, spec: Spec) -> Value:
    for dim, axes in sorted(spec.items()):
        groups = state.groups(axes)
        shape = tuple(n * len(groups[0]) if d == dim else n for d, n in enumerate(x.type.shape))
        x = state.op("all_gather", (x,), TensorType(x.type.dtype, shape), dim=dim, groups=groups)
    return x


def _shard_map(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """Every rank cuts its part out of the whole arguments, and holds the whole results after."""
    call = ShardMap.of(eqn.source)
    parts = [_part(state, x, spec) for x, spec in zip(operands, call.inputs, strict=True)]
    kept, state.manual = state.manual, state.manual | call.manual
    results = evaluate(state, call.body, parts)
    state.manual = kept
    found = []
    for x, spec in zip(results, call.outputs, strict=True):
        taken = {a for axes in spec.values() for a in axes}
        own = [name for name, _ in call.mesh.axes if name in call.manual and name not in taken]
        found.append(_whole(state, state.agree(x, own), spec))
    return found


RULES: Final[Mapping[str, Rule]] = {"shard_map": _shard_map}
