"""Extremes, orders, running sums, one-hot rows and dropout of ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_checks import disagreement, imported, program
from onnx_models import node

from shardproof.ir.interpret import run
from shardproof.ir.module import ModuleError
from shardproof.solver.verdict import Verdict
from shardproof.solver.verify import verify

pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(17)
X = RNG.normal(size=(3, 4, 5)).astype(np.float32)
TIES = RNG.integers(-2, 3, (3, 4, 5))


@pytest.mark.parametrize("x", [X, TIES], ids=["reals", "ties"])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("axis", "kept"), [(0, 1), (1, 0), (-1, 0)])
def test_position_of_an_extreme(x: Any, op_type: str, last: int, axis: int, kept: int) -> None:
    made = node(op_type, "x", "y", axis=axis, keepdims=kept, select_last_index=last)
    assert disagreement(program([made], {"x": x}, "y"), {"x": x}) is None


@pytest.mark.parametrize("x", [X, TIES, TIES.astype(np.uint8)], ids=["reals", "ties", "unsigned"])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_largest_elements(x: Any, largest: int, axis: int) -> None:
    made = node("TopK", "x k", "v i", axis=axis, largest=largest)
    assert disagreement(program([made], {"x": x}, "v i", {"k": np.asarray([2])}), {"x": x}) is None


def test_order_that_is_not_stated() -> None:
    protos = [
        program([node("TopK", "x k", "v i", sorted=n)], {"x": X}, "v i", {"k": np.asarray([2])})
        for n in (0, 1)
    ]
    assert [op.opcode for op in imported(protos[0]).ops if op.results[0].name == "v"] == ["opaque"]
    assert verify(*map(imported, protos)).verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, -2, 2])
def test_running(op_type: str, exclusive: int, reverse: int, axis: int) -> None:
    for x in (X, TIES):
        made = node(op_type, "x a", "y", exclusive=exclusive, reverse=reverse)
        proto = program([made], {"x": x}, "y", {"a": np.asarray(axis)}, opset=26)
        assert disagreement(proto, {"x": x}) is None


def test_running_sums_differ() -> None:
    stored = {"a": np.asarray(1)}
    kinds = [{}, {"exclusive": 1}, {"reverse": 1}]
    plain, exclusive, reverse = (
        imported(program([node("CumSum", "x a", "y", **kind)], {"x": X}, "y", stored)) for kind in kinds
    )
    for wrong in (exclusive, reverse):
        assert verify(plain, wrong).verdict is Verdict.REFUTED
        assert verify(wrong, wrong).verdict is Verdict.VERIFIED
    less = [node("CumSum", "x a", "c"), node("Sub", "c x", "y")]
    assert verify(exclusive, imported(program(less, {"x": X}, "y", stored))).verdict is not Verdict.REFUTED


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_one_hot(axis: int, kind: Any) -> None:
    at = np.asarray([[0, 4, -1], [-5, 5, 2]])
    stored = {"d": np.asarray(5), "v": np.asarray([2, 7]).astype(kind)}
    found = imported(program([node("OneHot", "i d v", "y", axis=axis)], {"i": at}, "y", stored))
    right = np.where(np.where(at < 0, at + 5, at)[..., None] == np.arange(5), 7, 2)
    right[1, 1] = 2
    np.testing.assert_array_equal(run(found, {"i": at})["y"][0], np.moveaxis(right, -1, axis))


def test_one_hot_rows_of_the_largest_elements() -> None:
    """As where a router picks experts: the rows summed are a mask of the elements that are picked."""
    stored = {
        "k": np.asarray([2]), "d": np.asarray(5), "v": np.asarray([0, 1], np.float32), "t": np.asarray([1]),
        "last": np.asarray([-1]),
    }  # fmt: skip
    nodes = [
        node("TopK", "x k", "w i"), node("OneHot", "i d v", "h"), node("Unsqueeze", "w last", "u"),
        node("Mul", "h u", "m"), node("ReduceSum", "m t", "y", keepdims=0),
    ]  # fmt: skip
    given = {"x": RNG.normal(size=(4, 5)).astype(np.float32)}
    proto = program(nodes, given, "y", stored)
    assert disagreement(proto, given) is None
    assert "or" not in {op.opcode for op in imported(proto).ops}
    row = [node("Unsqueeze", "w t", "u"), node("MatMul", "u h", "z"), node("Squeeze", "z t", "y")]
    wrong = [*nodes[:3], node("Mul", "h h", "m"), nodes[4]]
    for other, right in (([*nodes[:2], *row], True), (wrong, False)):
        found = verify(imported(proto), imported(program(other, given, "y", stored)))
        assert (found.verdict is Verdict.VERIFIED) == right


@pytest.mark.parametrize("axis", [0, -1])
def test_hardmax(axis: int) -> None:
    x = TIES.astype(np.float32)
    assert disagreement(program([node("Hardmax", "x", "y", axis=axis)], {"x": x}, "y"), {"x": x}) is None


@pytest.mark.parametrize("stored", [{}, {"r": np.float32(0.7)}, {"r": np.float32(0), "t": np.asarray(True)}])
def test_dropout_that_drops_nothing(stored: dict[str, Any]) -> None:
    made = node("Dropout", " ".join(["x", *stored]), "y m")
    module = imported(program([made], {"x": X}, "y m", stored))
    assert not any(op.opcode == "rng" for op in module.ops)
    assert disagreement(program([made], {"x": X}, "y m", stored), {"x": X}) is None


def test_dropout_draws() -> None:
    stored = {"r": np.float32(0.25), "t": np.asarray(True)}
    one = imported(program([node("Dropout", "x r t", "y m", seed=1)], {"x": X}, "y m", stored))
    assert [op.opcode for op in one.ops].count("rng") == 1
    twice = [node("Dropout", "x r t", "y m", seed=1), node("Dropout", "x r t", "z", seed=1)]
    both = imported(program(twice, {"x": X}, "y z", stored))
    again = imported(program([*twice[:1], node("Identity", "y", "z")], {"x": X}, "y z", stored))
    assert verify(both, again).verdict is not Verdict.VERIFIED
    given = {"x": X, "r": np.float32(0.25)}
    rated = program([node("Dropout", "x r t", "y")], given, "y", {"t": np.asarray(True)})
    with pytest.raises(ModuleError, match="depends on `r`"):
        imported(rated)


def test_router_of_pytorch() -> None:
    """Weights put in the places of the largest elements, which do not repeat, are one-hot rows summed."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Router(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            w, i = torch.topk(torch.softmax(x, -1), 2)
            return torch.zeros_like(x).scatter(1, i, w)

    class Given(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, i: Any) -> Any:
            return torch.zeros_like(x).scatter(1, i, torch.softmax(x, -1)[:, :2])

    x = RNG.normal(size=(4, 5)).astype(np.float32)
    stored = {"k": np.asarray([2]), "d": np.asarray(5), "v": np.asarray([0, 1], np.float32)}
    stored |= {"last": np.asarray([-1]), "t": np.asarray([1])}
    nodes = [
        node("Softmax", "x", "p"), node("TopK", "p k", "w i"), node("OneHot", "i d v", "h"),
        node("Unsqueeze", "w last", "u"), node("Mul", "h u", "m"), node("ReduceSum", "m t", "y", keepdims=0),
    ]  # fmt: skip
    rows = imported(program(nodes, {"x": x}, "y", stored))
    graph = torch.export.export(Router(), (torch.tensor(x),))
    assert verify(graph, rows).verdict is Verdict.VERIFIED
    wrong = [*nodes[:1], node("TopK", "x k", "w i"), *nodes[2:]]
    assert verify(graph, imported(program(wrong, {"x": x}, "y", stored))).verdict is Verdict.REFUTED
    at = torch.zeros((4, 2), dtype=torch.int64)
    repeated = torch.export.export(Given(), (torch.tensor(x), at))
    assert verify(repeated, repeated).verdict is not Verdict.VERIFIED
