"""Element types, tensor types, meshes and source locations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from math import prod
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["real", "int", "uint", "bool", "complex", "token"]
"""What arithmetic means for an element: `real` is exact real arithmetic, `int` and `uint` wrap."""


class DType(Enum):
    """An element type; the value is its name in the text form."""

    BOOL = "bool"
    S2 = "s2"
    S4 = "s4"
    S8 = "s8"
    S16 = "s16"
    S32 = "s32"
    S64 = "s64"
    U2 = "u2"
    U4 = "u4"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F4E2M1FN = "f4e2m1fn"
    F8E4M3 = "f8e4m3"
    F8E4M3FN = "f8e4m3fn"
    F8E4M3B11FNUZ = "f8e4m3b11fnuz"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0FNU = "f8e8m0fnu"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    C64 = "c64"
    C128 = "c128"
    TOKEN = "token"

    @property
    def kind(self) -> Kind:
        return _KIND[self]

    @property
    def bits(self) -> int:
        """Width of one element in bits."""
        return _BITS[self]

    @property
    def mantissa(self) -> int:
        """Explicit bits of the significand of a real type (half an ulp is 2**-(mantissa+1))."""
        return _MANTISSA[self]

    @property
    def storage(self) -> np.dtype[np.generic]:
        """The NumPy type that holds every value of this type exactly."""
        return _STORAGE[self]


def _kind(dtype: DType) -> Kind:
    name = dtype.value
    if dtype is DType.BOOL:
        return "bool"
    if dtype is DType.TOKEN:
        return "token"
    return {"s": "int", "u": "uint", "f": "real", "b": "real", "c": "complex"}[name[0]]  # type: ignore[return-value]


def _bits(dtype: DType) -> int:
    name = dtype.value
    if dtype is DType.BOOL:
        return 8
    if dtype is DType.TOKEN:
        return 0
    if name.startswith(("f4", "f8")):
        return int(name[1])
    return int(name.lstrip("subfc"))


_KIND: Final = {d: _kind(d) for d in DType}
_BITS: Final = {d: _bits(d) for d in DType}
_MANTISSA: Final = {
    DType.F4E2M1FN: 1,
    DType.F8E8M0FNU: 0,
    DType.F8E4M3: 3,
    DType.F8E4M3FN: 3,
    DType.F8E4M3B11FNUZ: 3,
    DType.F8E4M3FNUZ: 3,
    DType.F8E5M2: 2,
    DType.F8E5M2FNUZ: 2,
    DType.F16: 10,
    DType.BF16: 7,
    DType.F32: 23,
    DType.F64: 52,
}


def _storage(dtype: DType) -> np.dtype[np.generic]:
    kind, bits = _KIND[dtype], _BITS[dtype]
    if kind == "bool" or kind == "token":
        return np.dtype(np.bool_)
    if kind == "real":
        return np.dtype(np.float64 if bits == 64 else np.float32)
    if kind == "complex":
        return np.dtype(np.complex128 if bits == 128 else np.complex64)
    return np.dtype(f"{'i' if kind == 'int' else 'u'}{max(bits // 8, 1)}")


_STORAGE: Final = {d: _storage(d) for d in DType}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of one rank's tensor."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes; rank = row-major position over the axes. No axes means one rank."""

    axes: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(n for _, n in self.axes)

    def groups(self, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Ranks that differ along `axes` only, row-major along them in that order, one group for each place
        along the others. Raises `KeyError` for an axis that the mesh has not."""
        names = [name for name, _ in self.axes]
        sizes = dict(self.axes)
        stride = {name: prod(sizes[n] for n in names[k + 1 :]) for k, name in enumerate(names)}

        def offsets(over: Sequence[str]) -> list[int]:
            places = product(*(range(sizes[n]) for n in over))
            return [sum(at * stride[n] for at, n in zip(place, over, strict=True)) for place in places]

        inner = offsets(axes)
        return tuple(tuple(base + k for k in inner) for base in offsets([n for n in names if n not in axes]))

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.axes) or "one rank"


@dataclass(frozen=True, slots=True)
class Frame:
    """One stack frame: file as the framework recorded it, 1-based line, function if known."""

    file: str
    line: int
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Location:
    """Where a value was written: the frame to show, and all frames, outermost first."""

    file: str
    line: int
    stack: tuple[Frame, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


Array = npt.NDArray[np.generic]
