"""Custom operators: calls by name, whose meaning the definitions of the lemma library give later.

A call becomes `custom_call`. Its `target` is `namespace::operator.overload`, its operands are the tensors in
the order of the parameters, and its `config` is a JSON object of all other arguments by parameter name, empty
when there are none. Where a parameter has no name here it is `argN`, N its position.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from shardproof.frontends.fx.graph import Operator
from shardproof.frontends.fx.lowering.state import Lowering
from shardproof.ir.module import Value
from shardproof.ir.types import DType, TensorType


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameter names of an operator in order, those whose tensors it overwrites, and mere labels."""

    names: tuple[str, ...]
    mutated: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


def _signature(text: str) -> Signature:
    """From names in order; `!` marks what is overwritten, `?` a label that no result depends on."""
    words = text.split()
    plain = tuple(w.rstrip("!?") for w in words)
    mutated, labels = (tuple(w[:-1] for w in words if w.endswith(mark)) for mark in "!?")
    return Signature(plain, mutated, labels)


SIGNATURES: Final[Mapping[str, Signature]] = {
    "_C.rms_norm.default": _signature("result! input weight epsilon"),
    "_C.fused_add_rms_norm.default": _signature("input! residual! weight epsilon"),
    "_C.silu_and_mul.default": _signature("out! input"),
    "_C.rotary_embedding.default": _signature("positions query! key! head_size cos_sin_cache is_neox"),
    "vllm.unified_attention_with_output.default": _signature("query key value output! layer_name"),
    "tg.inplace_log_tensor.default": _signature("t! s?"),
    "tg.log_tensor.default": _signature("t s?"),
}
"""Operators whose calls need the names of their parameters, or which of them are overwritten."""


def spelled(target: str) -> str:
    """`namespace::operator.overload` of `namespace.operator.overload`."""
    namespace, _, rest = target.partition(".")
    return f"{namespace}::{rest}"


def config(s: Lowering, attributes: Mapping[str, Any]) -> str:
    """The attributes as text that tells apart any two of them."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        if isinstance(value, DType):
            return {"dtype": value.value}
        if isinstance(value, Operator):
            return {"operator": value.name}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        s.fail(f"has the argument {value!r}, which has no spelling")
        return None

    found = {name: plain(value) for name, value in attributes.items()}
    return json.dumps(found, sort_keys=True) if found else ""


def call(
    s: Lowering,
    target: str,
    operands: Sequence[Value],
    types: Sequence[TensorType],
    attributes: Mapping[str, Any],
) -> tuple[Value, ...]:
    """Append a call."""
    return s.emit_many("custom_call", operands, types, target=spelled(target), config=config(s, attributes))


def _tensors(value: Any) -> tuple[Value, ...]:
    """The tensors in an argument, in order."""
    if isinstance(value, Value):
        return (value,)
    if isinstance(value, tuple):
        return tuple(v for part in value for v in _tensors(part))
    return ()


def _shown(value: Any) -> Any:
    """An argument with its tensors replaced by a mark, so that it still says where they stand."""
    if isinstance(value, Value):
        return "tensor"
    return tuple(map(_shown, value)) if isinstance(value, tuple) else value


def split(arguments: Mapping[str, Any]) -> tuple[list[Value], dict[str, Any]]:
    """The tensors of a call and its other arguments; a list that holds tensors is both."""
    operands: list[Value] = []
    attributes: dict[str, Any] = {}
    for name, value in arguments.items():
        operands += _tensors(value)
        if not isinstance(value, Value):
            attributes[name] = _shown(value)
    return operands, attributes


def named(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name."""
    known = SIGNATURES.get(target)
    names = known.names if known is not None else ()
    found = {names[k] if k < len(names) else f"arg{k}": v for k, v in enumerate(args)} | dict(kwargs)
    return {k: v for k, v in found.items() if known is None or k not in known.labels}


def _declared(s: Lowering, places: Sequence[int]) -> tuple[TensorType, ...]:
    types = []
    for place in places:
        told = s.declared[place]
        types.append(TensorType(told.dtype, s.resolved(told.shape)))
    return tuple(types)


