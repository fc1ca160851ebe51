"""Random numbers: functions of a key, as JAX's own implementation of the key's kind computes them.

A key is held as its words, one more dim behind those of an array of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.frontends.jaxpr.walk import evaluate
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import TensorType


def implementation(aval: Any) -> Any | None:
    """The random number generator of an array of keys; None for other arrays."""
    found = getattr(getattr(aval, "dtype", None), "_impl", None)
    return found if hasattr(found, "key_shape") else None


def _keys(eqn: Equation, variable: Any) -> Any:
    found = implementation(variable.aval)
    if found is None:
        raise ModuleError(f"needs keys, {variable.aval} is given")
    return found


def _words(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    return operands


def _seed(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("impl")
    impl = _keys(eqn, eqn.source.outvars[0])
    return _evaluated(state, impl, "seed", (), operands, len(operands[0].type.shape))


def _split(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("shape")
    (keys,) = eqn.source.invars
    shape = tuple(eqn.params["shape"])
    return _evaluated(state, _keys(eqn, keys), "split", (shape,), operands, len(keys.aval.shape))


def _fold_in(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    impl, shape = _keys(eqn, eqn.source.invars[0]), eqn.source.outvars[0].aval.shape
    keys, numbers = operands
    words = keys.type.shape[len(keys.type.shape) - len(impl.key_shape) :]
    whole = (state.spread(keys, (*shape, *words)), state.spread(numbers, shape))
    return _evaluated(state, impl, "fold_in", (), whole, len(shape))


def _bits(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("bit_width", "shape")
    (keys,) = eqn.source.invars
    fixed = (int(eqn.params["bit_width"]), tuple(eqn.params["shape"]))
    return _evaluated(state, _keys(eqn, keys), "random_bits", fixed, operands, len(keys.aval.shape))


def _evaluated(
    state: Lowering, impl: Any, name: str, fixed: tuple[Any, ...], operands: Sequence[Value], batch: int
) -> Sequence[Value]:
    """A function of the generator on each of an array of keys, as its jaxpr computes it."""
    import jax

    types = tuple((x.type.dtype.storage.name, x.type.shape) for x in operands)
    settings = (jax.config.jax_threefry_partitionable, jax.config.jax_enable_x64)
    return evaluate(state, _traced(impl, name, fixed, types, batch, settings), operands)


@lru_cache(maxsize=256)
def _traced(
    impl: Any,
    name: str,
    fixed: tuple[Any, ...],
    types: tuple[tuple[str, tuple[int, ...]], ...],
    batch: int,
    settings: tuple[bool, bool],
) -> Any:
    """The jaxpr of the function under JAX's `settings`, which it depends on."""
    import jax

    own: Callable[..., Any] = getattr(impl, name)

    def function(*given: Any) -> Any:
        return own(*given, *fixed)

    for _ in range(batch):
        function = jax.vmap(function)
    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(s, np.dtype(d)) for d, s in types))


def _counts(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """The row-major number of each element, as its high and its low word."""
    eqn.only("shape")
    type = eqn.results[0]
    if type.size >= 1 << 32:
        raise ModuleError(f"counts the elements of {type}, more than one word tells apart")
    line = state.op("iota", (), TensorType(type.dtype, (type.size,)), dim=0)
    return state.constant(0, type.dtype, type.shape), state.reshape(line, type.shape)


def _threefry(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    shape = eqn.results[0].shape
    whole = tuple(state.spread(x, shape) for x in operands)
    free = tuple(((d,) * 4, (d,) * 2) for d in range(len(shape)))
    return state.opaque("threefry2x32", whole, eqn.results, free)


MOVED: Final = frozenset(
    {
        "broadcast_in_dim",
        "concatenate",
        "dynamic_slice",
        "dynamic_update_slice",
        "expand_dims",
        "gather",
        "reshape",
        "rev",
        "select_n",
        "slice",
        "split",
        "squeeze",
        "stack",
        "transpose",
        "unstack",
    }
)
"""Primitives that move keys, word by word."""


def moved(state: Lowering, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
    """A primitive of `MOVED` on arrays of keys: the same on each word."""
    import jax

    given = [implementation(v.aval) for v in eqn.invars]
    made = [implementation(v.aval) for v in eqn.outvars]
    if any(impl is not None and len(impl.key_shape) != 1 for impl in (*given, *made)):
        raise ModuleError("works on keys that are no rows of words")

    def function(*arrays: Any) -> Any:
        found = eqn.primitive.bind(*arrays, **eqn.params)
        return found if eqn.primitive.multiple_results else [found]

    by_word = jax.vmap(function, [None if impl is None else -1 for impl in given], -1)
    shapes = [jax.ShapeDtypeStruct(x.type.shape, x.type.dtype.storage) for x in operands]
    return evaluate(state, jax.make_jaxpr(by_word)(*shapes), operands)


def holds_keys(eqn: Any) -> bool:
    """Whether an equation takes or gives keys."""
    return any(implementation(v.aval) is not None for v in (*eqn.invars, *eqn.outvars))


RULES: Final[Mapping[str, Rule]] = {
    "iota_2x32_shape": _counts,
    "random_bits": _bits,
    "random_clone": _words,
    "random_fold_in": _fold_in,
    "random_seed": _seed,
    "random_split": _split,
    "random_unwrap": _words,
    "random_wrap": _words,
    "threefry2x32": _threefry,
}
