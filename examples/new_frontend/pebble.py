"""Pebble, a framework that fits on a page: graphs that record where they were written, and run in NumPy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
HEADER: Final = {"pebble": 1}


class Graph:
    """A program of all ranks of a mesh; operators are methods, as in `g.matmul(x, w)`."""

    def __init__(self, **mesh: int) -> None:
        self.mesh = mesh
        self.inputs: dict[str, list[Any]] = {}
        self.nodes: list[dict[str, Any]] = []
        self.outputs: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def input(self, name: str, *shape: int) -> str:
        self.inputs[name] = ["f32", list(shape), _line()]
        self.shapes[name] = shape
        return name

    def __getattr__(self, op: str) -> Callable[..., str]:
        def add(*operands: str, **attrs: Any) -> str:
            zeros = [[np.zeros(self.shapes[name])] * self.ranks for name in operands]
            shape = apply(op, zeros, attrs, self.mesh)[0].shape
            name = f"{op}{len(self.nodes)}"
            self.nodes.append({"op": op, "in": operands, "out": name, "attrs": attrs, "shape": shape})
            self.nodes[-1]["at"] = _line()
            self.shapes[name] = shape
            return name

        return add

    @property
    def ranks(self) -> int:
        return int(np.prod(list(self.mesh.values()), dtype=int))

    def write(self, path: Path) -> None:
        fields = {"mesh": self.mesh, "inputs": self.inputs, "nodes": self.nodes, "outputs": self.outputs}
        parts = [f'"{k}": {json.dumps(v)}' for k, v in (HEADER | fields).items() if k != "nodes"]
        lines = ",\n  ".join(json.dumps(node) for node in self.nodes)
        path.write_text("{" + ",\n".join([*parts, f'"nodes": [\n  {lines}]']) + "}\n", encoding="utf-8")


def run(graph: Mapping[str, Any], inputs: Mapping[str, Sequence[Array]]) -> dict[str, list[Array]]:
    """The outputs of a graph as it is in a file, of inputs by name, each an array per rank."""
    values = {name: list(arrays) for name, arrays in inputs.items()}
    for node in graph["nodes"]:
        operands = [values[name] for name in node["in"]]
        values[node["out"]] = apply(node["op"], operands, node["attrs"], graph["mesh"])
    return {name: values[value] for name, value in graph["outputs"].items()}


def apply(op: str, operands: Sequence[list[Array]], attrs: Mapping[str, Any], mesh: Any) -> list[Array]:
    """The result of an operator on each rank."""
    if op in ("all_reduce", "all_gather"):
        names = list(mesh)
        ranks = np.arange(len(operands[0])).reshape(list(mesh.values()))
        found = list(operands[0])
        for group in np.moveaxis(ranks, names.index(attrs["axis"]), -1).reshape(-1, mesh[attrs["axis"]]):
            parts = [operands[0][r] for r in group]
            whole = np.concatenate(parts, attrs["dim"]) if op == "all_gather" else sum(parts[1:], parts[0])
            for r in group:
                found[r] = whole
        return found
    return [OPERATORS[op](*arrays, **attrs) for arrays in zip(*operands, strict=True)]


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


OPERATORS: Final[Mapping[str, Callable[..., Array]]] = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "matmul": np.matmul,
    "relu": lambda x: np.maximum(x, 0),
    "rms_norm": lambda x, w, eps: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w,
    "softmax": _softmax,
    "scale": lambda x, by: x * by,
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, order: x.transpose(order),
}


def _line() -> str:
    """The place that calls into this file."""
    frame = sys._getframe()
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
