"""The state of one import of an ONNX model, and what rules are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from shardproof.frontends.onnx.elements import array_of, dtype_of
from shardproof.frontends.source import Initializers
from shardproof.ir.build import Builder
from shardproof.ir.module import Guess, Input, ModuleError, Value
from shardproof.ir.types import Array, DType, Mesh, TensorType


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence of tensors, whose number is known."""

    values: tuple[Value, ...]


Rule: TypeAlias = "Callable[[Lowering, Node], Value | Items | Sequence[Value | None]]"
"""Gives the results of a node in order; None for one that nothing reads."""
Scope = Mapping[str, Value | Items]
"""The values that nodes of a graph may read, by name."""
MAX_ELEMENTS: Final = 2**48
"""Of a graph input."""
IDLE: Final = frozenset({"hidden_size", "seed", "stash_type"})
"""Attributes that a rule need not read: an extent that the weights have, the seed of draws that are any
draws, and the precision with which something is computed."""
_WEIGHT_SIZE = 2
"""Reals with fewer elements are numbers of the program and no weights, unless asked otherwise."""


class Attributes(dict[str, Any]):
    """Attributes by name, which remember the names that were asked for."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def whole(self) -> dict[str, Any]:
        """All attributes, as for an operator that is kept opaque."""
        self.asked.update(self)
        return dict(self)


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its operator at `version` of its domain, operands (None where left out), attributes with the
    defaults of the operator's schema, and the names of its results ("" for one that is not wanted).

    It keeps account of what a rule asks for: a rule that passes over an operand or an attribute that the
    model sets would read another operator (`unread`, soundness F5)."""

    op_type: str
    domain: str
    version: int
    values: tuple[Value | None, ...]
    attrs: Attributes
    outputs: tuple[str, ...]
    scope: Scope = field(repr=False)
    proto: Any = field(repr=False)
    defaults: tuple[Any, ...] = field(repr=False)
    declared: tuple[TensorType | None, ...] = ()
    items: Items | None = None
    """Operand 0 of an operator that takes a sequence there; `inputs` has None in its place."""
    asked: set[int] = field(default_factory=set, repr=False)

    @property
    def inputs(self) -> tuple[Value | None, ...]:
        """All operands, None where left out."""
        self.asked.update(range(len(self.values)))
        return self.values

    def given(self, position: int) -> Value | None:
        """The operand at `position`, None when it is left out."""
        self.asked.add(position)
        return self.values[position] if position < len(self.values) else None

    def unread(self) -> str | None:
        """What the model sets and nothing has asked for, in words."""
        for attribute in self.proto.attribute:
            if attribute.name not in self.attrs.asked and attribute.name not in IDLE:
                return f"the attribute `{attribute.name}`"
        for position, value in enumerate(self.values):
            if value is not None and position not in self.asked:
                return f"operand {position} (`{value.name}`)"
        return None

    def operand(self, position: int) -> Value:
        """The operand at `position`. Raises ModuleError when it is left out."""
        found = self.given(position)
        if found is None:
            raise ModuleError(f"`{self.op_type}` has no operand {position}")
        return found

    def again(self, op_type: str, attributes: Mapping[str, Any]) -> Node:
        """The same operands for a standard operator, of which the node is a variant."""
        return replace(
            self, op_type=op_type, domain="", attrs=Attributes(attributes), outputs=self.outputs[:1]
        )

    def wants(self, position: int) -> bool:
        """Whether the result at `position` has a name."""
        return position < len(self.outputs) and bool(self.outputs[position])


class NeedsValue(ModuleError):
    """A shape, or the like, is computed from `inputs`, whose values are not known."""

    def __init__(self, text: str, inputs: Sequence[str]) -> None:
        super().__init__(text)
        self.inputs = tuple(inputs)


