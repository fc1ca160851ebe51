"""Primitives without a rule: functions known by name and parameters, or refused with a reason."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from shardproof.frontends.jaxpr.state import IDLE, Equation, Lowering
from shardproof.frontends.jaxpr.walk import inner, opened
from shardproof.ir.module import ModuleError, Value

REFUSED: Final[Mapping[str, str]] = {
    "addupdate": "writes to a mutable array",
    "callback": "calls back into Python",
    "empty": "gives memory that was never written",
    "empty2": "gives memory that was never written",
    "get": "reads a mutable array",
    "infeed": "reads from the host",
    "io_callback": "calls back into Python",
    "outfeed": "writes to the host",
    "psend": "sends to another rank alone",
    "precv": "receives from another rank alone",
    "pure_callback": "calls back into Python",
    "ragged_all_to_all": "exchanges parts whose sizes are computed, which is not supported",
    "rng_uniform": "draws numbers that follow from no key",
    "swap": "writes to a mutable array",
}
"""Primitives that are no function of their operands on one rank, and why."""


_OWN: set[int] = set()
_OTHERS: WeakValueDictionary[str, Any] = WeakValueDictionary()


def is_own(primitive: Any) -> bool:
    """Whether a primitive is one of JAX's, which are all in its modules."""
    if id(primitive) not in _OWN:
        modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "jax"]
        kind = type(primitive)
        _OWN.update(id(x) for m in modules for x in list(vars(m).values()) if isinstance(x, kind))
    return id(primitive) in _OWN


_CALLS: Final = frozenset({"closed_call", "core_call", "jit", "pjit"})
"""Calls of one function, whose other parameters say where and when it runs."""


def lower_unknown(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """A function of the operands that has the primitive's name and parameters for a name.

    Raises ModuleError for a primitive that may be no function of its operands on one rank: with effects, with
    functions inside, with an axis of the mesh, or with parameters that have no text of their own.
    """
    primitive = eqn.source.primitive
    if not is_own(primitive) and _OTHERS.setdefault(eqn.name, primitive) is not primitive:
        raise ModuleError("another primitive has that name")
    name = eqn.name if is_own(primitive) else f"primitive {eqn.name}"
    reason = REFUSED.get(eqn.name)
    if reason is not None:
        raise ModuleError(reason)
    if getattr(eqn.source, "effects", None):
        raise ModuleError("the primitive is not known, and it has effects")
    if next(inner(eqn.source), None) is not None:
        raise ModuleError("the primitive is not known, and it calls functions")
    axes = {name for name, _ in state.mesh.axes}
    for key, value in eqn.params.items():
        if key in ("axis_name", "axis_index_groups") or _names(value, axes):
            raise ModuleError(f"the primitive is not known, and it communicates ({key})")
    return state.opaque(f"{name} {parameters(eqn)}".strip(), operands, eqn.results)


def batched(last: int) -> Any:
    """The rule of a function that works slice by slice along all but the `last` dims of its operands."""

    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        count = min(len(x.type.shape) for x in operands) - last
        every = [x.type for x in operands] + list(eqn.results)
        shape = operands[0].type.shape[: max(count, 0)]
        if any(t.shape[: len(shape)] != shape for t in every):
            return state.opaque(f"{eqn.name} {parameters(eqn)}".strip(), operands, eqn.results)
        free = tuple(((d,) * len(operands), (d,) * len(eqn.results)) for d in range(len(shape)))
        return state.opaque(f"{eqn.name} {parameters(eqn)}".strip(), operands, eqn.results, free)

    return rule


def parameters(eqn: Equation, **told: str) -> str:
    """All parameters that may change what is computed, as text: equal texts are equal functions.

    `told` are texts to use for some of them.
    """
    found = []
    for name in sorted(eqn.params):
        if name not in IDLE:
            try:
                found.append(f"{name}={told[name] if name in told else described(eqn.params[name])}")
            except ModuleError as error:
                raise ModuleError(f"the parameter {name} {error}") from None
    return " ".join(found)


def described(value: Any) -> str:
    """A text that two values share only when they are equal. Raises ModuleError where there is none."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, np.dtype) or getattr(getattr(value, "dtype", None), "type", None) is value:
        return str(np.dtype(value))
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        if array.dtype.kind in "biufc":
            digest = hashlib.sha256(array.tobytes()).hexdigest()[:32]
            return f"{array.dtype}{list(value.shape)}:{digest}"
    if isinstance(value, tuple | list):
        labels = getattr(value, "_fields", ("",) * len(value))
        parts = [f"{n}={described(v)}" if n else described(v) for n, v in zip(labels, value, strict=True)]
        name = type(value).__name__ if hasattr(value, "_fields") else ""
        return f"{name}({', '.join(parts)})"
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(described, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{described(k)}: {described(v)}' for k, v in value.items()))}}}"
    if is_dataclass(value) and not isinstance(value, type):
        parts = [f"{f.name}={described(getattr(value, f.name))}" for f in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, type) and issubclass(value, np.generic):
        return str(np.dtype(value))
    raise ModuleError(f"is a {type(value).__name__}, which has no text of its own")


def structure(body: Any) -> str:
    """A jaxpr as text without names: equal texts are equal functions. Raises ModuleError as `described`."""
    jaxpr, consts = opened(body)
    if jaxpr.effects:
        raise ModuleError("is a function with effects")
    numbers: dict[Any, int] = {}

    def number(variables: Sequence[Any]) -> list[str]:
        return [f"%{numbers.setdefault(v, len(numbers))}:{v.aval.str_short()}" for v in variables]

    def read(v: Any) -> str:
        if hasattr(v, "val"):
            return f"{described(np.asarray(v.val))}:{v.aval.str_short()}"
        return f"%{numbers[v]}"

    lines = [" ".join(number([*jaxpr.constvars, *jaxpr.invars]))]
    lines += [described(np.asarray(c)) for c in consts]
    for eqn in jaxpr.eqns:
        told = {}
        for name, value in eqn.params.items():
            if hasattr(opened(value)[0], "eqns"):
                told[name] = structure(value)
            elif name not in IDLE and eqn.primitive.name not in _CALLS:
                told[name] = described(value)
        operands = " ".join(map(read, eqn.invars))
        results = " ".join(number(eqn.outvars))
        lines.append(f"{results} = {eqn.primitive.name} {operands} {sorted(told.items())}")
    lines.append(" ".join(map(read, jaxpr.outvars)))
    return "; ".join(lines)


def _names(value: Any, axes: set[str]) -> bool:
    """Whether an axis of the mesh occurs in a parameter."""
    if isinstance(value, str):
        return value in axes
    if isinstance(value, tuple | list | set | frozenset):
        return any(_names(one, axes) for one in value)
    return isinstance(value, Mapping) and any(_names(one, axes) for pair in value.items() for one in pair)
