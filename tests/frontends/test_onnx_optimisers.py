"""ONNX models before and after graph optimisers: right ones are verified, wrong fusions refuted."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import save

from shardproof.solver.verdict import Result, Verdict
from shardproof.solver.verify import verify
from shardproof.tools.command_line import run

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

OPTIMISERS = ("torch", "onnxscript", "basic", "extended", "all")


class Mlp(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Attention and a feed-forward part behind layer norms."""

    def __init__(self, size: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(size), torch.nn.LayerNorm(size)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(size, size) for _ in range(4))
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, x: Any) -> Any:
        batch, rows, size = x.shape

        def split(y: Any) -> Any:
            return y.view(batch, rows, self.heads, size // self.heads).transpose(1, 2)

        z = self.before(x)
        q, k, v = split(self.q(z)), split(self.k(z)), split(self.v(z))
        weights = torch.softmax(q @ k.transpose(-1, -2) / (size // self.heads) ** 0.5, -1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(batch, rows, size))
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


class Rms(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class Decoder(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A layer: rotary positions from a table, shared key heads, a causal mask, a gated feed-forward part."""

    def __init__(self, size: int = 16, heads: int = 4, shared: int = 2, words: int = 32) -> None:
        super().__init__()
        width = size // heads
        self.heads, self.shared, self.width = heads, shared, width
        self.embedding = torch.nn.Embedding(words, size)
        self.before, self.between, self.last = Rms(size), Rms(size), Rms(size)
        self.q, self.o = (torch.nn.Linear(size, size, bias=False) for _ in range(2))
        self.k, self.v = (torch.nn.Linear(size, shared * width, bias=False) for _ in range(2))
        self.gate, self.up = (torch.nn.Linear(size, 32, bias=False) for _ in range(2))
        self.down, self.head = torch.nn.Linear(32, size, bias=False), torch.nn.Linear(size, words, bias=False)
        angles = torch.outer(torch.arange(16.0), 1 / 10000 ** (torch.arange(0, width, 2) / width))
        self.register_buffer("cosines", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sines", torch.cat([angles, angles], -1).sin())

    def forward(self, ids: Any) -> Any:
        batch, rows = ids.shape
        x = self.embedding(ids)

        def split(y: Any, heads: int) -> Any:
            return y.view(batch, rows, heads, self.width).transpose(1, 2)

        def turned(y: Any) -> Any:
            a, b = y.chunk(2, -1)
            return y * self.cosines[:rows] + torch.cat([-b, a], -1) * self.sines[:rows]

        z = self.before(x)
        q, k = turned(split(self.q(z), self.heads)), turned(split(self.k(z), self.shared))
        v = split(self.v(z), self.shared)
        k, v = (y.repeat_interleave(self.heads // self.shared, 1) for y in (k, v))
        mask = torch.full((rows, rows), float("-inf")).triu(1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / self.width**0.5 + mask, -1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(batch, rows, -1))
        z = self.between(x)
        return self.head(self.last(x + self.down(torch.nn.functional.silu(self.gate(z)) * self.up(z))))


class Convolutions(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 16, 3, stride=2)
        self.out = torch.nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        return self.out(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "mlp": lambda: (Mlp(), torch.zeros(4, 8)),
    "block": lambda: (Block(), torch.zeros(2, 6, 16)),
    "decoder": lambda: (Decoder(), torch.zeros(2, 6, dtype=torch.long)),
    "convolutions": lambda: (Convolutions(), torch.zeros(2, 3, 9, 9)),
}


@cache
def plain(name: str) -> bytes:
    return exported(name, optimize=False)


def exported(name: str, *, optimize: bool) -> bytes:
    torch.manual_seed(0)
    module, example = MODELS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), (example,), dynamo=True, optimize=optimize, verbose=False
        )
    data: bytes = program.model_proto.SerializeToString()
    return data


@cache
def optimised(name: str, optimiser: str) -> bytes:
    if optimiser == "torch":
        return exported(name, optimize=True)
    if optimiser == "onnxscript":
        from onnxscript.optimizer import optimize

        data: bytes = optimize(onnx.ModelProto.FromString(plain(name))).SerializeToString()
        return data
    return by_onnxruntime(plain(name), optimiser)


def by_onnxruntime(data: bytes, level: str) -> bytes:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    with tempfile.TemporaryDirectory() as folder:
        options = runtime.SessionOptions()
        options.graph_optimization_level = getattr(
            runtime.GraphOptimizationLevel, f"ORT_ENABLE_{level.upper()}"
        )
        options.optimized_model_filepath = f"{folder}/model.onnx"
        options.log_severity_level = 4
        runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return Path(f"{folder}/model.onnx").read_bytes()


def verdict(folder: Path, name: str, other: Any, **options: Any) -> Result:
    own = folder / "model.onnx"
    own.write_bytes(plain(name))
    return verify(own, save(other, folder / "model.opt.onnx"), **options)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("name", MODELS)
def test_optimised_model_is_verified(
    name: str, optimiser: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "model.onnx", tmp_path / "model.opt.onnx"
    for file, data in zip(files, (plain(name), optimised(name, optimiser)), strict=True):
        file.write_bytes(data)
    if b"com.microsoft.nchwc" in files[1].read_bytes() and b"ReorderOutput" in files[1].read_bytes():
        assert run(["verify", *map(str, files)]) == 3
        assert "depends on the processor" in capsys.readouterr().err
        return
    assert run(["verify", *map(str, files), "--strict"]) == 0


@cache
def fused() -> bytes:
    """The block with attention, sums before norms, and bias before gelu each as one operator."""
    runtime = pytest.importorskip("onnxruntime.transformers.optimizer", reason="onnxruntime is not installed")
    with tempfile.TemporaryDirectory() as folder:
        Path(f"{folder}/model.onnx").write_bytes(plain("block"))
        found = runtime.optimize_model(
            f"{folder}/model.onnx", model_type="bert", num_heads=4, hidden_size=16, opt_level=2
        )
        found.save_model_to_file(f"{folder}/fused.onnx")
        return Path(f"{folder}/fused.onnx").read_bytes()


def test_fused_block_is_verified(tmp_path: Path) -> None:
    proto = onnx.ModelProto.FromString(fused())
    used = {n.op_type for n in proto.graph.node if n.domain == "com.microsoft"}
    assert used >= {"Attention", "SkipLayerNormalization", "BiasGelu"}
    found = verdict(tmp_path, "block", proto, strict=True)
    assert found.verdict is Verdict.VERIFIED, found.message


def other_heads(graph: Any) -> None:
    next(a for a in one(graph, "Attention").attribute if a.name == "num_heads").i = 2


def keys_for_queries(graph: Any) -> None:
    weights = {t.name: t for t in graph.initializer}[one(graph, "Attention").input[1]]
    q, k, v = np.split(onnx.numpy_helper.to_array(weights), 3, axis=1)
    weights.CopyFrom(onnx.numpy_helper.from_array(np.concatenate([k, q, v], 1), weights.name))


def other_skip_epsilon(graph: Any) -> None:
    next(a for a in one(graph, "SkipLayerNormalization").attribute if a.name == "epsilon").f = 1e-3


@pytest.mark.parametrize("change", [other_heads, keys_for_queries, other_skip_epsilon])
def test_wrong_fused_block_is_refuted(change: Callable[[Any], object], tmp_path: Path) -> None:
    proto = onnx.ModelProto.FromString(fused())
    change(proto.graph)
    found = verdict(tmp_path, "block", proto)
    assert found.verdict is Verdict.REFUTED, found.message


def changed(name: str, optimiser: str, change: Callable[[Any], object]) -> Any:
    proto = onnx.ModelProto.FromString(optimised(name, optimiser))
    change(proto.graph)
    return proto


def one(graph: Any, *op_types: str) -> Any:
    return next(n for n in graph.node if n.op_type in op_types)


def other_epsilon(graph: Any) -> None:
    next(a for a in one(graph, "LayerNormalization").attribute if a.name == "epsilon").f = 1e-3


def other_axis(graph: Any) -> None:
    next(a for a in one(graph, "Softmax").attribute if a.name == "axis").i = -2


def square_weights(graph: Any) -> list[Any]:
    return [t for t in graph.initializer if list(t.dims) == [16, 16]]


def forgotten_transpose(graph: Any) -> None:
    tensor = square_weights(graph)[0]
    turned = np.ascontiguousarray(onnx.numpy_helper.to_array(tensor).T)
    tensor.CopyFrom(onnx.numpy_helper.from_array(turned, tensor.name))


def swapped_weights(graph: Any) -> None:
    """Which of the weights are swapped depends on the optimiser; all of them matter."""
    first, second = square_weights(graph)[:2]
    first.name, second.name = second.name, first.name


def missing_bias(graph: Any) -> None:
    biases = {t.name for t in graph.initializer if t.name.endswith(".bias") and list(t.dims) == [64]}
    for n in graph.node:
        if biases.isdisjoint(n.input):
            continue
        if n.op_type in ("Gemm", "FusedGemm"):
            del n.input[2]
        else:
            kept = [i for i in n.input if i not in biases]
            n.op_type, n.domain = "Identity", ""
            del n.input[:], n.attribute[:]
            n.input.extend(kept)
        return
    raise AssertionError("no bias is added")


@pytest.mark.parametrize("optimiser", ["onnxscript", "extended"])
@pytest.mark.parametrize(
    "change", [other_epsilon, other_axis, forgotten_transpose, swapped_weights, missing_bias]
)
def test_wrong_fusion_is_refuted(
    change: Callable[[Any], object], optimiser: str, tmp_path: Path
) -> None:
    found = verdict(tmp_path, "block", changed("block", optimiser, change))
    assert found.verdict is Verdict.REFUTED, found.message


def test_other_weights_under_the_same_names(tmp_path: Path) -> None:
    """Another model is no optimised form of this one, unless for all weights."""

    def scaled(graph: Any) -> None:
        for tensor in graph.initializer:
            tensor.CopyFrom(onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(tensor), tensor.name))

    other = changed("mlp", "basic", scaled)
    found = verdict(tmp_path, "mlp", other)
    assert found.verdict is Verdict.REFUTED
    assert any("other contents than the reference's" in text for text in found.findings or ())
    assert verdict(tmp_path, "mlp", other, initializers="inputs").verdict is Verdict.VERIFIED
    assert verdict(tmp_path, "mlp", other, initializers="constants").verdict is Verdict.REFUTED


def test_certificate_of_an_optimised_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, other, cert = (str(tmp_path / n) for n in ("model.onnx", "model.opt.onnx", "proof.cert"))
    Path(own).write_bytes(plain("block"))
    Path(other).write_bytes(optimised("block", "onnxscript"))
    assert run(["verify", own, other, "--certificate", cert]) == 0
    assert run(["cert", "check", cert, own, other]) == 0
    Path(other).write_bytes(changed("block", "onnxscript", forgotten_transpose).SerializeToString())
    assert run(["cert", "check", cert, own, other]) == 1
    capsys.readouterr()