class Lowering(Builder):
    """The operators made so far, for `ranks` ranks; for one if their number is not told.

    `constants` gives symbolic sizes and graph inputs their values, by name.
    """

    def __init__(
        self,
        ranks: int | None,
        constants: Mapping[str, Any],
        initializers: Initializers,
        folder: str,
    ) -> None:
        super().__init__()
        self.ranks = ranks or 1
        self.ranks_told = ranks is not None
        self.divided = False
        """Whether annotations divide the model over the ranks."""
        self.constants = constants
        self.initializers = initializers
        self.folder = folder
        self.opsets: Mapping[str, int] = {}
        self.functions: Mapping[tuple[str, str, str], Any] = {}
        self.inputs: list[Input] = []
        self.warnings: dict[str, None] = {}
        self.guesses: dict[Guess, None] = {}
        self.op_type = ""
        self.graph: Callable[[Any, Scope, Sequence[Value]], tuple[Value, ...]] = _no_graph
        """The results of a subgraph that reads a scope and has its inputs bound (the walk's)."""

    @property
    def mesh(self) -> Mesh:
        return Mesh((("rank", self.ranks),)) if self.ranks > 1 else Mesh()

    def about(self, text: str) -> str:
        """A message about the node."""
        place = f" at {self.location}" if self.location is not None else ""
        return f"`{self.name}` ({self.op_type or 'graph'}{place}): {text}"

    def fail(self, text: str) -> NoReturn:
        raise ModuleError(self.about(text))

    def warn(self, text: str) -> None:
        self.warnings.setdefault(f"`{self.name}` ({self.op_type}) {text}")

    def guess(self, kind: str, text: str) -> None:
        """List what is taken to be so about the node."""
        self.guesses.setdefault(Guess(kind, text, self.name))

    # what must be known to read the program

    def array(self, x: Value, what: str) -> Array:
        """The elements of `x`, which must follow from constants."""
        found = self.known(x)
        if found is None:
            names = [v.name for v in self.sources(x)]
            read = " and ".join(f"`{name}`" for name in names[:3]) or "a large constant"
            raise NeedsValue(self.about(f"{what} depends on {read}: give its value in [constants]"), names)
        return found

    def integers(self, x: Value, what: str) -> tuple[int, ...]:
        """The elements of an integer tensor with at most one dim, as `array`."""
        return tuple(int(n) for n in self.array(x, what).reshape(-1))

    def integer(self, x: Value, what: str) -> int:
        """The only element of `x`, as `array`."""
        found = self.integers(x, what)
        if len(found) != 1:
            self.fail(f"{what} (`{x.name}`) has {len(found)} elements, one is needed")
        return found[0]

    def number(self, x: Value, what: str) -> float:
        """The only element of a real or integer tensor, as `array`."""
        found = self.array(x, what)
        if found.size != 1:
            self.fail(f"{what} (`{x.name}`) has {found.size} elements, one is needed")
        return float(found.reshape(-1)[0])

    # inputs and constants

    def extent(self, dim: Any, what: str) -> int:
        """A dim of a ValueInfoProto; a symbolic one by its value in `constants`."""
        name = dim.dim_param
        value = dim.dim_value if dim.HasField("dim_value") else self.constants.get(name) if name else None
        if value is None:
            known = f"the size `{name}`" if name else "a size without a name"
            self.fail(f"{what} has {known}, whose value is not known: give it in [constants]")
        if isinstance(value, bool) or value not in range(1 << 63):
            self.fail(f"{what} has the size {value}, which is no extent")
        if not dim.HasField("dim_value"):
            text = f"the size `{name}` is {int(value)} as told: nothing is shown of other sizes"
            self.warnings.setdefault(text)
        return int(value)

    def type_of(self, proto: Any, what: str) -> TensorType:
        """The type of a graph input."""
        kind = proto.WhichOneof("value")
        if kind != "tensor_type" or not proto.tensor_type.HasField("shape"):
            found = (kind or "value without type").removesuffix("_type")
            self.fail(f"{what} is a {found}, a tensor of known rank is needed")
        shape = tuple(self.extent(d, what) for d in proto.tensor_type.shape.dim)
        found = TensorType(self.dtype(proto.tensor_type.elem_type, what), shape)
        if found.size > MAX_ELEMENTS:
            self.fail(f"{what} is {found}, which has more than 2**48 elements")
        return found

    def dtype(self, number: int, what: str) -> DType:
        """An element type by its number in ONNX."""
        try:
            return dtype_of(number)
        except ModuleError as error:
            self.fail(f"{what} {error}")

    def input(self, name: str, type: TensorType, sharding: tuple[int, ...] | None = None) -> Value:
        """A graph input, as `Input`; a constant where `constants` gives its value."""
        if name in self.constants:
            return self.given(name, np.asarray(self.constants[name]), type)
        value = Value(self.claim(name), type)
        self.inputs.append(Input(value, len(self.inputs), sharding))
        return value

    def given(self, name: str, array: Array, type: TensorType) -> Value:
        """An input with a value: one number for all elements, or an array."""
        if array.shape not in ((), type.shape):
            shape = list(array.shape)
            self.fail(f"input `{name}` is {type}, the value given in [constants] has shape {shape}")
        stored = np.broadcast_to(array, type.shape).astype(type.dtype.storage)
        if type.dtype.kind not in ("real", "complex") and not np.all(np.equal(stored, array)):
            self.fail(f"input `{name}` is {type}, which the value given in [constants] does not fit")
        shown = f" {array}" if not array.shape else ""
        text = f"the input `{name}` has the value{shown} given in [constants]"
        self.warnings.setdefault(f"{text}: nothing is shown of other values")
        return self.emit("constant", type=type, value=np.ascontiguousarray(stored).reshape(type.shape))

    def initializer(self, tensor: Any, take: Callable[[str, TensorType], Value]) -> Value:
        """A weight as the input that `take` makes, any other stored tensor as a constant."""
        dtype = self.dtype(tensor.data_type, f"stored tensor `{tensor.name}`")
        type = TensorType(dtype, tuple(tensor.dims))
        weight = dtype.kind in ("real", "complex") and type.size >= _WEIGHT_SIZE
        if self.initializers == "inputs" or (self.initializers == "auto" and weight):
            return take(tensor.name, type)
        return self.stored(tensor)

    def stored(self, tensor: Any) -> Value:
        """A constant that the file holds."""
        array, dtype = array_of(tensor, self.folder)
        return self.emit("constant", type=TensorType(dtype, array.shape), value=array)

    # what rules are made of

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The group of all ranks."""
        return (tuple(range(self.ranks)),)

    def common(self, *values: Value) -> tuple[Value, ...]:
        """The operands broadcast to one shape."""
        shape = self.common_shape(*values)
        return tuple(self.spread(v, shape) for v in values)

    def opaque(self, node: Node, types: Sequence[TensorType]) -> tuple[Value, ...]:
        """A function known by the node's operator, its attributes and which operands it has only."""
        self.warn("is kept opaque")
        return self.emit_many("opaque", _present(node.inputs), types, name=opaque_name(node), free=())

    def custom(
        self,
        node: Node,
        operands: Sequence[Value | None],
        types: Sequence[TensorType],
        attributes: Mapping[str, Any],
    ) -> tuple[Value, ...]:
        """A call by name, whose meaning the definitions of the lemma library give later.

        `config` is a JSON object of the attributes; where operands are left out, `operands` in it tells which
        of their places are taken.
        """
        told = {name: _spelled(name, value) for name, value in attributes.items()}
        if None in operands:
            told["operands"] = [at for at, v in enumerate(operands) if v is not None]
        return self.emit_many(
            "custom_call",
            _present(operands),
            types,
            target=f"{node.domain}::{node.op_type}",
            config=json.dumps(told, sort_keys=True) if told else "",
        )

    def integer_constant(self, numbers: Sequence[int]) -> Value:
        return self.literal(np.asarray(numbers, dtype=np.int64), DType.S64)


def _no_graph(graph: Any, scope: Scope, bound: Sequence[Value]) -> tuple[Value, ...]:
    raise ModuleError("has a graph inside, outside of a walk")


def _present(operands: Sequence[Value | None]) -> list[Value]:
    return [v for v in operands if v is not None]


def _spelled(name: str, value: Any) -> Any:
    """An attribute as JSON that tells apart any two values."""
    if isinstance(value, tuple):
        return [_spelled(name, v) for v in value]
    if not isinstance(value, int | float | str):
        raise ModuleError(f"has the attribute {name}, which has no text of its own")
    return value


def opaque_name(node: Node) -> str:
    """A name that tells apart operators, attributes, and which operands are left out."""
    head = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    texts = []
    for name, value in sorted(node.attrs.whole().items()):
        if not isinstance(value, int | float | str | bytes | tuple):
            raise ModuleError(f"has the attribute {name}, which has no text of its own")
        texts.append(f"{name}={value!r}")
    taken = ",".join(str(at) for at, v in enumerate(node.inputs) if v is not None)
    places = f"[{taken}]" if None in node.inputs else ""
    return f"{head}@{node.version}({', '.join(texts)}){places}"
