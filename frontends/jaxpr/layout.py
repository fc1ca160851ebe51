"""Primitives that move elements: shapes, slices, pads, counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.ir.module import ModuleError, Value


def _reshape(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("new_sizes", "dimensions")
    x = operands[0]
    order = eqn.params.get("dimensions")
    if order is not None:
        x = state.transpose(x, order)
    return (state.reshape(x, eqn.result.shape),)


def _squeeze(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dimensions")
    return (state.reshape(operands[0], eqn.result.shape),)


def _expand_dims(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dimensions")
    return (state.reshape(operands[0], eqn.result.shape),)


def _broadcast_in_dim(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("shape", "broadcast_dimensions")
    return (state.broadcast(operands[0], eqn.result.shape, tuple(eqn.params["broadcast_dimensions"])),)


def _transpose(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("permutation")
    return (state.transpose(operands[0], eqn.params["permutation"]),)


def _rev(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dimensions")
    return (state.op("reverse", tuple(operands), eqn.result, dims=tuple(eqn.params["dimensions"])),)


def _slice(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("start_indices", "limit_indices", "strides")
    return (
        state.slice(
            operands[0],
            eqn.params["start_indices"],
            eqn.params["limit_indices"],
            eqn.params.get("strides"),
        ),
    )


def _split(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("sizes", "axis")
    (x,), dim = operands, eqn.params["axis"]
    found, at = [], 0
    for size in eqn.params["sizes"]:
        starts = [at if d == dim else 0 for d in range(len(x.type.shape))]
        limits = [at + size if d == dim else n for d, n in enumerate(x.type.shape)]
        found.append(state.slice(x, starts, limits))
        at += size
    return found


def _concatenate(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dimension")
    return (state.concatenate(operands, int(eqn.params["dimension"])),)


def _stack(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("axis")
    dim = eqn.params["axis"]
    shape = operands[0].type.shape
    rows = [state.reshape(x, (*shape[:dim], 1, *shape[dim:])) for x in operands]
    return (state.concatenate(rows, dim),)


def _unstack(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("axis")
    (x,), dim = operands, eqn.params["axis"]
    shape = x.type.shape
    found = []
    for at in range(shape[dim]):
        starts = [at if d == dim else 0 for d in range(len(shape))]
        limits = [at + 1 if d == dim else n for d, n in enumerate(shape)]
        found.append(state.reshape(state.slice(x, starts, limits), (*shape[:dim], *shape[dim + 1 :])))
    return found


def _tile(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("reps")
    (x,), reps = operands, eqn.params["reps"]
    wide: list[int] = []
    for times, size in zip(reps, x.type.shape, strict=True):
        wide += [times, size]
    spread = state.broadcast(x, tuple(wide), tuple(range(1, 2 * len(reps), 2)))
    return (state.reshape(spread, eqn.result.shape),)


def _pad(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("padding_config")
    low, high, interior = zip(*eqn.params["padding_config"], strict=True) if eqn.result.shape else ((),) * 3
    return (state.op("pad", tuple(operands), eqn.result, low=low, high=high, interior=interior),)


def _iota(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dtype", "shape", "dimension")
    if operands:
        raise ModuleError("counts along a dim whose extent is not known")
    return (state.op("iota", (), eqn.result, dim=eqn.params["dimension"]),)


def _bitcast(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("new_dtype")
    return (state.op("bitcast_convert", tuple(operands), eqn.result),)


RULES: Final[Mapping[str, Rule]] = {
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "expand_dims": _expand_dims,
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _rev,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "transpose": _transpose,
    "unstack": _unstack,
}
