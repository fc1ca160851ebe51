"""Primitives that contract, reduce, accumulate and sort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule, identity
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import DType, TensorType


def _dot_general(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dimension_numbers", "preferred_element_type")
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = eqn.params["dimension_numbers"]
    dtype = eqn.result.dtype
    sides = tuple(x if x.type.dtype.kind == dtype.kind else state.convert(x, dtype) for x in operands)
    return (
        state.op(
            "dot_general",
            sides,
            eqn.result,
            lhs_contracting=tuple(lhs_contracting),
            rhs_contracting=tuple(rhs_contracting),
            lhs_batch=tuple(lhs_batch),
            rhs_batch=tuple(rhs_batch),
        ),
    )


def _convolution(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only(
        "window_strides",
        "padding",
        "lhs_dilation",
        "rhs_dilation",
        "dimension_numbers",
        "feature_group_count",
        "batch_group_count",
        "preferred_element_type",
    )
    p = eqn.params
    numbers = p["dimension_numbers"]
    out_feature, in_feature, *space = numbers.rhs_spec
    rank = len(p["window_strides"])
    return (
        state.op(
            "convolution",
            tuple(operands),
            eqn.result,
            strides=tuple(p["window_strides"]),
            pad_low=tuple(low for low, _ in p["padding"]),
            pad_high=tuple(high for _, high in p["padding"]),
            lhs_dilation=tuple(p["lhs_dilation"] or (1,) * rank),
            rhs_dilation=tuple(p["rhs_dilation"] or (1,) * rank),
            reversal=(False,) * rank,
            lhs_dims=tuple(numbers.lhs_spec),
            rhs_dims=(in_feature, out_feature, *space),
            out_dims=tuple(numbers.out_spec),
            feature_groups=p["feature_group_count"],
            batch_groups=p["batch_group_count"],
        ),
    )


def _reduction(kind: str) -> Rule:
    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        eqn.only("axes", "input_shape")
        return (state.reduce(operands[0], eqn.params["axes"], kind),)

    return rule


def _argreduction(kind: str) -> Rule:
    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        eqn.only("axes", "index_dtype")
        (x,), axes = operands, eqn.params["axes"]
        if len(axes) != 1:
            raise ModuleError(f"finds the place along {len(axes)} dims, 1 is known")
        best = TensorType(x.type.dtype, eqn.result.shape)
        _, place = state.op_many("argreduce", (x,), (best, eqn.result), dim=axes[0], kind=kind)
        return (place,)

    return rule


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


def _window(kind: str) -> Rule:
    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        eqn.only("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
        (x,), p = operands, eqn.params
        return (
            state.op(
                "reduce_window",
                (x, state.constant(identity(kind, x.type.dtype), x.type.dtype)),
                eqn.result,
                kind=kind,
                sizes=tuple(p["window_dimensions"]),
                strides=tuple(p["window_strides"]),
                base_dilations=tuple(p["base_dilation"]),
                window_dilations=tuple(p["window_dilation"]),
                pad_low=tuple(low for low, _ in p["padding"]),
                pad_high=tuple(high for _, high in p["padding"]),
            ),
        )

    return rule


def _sort(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dimension", "is_stable", "num_keys")
    if eqn.params["num_keys"] != 1:
        raise ModuleError(f"sorts by {eqn.params['num_keys']} keys, 1 is known")
    dim, stable = eqn.params["dimension"], bool(eqn.params["is_stable"])
    types = [x.type for x in operands]
    return state.op_many("sort", tuple(operands), types, dim=dim, comparator="lt:0", stable=stable)


def _top_k(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("k", "operand_axis", "axis")
    (x,) = operands
    last = len(x.type.shape) - 1
    axis = eqn.params.get("axis", eqn.params.get("operand_axis", last))
    if axis not in (last, -1, None):
        raise ModuleError(f"takes the largest along dim {axis} of {x.type}, the last one is known")
    types = [TensorType(eqn.results[0].dtype, eqn.results[0].shape)]
    types.append(TensorType(DType.S32, eqn.results[1].shape))
    values, places = state.op_many("top_k", (x,), types, k=eqn.params["k"])
    return values, state.convert(places, eqn.results[1].dtype)


_KINDS: Final = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "and": "and", "or": "or"}

RULES: Final[Mapping[str, Rule]] = {
    **{f"reduce_{name}": _reduction(kind) for name, kind in _KINDS.items()},
    **{f"arg{kind}": _argreduction(kind) for kind in ("max", "min")},
    **{f"reduce_window_{kind}": _window(kind) for kind in ("sum", "max", "min")},
    "conv_general_dilated": _convolution,
    "cumlogsumexp": _cumlogsumexp,
    "cummax": _cumulative("max"),
    "cummin": _cumulative("min"),
    "cumprod": _cumulative("prod"),
    "cumsum": _cumulative("sum"),
    "dot_general": _dot_general,
    "sort": _sort,
    "top_k": _top_k,
}
