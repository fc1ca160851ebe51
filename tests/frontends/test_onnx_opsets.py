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


class Convolving(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.wide = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.grouped = torch.nn.Conv2d(8, 8, 3, stride=2, groups=2, dilation=dilation, padding=dilation)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.grouped(torch.relu(self.wide(x)))).mean((2, 3)))


def test_convolutions_of_torch_and_onnx(tmp_path: Path) -> None:
    right, wrong = Convolving(1).eval(), Convolving(2).eval()
    wrong.load_state_dict(right.state_dict())
    image = (torch.zeros(2, 3, 12, 10),)
    path = tmp_path / "net.onnx"
    torch.onnx.export(right, image, path, dynamo=True, optimize=False, opset_version=18, verbose=False)
    whole, other = torch.export.export(right, image), torch.export.export(wrong, image)
    for reference, implementation in ((whole, path), (path, whole), (whole, whole.run_decompositions())):
        result = shardproof.verify(reference, implementation)
        assert result.verdict is shardproof.Verdict.VERIFIED and not result.assumptions, result.text()
    assert shardproof.verify(other, path).verdict is shardproof.Verdict.REFUTED
