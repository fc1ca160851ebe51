"""A hash of what a module means: two modules of one digest are the same program.

It covers the mesh, inputs with their numbers, types and sharding, every operator with its attributes bit
by bit, the names of values, outputs and the state that they update; not the module's name, locations and
warnings. Each part is written with its length or as a literal that ends itself, so no two modules are
written alike. An array of one repeated value is written as that value, however it is stored.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import numpy as np

from shardproof.ir.module import Input, Module, ModuleError, Op, Value
from shardproof.ir.types import Array, TensorType

_PLAIN: Final = frozenset({int, float, bool, str, type(None)})
"""Types whose `repr` tells the value and ends itself."""


def digest(module: Module) -> str:
    """64 hex digits. Raises ModuleError for an attribute value that has no meaning."""
    writer = _Writer()
    rank = module.rank
    parts = [repr(("module", tuple(module.mesh.axes), rank))]
    parts += [writer.input(i) for i in module.inputs]
    parts += [writer.op(op) for op in module.ops]
    parts += [repr(("output", o.name, o.value.name, o.updates)) for o in module.outputs]
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return sha256(b"".join([b"%d:%b" % (len(e), e) for e in encoded])).hexdigest()


class _Writer:
    """Writes a type or tuple that occurs again once. What is known by its `id` is kept, so ids stay."""

    def __init__(self) -> None:
        self._types: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._tuples: dict[int, str] = {}
        self._kept: list[object] = []

    def type(self, type: TensorType) -> tuple[str, tuple[int, ...]]:
        found = self._types.get(id(type))
        if found is None:
            self._kept.append(type)
            shape = tuple([int(n) for n in type.shape])
            found = self._types[id(type)] = (type.dtype.value, shape)
        return found

    def value(self, value: Value) -> tuple[str, tuple[str, tuple[int, ...]]]:
        return value.name, self.type(value.type)

    def input(self, item: Input) -> str:
        sharding = None if item.sharding is None else tuple(map(int, item.sharding))
        return repr(("input", int(item.number), self.value(item.value), sharding))

    def op(self, op: Op) -> str:
        attrs = op.attrs
        settings = [(name, self.attribute(attrs[name])) for name in sorted(attrs)] if attrs else None
        operands = [v.name for v in op.operands]
        return repr((op.opcode, operands, [self.value(v) for v in op.results], settings))

    def attribute(self, value: Any) -> str:
        """The value as text that tells its type and ends where it is known to end."""
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if kind is tuple:
            found = self._tuples.get(id(value))
            if found is None:
                self._kept.append(value)
                found = self._tuples[id(value)] = self._tuple(value)
            return found
        if isinstance(value, np.ndarray):
            return _array(value)
        if isinstance(value, Module):
            return f"module {digest(value)}"
        raise ModuleError(f"attribute value of type {kind.__name__} has no digest")

    def _tuple(self, value: tuple[Any, ...]) -> str:
        inner = [self.attribute(x) for x in value]
        return f"({''.join([f'{len(x)}:{x}' for x in inner])})"


def _array(array: Array) -> str:
    """Element type, shape and a hash of the elements in row-major order, little-endian."""
    kind = array.dtype.newbyteorder("<").str
    if array.dtype.hasobject:
        raise ModuleError(f"attribute value holds {array.dtype}, which has no digest")
    uniform = array.size > 1 and _uniform(array)
    elements = array[(slice(0, 1),) * array.ndim] if uniform else array
    data = np.ascontiguousarray(elements).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    text = data.hex() if len(data) <= 32 else sha256(data).hexdigest()
    return f"array {kind} {array.shape} {'splat' if uniform else 'listed'} {text}"


def _uniform(array: Array) -> bool:
    """Whether all elements have the same bits."""
    if not any(array.strides):
        return True
    first = array[(0,) * array.ndim]
    if array[(-1,) * array.ndim].tobytes() != first.tobytes():
        return False
    octets = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    return bool((octets == octets[:1]).all())
