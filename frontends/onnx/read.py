"""ONNX files: parsed, checked by the `onnx` package, and brought to an opset that is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from shardproof.frontends.onnx.microsoft import DOMAIN, RENAMED
from shardproof.ir.module import ModuleError

FIRST_OPSET: Final = 13
"""The oldest opset that rules are written for."""
CONVERTED_OPSET: Final = 7
"""The oldest that `onnx.version_converter` brings there."""
_EXTERNAL: Final = 1
_DOTS: Final = re.compile(r"[^.]*(\.\.\.)?[^.]*")
_BETWEEN_TERMS: Final = re.compile(",|->")
_LONGEST: Final = 300
_FIRST_FIELD: Final = b"\x08"


def looks_like_onnx(data: bytes) -> bool:
    """Whether `data` may be a ModelProto: its first field is the integer `ir_version`."""
    return data.startswith(_FIRST_FIELD)


def read_model(data: bytes, folder: Path) -> Any:
    """The ModelProto in `data`, whose external data are in `folder` and not read yet.

    What it promises: nodes in order, known operators with their attributes, an opset that rules are written
    for, and external data inside `folder`. Raises ModuleError.
    """
    try:
        import onnx
    except ImportError:
        raise ModuleError(
            "looks like ONNX, which the onnx package reads: pip install 'shardproof[onnx]'"
        ) from None
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise ModuleError("is no ONNX model, or a damaged or truncated one") from None
    if not model.HasField("graph"):
        raise ModuleError("is no ONNX model: it has no graph")
    if not model.graph.output:
        raise ModuleError("has no outputs, so it computes nothing: name the graph's outputs")
    external = [t for t in _tensors(model) if t.data_location == _EXTERNAL]
    for tensor in external:
        _check_external(tensor, folder)
    for opset in (o for m in (model, *model.functions) for o in m.opset_import):
        if opset.version not in range(1, 1 << 31):
            raise ModuleError(f"imports opset {opset.version} of domain {opset.domain!r}, which is none")
    for node in _nodes(model):
        _check_equation(node)
    model = _converted(model)
    _rename(model)
    try:
        onnx.checker.check_model(_without_external(model) if external else model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModuleError(f"is not valid ONNX: {_line(error)}") from None
    return model


def _check_equation(node: Any) -> None:
    """Raises ModuleError where an Einsum has dots that are no ellipsis, on which onnx never ends."""
    for attribute in node.attribute if node.op_type == "Einsum" else ():
        text = attribute.s.decode("utf-8", "replace")
        if not all(_DOTS.fullmatch(term) for term in _BETWEEN_TERMS.split(text)):
            raise ModuleError(f"is not valid ONNX: an Einsum has the equation {text[:_LONGEST]!r}")


def _converted(model: Any) -> Any:
    """The model at an opset that rules are written for."""
    import onnx

    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=None)
    if opset is None:
        if any(n.domain in ("", "ai.onnx") for n in model.graph.node):
            raise ModuleError("is not valid ONNX: it imports no opset of the default domain")
        return model
    newest = onnx.defs.onnx_opset_version()
    if CONVERTED_OPSET <= opset < FIRST_OPSET:
        try:
            found = onnx.version_converter.convert_version(model, FIRST_OPSET)
        except (RuntimeError, ValueError) as error:
            raise ModuleError(f"is of opset {opset}, which could not be converted: {_line(error)}") from None
        kinds = {i.name: i.type for i in found.graph.input}
        for item in model.graph.input:
            if kinds.get(item.name) != item.type:
                name = item.name
                raise ModuleError(f"is of opset {opset}, whose conversion changes the type of input `{name}`")
        return found
    if not FIRST_OPSET <= opset <= newest:
        raise ModuleError(
            f"is of opset {opset}; opsets {CONVERTED_OPSET} to {newest} are read: convert it with "
            "onnx.version_converter, or update the onnx package if the opset is newer"
        )
    return model


def _rename(model: Any) -> None:
    """Move operators that onnxruntime puts into the default domain to its own, which must be imported."""
    domains = {o.domain for o in model.opset_import}
    used = set()
    foreign = RENAMED - {f.name for f in model.functions}
    for node in _nodes(model):
        if node.domain in ("", "ai.onnx") and node.op_type in foreign:
            node.domain = DOMAIN
        used.add(node.domain)
    if DOMAIN in used - domains:
        model.opset_import.add(domain=DOMAIN, version=1)


def _without_external(model: Any) -> Any:
    """The model with tensors of no elements for those kept in other files, which the checker cannot find."""
    import onnx

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for tensor in _tensors(bare):
        if tensor.data_location == _EXTERNAL:
            name, kind = tensor.name, tensor.data_type
            tensor.Clear()
            tensor.name, tensor.data_type = name, kind
            tensor.dims.append(0)
    return bare


def _line(error: Exception) -> str:
    """A message of the onnx package without what it adds as context, in one line."""
    text = " ".join(str(error).partition("==> Context")[0].split())
    return text[:_LONGEST] or type(error).__name__


def _graphs(model: Any) -> Iterator[Any]:
    """The graph of the model and those inside its nodes and functions."""
    pending = [model.graph]
    nodes = [n for f in model.functions for n in f.node]
    while pending or nodes:
        yield from pending
        nodes += [n for graph in pending for n in graph.node]
        found = [a for n in nodes for a in n.attribute]
        pending = [g for a in found for g in ((a.g, *a.graphs) if a.HasField("g") else a.graphs)]
        nodes = []


def _nodes(model: Any) -> Iterator[Any]:
    """Every node of the model, those of subgraphs and functions too."""
    for holder in (*_graphs(model), *model.functions):
        yield from holder.node


def _tensors(model: Any) -> Iterator[Any]:
    """Every tensor of the model, those of subgraphs and functions too."""
    for graph in _graphs(model):
        yield from graph.initializer
    for node in _nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_external(tensor: Any, folder: Path) -> None:
    """Raises ModuleError where data kept in another file are missing, short, or outside of `folder`."""
    entry = {e.key: e.value for e in tensor.external_data}
    location, name = entry.get("location", ""), f"tensor `{tensor.name}`"
    path = PurePosixPath(location.replace("\\", "/"))
    if not location or path.is_absolute() or ".." in path.parts or ":" in location:
        raise ModuleError(f"{name} keeps its data in {location!r}, which is not inside the model's folder")
    found = folder / path
    if not found.is_file():
        raise ModuleError(f"{name} keeps its data in {location!r}, which is not beside the model")
    if os.path.realpath(found) != os.path.join(os.path.realpath(folder), str(path)):
        raise ModuleError(f"{name} keeps its data in {location!r}, a link that leaves the model's folder")
    try:
        start, length = int(entry.get("offset", 0)), int(entry.get("length", 0))
    except ValueError:
        raise ModuleError(f"{name} has an offset or length that is no number") from None
    if start < 0 or length < 0 or start + length > found.stat().st_size:
        size = found.stat().st_size
        raise ModuleError(f"{name} needs {start + length} bytes of {location!r}, which has {size}")
