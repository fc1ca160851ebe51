"""Uses of operators whose inside is unknown, as `opaque` operators (L10 and K3 of the soundness rules)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardproof.ir.module import Op, Value
from shardproof.lemmas.match_define import BATCH, Dims, Unmatched, match_attributes
from shardproof.lemmas.terms import OpaqueDefine


def lower_opaque(
    opaque: OpaqueDefine, operands: Sequence[Value], attrs: Mapping[str, Any], results: Sequence[Value]
) -> Op:
    """The operator that makes `results`, in the order of `opaque.results`; raises `Unmatched`.

    Its name holds every attribute of the use, so that two uses are one function only if all agree.
    """
    match_attributes(opaque, attrs)
    if len(operands) != len(opaque.parameters):
        raise Unmatched(f"{len(operands)} operands found, {len(opaque.parameters)} needed")
    if len(results) != len(opaque.results):
        raise Unmatched(f"{len(results)} results found, {len(opaque.results)} needed")
    dims = Dims()
    fitted = [
        _fit(dims, f"operand {p.name}", p.dims, v) for p, v in zip(opaque.parameters, operands, strict=True)
    ]
    made = [
        _fit(dims, f"result {name}", told, v) for (name, told), v in zip(opaque.results, results, strict=True)
    ]
    batched: list[str] = []
    for name in opaque.batched:
        batched += [f"{BATCH}{i}" for i in range(dims.batch or 0)] if name == BATCH else [name]
    free = tuple((_places(name, fitted), _places(name, made)) for name in batched)
    named = {k: v for k, v in attrs.items() if k != "target" and not (k == "config" and v == "")}
    settings = ", ".join(f"{name}={_spelled(named[name])}" for name in sorted(named))
    name = f"{opaque.name}({settings})" if settings else opaque.name
    return Op("opaque", tuple(operands), tuple(results), {"name": name, "free": free})


def _fit(dims: Dims, what: str, told: tuple[str, ...] | None, value: Value) -> tuple[str, ...]:
    """The names of the dims of a tensor; none of one that lists no dims, as it is bound whole."""
    return () if told is None else dims.fit(what, told, value.type)


def _places(name: str, tensors: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    return tuple(dims.index(name) if name in dims else -1 for dims in tensors)


def _spelled(value: Any) -> str:
    """A text that tells apart any two values of an attribute."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_spelled, value))})"
    if value is None or isinstance(value, bool | int | float | str):
        return f"{type(value).__name__}:{value!r}"
    raise Unmatched(f"an attribute is a {type(value).__name__}, which has no spelling")
