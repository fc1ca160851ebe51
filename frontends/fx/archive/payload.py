"""Tensors of an export archive: raw little-endian bytes with a description; pickled ones are refused."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

import numpy as np

from shardproof.frontends.fx.archive.values import extent, member, tensor
from shardproof.frontends.fx.archive.zip import Archive
from shardproof.frontends.fx.code.meta import shown
from shardproof.frontends.hlo.literal import from_bytes
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Array, DType, TensorType

FOLDERS: Final = ("weights", "constants")
MAX_DIMS: Final = 64


class Payloads:
    """The tensors of an archive by the model's own names, described at once and read one by one."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._entries: dict[str, tuple[str, object]] = {}
        if "byteorder" in archive and archive.read("byteorder", 64).strip() != b"little":
            raise ModuleError("holds big-endian tensors, which are not read")
        for folder in FOLDERS:
            config = f"data/{folder}/model_{folder}_config.json"
            if config in archive:
                self._describe(folder, member(archive.read_json(config), "config", dict))

    def _describe(self, folder: str, config: dict[object, object]) -> None:
        for key, entry in config.items():
            name = str(key)
            if member(entry, "use_pickle", bool):
                raise ModuleError(f"holds {shown(name)} pickled, which is never read: save plain tensors")
            path = member(entry, "path_name", str)
            if "/" in path or "\\" in path or path in ("", ".", ".."):
                raise ModuleError(f"{shown(name)} names the file {shown(path)}, which leaves its folder")
            if name in self._entries:
                raise ModuleError(f"describes {shown(name)} twice")
            self._entries[name] = (f"data/{folder}/{path}", member(entry, "tensor_meta", dict))

    @property
    def names(self) -> Iterable[str]:
        return self._entries.keys()

    def read(self, name: str) -> Array | None:
        """The tensor, None when the archive describes it without its elements (the meta device).

        Raises `ModuleError` when there is none of that name or its description doesn't fit its bytes.
        """
        if name not in self._entries:
            return None
        path, meta = self._entries[name]
        try:
            return self._tensor(path, meta)
        except ModuleError as error:
            raise ModuleError(f"tensor {shown(name)}: {error}") from None

    def _tensor(self, path: str, meta: object) -> Array | None:
        if member(member(meta, "device", dict), "type", str) == "meta":
            return None
        kind = tensor(meta)
        sizes = tuple(size for size in kind.shape if isinstance(size, int))
        strides = [extent(stride) for stride in member(meta, "strides", list)]
        offset = extent(member(meta, "storage_offset", dict))
        if len(sizes) != len(kind.shape) or len(sizes) != len(strides) or len(sizes) > MAX_DIMS:
            raise ModuleError("sizes and strides don't fit each other")
        raw = self._archive.read(path)
        width = kind.dtype.bits // 8
        if len(raw) % width:
            raise ModuleError(f"{len(raw)} bytes are no whole number of elements of {kind.dtype.value}")
        count = len(raw) // width
        flat = _elements(raw, kind.dtype, count)
        if prod(sizes) == 0:
            return np.zeros(sizes, flat.dtype)
        steps = [stride for stride in strides if isinstance(stride, int)]
        last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        if not isinstance(offset, int) or offset + last >= count or prod(sizes) > max(count, 1 << 24):
            raise ModuleError(f"shape {list(sizes)} with strides {steps} doesn't lie within {count} elements")
        byte_steps = [step * flat.dtype.itemsize for step in steps]
        view = np.lib.stride_tricks.as_strided(flat[offset:], sizes, byte_steps, writeable=False)
        return np.ascontiguousarray(view).reshape(sizes)


def _elements(raw: bytes, dtype: DType, count: int) -> Array:
    """`count` little-endian elements in the type that stores them here."""
    if dtype is DType.BOOL:
        return np.frombuffer(raw, np.uint8).astype(np.bool_)
    if dtype.kind == "real" and dtype.bits < 32:
        return from_bytes(raw, TensorType(dtype, (count,)), "a payload")
    return np.frombuffer(raw, dtype.storage.newbyteorder("<")).astype(dtype.storage, copy=False)
