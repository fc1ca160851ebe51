"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Shape = tuple[int | str | None, ...]
MICROSOFT = "com.microsoft"


def node(op_type: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> Any:
    """A node; names stand in one text, `-` for one that is left out."""
    from onnx import helper

    def names(text: str) -> list[str]:
        return ["" if n == "-" else n for n in text.split()]

    return helper.make_node(op_type, names(inputs), names(outputs), domain=domain, **attributes)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    stored: Mapping[str, Any] | None = None,
    *,
    integers: Sequence[str] = (),
    opset: int = 18,
    shapes: Mapping[str, Shape] | None = None,
) -> Any:
    """A ModelProto over floats; `integers` names inputs of 64-bit integers, `shapes` are of inner values."""
    from onnx import TensorProto, helper, numpy_helper

    def infos(told: Mapping[str, Shape]) -> list[Any]:
        return [
            helper.make_tensor_value_info(n, TensorProto.INT64 if n in integers else TensorProto.FLOAT, s)
            for n, s in told.items()
        ]

    arrays = {n: np.asarray(a) for n, a in (stored or {}).items()}
    arrays = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in arrays.items()}
    graph = helper.make_graph(
        list(nodes),
        "graph",
        infos(inputs),
        infos(outputs),
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
        value_info=infos(shapes or {}),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def save(proto: Any, path: Path) -> str:
    """Write a model; the path as text, for a command line."""
    path.write_bytes(proto.SerializeToString())
    return str(path)
