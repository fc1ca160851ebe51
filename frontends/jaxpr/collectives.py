"""Primitives that communicate along named axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardproof.frontends.jaxpr.state import Equation, Groups, Lowering, Rule
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import TensorType


def _named(eqn: Equation) -> Any:
    return eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]


def _groups(state: Lowering, eqn: Equation, axes: Sequence[str]) -> Groups:
    """The rank groups along `axes`. Raises ModuleError when they leave ranks out."""
    within = eqn.params.get("axis_index_groups")
    if within is not None:
        places = sorted(k for part in within for k in part)
        if places != list(range(state.size(axes))):
            raise ModuleError(f"has the groups {within} over {state.size(axes)} places of {axes}")
    return state.groups(axes, within)


def _all_reduce(kind: str) -> Rule:
    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        eqn.only("axes", "axis_name", "axis_index_groups")
        named = _named(eqn)
        every = tuple(named) if isinstance(named, tuple | list) else (named,)
        dims = [d for d in every if isinstance(d, int)]
        axes = state.axes(tuple(a for a in every if not isinstance(a, int)))
        found = []
        for x, type in zip(operands, eqn.results, strict=True):
            if dims:
                x = state.reduce(x, dims, kind)
            if axes:
                x = state.op("all_reduce", (x,), type, kind=kind, groups=_groups(state, eqn, axes))
            found.append(x)
        return found

    return rule


def _all_gather(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("all_gather_dimension", "axis_name", "axis_index_groups", "axis_size", "tiled")
    axes = state.axes(_named(eqn))
    groups, dim = _groups(state, eqn, axes), eqn.params["all_gather_dimension"]
    found = []
    for x, type in zip(operands, eqn.results, strict=True):
        if not eqn.params["tiled"]:
            x = state.reshape(x, (*x.type.shape[:dim], 1, *x.type.shape[dim:]))
        found.append(state.op("all_gather", (x,), type, dim=dim, groups=groups))
    return found


def _reduce_scatter(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("scatter_dimension", "axis_name", "axis_index_groups", "axis_size", "tiled")
    axes = state.axes(_named(eqn))
    groups, dim = _groups(state, eqn, axes), eqn.params["scatter_dimension"]
    found = []
    for x, type in zip(operands, eqn.results, strict=True):
        shape = tuple(n // len(groups[0]) if d == dim else n for d, n in enumerate(x.type.shape))
        part = TensorType(x.type.dtype, shape)
        own = state.op("reduce_scatter", (x,), part, dim=dim, kind="sum", groups=groups)
        found.append(own if eqn.params["tiled"] else state.reshape(own, type.shape))
    return found


def _all_to_all(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("split_axis", "concat_axis", "axis_name", "axis_index_groups", "axis_size", "tiled")
    axes = state.axes(_named(eqn))
    groups = _groups(state, eqn, axes)
    split, joined, count = eqn.params["split_axis"], eqn.params["concat_axis"], len(groups[0])
    found = []
    for x, type in zip(operands, eqn.results, strict=True):
        shape = list(x.type.shape)
        shape[split] //= count
        shape[joined] *= count
        moved = state.op(
            "all_to_all",
            (x,),
            TensorType(x.type.dtype, tuple(shape)),
            split_dim=split,
            concat_dim=joined,
            groups=groups,
        )
        if moved.type != type:
            raise ModuleError(f"gives {type}, exchanging {x.type} in groups of {count} gives {moved.type}")
        found.append(moved)
    return found


def _permute(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("axis_name", "perm")
    groups = state.groups(state.axes(_named(eqn)))
    pairs = tuple((group[a], group[b]) for group in groups for a, b in eqn.params["perm"])
    return tuple(state.op("collective_permute", (x,), x.type, pairs=pairs) for x in operands)


def _broadcast(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """From one place to all others along the axes; without a source it only states what is so already."""
    if "source" not in eqn.params:
        return operands
    eqn.only("axis_name", "source")
    source = eqn.params["source"]
    groups = tuple(
        (group[source], *(r for r in group if r != group[source]))
        for group in state.groups(state.axes(_named(eqn)))
    )
    return tuple(state.op("collective_broadcast", (x,), x.type, groups=groups) for x in operands)


def _axis_index(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("axis_name")
    place = state.ranks.along(state.axes(eqn.params["axis_name"]))
    return (state.convert(place, eqn.result.dtype),)


RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("psum", "psum2", "psum_invariant"), _all_reduce("sum")),
    **dict.fromkeys(("all_gather", "all_gather_invariant"), _all_gather),
    "all_to_all": _all_to_all,
    "axis_index": _axis_index,
    "pbroadcast": _broadcast,
    "pmax": _all_reduce("max"),
    "pmin": _all_reduce("min"),
    "ppermute": _permute,
    "psum_scatter": _reduce_scatter,
    "reduce_scatter": _reduce_scatter,
}
