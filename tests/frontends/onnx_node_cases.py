"""The node tests that the onnx package generates, and whether importer and interpreter agree with them.

`python tests/frontends/onnx_node_cases.py` writes docs/onnx-node-tests.md, the list of those that do not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardproof.frontends.onnx.elements import DTYPES
from shardproof.frontends.onnx.lower import lower
from shardproof.frontends.onnx.read import read_model
from shardproof.frontends.onnx.state import NeedsValue
from shardproof.ir.interpret import run
from shardproof.ir.module import ModuleError
from shardproof.ir.numpy_meaning import InterpretError, Unsupported
from shardproof.ir.verify import verify

EXCLUDED: Final = ("Sequence", "Optional", "String", "Regex", "Random", "Quantize", "Dequantize", "QLinear")
"""Beginnings of operators that are out of scope: sequences, optionals, strings, draws, quantisation."""
EXCLUDED_OPERATORS: Final = frozenset(
    {"Bernoulli", "ConvInteger", "DynamicQuantizeLinear", "ImageDecoder", "MatMulInteger", "Multinomial",
     "SplitToSequence", "ConcatFromSequence", "TfIdfVectorizer"}
)


@dataclass(frozen=True, slots=True)
class Case:
    """One node test: a model, the inputs by name and the outputs that it must give."""

    name: str
    model: Any
    inputs: dict[str, Any]
    expected: Sequence[Any]
    rtol: float
    atol: float


def in_scope(model: Any) -> bool:
    """Whether a model uses the default domain only, and none of the operators out of scope; tensors only."""
    nodes = list(model.graph.node)
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or node.op_type in EXCLUDED_OPERATORS:
            return False
        if node.op_type.startswith(EXCLUDED):
            return False
        nodes += [n for a in node.attribute for n in a.g.node]
    values = (*model.graph.input, *model.graph.output)
    return all(v.type.WhichOneof("value") == "tensor_type" for v in values) and all(
        v.type.tensor_type.elem_type in DTYPES for v in values
    )


def node_tests() -> list[Any]:
    """All node tests of the installed package."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind="node"))


def cases() -> Iterator[Case]:
    """The node tests in scope."""
    for test in node_tests():
        if test.model is None or not in_scope(test.model):
            continue
        names = [i.name for i in test.model.graph.input]
        for inputs, outputs in test.data_sets:
            given = dict(zip(names, inputs, strict=False))
            yield Case(test.name, test.model, given, outputs, test.rtol, test.atol)


def disagreement(case: Case) -> str | None:
    """Why importer and interpreter do not agree with the expected outputs; None when they do.

    Inputs that shapes are computed from are given as constants: the program is the one at their values.
    An opaque operator is a disagreement. Reals are compared after rounding to the output's element type.
    """
    constants: dict[str, Any] = {}
    try:
        model = read_model(case.model.SerializeToString(), Path())
        while True:
            try:
                module = lower(model, constants=constants)
                break
            except NeedsValue as error:
                new = {n: case.inputs[n] for n in error.inputs if n in case.inputs and n not in constants}
                if not new:
                    raise
                constants |= {n: _plain(v) for n, v in new.items()}
        verify(module)
        if any(op.opcode in ("opaque", "custom_call") for op in module.ops):
            name = next(op.attrs.get("name") for op in module.ops if op.opcode in ("opaque", "custom_call"))
            return f"opaque: {name}"
        found = run(module, {i.name: _array(case.inputs[i.name], i.value.type.dtype) for i in module.inputs})
    except (ModuleError, InterpretError, Unsupported) as error:
        return f"{type(error).__name__}: {error}"
    for output, expected in zip(module.outputs, case.expected, strict=True):
        wrong = _difference(found[output.name][0], _plain(expected), case)
        if wrong is not None:
            return f"output {output.name}: {wrong}"
    return None


def _plain(value: Any) -> Any:
    """An array; test data of narrow types are protos."""
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _array(value: Any, dtype: Any) -> Any:
    return _plain(value).astype(dtype.storage)


def _difference(found: Any, expected: Any, case: Case) -> str | None:
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, expected {list(expected.shape)}"
    with np.errstate(all="ignore"):
        if expected.dtype.kind in "biu":
            same = np.array_equal(found, expected)
        else:
            rounded = found.astype(expected.dtype)
            same = np.allclose(_wide(rounded), _wide(expected), case.rtol, case.atol, equal_nan=True)
    return None if same else f"gives {found.reshape(-1)[:4]}, expected {expected.reshape(-1)[:4]}"


def _wide(array: Any) -> Any:
    if array.dtype.kind in "biu":
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def page() -> str:
    """docs/onnx-node-tests.md: how many agree, and why each of the rest does not."""
    import onnx

    every, found = len(node_tests()), [(case.name, disagreement(case)) for case in cases()]
    wrong = [(name, reason) for name, reason in found if reason is not None]
    agree = len(found) - len(wrong)
    lines = [
        "# The node tests of the onnx package",
        "",
        f"onnx {onnx.__version__} generates {every} tests of single operators. {len(found)} are in scope:",
        "those of the default domain, without sequences as inputs or outputs, optionals, strings, images,",
        "random, training and quantised operators. Each model is imported, inputs that shapes are computed",
        "from as constants, and run by the interpreter; reals are compared after rounding to the type of the",
        f"output, and an opaque operator is a disagreement. {agree} agree. This page is generated by",
        "`python tests/frontends/onnx_node_cases.py`.",
        "",
        "| test | why it does not agree |",
        "|---|---|",
        *(f"| `{name}` | {_cell(reason)} |" for name, reason in wrong),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A reason without what differs between machines and versions of NumPy."""
    head, _, rest = text.partition(": gives ")
    return (f"{head} differs" if rest else text).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    Path(__file__).parents[2].joinpath("docs", "onnx-node-tests.md").write_text(page(), encoding="utf-8")
