"""Primitives that read or write at computed positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.frontends.jaxpr.walk import opened
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import DType


def _mode(eqn: Equation) -> str:
    """What happens out of range: `clip`, `drop`, or nothing may be out of range and XLA's way counts."""
    mode = eqn.params["mode"]
    name = str(getattr(mode, "name", mode)).lower()
    known = {"clip": "clip", "fill_or_drop": "drop", "promise_in_bounds": "in_bounds", "none": "drop"}
    if name not in known:
        raise ModuleError(f"has the mode {mode}, which is not known")
    return known[name]


def _limits(state: Lowering, indices: Value, highest: Sequence[int]) -> Value:
    """The highest index of each component, along the last dim of `indices`."""
    dtype = indices.type.dtype
    top = (1 << dtype.bits - (dtype.kind == "int")) - 1
    row = state.constant(np.asarray([min(n, top) for n in highest]), dtype)
    return state.broadcast(row, indices.type.shape, (len(indices.type.shape) - 1,))


def _clipped(state: Lowering, indices: Value, highest: Sequence[int]) -> Value:
    low = state.constant(0, indices.type.dtype, indices.type.shape)
    return state.op("clamp", (low, indices, _limits(state, indices, highest)), indices.type)


def _in_range(state: Lowering, indices: Value, highest: Sequence[int]) -> Value:
    """Whether all components of each index are in range."""
    low = state.constant(0, indices.type.dtype, indices.type.shape)
    above = state.compare("GE", indices, low)
    below = state.compare("LE", indices, _limits(state, indices, highest))
    both = state.op("and", (above, below), above.type)
    return state.reduce(both, (len(indices.type.shape) - 1,), "and")


def _gather(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dimension_numbers", "slice_sizes", "unique_indices", "mode", "fill_value")
    x, indices = operands
    numbers, sizes = eqn.params["dimension_numbers"], tuple(eqn.params["slice_sizes"])
    mode = _mode(eqn)
    found = state.op(
        "gather",
        (x, indices),
        eqn.result,
        offset_dims=tuple(numbers.offset_dims),
        collapsed_slice_dims=tuple(numbers.collapsed_slice_dims),
        start_index_map=tuple(numbers.start_index_map),
        index_vector_dim=len(indices.type.shape) - 1,
        slice_sizes=sizes,
        operand_batching_dims=tuple(getattr(numbers, "operand_batching_dims", ())),
        start_indices_batching_dims=tuple(getattr(numbers, "start_indices_batching_dims", ())),
    )
    if mode != "drop" or not numbers.start_index_map:
        return (found,)
    shape = eqn.result.shape
    inside = _in_range(state, indices, [x.type.shape[d] - sizes[d] for d in numbers.start_index_map])
    batch = tuple(d for d in range(len(shape)) if d not in numbers.offset_dims)
    test = state.broadcast(inside, shape, batch)
    return (state.select(test, found, state.constant(_fill(eqn, x.type.dtype), x.type.dtype, shape)),)


def _fill(eqn: Equation, dtype: DType) -> Any:
    """What is read out of range."""
    given = eqn.params.get("fill_value")
    if given is not None:
        return given
    if dtype.kind in ("real", "complex"):
        return np.nan
    if dtype.kind == "int":
        return -(1 << dtype.bits - 1)
    return True if dtype is DType.BOOL else (1 << dtype.bits) - 1


_COMBINE: Final = {
    "scatter": "set",
    "scatter-add": "sum",
    "scatter_add": "sum",
    "scatter-sub": "sum",
    "scatter_sub": "sum",
    "scatter-mul": "prod",
    "scatter_mul": "prod",
    "scatter-min": "min",
    "scatter_min": "min",
    "scatter-max": "max",
    "scatter_max": "max",
}


def _takes_update(body: Any) -> bool:
    """Whether a function of what was there and of what is new gives the new."""
    jaxpr, _ = opened(body)
    return not jaxpr.eqns and list(jaxpr.outvars) == list(jaxpr.invars[1:])


def _scatter(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dimension_numbers", "unique_indices", "mode", "update_jaxpr", "update_consts")
    x, indices, updates = operands
    written = eqn.params.get("update_jaxpr")
    if eqn.name == "scatter" and written is not None and not _takes_update(written):
        raise ModuleError("writes a function of what was there, only sums, products and extremes are known")
    if eqn.name in ("scatter-sub", "scatter_sub"):
        updates = state.elementwise("negate", updates)
    numbers = eqn.params["dimension_numbers"]
    batching = tuple(getattr(numbers, "operand_batching_dims", ()))
    kept = [d for d in range(len(x.type.shape)) if d not in (*numbers.inserted_window_dims, *batching)]
    window = dict.fromkeys((*numbers.inserted_window_dims, *batching), 1)
    window |= {d: updates.type.shape[u] for d, u in zip(kept, numbers.update_window_dims, strict=True)}
    mapped = tuple(numbers.scatter_dims_to_operand_dims)
    if _mode(eqn) == "clip" and mapped:
        indices = _clipped(state, indices, [x.type.shape[d] - window[d] for d in mapped])
    return (
        state.op(
            "scatter",
            (x, indices, updates),
            eqn.result,
            update_window_dims=tuple(numbers.update_window_dims),
            inserted_window_dims=tuple(numbers.inserted_window_dims),
            scatter_dims_to_operand_dims=mapped,
            index_vector_dim=len(indices.type.shape) - 1,
            input_batching_dims=batching,
            scatter_indices_batching_dims=tuple(getattr(numbers, "scatter_indices_batching_dims", ())),
            kind=_COMBINE[eqn.name],
            unique=bool(eqn.params["unique_indices"]),
        ),
    )


def _dynamic_slice(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("slice_sizes")
    return (state.op("dynamic_slice", tuple(operands), eqn.result, sizes=tuple(eqn.params["slice_sizes"])),)


def _dynamic_update_slice(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    return (state.op("dynamic_update_slice", tuple(operands), eqn.result),)


RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(_COMBINE, _scatter),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
}
