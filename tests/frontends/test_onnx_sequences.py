"""Sequences of tensors whose number is known, as exporters split a tensor and take items of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import model, node

from shardproof.frontends.onnx.lower import lower
from shardproof.frontends.onnx.read import read_model
from shardproof.ir.module import ModuleError

pytest.importorskip("onnx", reason="onnx is not installed")

X = np.arange(42, dtype=np.float32).reshape(2, 7, 3)


def at(position: int) -> Any:
    return node("SequenceAt", "parts at", "y"), {"at": np.array(position)}


@pytest.mark.parametrize("position", [0, 1, -1])
@pytest.mark.parametrize(
    ("sizes", "attributes"),
    [
        ([3, 4], {"axis": 1}),
        (4, {"axis": 1}),
        (2, {"axis": -1}),
        (None, {"axis": 1}),
        (None, {"axis": 1, "keepdims": 0}),
        ([1, 1], {"axis": 0, "keepdims": 0}),
    ],
)
def test_items_of_a_split_tensor(sizes: Any, attributes: dict[str, int], position: int) -> None:
    take, stored = at(position)
    split = node("SplitToSequence", "x" if sizes is None else "x sizes", "parts", **attributes)
    stored |= {} if sizes is None else {"sizes": np.array(sizes)}
    proto = program([split, take], {"x": X}, "y", stored)
    assert disagreement(proto, {"x": X}) is None
    assert not imported(proto).warnings


@pytest.mark.parametrize("attributes", [{"axis": 1}, {"axis": -1, "new_axis": 1}, {"axis": 0, "new_axis": 1}])
def test_sequences_are_joined(attributes: dict[str, int]) -> None:
    nodes = [node("SequenceConstruct", "x x x", "s"), node("ConcatFromSequence", "s", "y", **attributes)]
    assert disagreement(program(nodes, {"x": X}, "y"), {"x": X}) is None


def test_length_is_a_number() -> None:
    nodes = [node("SequenceConstruct", "x x x", "s"), node("SequenceLength", "s", "y")]
    assert disagreement(program(nodes, {"x": X}, "y"), {"x": X}) is None


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([node("SplitToSequence", "x", "s"), node("SequenceAt", "s far", "y")], "item 9 of a sequence of 2"),
        ([node("SplitToSequence", "x far", "s"), node("SequenceAt", "s far", "y")], "item 9 of a sequence"),
        ([node("SplitToSequence", "x wrong", "s"), node("SequenceAt", "s far", "y")], "splits"),
        ([node("SequenceAt", "x far", "y")], "a tensor as a sequence"),
        ([node("SplitToSequence", "x", "s"), node("Abs", "s", "y")], "a sequence of tensors"),
    ],
)
def test_what_is_no_item_is_an_error(nodes: list[Any], said: str) -> None:
    stored = {"far": np.array(9), "wrong": np.array([5, 5])}
    proto = model(nodes, {"x": (2, 7)}, {"y": ()}, stored)
    with pytest.raises(ModuleError, match=said):
        lower(read_model(proto.SerializeToString(), Path()))
