"""The nodes of a graph, one after the other: rules, functions of the model and of the standard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardproof.frontends.locate import Locator
from shardproof.frontends.onnx.devices import Devices
from shardproof.frontends.onnx.rules import TABLE
from shardproof.frontends.onnx.sequences import READERS
from shardproof.frontends.onnx.state import Attributes, Items, Lowering, NeedsValue, Node, Scope
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import Location, TensorType

MAX_DEPTH: Final = 64
"""Functions and subgraphs inside each other."""
STACK: Final = "pkg.torch.onnx.stack_trace"
_DEFAULT: Final = ("", "ai.onnx")


class Walk:
    """The walk over one model; `types` are those that shape inference gave the values of the main graph."""

    def __init__(
        self,
        state: Lowering,
        locator: Locator,
        types: Mapping[str, TensorType],
        devices: Devices | None = None,
    ) -> None:
        self.state = state
        self.locator = locator
        self.types = types
        self.devices = devices
        self.depth = 0
        state.graph = self.graph

    def graph(self, graph: Any, scope: Scope, bound: Sequence[Value]) -> tuple[Value, ...]:
        """The results of a subgraph whose inputs are `bound` and which may read `scope`."""
        if len(bound) != len(graph.input):
            self.state.fail(f"graph `{graph.name}` has {len(graph.input)} inputs, {len(bound)} are given")
        inner = dict(scope) | {i.name: v for i, v in zip(graph.input, bound, strict=True)}
        taken = {i.name for i in graph.input}
        inner |= {t.name: self.state.stored(t) for t in graph.initializer if t.name not in taken}
        outer = self.types
        self.types = {}
        try:
            self.nodes(graph.node, inner)
        finally:
            self.types = outer
        return tuple(self.read(inner, o.name) for o in graph.output)

    def read(self, scope: Scope, name: str) -> Value:
        found = scope.get(name)
        if found is None:
            self.state.fail(f"reads `{name}`, which nothing gives")
        if isinstance(found, Items):
            self.state.fail(f"reads `{name}`, a sequence of tensors: {', '.join(READERS)} are supported")
        return found

    def nodes(self, nodes: Sequence[Any], scope: dict[str, Value | Items]) -> None:
        """Lower nodes in order; their results go into `scope`."""
        if self.depth >= MAX_DEPTH:
            self.state.fail("is nested too deeply to be a real program")
        self.depth += 1
        try:
            for proto in nodes:
                self._node(proto, scope)
        finally:
            self.depth -= 1

    def _node(self, proto: Any, scope: dict[str, Value | Items]) -> None:
        state = self.state
        name = next((o for o in proto.output if o), proto.name or proto.op_type)
        outer = state.name, state.location, state.op_type
        location = self._location(proto) or state.location
        state.begin(name if self.depth == 1 else f"{state.name}.{name}", location)
        state.op_type = f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type
        first = state.first
        node = self._read(proto, scope)
        try:
            found = self._apply(node)
        except NeedsValue:
            raise
        except ModuleError as error:
            if str(error).startswith("`"):
                raise
            state.fail(str(error))
        state.first = first
        if isinstance(found, Items):
            scope[node.outputs[0]] = found
        else:
            self._bind(node, (found,) if isinstance(found, Value) else tuple(found), scope)
        if self.devices is not None and proto.device_configurations:
            if self.depth > 1:
                state.fail("is annotated inside of a function or subgraph, which is not supported")
            self.devices.apply(proto, scope)
        state.name, state.location, state.op_type = outer

    def _bind(self, node: Node, results: Sequence[Value | None], scope: dict[str, Value | Items]) -> None:
        state = self.state
        new: dict[Value, str] = {}
        made = {v for op in state.ops[state.first :] for v in op.results}
        for at, name in enumerate(node.outputs):
            if not name:
                continue
            value = results[at] if at < len(results) else None
            if value is None:
                state.fail(f"its result {at} (`{name}`) is not supported")
            told = node.declared[at] if at < len(node.declared) else None
            if told is not None and told != value.type:
                state.fail(f"gives {value.type}; by shape inference of the onnx package it is {told}")
            if self.depth == 1 and value in made and value not in new:
                new[value] = name
            scope[name] = value
        fresh = state.rename(new)
        for name in filter(None, node.outputs):
            bound = self.read(scope, name)
            scope[name] = fresh.get(bound, bound)

    def _read(self, proto: Any, scope: Scope) -> Node:
        from onnx import defs

        if not isinstance(proto.op_type, str) or not isinstance(proto.domain, str):
            self.state.fail("is a damaged node: its operator is no text")
        domain = "" if proto.domain in _DEFAULT else proto.domain
        version = self.state.opsets.get(domain, 1)
        defaults: tuple[Any, ...] = ()
        try:
            schema = defs.get_schema(proto.op_type, version, domain)
        except defs.SchemaError:
            schema = None
        if schema is not None:
            version = schema.since_version
            defaults = tuple(a.default_value for a in schema.attributes.values() if a.default_value.type)
        first = scope.get(proto.input[0]) if proto.input and proto.op_type in READERS and not domain else None
        items = first if isinstance(first, Items) else None
        inputs = [self.read(scope, i) if i else None for i in proto.input[items is not None :]]
        return Node(
            proto.op_type,
            domain,
            version,
            (None, *inputs) if items is not None else tuple(inputs),
            Attributes({a.name: plain(a) for a in (*defaults, *proto.attribute)}),
            tuple(proto.output),
            scope,
            proto,
            defaults,
            tuple(self.types.get(o) for o in proto.output),
            items,
        )

    def _apply(self, node: Node) -> Value | Items | Sequence[Value | None]:
        key = (node.domain, node.op_type, node.proto.overload)
        own = self.state.functions.get(key)
        if own is not None:
            return self._call(own, node)
        rule = TABLE.get((node.domain, node.op_type))
        if rule is not None:
            found = rule(self.state, node)
            unread = node.unread()
            if unread is not None:
                self.state.fail(f"has {unread}, which its rule does not read: it may be another operator")
            return found
        body = self._body(node)
        if body is not None:
            return self._call(body, node)
        return self._opaque(node)

    def _opaque(self, node: Node) -> Sequence[Value | None]:
        wanted = [at for at, name in enumerate(node.outputs) if name]
        types = [t for at in wanted if (t := node.declared[at]) is not None]
        if len(types) != len(wanted):
            self.state.fail("is not supported, and the types of its results are not known: add value_info")
        if not node.domain:
            found = self.state.opaque(node, types)
        else:
            places = {"results": tuple(wanted)} if len(wanted) < len(node.outputs) else {}
            found = self.state.custom(node, node.inputs, types, {**node.attrs.whole(), **places})
            self.state.warn("is kept opaque unless a definition of it is given")
        results = dict(zip(wanted, found, strict=True))
        return [results.get(at) for at in range(len(node.outputs))]

    def _body(self, node: Node) -> Any:
        """The function that defines a standard operator, if there is one."""
        import onnx

        try:
            schema = onnx.defs.get_schema(node.op_type, self.state.opsets.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            return None
        wanted = self.state.opsets.get("", 1)
        function = onnx.FunctionProto()
        versions = [v for v in schema.function_opset_versions if v <= wanted]
        if versions:
            function.ParseFromString(schema.get_function_with_opset_version(max(versions)))
            return function
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= wanted]
        if not versions:
            return None
        types = [_type_proto(v).SerializeToString() for v in node.inputs]
        data = schema.get_context_dependent_function_with_opset_version(
            max(versions), node.proto.SerializeToString(), types
        )
        if not data:
            return None
        function.ParseFromString(data)
        return function

    def _call(self, function: Any, node: Node) -> tuple[Value | None, ...]:
        """The results of a function's nodes, written out."""
        state = self.state
        pairs = zip(function.input, node.inputs, strict=False)
        inputs = {name: value for name, value in pairs if value is not None}
        scope: dict[str, Value | Items] = {**inputs}
        outer_opsets, outer_types = state.opsets, self.types
        state.opsets = {"" if o.domain in _DEFAULT else o.domain: o.version for o in function.opset_import}
        self.types = {}
        try:
            self.nodes([_bound(n, function, node, set(inputs)) for n in function.node], scope)
        finally:
            state.opsets, self.types = outer_opsets, outer_types
        return tuple(self.read(scope, o) if o in scope else None for o in function.output)

    def _location(self, proto: Any) -> Location | None:
        for entry in proto.metadata_props:
            if entry.key == STACK:
                return self.locator.from_traceback(entry.value)
        return None


