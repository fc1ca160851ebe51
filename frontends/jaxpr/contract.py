"""Primitives that contract, reduce and sort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.frontends.jaxpr.unknown import structure
from shardproof.frontends.jaxpr.walk import evaluate, opened
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


def _sort(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("dimension", "is_stable", "num_keys")
    dim, stable, keys = eqn.params["dimension"], bool(eqn.params["is_stable"]), int(eqn.params["num_keys"])
    types = [x.type for x in operands]
    if keys != 1:
        rest = [d for d in range(len(types[0].shape)) if d != dim]
        free = tuple(((d,) * len(types), (d,) * len(types)) for d in rest)
        return state.opaque(f"sort keys={keys} dim={dim} stable={stable}", operands, types, free)
    return state.op_many("sort", tuple(operands), types, dim=dim, comparator="lt:0", stable=stable)


def _top_k(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("k", "operand_axis", "axis")
    (x,) = operands
    last = len(x.type.shape) - 1
    axis = eqn.params.get("axis", eqn.params.get("operand_axis"))
    axis = last if axis is None else axis % (last + 1)
    order = (*(d for d in range(last + 1) if d != axis), axis)
    back = [order.index(d) for d in range(last + 1)]
    x = state.transpose(x, order)
    shape = (*x.type.shape[:-1], eqn.params["k"])
    types = (TensorType(x.type.dtype, shape), TensorType(DType.S32, shape))
    values, places = state.op_many("top_k", (x,), types, k=eqn.params["k"])
    return state.transpose(values, back), state.transpose(state.convert(places, eqn.results[1].dtype), back)


_REGIONS: Final = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "and": "and", "or": "or"}


def region(body: Any, dtype: DType) -> str | None:
    """The kind of reduction that a function of two scalars is; None for others.

    Bitwise functions of integers are known on bool and integers alike; a sum of truth values is not JAX's.
    """
    jaxpr, consts = opened(body)
    if consts or len(jaxpr.eqns) != 1 or len(jaxpr.invars) != 2:
        return None
    (eqn,) = jaxpr.eqns
    if any(hasattr(v, "val") for v in eqn.invars) or set(eqn.invars) != set(jaxpr.invars):
        return None
    if list(eqn.outvars) != list(jaxpr.outvars):
        return None
    if dtype is DType.BOOL and eqn.primitive.name in ("add", "mul"):
        return None
    return _REGIONS.get(eqn.primitive.name)


def _reduce(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("computation", "jaxpr", "consts", "dimensions")
    dims, body = tuple(sorted(eqn.params["dimensions"])), eqn.params["jaxpr"]
    if eqn.params.get("consts"):
        raise ModuleError("reduces by a function with constants of its own")
    count = len(operands) // 2
    kind = region(body, operands[0].type.dtype) if count == 1 else None
    if kind is not None:
        x, init = operands
        return (state.op("reduce", (x, init), eqn.result, dims=dims, kind=kind),)
    rest = [d for d in range(len(operands[0].type.shape)) if d not in dims]
    given, made = (-1,) * count, range(len(rest))
    free = tuple(((*(d,) * count, *given), (k,) * count) for k, d in zip(made, rest, strict=True))
    return state.opaque(f"reduce dims={dims} {{{structure(body)}}}", operands, eqn.results, free)


def _reduce_xor(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("axes")
    dims = tuple(sorted(eqn.params["axes"]))
    rest = [d for d in range(len(operands[0].type.shape)) if d not in dims]
    free = tuple(((d,), (k,)) for k, d in enumerate(rest))
    return state.opaque(f"reduce_xor dims={dims}", operands, eqn.results, free)


def _own(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """As JAX's own implementation by other primitives computes it: every group's rows, the others zero."""
    import jax
    from jax._src.lax import lax as internal

    own = getattr(internal, f"_{eqn.name}_impl", None)
    if own is None:
        raise ModuleError("has no implementation by other primitives in this version of JAX")
    given = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.source.invars]
    return evaluate(state, jax.make_jaxpr(partial(own, **eqn.params))(*given), operands)


_KINDS: Final = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "and": "and", "or": "or"}

RULES: Final[Mapping[str, Rule]] = {
    **{f"reduce_{name}": _reduction(kind) for name, kind in _KINDS.items()},
    **{f"arg{kind}": _argreduction(kind) for kind in ("max", "min")},
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "ragged_dot": _own,
    "ragged_dot_general": _own,
    "reduce": _reduce,
    "reduce_xor": _reduce_xor,
    "sort": _sort,
    "top_k": _top_k,
}
