"""A rule that passes over what the model says is an error, for each operator that has a rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardproof.frontends.onnx.state import Attributes, Lowering, Node
from shardproof.ir.module import ModuleError

onnx = pytest.importorskip("onnx", reason="onnx is not installed")


def lowered(monkeypatch: pytest.MonkeyPatch, rule: Any) -> Any:
    """`Gemm(a, b)` with a transposed, read by `rule`."""
    from shardproof.frontends.onnx import walk
    from shardproof.frontends.onnx.lower import lower

    monkeypatch.setattr(walk, "TABLE", {("", "Gemm"): rule})
    a, b = (onnx.helper.make_tensor_value_info(n, 1, [2, 2]) for n in "ab")
    node = onnx.helper.make_node("Gemm", ["a", "b"], ["y"], transA=1)
    graph = onnx.helper.make_graph([node], "g", [a, b], [onnx.helper.make_tensor_value_info("y", 1, [2, 2])])
    return lower(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]))


def product(s: Lowering, n: Node) -> Any:
    return s.dot(n.operand(0), n.operand(1), (1, 0), ((), ()))


def test_an_attribute_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleError, match="has the attribute `transA`, which its rule does not read"):
        lowered(monkeypatch, product)


def test_an_operand_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(s: Lowering, n: Node) -> Any:
        assert n.attrs["transA"] == 1
        return n.operand(0)

    with pytest.raises(ModuleError, match=r"has operand 1 \(`b`\), which its rule does not read"):
        lowered(monkeypatch, rule)


def test_what_is_read_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(s: Lowering, n: Node) -> Any:
        assert n.attrs.get("transA") == 1
        return product(s, n)

    assert [op.opcode for op in lowered(monkeypatch, rule).ops] == ["dot_general"]


def test_what_counts_as_asked_for() -> None:
    attributes = Attributes({"a": 1, "b": np.float32(2), "c": 3})
    assert attributes["a"] == 1 and "b" in attributes and attributes.get("d") is None
    assert attributes.asked == {"a", "b", "d"}
    assert attributes.whole() == {"a": 1, "b": 2, "c": 3}
    assert attributes.asked == {"a", "b", "c", "d"}
