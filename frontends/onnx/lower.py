"""An ONNX model to the project's IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import prod
from pathlib import Path
from typing import Any

from shardproof.frontends.locate import WRAPPER_FILES, Locator
from shardproof.frontends.onnx.devices import Devices, configuration
from shardproof.frontends.onnx.elements import DTYPES
from shardproof.frontends.onnx.read import read_model
from shardproof.frontends.onnx.state import Items, Lowering, NeedsValue
from shardproof.frontends.onnx.walk import Walk
from shardproof.frontends.source import Initializers
from shardproof.ir.build import KNOWN_SIZE
from shardproof.ir.module import Module, ModuleError, Output, Value
from shardproof.ir.types import TensorType

__all__ = ["lower", "read_onnx"]


def read_onnx(
    data: bytes,
    folder: Path,
    *,
    ranks: int | None = None,
    constants: Mapping[str, Any] | None = None,
    initializers: Initializers = "auto",
    wrapper_files: Sequence[str] = WRAPPER_FILES,
) -> Module:
    """The program in the bytes of a file in `folder`; as `lower`."""
    try:
        return lower(
            read_model(data, folder),
            ranks=ranks,
            constants=constants,
            initializers=initializers,
            folder=folder,
            wrapper_files=wrapper_files,
        )
    except UnicodeDecodeError:
        raise ModuleError("is a damaged ONNX model: it holds a name that is no text") from None


def lower(
    model: Any,
    *,
    ranks: int | None = None,
    constants: Mapping[str, Any] | None = None,
    initializers: Initializers = "auto",
    folder: Path = Path(),
    wrapper_files: Sequence[str] = WRAPPER_FILES,
) -> Module:
    """The IR of a checked ModelProto (`read_model`), which each of `ranks` ranks runs.

    Inputs are the graph's, then the stored tensors that count as weights (`initializers`: "auto" takes reals
    of two elements and more, "inputs" all, "constants" none); a stored tensor that shapes or the like are
    computed from is a constant. `constants` gives symbolic sizes and inputs their values, by name. Raises
    ModuleError: what, where, what to do.
    """
    needed: frozenset[str] = frozenset()
    divided = configuration(model, ranks)
    ranks = ranks if divided is None else divided.num_devices
    while True:
        state = Lowering(ranks, constants or {}, initializers, str(folder))
        state.divided = divided is not None
        try:
            devices = None if divided is None else Devices(state, divided)
            return _program(model, state, Locator(wrapper_files), needed, devices)
        except NeedsValue as error:
            stored = {t.name for t in model.graph.initializer}
            more = stored.intersection(error.inputs) - needed
            if not more:
                raise
            needed |= more


def _program(
    model: Any, state: Lowering, locator: Locator, needed: AbstractSet[str], devices: Devices | None
) -> Module:
    """The program whose stored tensors `needed` are constants in any case."""
    state.opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    state.functions = {
        ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload): f for f in model.functions
    }
    graph = model.graph
    stored = {t.name: t for t in graph.initializer}
    state.begin(graph.name or "graph")
    for name in _names(graph):
        state.claim(name)
    scope: dict[str, Value | Items] = {}

    def take(name: str, type: TensorType) -> Value:
        return state.input(name, type) if devices is None else devices.input(name, type, graph.node)

    scope |= {i.name: take(i.name, state.type_of(i.type, f"input `{i.name}`")) for i in graph.input}
    for name, tensor in stored.items():
        if name not in scope:
            scope[name] = state.stored(tensor) if name in needed else state.initializer(tensor, take)
    walk = Walk(state, locator, _inferred(model, state), devices)
    walk.nodes(graph.node, scope)
    shards = {} if devices is None else devices.shards
    return Module(
        name=graph.name,
        mesh=state.mesh,
        inputs=tuple(state.inputs),
        ops=tuple(state.ops),
        outputs=tuple(Output(o.name, shards.get(o.name) or walk.read(scope, o.name)) for o in graph.output),
        warnings=tuple(state.warnings),
        guesses=tuple(state.guesses),
    )


def _names(graph: Any) -> Iterator[str]:
    """The names of all values of the main graph."""
    for item in (*graph.input, *graph.initializer):
        yield item.name
    for node in graph.node:
        yield from node.output


def _inferred(model: Any, state: Lowering) -> dict[str, TensorType]:
    """The types that shape inference of the onnx package gives, where they are wholly known."""
    import onnx

    graph = onnx.GraphProto(name=model.graph.name)
    graph.node.extend(model.graph.node)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    for item in graph.value_info:
        for dim in item.type.tensor_type.shape.dim:
            size = state.constants.get(dim.dim_param)
            if isinstance(size, int) and size >= 0:
                dim.dim_value = size
    own = {i.name for i in model.graph.input}
    for item in model.graph.input:
        shape = state.type_of(item.type, f"input `{item.name}`").shape
        number = item.type.tensor_type.elem_type
        graph.input.append(onnx.helper.make_tensor_value_info(item.name, number, shape))
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= KNOWN_SIZE and tensor.data_location != tensor.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in own:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    bare = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    try:
        found = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}
    return {v.name: t for v in (*found.value_info, *found.output) if (t := _type(v.type)) is not None}


def _type(proto: Any) -> TensorType | None:
    tensor = proto.tensor_type
    if proto.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    dtype = DTYPES.get(tensor.elem_type)
    if dtype is None or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return TensorType(dtype, tuple(d.dim_value for d in tensor.shape.dim))
