"""The parameters and buffers of a live exported program, as weight files give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardproof.frontends.codes import code_bits, codes_of
from shardproof.frontends.fx.graph import Tensor
from shardproof.frontends.fx.live import array_of, meta_of
from shardproof.frontends.weights import Element, Weight
from shardproof.ir.types import Array, DType


def stored_tensors(program: Any) -> dict[str, Weight] | None:
    """By the model's own names; None for an object that is no `ExportedProgram`.

    Tensors without elements in memory, or whose elements have no bits of whole bytes, are left out.
    """
    families = {(base.__module__.partition(".")[0], base.__name__) for base in type(program).__mro__}
    if ("torch", "ExportedProgram") not in families:
        return None
    found = {}
    for name, value in program.state_dict.items():
        meta, array = meta_of(value), array_of(value)
        if isinstance(meta, Tensor) and array is not None and code_bits(meta.dtype) is not None:
            element = Element(meta.dtype.value, meta.dtype.bits, meta.dtype)
            found[name] = Weight(name, element, array.shape, _codes(array, meta.dtype))
    return found


def _codes(array: Array, dtype: DType) -> Callable[[], Array]:
    return lambda: codes_of(array, dtype)
