"""Blocks of five decoders of transformers: what torch.export and torch.onnx.export make of them is equal.

Both programs are read without an opaque operator, and each verifies against the other, whole models included.
What a verdict assumes is asserted to the kind, so that a new assumption is noticed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from shardproof.ir.module import Module
from shardproof.solver.programs import read_program
from shardproof.solver.verdict import Result, Verdict
from shardproof.solver.verify import verify

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

FAMILIES: Final = ("llama", "qwen2", "mixtral", "gemma", "gpt2")
BLOCKS: Final = ("norm", "mlp", "attention", "layer", "ends", "model", "padded")
"""`ends` are embedding, last norm and head; `model` is the causal LM, `padded` with a padding mask."""
VARIANTS: Final = ("18", "18 optimized", "23", "23 optimized")
"""The opset, and whether the exporter optimises."""
FAST: Final = tuple(
    (family, name, VARIANTS[(row + column) % len(VARIANTS)])
    for row, family in enumerate(FAMILIES)
    for column, name in enumerate(("norm", "mlp", "layer", "ends", "model"))
)
SLOW: Final = tuple(
    (family, name, variant)
    for family in FAMILIES
    for name in BLOCKS
    for variant in VARIANTS
    if (family, name, variant) not in FAST
)
OPAQUE: Final = frozenset({"opaque", "custom_call"})


@cache
def _blocks() -> Any:
    """The module of blocks, which needs the frameworks."""
    path = Path(__file__).with_name("transformers_blocks.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _quiet() -> Any:
    """Without what exporters print."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@cache
def exported(family: str, name: str) -> Any:
    """The block as an ExportedProgram."""
    with _quiet():
        module, inputs = _blocks().block(family, name)
        return torch.export.export(module, inputs)


@cache
def model_of(family: str, name: str, variant: str) -> bytes:
    """The block as an ONNX model."""
    opset, _, optimized = variant.partition(" ")
    with _quiet():
        program = torch.onnx.export(
            exported(family, name),
            dynamo=True,
            opset_version=int(opset),
            optimize=bool(optimized),
            verbose=False,
        )
    found: bytes = program.model_proto.SerializeToString()
    return found


def saved(
    folder: Path, family: str, name: str, variant: str, edit: Callable[[Any], None] | None = None
) -> Path:
    """The model in a file, with one thing changed by `edit`."""
    data = model_of(family, name, variant)
    if edit is not None:
        model = onnx.ModelProto.FromString(data)
        edit(model.graph)
        data = model.SerializeToString()
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def expected(family: str, name: str, variant: str) -> set[str]:
    """The kinds of assumptions that a proof of the block rests on.

    Positions of ids are in range. Opset 18 masks with the least number of its type instead of minus infinity,
    and asks whether a weight is a number, which behind a router's largest ones is not shown.
    The scale of the scores, the tables of the rotary positions, gelu's root of 2/pi, and what is made of
    weights (gemma's gains plus one, gpt2's rows for the positions) are rounded constants where the exporter
    folded them.
    """
    looks, attends = name in ("ends", "model", "padded"), name in ("attention", "layer", "model", "padded")
    old, optimized = variant.startswith("18"), "optimized" in variant
    kinds = {"ids_in_range"} if looks else set()
    if attends and name != "padded":
        kinds.add("no_overflow")
    if attends and old:
        kinds |= {"mask_value", "row_not_fully_masked"}
    if name == "padded":
        kinds.add("row_not_fully_masked")
    if family == "mixtral" and old and name in ("model", "padded"):
        kinds.add("finite_value")
    rotary = family != "gpt2"
    folded_weights = family == "gemma" and name not in ("mlp", "attention")
    folded_weights |= family == "gpt2" and name in ("model", "padded")
    gelu = family == "gemma" and old and name in ("mlp", "layer", "model", "padded")
    if gelu or (optimized and (folded_weights or (attends and (old or rotary)))):
        kinds.add("literal_rounding")
    return kinds


def plain(module: Module, *, looks: bool) -> bool:
    """Whether every operator has a meaning, and nothing is taken for granted but the range of ids."""
    kept = [w for w in module.warnings if not w.startswith("ids_in_range")]
    told = not module.guesses or looks
    return told and not kept and not any(op.opcode in OPAQUE for op in module.ops)


def _proved_both_ways(folder: Path, family: str, name: str, variant: str) -> None:
    program, path = exported(family, name), saved(folder, family, name, variant)
    looks = name in ("ends", "model", "padded")
    assert plain(read_program(program, None), looks=looks) and plain(read_program(path, None), looks=looks)
    for found in (verify(program, path, timeout=60), verify(path, program, timeout=60)):
        assert found.verdict is Verdict.VERIFIED, found.text()
        assert {a.kind for a in found.assumptions} == expected(family, name, variant), found.text()


