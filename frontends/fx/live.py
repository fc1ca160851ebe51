"""Graphs of live PyTorch objects: a `torch.fx.GraphModule` of ATen calls, a `torch.export.ExportedProgram`.

The objects are only read; torch is imported when the first function is called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from shardproof.frontends.fx.code.meta import MAX_EXTENT, TORCH_DTYPES, shown
from shardproof.frontends.fx.code.statements import MATH_FUNCTIONS, OPERATOR_FUNCTIONS, SYMBOLIC_FUNCTIONS
from shardproof.frontends.fx.graph import Argument, Graph, Meta, Node, Operator, Ref, Symbol, Tensor
from shardproof.frontends.locate import WRAPPER_FILES, Locator
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Array, DType, Location

_NUMBERED: Final = re.compile(r"(.+)\.\d+")
_UPDATES: Final = ("BUFFER_MUTATION", "USER_INPUT_MUTATION", "PARAMETER_MUTATION")
_TRACE: Final = "trace to operators first, with make_fx or torch.export"
DROPPED: Final = (
    "profiler._record_function_enter_new.default",
    "profiler._record_function_exit._RecordFunction",
)
"""Calls that only mark time."""


def read_live(program: Any, wrapper_files: Sequence[str] = WRAPPER_FILES) -> Graph:
    """The graph of an `ExportedProgram` or `GraphModule`. Raises ModuleError for any other object."""
    kind = type(program)
    families = {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}
    if ("torch", "ExportedProgram") in families:
        return read_exported(program, locator=Locator(wrapper_files))
    if ("torch", "GraphModule") in families:
        return read_module(program, locator=Locator(wrapper_files))
    hint = ": capture it first, with capture_torch or torch.export" if ("torch", "Module") in families else ""
    raise ModuleError(f"an object of type {kind.__name__} is no program that is read{hint}")


def read_exported(
    program: Any,
    *,
    rank: int | None = None,
    groups: Groups | None = None,
    locator: Locator | None = None,
) -> Graph:
    """The graph of an `ExportedProgram`: parameters and buffers first, by the model's own names.

    Buffers that the module computes itself are constants: no checkpoint holds them, nothing overwrites them.
    `groups` are the members of process groups by name. Raises ModuleError for what has no counterpart here.
    """
    signature = program.graph_signature
    titles, constants = {}, {}
    unknown: set[str] = set()
    overwritten = {spec.target for spec in signature.output_specs if spec.kind.name in _UPDATES}
    for spec in signature.input_specs:
        computed = spec.kind.name == "BUFFER" and spec.persistent is False and spec.target not in overwritten
        value = program.constants.get(spec.target) if computed else None
        if value is not None and array_of(value) is not None:
            constants[spec.arg.name] = value
        elif spec.kind.name in ("PARAMETER", "BUFFER"):
            titles[spec.arg.name] = spec.target
            if computed:
                unknown.add(spec.target)
        elif spec.kind.name == "CONSTANT_TENSOR":
            constants[spec.arg.name] = program.constants[spec.target]
        elif spec.kind.name != "USER_INPUT":
            raise ModuleError(f"exported program: input {spec.arg.name!r} is a {spec.kind.name.lower()}")
    updates = {}
    by_title = {title: name for name, title in titles.items()}
    for place, spec in enumerate(signature.output_specs):
        if spec.kind.name in _UPDATES:
            updates[place] = by_title.get(spec.target, spec.target)
    graph = read_module(
        program.graph_module,
        rank=rank,
        groups=groups,
        titles=titles,
        lifted=constants,
        updates=updates,
        source="exported program",
        locator=locator,
    )
    return replace(graph, computed=frozenset(unknown))


Groups = Mapping[str, tuple[int, ...]]


def read_module(
    module: Any,
    *,
    rank: int | None = None,
    groups: Groups | None = None,
    titles: Mapping[str, str] | None = None,
    lifted: Mapping[str, Any] | None = None,
    updates: Mapping[int, str] | None = None,
    source: str = "graph module",
    name: str = "program",
    locator: Locator | None = None,
) -> Graph:
    """The graph of a `GraphModule` whose calls are operators (of make_fx, AOT autograd or export).

    `titles` are names for placeholders, which they get; `lifted` are the values of placeholders that are
    constants; `updates` tells which results overwrite which placeholder. Raises ModuleError: which node, why.
    """
    reader = _Reader(module, dict(titles or {}), dict(lifted or {}), locator or Locator())
    reader.run()
    renamed = reader.names
    return Graph(
        name,
        tuple(reader.nodes),
        reader.nodes[-1].args[0] if reader.nodes[-1].args else (),
        source,
        rank,
        constants=reader.constants,
        titles={renamed[n]: t for n, t in reader.titles.items() if n in renamed},
        updates={k: renamed.get(n, n) for k, n in (updates or {}).items()},
        groups=dict(groups or {}),
    )


@dataclass(slots=True)
class _Reader:
    module: Any
    titles: dict[str, str]
    lifted: dict[str, Any]
    locator: Locator
    nodes: list[Node] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Array | None] = field(default_factory=dict)

    def run(self) -> None:
        nodes = list(self.module.graph.nodes)
        self._name(nodes)
        for node in nodes:
            try:
                self._node(node)
            except ModuleError as error:
                text = str(error)
                place = location_of(node, self.locator)
                at = f" at {place}" if place is not None else ""
                raise ModuleError(f"`{node.name}` ({node.target}{at}): {text}") from None

    def _name(self, nodes: Sequence[Any]) -> None:
        """Placeholders take their titles; other nodes give way."""
        taken: set[str] = set()
        for node in nodes:
            if node.op == "placeholder":
                title = self.titles.get(node.name, node.name)
                self.names[node.name] = title if title not in taken else node.name
                taken.add(self.names[node.name])
        prefixes = {match[1] for match in map(_NUMBERED.fullmatch, taken) if match is not None}
        for node in nodes:
            if node.op == "placeholder":
                continue
            name, count = node.name, 0
            while name in taken or name in prefixes:
                count += 1
                name = f"{node.name}_{count}"
            taken.add(name)
            self.names[node.name] = name

    def _node(self, node: Any) -> None:
        name, meta = self.names[node.name], meta_of(recorded(node))
        location = location_of(node, self.locator)
        if node.op == "placeholder" and node.name in self.lifted:
            self.constants[name] = array_of(self.lifted[node.name])
            self.nodes.append(Node(name, "get_attr", name, meta=meta))
        elif node.op == "placeholder":
            self.nodes.append(Node(name, "placeholder", name, meta=meta))
        elif node.op == "get_attr":
            value = self._attribute(node.target)
            self.constants[node.target] = array_of(value)
            self.nodes.append(Node(name, "get_attr", node.target, meta=meta_of(value), location=location))
        elif node.op == "output":
            result = self._argument(node.args[0])
            self.nodes.append(Node(name, "output", "output", (result,)))
        elif node.op in ("call_module", "call_method"):
            raise ModuleError(f"is a {node.op}: {_TRACE}")
        elif node.op == "call_function":
            target = target_of(node.target)
            if target in DROPPED:
                return
            if target.startswith("c10d."):
                raise ModuleError("is a collective on a group without a name: capture with capture_torch")
            args = tuple(self._argument(a) for a in node.args)
            kwargs = {k: self._argument(a) for k, a in node.kwargs.items()}
            self.nodes.append(Node(name, "call_function", target, args, kwargs, meta, location))
        else:
            raise ModuleError(f"is a {node.op}, which is not read")

    def _attribute(self, path: str) -> Any:
        found = self.module
        for part in path.split("."):
            found = getattr(found, part)
        import torch

        if not isinstance(found, torch.Tensor):
            raise ModuleError(f"reads an attribute of type {type(found).__name__}, which is no tensor")
        return found

    def _argument(self, value: Any) -> Argument:
        import torch

        if isinstance(value, torch.fx.Node):
            return Ref(self.names[value.name])
        if isinstance(value, tuple | list):
            return tuple(self._argument(v) for v in value)
        if isinstance(value, slice):
            return slice(*(self._argument(v) for v in (value.start, value.stop, value.step)))
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        if isinstance(value, torch.dtype):
            return dtype_of(value)
        if isinstance(value, torch.device | torch.layout | torch.memory_format):
            return str(value).removeprefix("torch.")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return Symbol(str(value))
        if isinstance(value, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
            return Operator(target_of(value))
        raise ModuleError(f"has an argument of type {type(value).__name__}, which is not read")


def recorded(node: Any) -> Any:
    """The value that the tracer recorded of a node."""
    meta = node.meta
    return meta["val"] if "val" in meta else meta.get("example_value", meta.get("tensor_meta"))


def target_of(target: Any) -> str:
    """The canonical name of what a node calls."""
    import torch

    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._schema.name.split('::', 1)[1]}.{target._overloadname}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target_of(target.default)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
    if module in ("_operator", "operator", "builtins") and name in OPERATOR_FUNCTIONS:
        return str(name)
    if module is not None and module.partition(".")[0] == "torch" and name in SYMBOLIC_FUNCTIONS:
        return str(name)
    if module == "math" and name in MATH_FUNCTIONS:
        return f"math.{name}"
    raise ModuleError(f"calls {shown(str(target))}, which is no operator: {_TRACE}")


def dtype_of(dtype: Any) -> DType:
    """The element type of a `torch.dtype`."""
    found = TORCH_DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ModuleError(f"element type {dtype}, which has no counterpart here")
    return found


def meta_of(value: Any) -> Meta:
    """What is recorded of a result, from a tensor (fake or real) or a number."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise ModuleError(f"is a tensor of layout {value.layout}, only strided ones are read")
        return Tensor(dtype_of(value.dtype), tuple(_extent(n) for n in value.shape))
    if isinstance(value, tuple | list):
        return tuple(meta_of(v) for v in value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return Symbol(str(value))
    return None


def _extent(size: Any) -> int | str:
    if isinstance(size, int):
        if size >= MAX_EXTENT:
            raise ModuleError(f"extent {size}, which is out of range")
        return size
    fixed = size.node.maybe_as_int()
    return str(size) if fixed is None else int(fixed)


def array_of(value: Any) -> Array | None:
    """The elements of a tensor in the type that holds them; None where a fake tensor has none."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(value, FakeTensor):
        value = value.constant
        if value is None:
            return None
    if value.device.type == "meta":
        return None
    dtype = dtype_of(value.dtype)
    plain = value.detach().cpu()
    if plain.dtype in (torch.bfloat16,) or str(plain.dtype).startswith("torch.float8"):
        plain = plain.to(torch.float32)
    found: Array = np.ascontiguousarray(plain.numpy()).astype(dtype.storage)
    return found.reshape(tuple(value.shape))


def location_of(node: Any, locator: Locator) -> Location | None:
    """The user's frame in the stack that was recorded for a node."""
    text = node.meta.get("stack_trace") or getattr(node, "stack_trace", None)
    if not text:
        return None
    return locator.from_traceback(text)
