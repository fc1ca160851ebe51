"""ONNX models made from arrays, run by onnx's evaluator and, imported, by the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardproof.frontends.onnx.lower import lower
from shardproof.frontends.onnx.read import read_model
from shardproof.ir.interpret import run
from shardproof.ir.module import Module
from shardproof.ir.verify import verify

OPSET = 25
Arrays = Mapping[str, Any]


def program(
    nodes: Sequence[Any], inputs: Arrays, outputs: str, stored: Arrays | None = None, *, opset: int = OPSET
) -> Any:
    """A ModelProto whose inputs are of the arrays' types, its outputs as onnx's evaluator gives them."""
    from onnx import helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    def info(name: str, array: Any) -> Any:
        array = np.asarray(array)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, array.shape)

    def made(results: Sequence[Any]) -> Any:
        weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in (stored or {}).items()]
        graph = helper.make_graph(
            list(nodes), "graph", [info(n, a) for n, a in inputs.items()], list(results), weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)

    bare = made([helper.make_empty_tensor_value_info(n) for n in outputs.split()])
    found = ReferenceEvaluator(bare).run(None, dict(inputs))
    return made([info(n, a) for n, a in zip(outputs.split(), found, strict=True)])


def imported(proto: Any, constants: Arrays | None = None) -> Module:
    """The program of a checked model, all stored tensors as constants."""
    model = read_model(proto.SerializeToString(), Path())
    module = lower(model, initializers="constants", constants=constants)
    verify(module)
    return module


def disagreement(proto: Any, inputs: Arrays, constants: Arrays | None = None) -> str | None:
    """How the interpreter's results differ from those of onnx's evaluator; None when they do not."""
    from onnx.reference import ReferenceEvaluator

    expected = ReferenceEvaluator(proto).run(None, dict(inputs))
    module = imported(proto, constants)
    given = {i.name: np.asarray(inputs[i.name]).astype(i.value.type.dtype.storage) for i in module.inputs}
    found = run(module, given)
    for output, right in zip(module.outputs, expected, strict=True):
        mine, right = found[output.name][0], np.asarray(right)
        if mine.shape != right.shape:
            return f"{output.name} has shape {mine.shape}, {right.shape} is right"
        if right.dtype.kind in "biu":
            same = np.array_equal(mine, right)
        else:
            same = np.allclose(mine, right.astype(np.float64), 1e-5, 1e-6, equal_nan=True)
        if not same:
            return f"{output.name} is {mine}, {right} is right"
    return None
