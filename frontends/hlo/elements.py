"""Element types and shapes as HLO spells them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType, TensorType

MAX_ELEMENTS: Final = 2**48
MAX_DIMS: Final = 64

TUPLE: Final = 13
TOKEN: Final = 17

PRIMITIVE: Final = {
    1: DType.BOOL,
    2: DType.S8,
    3: DType.S16,
    4: DType.S32,
    5: DType.S64,
    6: DType.U8,
    7: DType.U16,
    8: DType.U32,
    9: DType.U64,
    10: DType.F16,
    11: DType.F32,
    12: DType.F64,
    15: DType.C64,
    16: DType.BF16,
    17: DType.TOKEN,
    18: DType.C128,
    19: DType.F8E5M2,
    20: DType.F8E4M3FN,
    21: DType.S4,
    22: DType.U4,
    23: DType.F8E4M3B11FNUZ,
    24: DType.F8E5M2FNUZ,
    25: DType.F8E4M3FNUZ,
    28: DType.F8E4M3,
}
"""Element types by number in the serialised form."""

SPELLED: Final = {"pred": DType.BOOL, **{d.value: d for d in DType if d is not DType.BOOL}}
"""Element types by name in the text form."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An array (`type`), or a tuple (`parts`); `layout` is minor-to-major, None for row-major.

    `physical` is False when the layout has tiles or padding, so that a bitcast can't be read from it.
    """

    type: TensorType | None
    parts: tuple[Shape, ...] = ()
    layout: tuple[int, ...] | None = None
    physical: bool = True

    @property
    def is_tuple(self) -> bool:
        return self.type is None

    def leaves(self) -> tuple[Shape, ...]:
        """The arrays and tokens in it, in order."""
        if self.type is not None:
            return (self,)
        return tuple(leaf for part in self.parts for leaf in part.leaves())

    def __str__(self) -> str:
        return str(self.type) if self.type is not None else f"({', '.join(map(str, self.parts))})"


def array_shape(
    dtype: DType, dims: tuple[int, ...], layout: tuple[int, ...] | None, where: str, *, physical: bool = True
) -> Shape:
    """An array shape, checked.

    Raises `ModuleError` for negative or more than `MAX_DIMS` dims, more than `MAX_ELEMENTS` elements,
    or a layout that isn't a permutation of the dims.
    """
    rank = len(dims)
    if rank > MAX_DIMS:
        raise ModuleError(f"{where} has {rank} dims, at most {MAX_DIMS} are supported")
    if any(d < 0 for d in dims):
        raise ModuleError(f"{where} has a negative dim in {list(dims)}")
    if prod(d for d in dims if d) > MAX_ELEMENTS:
        raise ModuleError(f"{where} declares the shape {list(dims)}, more than 2**48 elements")
    if layout is not None:
        if sorted(layout) != list(range(rank)):
            raise ModuleError(f"{where} has the layout {list(layout)}, not an order of its {rank} dims")
        if layout == tuple(range(rank - 1, -1, -1)):
            layout = None
    return Shape(TensorType(dtype, dims), (), layout, physical)