@pytest.mark.parametrize(("family", "name", "variant"), FAST)
def test_torch_and_onnx_prove_each_other(tmp_path: Path, family: str, name: str, variant: str) -> None:
    _proved_both_ways(tmp_path, family, name, variant)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name", "variant"), SLOW)
def test_all_others_do_too(tmp_path: Path, family: str, name: str, variant: str) -> None:
    _proved_both_ways(tmp_path, family, name, variant)


# one thing changed


def _nodes(graph: Any, op_type: str) -> list[Any]:
    found = [n for n in graph.node if n.op_type == op_type]
    assert found, f"the model has no {op_type}"
    return found


def _bypass(op_type: str) -> Callable[[Any], None]:
    """Its first use gives its first operand."""

    def edit(graph: Any) -> None:
        node = _nodes(graph, op_type)[0]
        del node.input[1:], node.attribute[:]
        node.op_type = "Identity"

    return edit


def _attribute(op_type: str, name: str, value: Any) -> Callable[[Any], None]:
    def edit(graph: Any) -> None:
        node = _nodes(graph, op_type)[0]
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    return edit


def _after(graph: Any, node: Any, new: Any) -> None:
    """`new` stands between the node and what reads it."""
    result, own = node.output[0], f"{node.output[0]}.own"
    node.output[0], new.input[0], new.output[0] = own, own, result
    graph.node.insert(list(graph.node).index(node) + 1, new)


def _heads_in_another_order(graph: Any) -> None:
    """Key heads repeated as 0 1 0 1 instead of 0 0 1 1."""
    order = onnx.helper.make_node("Transpose", [""], [""], perm=[0, 2, 1, 3, 4])
    expand = next(n for n in _nodes(graph, "Expand") if "hidden" not in n.input)
    _after(graph, expand, order)


def _keys_one_further(graph: Any) -> None:
    """Positions may look at the next one, too."""
    node = _nodes(graph, "LessOrEqual")[0]
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    at = list(graph.node).index(node)
    graph.node.insert(at, onnx.helper.make_node("Add", [node.input[1], "one"], ["further"]))
    node.input[1] = "further"


def _swapped_gate(graph: Any) -> None:
    """The gate is what should be gated."""
    gate, up = _nodes(graph, "MatMul")[:2]
    gate.input[1], up.input[1] = up.input[1], gate.input[1]


def _other_pair(graph: Any) -> None:
    """The rotary halves in the other order."""
    node = next(n for n in _nodes(graph, "Concat") if len(n.input) == 2)
    node.input[0], node.input[1] = node.input[1], node.input[0]


def _head_of_other_rows(graph: Any) -> None:
    """A stored weight with its rows in reverse."""
    stored = max(graph.initializer, key=lambda t: (len(t.dims) == 2) * np.prod(t.dims))
    array = onnx.numpy_helper.to_array(stored)
    stored.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array[::-1]), stored.name))


BUGS: Final[Mapping[str, tuple[str, str, str, Callable[[Any], None]]]] = {
    "epsilon": ("llama", "norm", "23 optimized", _attribute("RMSNormalization", "epsilon", 1e-5)),
    "axis of a norm": ("gpt2", "norm", "23", _attribute("LayerNormalization", "axis", 1)),
    "gelu by its other form": ("gemma", "mlp", "23", _attribute("Gelu", "approximate", "none")),
    "gate and up swapped": ("llama", "mlp", "18 optimized", _swapped_gate),
    "rotary sign": ("llama", "attention", "18", _bypass("Neg")),
    "rotary halves": ("qwen2", "attention", "23 optimized", _other_pair),
    "order of repeated heads": ("llama", "attention", "18 optimized", _heads_in_another_order),
    "scale of scores": ("gemma", "attention", "23 optimized", _attribute("Attention", "scale", 0.25)),
    "mask one further": ("gpt2", "attention", "23", _keys_one_further),
    "softmax over tokens": ("mixtral", "mlp", "23", _attribute("Softmax", "axis", 0)),
    "router weights as they are": ("mixtral", "mlp", "18 optimized", _bypass("Div")),
    "least probable experts": ("mixtral", "mlp", "18 optimized", _attribute("TopK", "largest", 0)),
    "no residual": ("llama", "layer", "23 optimized", _bypass("Add")),
    "other head": ("gpt2", "ends", "18 optimized", _head_of_other_rows),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_wrong_model_is_refuted(tmp_path: Path, bug: str) -> None:
    family, name, variant, edit = BUGS[bug]
    path = saved(tmp_path, family, name, variant, edit)
    found: Result = verify(exported(family, name), path, timeout=60)
    assert found.verdict is Verdict.REFUTED, found.text()
