"""Primitives that reduce over windows, or over all positions up to each one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from shardproof.frontends.jaxpr.contract import region
from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.frontends.jaxpr.unknown import parameters
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.numpy_compute import identity

_WINDOW: Final = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


def _cumulative(kind: str) -> Rule:
    """A reduction over all positions up to each one, or from it on."""

    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        eqn.only("axis", "reverse")
        (x,), dim = operands, eqn.params["axis"]
        rank, extent = len(x.type.shape), x.type.shape[eqn.params["axis"]]
        if extent == 0:
            return (x,)
        edge = tuple(extent - 1 if d == dim else 0 for d in range(rank))
        none, ones = (0,) * rank, (1,) * rank
        low, high = (none, edge) if eqn.params["reverse"] else (edge, none)
        init = state.constant(identity(kind, x.type.dtype), x.type.dtype)
        sizes = tuple(extent if d == dim else 1 for d in range(rank))
        return (
            state.op(
                "reduce_window",
                (x, init),
                x.type,
                kind=kind,
                sizes=sizes,
                strides=ones,
                base_dilations=ones,
                window_dilations=ones,
                pad_low=low,
                pad_high=high,
            ),
        )

    return rule


def _cumlogsumexp(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("axis", "reverse")
    (x,), dim = operands, eqn.params["axis"]
    free = tuple(((d,), (d,)) for d in range(len(x.type.shape)) if d != dim)
    name = f"cumlogsumexp dim={dim} reverse={bool(eqn.params['reverse'])}"
    return state.opaque(name, (x,), eqn.results, free)


def _reduction(kind: str) -> Rule:
    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        eqn.only(*_WINDOW)
        (x,) = operands
        init = state.constant(identity(kind, x.type.dtype), x.type.dtype)
        return (_windows(state, eqn, x, init, kind),)

    return rule


def _windows(state: Lowering, eqn: Equation, x: Value, init: Value, kind: str) -> Value:
    p = eqn.params
    return state.op(
        "reduce_window",
        (x, init),
        eqn.result,
        kind=kind,
        sizes=tuple(p["window_dimensions"]),
        strides=tuple(p["window_strides"]),
        base_dilations=tuple(p["base_dilation"]),
        window_dilations=tuple(p["window_dilation"]),
        pad_low=tuple(low for low, _ in p["padding"]),
        pad_high=tuple(high for _, high in p["padding"]),
    )


def _reduce_window(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """By a function of two scalars; the initial value takes part in every window."""
    eqn.only(*_WINDOW, "jaxpr", "consts")
    if eqn.params.get("consts"):
        raise ModuleError("reduces by a function with constants of its own")
    kind = region(eqn.params["jaxpr"], operands[0].type.dtype) if len(operands) == 2 else None
    if kind is None:
        raise ModuleError("reduces windows by a function that is no sum, product, maximum or minimum")
    x, init = operands
    dtype, p = x.type.dtype, eqn.params
    start = getattr(eqn.source.invars[1], "val", None)
    if start is not None and np.array_equal(start, np.asarray(identity(kind, dtype), dtype.storage)):
        return (_windows(state, eqn, x, init, kind),)
    edges = [*(n for pair in p["padding"] for n in pair), *(n - 1 for n in p["base_dilation"])]
    if any(edges) and kind in ("sum", "prod"):
        raise ModuleError("pads with an initial value that changes sums, of which XLA's backends differ")
    return (_windows(state, eqn, x, init, kind),)


def _selected(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """What reads or writes at the extreme place of each window, slice by slice where windows are one wide."""
    p = eqn.params
    rank = len(p["window_dimensions"])
    ones = (1,) * rank
    plain = zip(
        p["window_dimensions"],
        p["window_strides"],
        p["padding"],
        p.get("base_dilation", ones),
        p.get("window_dilation", ones),
        strict=True,
    )
    single = [d for d, one in enumerate(plain) if _is_one_wide(*one)]
    free = tuple(((d,) * len(operands), (d,)) for d in single)
    name = f"{eqn.name} {parameters(eqn, select_prim=p['select_prim'].name)}"
    return state.opaque(name, operands, eqn.results, free)


def _is_one_wide(size: int, stride: int, padding: tuple[int, int], base: int, dilation: int) -> bool:
    return (size, stride, tuple(padding), base, dilation) == (1, 1, (0, 0), 1, 1)


RULES: Final[Mapping[str, Rule]] = {
    **{f"reduce_window_{kind}": _reduction(kind) for kind in ("sum", "max", "min")},
    "cumlogsumexp": _cumlogsumexp,
    "cummax": _cumulative("max"),
    "cummin": _cumulative("min"),
    "cumprod": _cumulative("prod"),
    "cumsum": _cumulative("sum"),
    "reduce_window": _reduce_window,
    "select_and_gather_add": _selected,
    "select_and_scatter_add": _selected,
}