def opaque(s: Lowering, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call whose results are those that the graph records, in order."""
    rule = _SHAPED.get(target)
    if rule is not None:
        return rule(s, target, args, kwargs)
    parts = target.split(".")
    if parts[1].endswith("_") or parts[-1] == "out" or parts[-1].endswith("_out"):
        s.fail("writes to an argument in a way that is not known")
    places = sorted(s.declared)
    if not places:
        s.fail("has no result of a known type: it is unknown what it does")
    operands, attributes = split(named(target, args, kwargs))
    single = not s.parts and not isinstance(s.node.meta, tuple)
    if not single and places != list(range(len(places))):
        attributes["results"] = tuple(places)
    values = call(s, target, operands, _declared(s, places), attributes)
    s.warn("is kept opaque unless a definition of it is given")
    if single:
        return values[0]
    results: list[Value | None] = [None] * (places[-1] + 1)
    for place, value in zip(places, values, strict=True):
        results[place] = value
    return tuple(results)


def overwriting(s: Lowering, target: str, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """The results of an operator that returns none and overwrites some of its arguments: their new values."""
    mutated = SIGNATURES[target].mutated
    given = {n: arguments[n] for n in SIGNATURES[target].names if n in arguments}
    given |= {n: v for n, v in arguments.items() if n not in given}
    given = {n: v for n, v in given.items() if n not in SIGNATURES[target].labels}
    for name in mutated:
        old = given.get(name)
        if not isinstance(old, Value):
            s.fail(f"lacks the tensor {name}, which it writes to")
        if old in s.raw:
            s.guess(
                "opaque_batched",
                f"{spelled(target)} does not read the uninitialised memory that it writes to",
                spelled(target),
            )
            given[name] = s.like(old, 0)
    shapes = {n: v.type.shape for n, v in given.items() if isinstance(v, Value)}
    if target == "vllm.unified_attention_with_output.default":
        given = _by_heads(s, given)
    operands, attributes = split(given)
    types = [given[n].type for n in mutated]
    values = call(s, target, operands, types, attributes)
    return tuple(s.reshape(v, shapes[n]) for n, v in zip(mutated, values, strict=True))


def _by_heads(s: Lowering, given: Mapping[str, Any]) -> dict[str, Any]:
    """Queries and results as [tokens, key heads, query heads of each, size]."""
    query, key = given["query"], given["key"]
    if len(query.type.shape) != 3 or len(key.type.shape) != 3:
        return dict(given)
    tokens, heads, size = query.type.shape
    shared = key.type.shape[1]
    if shared == 0 or heads % shared:
        s.fail(f"has {heads} query heads for {shared} key heads")
    by_head = (tokens, shared, heads // shared, size)
    return {**given, "query": s.reshape(query, by_head), "output": s.reshape(given["output"], by_head)}


def _rows(s: Lowering, x: Value, width: int) -> Value:
    return s.reshape(x, (x.type.size // max(width, 1), width))


def _real(s: Lowering, place: int, otherwise: DType) -> DType:
    told = s.declared.get(place)
    return told.dtype if told is not None else otherwise


def _apex_forward(s: Lowering, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apex layer norm of rows: (input, weight, bias, normalized_shape, eps)."""
    if len(args) != 5 or kwargs:
        s.fail(f"has {len(args)} arguments, 5 are known")
    x, weight, bias, shape, eps = args
    width = prod(s.shape(shape))
    rows = _rows(s, x, width)
    count = rows.type.shape[:1]
    types = [TensorType(_real(s, 0, x.type.dtype), rows.type.shape)]
    types += [TensorType(_real(s, k, DType.F32), count) for k in (1, 2)]
    operands = (rows, s.reshape(weight, (width,)), s.reshape(bias, (width,)))
    out, mean, inverse = call(s, target, operands, types, {"eps": float(eps)})
    return s.reshape(out, x.type.shape), mean, inverse


def _apex_backward(s: Lowering, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Its gradients: (grad, mean, invvar, input, normalized_shape, weight, bias, eps, memory_efficient)."""
    if not 8 <= len(args) <= 9 or kwargs:
        s.fail(f"has {len(args)} arguments, 8 or 9 are known")
    grad, mean, inverse, x, shape, weight, bias, eps = args[:8]
    if len(args) == 9 and args[8] is not False:
        s.fail("recomputes its input, which is not supported")
    width = prod(s.shape(shape))
    rows = _rows(s, x, width)
    flat = [s.reshape(v, (width,)) for v in (weight, bias)]
    types = [TensorType(_real(s, 0, x.type.dtype), rows.type.shape)]
    types += [TensorType(_real(s, k, v.type.dtype), (width,)) for k, v in ((1, weight), (2, bias))]
    operands = (
        _rows(s, grad, width),
        s.reshape(mean, rows.type.shape[:1]),
        s.reshape(inverse, rows.type.shape[:1]),
        rows,
        *flat,
    )
    grads = call(s, target, operands, types, {"eps": float(eps)})
    shapes = (x.type.shape, weight.type.shape, bias.type.shape)
    return tuple(s.reshape(v, n) for v, n in zip(grads, shapes, strict=True))


_SHAPED: Final = {
    "apex.fused_layer_norm_affine_fwd.default": _apex_forward,
    "apex.fused_layer_norm_affine_bwd.default": _apex_backward,
}
"""Calls whose operands are laid out as their definition reads them."""


def functionalized(s: Lowering, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """`auto_functionalized`: (what the operator returns, new values of what it overwrites)."""
    target = _callee(s, args)
    if target in SIGNATURES and SIGNATURES[target].mutated:
        return (None, *overwriting(s, target, kwargs))
    found: tuple[Any, ...] = opaque(s, target, (), kwargs)
    return found


def functionalized_by_bases(s: Lowering, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """`auto_functionalized_v2`: what is overwritten are places in `_all_bases`; it gives their new values."""
    target = _callee(s, args)
    bases: tuple[Value, ...] = kwargs.get("_all_bases", ())
    places = {
        name[1 : -len("_base_index")]: at
        for name, at in kwargs.items()
        if name.startswith("_") and name.endswith("_base_index")
    }
    own = {n: v for n, v in kwargs.items() if not n.startswith("_")}
    whole = {f"_{n}_base_index" for n in places} | {"_all_bases"}
    signature = SIGNATURES.get(target)
    if any(n.startswith("_") and n not in whole for n in kwargs) or any(p is None for p in places.values()):
        s.fail(f"overwrites a part of a tensor by {spelled(target)}, which is not supported")
    if signature is None or not signature.mutated:
        found: tuple[Any, ...] = opaque(s, target, (), kwargs)
        return found
    if set(places) != set(signature.mutated) or len(set(places.values())) != len(places):
        s.fail(
            f"overwrites {', '.join(places)} by {spelled(target)}, {', '.join(signature.mutated)} is known"
        )
    new = overwriting(s, target, {**own, **{n: bases[at] for n, at in places.items()}})
    results = list(bases)
    for name, value in zip(signature.mutated, new, strict=True):
        results[places[name]] = value
    return (None, *results)


def _callee(s: Lowering, args: Sequence[Any]) -> str:
    if len(args) != 1 or not isinstance(args[0], Operator):
        s.fail("does not name the operator that it calls")
    return args[0].name
