"""Operators of ONNX whose results are as many as their data say, for data that the model holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import node

from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(19)
X = RNG.normal(size=(4, 5)).astype(np.float32)


@pytest.mark.parametrize("attributes", [{"axis": 0}, {"axis": -1}, {}])
def test_compress(attributes: dict[str, int]) -> None:
    stored = {"c": np.asarray([False, True, True])}
    made = node("Compress", "x c", "y", **attributes)
    assert disagreement(program([made], {"x": X}, "y", stored), {"x": X}) is None


def test_another_selection_is_refuted() -> None:
    programs = [
        imported(program([node("Compress", "x c", "y", axis=0)], {"x": X}, "y", {"c": np.asarray(c)}))
        for c in ([False, True, True], [True, False, True])
    ]
    assert verify(programs[0], programs[0]).verdict is Verdict.VERIFIED
    assert verify(*programs).verdict is Verdict.REFUTED


@pytest.mark.parametrize("found", [[[0, 2], [3, 0]], [0, 0, 1], [[0.0, -0.5]]])
def test_non_zero(found: Any) -> None:
    stored = {"c": np.asarray(found)}
    nodes = [node("NonZero", "c", "p"), node("Transpose", "p", "t"), node("Add", "t n", "y")]
    assert disagreement(program(nodes, {"n": np.asarray(0)}, "y", stored), {"n": np.asarray(0)}) is None


ROWS = [[2, 1, 2, 1], [3, 0, 3, 0], [2, 1, 2, 1]]


@pytest.mark.parametrize(
    ("found", "attributes"),
    [
        (ROWS, {}),
        (ROWS, {"axis": 0}),
        (ROWS, {"axis": -1}),
        (ROWS, {"axis": 0, "sorted": 0}),
        (ROWS[1], {"sorted": 0}),
        ([5, 2, 5, 3, 2], {"axis": 0, "sorted": 0}),
    ],
)
def test_unique(found: Any, attributes: dict[str, int]) -> None:
    stored = {"c": np.asarray(found)}
    nodes = [node("Unique", "c", "u i v k", **attributes)]
    nodes += [node("Add", f"{a} n", f"{a}2") for a in "uivk"]
    proto = program(nodes, {"n": np.asarray(0)}, "u2 i2 v2 k2", stored)
    assert disagreement(proto, {"n": np.asarray(0)}) is None


def test_data_decide_nothing() -> None:
    given = {"x": X, "c": np.asarray([True] * 4)}
    with pytest.raises(ModuleError, match="the condition depends on `c`"):
        imported(program([node("Compress", "x c", "y", axis=0)], given, "y"))


def test_rounding_decides_nothing() -> None:
    """`0.1 + 0.2 - 0.3` is 0 or not, by how it is rounded."""
    numbers = {"a": np.asarray([0.1], np.float32), "b": np.asarray([0.2], np.float32)}
    stored = {**numbers, "c": np.asarray([0.3], np.float32)}
    nodes = [
        node("Add", "a b", "d"), node("Sub", "d c", "e"), node("NonZero", "e", "p"), node("Add", "p n", "y"),
    ]  # fmt: skip
    with pytest.raises(ModuleError, match="a rounding may decide"):
        imported(program(nodes, {"n": np.asarray(0)}, "y", stored))


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("centred", [0, 1])
def test_boxes_that_overlap(threshold: float, centred: int) -> None:
    low, sides = RNG.random((2, 6, 2)), RNG.random((2, 6, 2)) * 0.8
    boxes = np.concatenate([low, sides if centred else low + sides], axis=-1).astype(np.float32)
    stored = {
        "b": boxes, "s": RNG.random((2, 3, 6)).astype(np.float32), "m": np.asarray([4]),
        "o": np.asarray([threshold], np.float32), "l": np.asarray([0.2], np.float32),
    }  # fmt: skip
    made = node("NonMaxSuppression", "b s m o l", "p", center_point_box=centred)
    proto = program([made, node("Add", "p n", "y")], {"n": np.asarray(0)}, "y", stored)
    assert disagreement(proto, {"n": np.asarray(0)}) is None
