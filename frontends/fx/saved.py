"""Captured graphs as JSON text: one rank per file, read back without torch and without trust."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

import numpy as np

from shardproof.frontends.fx.archive.values import member, variant
from shardproof.frontends.fx.code.meta import MAX_EXTENT, shown, symbolic
from shardproof.frontends.fx.graph import (
    Argument,
    Graph,
    Meta,
    Node,
    Operator,
    Ref,
    Symbol,
    Tensor,
    references,
)
from shardproof.frontends.fx.traced import Placed, Traced
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Array, DType, Frame, Location, Mesh

MARK: Final = '{"shardproof_capture": '
"""How every saved file starts."""
VERSION: Final = 1
_OPS: Final = ("placeholder", "call_function", "get_attr", "output")


def written(traced: Traced, mesh: Mesh) -> str:
    """One rank of a run over `mesh` as text."""
    graph = traced.graph
    table: dict[Location, int] = {}
    nodes = []
    for node in graph.nodes:
        row: dict[str, Any] = {"name": node.name, "op": node.op, "target": node.target}
        if node.args:
            row["args"] = [_argument(a) for a in node.args]
        if node.kwargs:
            row["kwargs"] = {k: _argument(a) for k, a in node.kwargs.items()}
        if node.meta is not None:
            row["meta"] = _meta(node.meta)
        if node.location is not None:
            row["at"] = table.setdefault(node.location, len(table))
        nodes.append(row)
    document = {
        "shardproof_capture": VERSION,
        "name": graph.name,
        "rank": graph.rank,
        "mesh": [list(axis) for axis in mesh.axes],
        "groups": {name: list(members) for name, members in graph.groups.items()},
        "titles": dict(graph.titles),
        "updates": [[place, name] for place, name in graph.updates.items()],
        "warnings": list(graph.warnings),
        "outputs": list(traced.outputs),
        "data": list(traced.data),
        "inputs_placed": {n: _placed(p) for n, p in traced.inputs_placed.items()},
        "outputs_placed": {n: _placed(p) for n, p in traced.outputs_placed.items()},
        "constants": {n: _array(v) for n, v in graph.constants.items()},
        "locations": [_location(place) for place in table],
    }
    head = json.dumps(document, allow_nan=False)
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in nodes)
    return f'{head[:-1]}, "nodes": [\n{lines}\n]}}\n'


def _argument(value: Argument) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, Symbol):
        return {"symbol": value.expr}
    if isinstance(value, Operator):
        return {"operator": value.name}
    if isinstance(value, DType):
        return {"dtype": value.value}
    if isinstance(value, tuple):
        return [_argument(v) for v in value]
    if isinstance(value, slice):
        return {"slice": [_argument(v) for v in (value.start, value.stop, value.step)]}
    if isinstance(value, complex):
        return {"complex": [_argument(value.real), _argument(value.imag)]}
    if isinstance(value, float) and not isfinite(value):
        return {"float": str(value)}
    return value


def _meta(meta: Meta) -> Any:
    if isinstance(meta, Tensor):
        return {"dtype": meta.dtype.value, "shape": list(meta.shape)}
    if isinstance(meta, Symbol):
        return {"symbol": meta.expr}
    return None if meta is None else [_meta(m) for m in meta]


def _location(place: Location) -> Any:
    return [place.file, place.line, [[f.file, f.line, f.function] for f in place.stack]]


def _placed(placed: Placed) -> Any:
    return {
        "shape": list(placed.shape),
        "dims": [list(d) for d in placed.dims],
        "ranks": list(placed.ranks),
        "placements": list(placed.placements),
    }


def _array(value: Array | None) -> Any:
    if value is None:
        return None
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
    return {"type": value.dtype.str, "shape": list(value.shape), "data": data}


def parse(text: str, source: str) -> tuple[Traced, Mesh]:
    """The rank and mesh that `written` made `text` of. Raises ModuleError: file, what was found."""
    try:
        document = json.loads(text)
        version = member(document, "shardproof_capture", int)
        if version != VERSION:
            raise ModuleError(f"is a capture of version {version}, {VERSION} is read: capture again")
        return _Reader(document, source).run()
    except ModuleError as error:
        line = str(error)
        raise ModuleError(line if line.startswith(f"{source}:") else f"{source}: {line}") from None
    except (ValueError, RecursionError) as error:
        found = " ".join(str(error).split())
        raise ModuleError(f"{source}: is not a capture that can be read: {found}") from None


@dataclass(slots=True)
class _Reader:
    document: Any
    source: str
    defined: set[str] = field(default_factory=set)

    def run(self) -> tuple[Traced, Mesh]:
        document = self.document
        places = [_read_location(p) for p in member(document, "locations", list)]
        constants = {n: _read_array(v) for n, v in member(document, "constants", dict).items()}
        nodes = tuple(self._node(row, places, constants) for row in member(document, "nodes", list))
        if not nodes or nodes[-1].op != "output" or len(nodes[-1].args) != 1:
            raise ModuleError("does not end with an output")
        rank = document.get("rank")
        groups = {n: _ranks(m) for n, m in member(document, "groups", dict).items()}
        graph = Graph(
            member(document, "name", str),
            nodes,
            nodes[-1].args[0],
            self.source,
            rank if type(rank) is int and rank >= 0 else None,
            constants=constants,
            titles={n: _text(t) for n, t in member(document, "titles", dict).items()},
            updates=self._updates(member(document, "updates", list)),
            groups=groups,
            warnings=tuple(_text(w) for w in member(document, "warnings", list)),
        )
        traced = Traced(
            graph,
            tuple(_text(n) for n in member(document, "outputs", list)),
            {n: _read_placed(p) for n, p in member(document, "inputs_placed", dict).items()},
            {n: _read_placed(p) for n, p in member(document, "outputs_placed", dict).items()},
            tuple(_text(n) for n in member(document, "data", list)),
        )
        return traced, Mesh(_pairs(member(document, "mesh", list)))

    def _updates(self, rows: list[Any]) -> dict[int, str]:
        found = {}
        for row in rows:
            if not isinstance(row, list) or len(row) != 2 or type(row[0]) is not int:
                raise ModuleError("an update is no pair of a place and a name")
            if row[1] not in self.defined:
                raise ModuleError(f"a result overwrites {shown(str(row[1]))}, which is no input")
            found[row[0]] = row[1]
        return found

    def _node(self, row: Any, places: list[Location], constants: Mapping[str, Any]) -> Node:
        name, op, target = member(row, "name", str), member(row, "op", str), member(row, "target", str)
        if op not in _OPS:
            raise ModuleError(f"`{name}` is a {shown(op)}")
        if name in self.defined:
            raise ModuleError(f"a second definition of {shown(name)}, every value needs a name of its own")
        if op == "get_attr" and target not in constants:
            raise ModuleError(f"`{name}` reads the constant {shown(target)}, which is not there")
        args = tuple(_read_argument(a) for a in row.get("args", ()))
        kwargs = {k: _read_argument(a) for k, a in row.get("kwargs", {}).items()}
        for read in references((*args, *kwargs.values())):
            if read not in self.defined:
                raise ModuleError(f"`{name}` reads {shown(read)}, which nothing before defines")
        self.defined.add(name)
        at = row.get("at")
        if at is not None and not (type(at) is int and 0 <= at < len(places)):
            raise ModuleError(f"`{name}` has no location {shown(str(at))}")
        location = None if at is None else places[at]
        return Node(name, op, target, args, kwargs, _read_meta(row.get("meta")), location)  # type: ignore[arg-type]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ModuleError(f"{shown(str(value))} is no text")
    return value


def _pairs(rows: Any) -> tuple[tuple[str, int], ...]:
    found = []
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, list) or len(row) != 2 or type(row[1]) is not int or row[1] < 1:
            raise ModuleError("an axis of the mesh is no pair of a name and a size")
        found.append((_text(row[0]), row[1]))
    return tuple(found)


def _ranks(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(r) is int and r >= 0 for r in value):
        raise ModuleError("the members of a group are not ranks")
    return tuple(value)


def _read_argument(value: Any) -> Argument:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return tuple(_read_argument(v) for v in value)
    key, content = variant(value)
    if key == "slice" and isinstance(content, list) and len(content) == 3:
        return slice(*(_read_argument(v) for v in content))
    if key == "complex" and isinstance(content, list) and len(content) == 2:
        real, imaginary = (_read_argument(v) for v in content)
        if isinstance(real, int | float) and isinstance(imaginary, int | float):
            return complex(real, imaginary)
    text = _text(content)
    if key == "ref":
        return Ref(text)
    if key == "symbol":
        return Symbol(symbolic(text))
    if key == "operator":
        return Operator(text)
    if key == "dtype":
        return _dtype(text)
    if key == "float" and text in ("inf", "-inf", "nan"):
        return float(text)
    raise ModuleError(f"an argument of kind {shown(key)}, which is not read")


def _dtype(text: str) -> DType:
    try:
        return DType(text)
    except ValueError:
        raise ModuleError(f"element type {shown(text)}, which has no counterpart here") from None


def _read_meta(value: Any) -> Meta:
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(_read_meta(v) for v in value)
    if isinstance(value, dict) and "symbol" in value:
        return Symbol(symbolic(_text(value["symbol"])))
    shape = member(value, "shape", list)
    return Tensor(_dtype(member(value, "dtype", str)), tuple(_extent(n) for n in shape))


def _extent(size: Any) -> int | str:
    if isinstance(size, str):
        return symbolic(size)
    if type(size) is not int or not 0 <= size < MAX_EXTENT:
        raise ModuleError(f"extent {shown(str(size))}, which is out of range")
    return size


def _read_location(value: Any) -> Location:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list):
        raise ModuleError("a location is no file, line and stack")
    file, line, stack = value
    frames = []
    for frame in stack:
        if not isinstance(frame, list) or len(frame) != 3 or type(frame[1]) is not int:
            raise ModuleError("a frame is no file, line and function")
        frames.append(Frame(_text(frame[0]), frame[1], None if frame[2] is None else _text(frame[2])))
    if type(line) is not int:
        raise ModuleError("a location has no line")
    return Location(_text(file), line, tuple(frames))


def _read_placed(value: Any) -> Placed:
    shape = tuple(_extent(n) for n in member(value, "shape", list))
    dims = _pairs(member(value, "dims", list))
    placements = tuple(None if p is None else _text(p) for p in member(value, "placements", list))
    if not all(isinstance(n, int) for n in shape) or len(placements) != len(dims):
        raise ModuleError("a placement does not fit its mesh")
    for p in placements:
        if p not in (None, "replicate", "partial") and not (
            p.startswith("shard(") and p.endswith(")") and p[6:-1].isdecimal() and int(p[6:-1]) < len(shape)
        ):
            raise ModuleError(f"a placement {shown(p)}, which is not read")
    return Placed(
        tuple(n for n in shape if isinstance(n, int)), dims, _ranks(member(value, "ranks", list)), placements
    )


def _read_array(value: Any) -> Array | None:
    if value is None:
        return None
    kinds = {np.dtype(d.storage).str: d.storage for d in DType}
    kind = kinds.get(member(value, "type", str))
    shape = tuple(_extent(n) for n in member(value, "shape", list))
    if kind is None or not all(isinstance(n, int) for n in shape):
        raise ModuleError("a constant of a type or shape that is not read")
    try:
        data = base64.b64decode(member(value, "data", str), validate=True)
        found: Array = np.frombuffer(data, kind).reshape(shape)  # type: ignore[arg-type]
    except (binascii.Error, ValueError):
        raise ModuleError("a constant whose elements do not fill its shape") from None
    return found
