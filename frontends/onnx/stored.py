"""The stored tensors of an ONNX file, as weight files give them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from shardproof.frontends.codes import code_bits, codes_of
from shardproof.frontends.onnx.elements import DTYPES, array_of
from shardproof.frontends.onnx.read import read_model
from shardproof.frontends.weights import Element, Weight
from shardproof.ir.types import Array, DType

_OPTIONAL_INPUTS: Final = 4
"""The version of the format from which on stored tensors that are no inputs stand alone."""


def stored_tensors(data: bytes, folder: Path) -> dict[str, Weight]:
    """By name, in the order of the file; those whose elements have no bits of whole bytes are left out, and
    those that are only what an input of the graph is when it is not given.

    Their elements stay unread. Raises ModuleError.
    """
    found = {}
    model = read_model(data, folder)
    inputs = {i.name for i in model.graph.input} if model.ir_version >= _OPTIONAL_INPUTS else set()
    for tensor in model.graph.initializer:
        dtype = DTYPES.get(tensor.data_type)
        if dtype is not None and code_bits(dtype) is not None and tensor.name not in inputs:
            element = Element(dtype.value, dtype.bits, dtype)
            codes = _codes(tensor, dtype, str(folder))
            found[tensor.name] = Weight(tensor.name, element, tuple(tensor.dims), codes)
    return found


def _codes(tensor: Any, dtype: DType, folder: str) -> Callable[[], Array]:
    return lambda: codes_of(array_of(tensor, folder)[0], dtype)
