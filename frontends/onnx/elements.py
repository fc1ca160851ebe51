"""Element types and literal tensors of ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shardproof.ir.module import ModuleError
from shardproof.ir.types import Array, DType

DTYPES: Final[Mapping[int, DType]] = {
    1: DType.F32,
    2: DType.U8,
    3: DType.S8,
    4: DType.U16,
    5: DType.S16,
    6: DType.S32,
    7: DType.S64,
    9: DType.BOOL,
    10: DType.F16,
    11: DType.F64,
    12: DType.U32,
    13: DType.U64,
    14: DType.C64,
    15: DType.C128,
    16: DType.BF16,
    17: DType.F8E4M3FN,
    18: DType.F8E4M3FNUZ,
    19: DType.F8E5M2,
    20: DType.F8E5M2FNUZ,
    21: DType.U4,
    22: DType.S4,
    23: DType.F4E2M1FN,
    24: DType.F8E8M0FNU,
    25: DType.U2,
    26: DType.S2,
}
"""By `TensorProto.DataType`."""
STRING: Final = 8


def dtype_of(number: int) -> DType:
    """Raises ModuleError for a type that has no counterpart here."""
    found = DTYPES.get(number)
    if found is None:
        raise ModuleError("holds strings, which are not read" if number == STRING else f"has type {number}")
    return found


def array_of(tensor: Any, folder: str) -> tuple[Array, DType]:
    """The elements of a TensorProto, in the type that holds them exactly; external data are in `folder`."""
    from onnx import numpy_helper

    dtype = dtype_of(tensor.data_type)
    try:
        found = numpy_helper.to_array(tensor, folder)
    except (OSError, TypeError, ValueError) as error:
        raise ModuleError(f"tensor `{tensor.name}` is damaged: {' '.join(str(error).split())}") from None
    return np.ascontiguousarray(found.astype(dtype.storage)).reshape(found.shape), dtype
