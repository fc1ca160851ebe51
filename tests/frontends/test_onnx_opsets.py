"""One module exported at an opset that decomposes attention, and at one that has an operator for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")


class Attending(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.project = torch.nn.Linear(8, 24)

    def forward(self, x: Any) -> Any:
        q, k, v = (t.reshape(2, 6, 2, 4).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return mixed.transpose(1, 2).reshape(2, 6, 8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, int], Path]:
    """By whether they are causal, and opset."""
    folder, found = tmp_path_factory.mktemp("models"), {}
    for causal in (False, True):
        torch.manual_seed(0)
        module = Attending(causal).eval()
        for opset in (18, 23):
            path = found[causal, opset] = folder / f"{causal}{opset}.onnx"
            options = {"dynamo": True, "optimize": False, "opset_version": opset, "verbose": False}
            torch.onnx.export(module, (torch.zeros(2, 6, 8),), path, **options)
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("first", "second"), [(18, 23), (23, 18)])
def test_both_opsets(models: dict[tuple[bool, int], Path], causal: bool, first: int, second: int) -> None:
    result = shardproof.verify(models[causal, first], models[causal, second])
    assert result.verdict is shardproof.Verdict.VERIFIED, result.text()
    assert {a.kind for a in result.assumptions} <= {"mask_value", "row_not_fully_masked"}


def test_a_mask_that_is_missing(models: dict[tuple[bool, int], Path]) -> None:
    result = shardproof.verify(models[True, 18], models[False, 23])
    assert result.verdict is shardproof.Verdict.REFUTED