def _bound(proto: Any, function: Any, call: Node, given: set[str]) -> Any:
    """A node of a function with the caller's attributes, and without operands that the caller left out."""
    import onnx

    found = onnx.NodeProto()
    found.CopyFrom(proto)
    left_out = {name for name in function.input if name not in given}
    for at, name in enumerate(found.input):
        if name in left_out:
            found.input[at] = ""
    values = {a.name: a for a in (*call.defaults, *function.attribute_proto, *call.proto.attribute)}
    _bind_attributes(found, values, left_out)
    return found


def _bind_attributes(node: Any, values: Mapping[str, Any], left_out: set[str]) -> None:
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            value = values.get(attribute.ref_attr_name)
            if value is None:
                continue
            name = attribute.name
            attribute.CopyFrom(value)
            attribute.name = name
        for graph in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
            for inner in graph.node:
                _bind_attributes(inner, values, left_out)
        kept.append(attribute)
    copies = [type(a).FromString(a.SerializeToString()) for a in kept]
    del node.attribute[:]
    node.attribute.extend(copies)


def _type_proto(value: Value | None) -> Any:
    import onnx

    from shardproof.frontends.onnx.elements import DTYPES

    if value is None:
        return onnx.TypeProto()
    number = next(n for n, d in DTYPES.items() if d is value.type.dtype)
    return onnx.helper.make_tensor_type_proto(number, value.type.shape)


def plain(attribute: Any) -> Any:
    """An attribute's value: numbers, text, tuples of those; a TensorProto or GraphProto as it is."""
    from onnx import helper

    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list) or hasattr(value, "extend"):
        return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
    return value
