"""Lets shardproof read the graphs of Pebble."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from shardproof.frontend import (
    Builder,
    DType,
    Input,
    Location,
    Mesh,
    Module,
    ModuleError,
    Output,
    Source,
    TensorType,
    Value,
)

T = TypeVar("T")


def recognises(source: Source) -> bool:
    return source.head.startswith(b'{"pebble": 1,')


def read(source: Source) -> Module:
    try:
        graph = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise ModuleError(f"is no graph of Pebble, or a damaged one: {error}") from None
    return Reading(field(graph, "mesh", dict)).module(source.path.stem, graph)


def field(table: Any, name: str, kind: type[T]) -> T:
    """A field of exactly this type."""
    found = table.get(name) if isinstance(table, dict) else None
    if type(found) is not kind:
        raise ModuleError(f"has {found!r} as `{name}`, a {kind.__name__} is needed")
    return found


def items(table: Any, name: str, kind: type[T]) -> tuple[T, ...]:
    """A list whose elements are of exactly this type."""
    found = tuple(field(table, name, list))
    if not all(type(item) is kind for item in found):
        raise ModuleError(f"has {list(found)} as `{name}`, elements of type {kind.__name__} are needed")
    return found


def location(text: Any) -> Location:
    file, _, line = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not file or not line.isdecimal():
        raise ModuleError(f"has the place {text!r}, file:line is needed")
    return Location(file, int(line))


class Reading(Builder):
    """One graph as it is read: the operators so far, and the values by their names in the graph."""

    def __init__(self, mesh: Mapping[str, Any]) -> None:
        super().__init__()
        self.mesh = Mesh(tuple(mesh.items()))
        self.values: dict[str, Value] = {}

    def module(self, name: str, graph: Any) -> Module:
        inputs = [self.input(*entry) for entry in field(graph, "inputs", dict).items()]
        for node in field(graph, "nodes", list):
            self.node(node)
        named = field(graph, "outputs", dict)
        outputs = [Output(name, self.value(field(named, name, str))) for name in named]
        return Module(name, self.mesh, tuple(inputs), tuple(self.ops), tuple(outputs))

    def input(self, name: str, entry: Any) -> Input:
        if not isinstance(entry, list) or len(entry) != 3 or entry[0] != "f32":
            raise ModuleError(f"has the input {name} as {entry!r}, a list of f32, shape and place is needed")
        shape = items({"shape": entry[1]}, "shape", int)
        value = Value(self.claim(name), TensorType(DType.F32, shape), location(entry[2]))
        self.values[name] = value
        return Input(value, len(self.values) - 1)

    def value(self, name: str) -> Value:
        if name not in self.values:
            raise ModuleError(f"reads `{name}`, which nothing before it gives")
        return self.values[name]

    def node(self, node: Any) -> None:
        name, op = field(node, "out", str), field(node, "op", str)
        self.begin(name, location(node.get("at")))
        rule = RULES.get(op)
        if rule is None:
            self.fail(f"the operator `{op}` is not known")
        operands = [self.value(operand) for operand in items(node, "in", str)]
        attrs = field(node, "attrs", dict)
        try:
            inspect.signature(rule).bind(self, *operands, **attrs)
        except TypeError as error:
            self.fail(f"`{op}` has other operands or attributes than are known ({error})")
        result = rule(self, *operands, **attrs)
        if result.type.shape != items(node, "shape", int):
            self.fail(f"`{op}` gives {result.type}, the graph says {node['shape']}")
        if name in self.values:
            self.fail(f"two values are called `{name}`")
        self.values[name] = self.rename({result: name})[result]


def matmul(r: Reading, x: Value, y: Value) -> Value:
    rank = len(y.type.shape)
    batch = range(rank - 2)
    if rank < 2 or (rank > 2 and len(x.type.shape) != rank):
        r.fail(f"matmul of {x.type} and {y.type}")
    return r.dot(x, y, (len(x.type.shape) - 1, rank - 2), (batch, batch))


def rms_norm(r: Reading, x: Value, w: Value, eps: float) -> Value:
    mean = r.mean(r.pair("multiply", x, x), (len(x.type.shape) - 1,), keepdim=True)
    scale = r.emit("rsqrt", r.pair("add", mean, eps))
    return r.pair("multiply", r.pair("multiply", x, scale), w)


def softmax(r: Reading, x: Value) -> Value:
    last = (len(x.type.shape) - 1,)
    e = r.emit("exponential", r.pair("subtract", x, r.reduce(x, last, "max", keepdim=True)))
    return r.pair("divide", e, r.reduce(e, last, "sum", keepdim=True))


def groups(r: Reading, axis: str) -> tuple[tuple[int, ...], ...]:
    if axis not in dict(r.mesh.axes):
        r.fail(f"the mesh {r.mesh} has no axis `{axis}`")
    return r.mesh.groups([axis])


RULES: Final[Mapping[str, Callable[..., Value]]] = {
    "add": lambda r, x, y: r.pair("add", x, y),
    "multiply": lambda r, x, y: r.pair("multiply", x, y),
    "relu": lambda r, x: r.pair("maximum", x, 0.0),
    "scale": lambda r, x, by: r.pair("multiply", x, by),
    "reshape": lambda r, x, shape: r.reshape(x, shape),
    "transpose": lambda r, x, order: r.transpose(x, order),
    "matmul": matmul,
    "rms_norm": rms_norm,
    "softmax": softmax,
    "all_reduce": lambda r, x, axis: r.emit("all_reduce", x, kind="sum", groups=groups(r, axis)),
    "all_gather": lambda r, x, axis, dim: r.emit("all_gather", x, dim=dim, groups=groups(r, axis)),
}
