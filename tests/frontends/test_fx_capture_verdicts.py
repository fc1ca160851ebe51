"""Live captures: right programs are verified, their bugs refuted, and on gloo they compute what that says."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from shardproof.solver.verdict import Verdict  # noqa: E402
from shardproof.torch_api import verify_torch  # noqa: E402

SCRIPT = Path(__file__).parent / "torch_cases.py"
SECONDS = 120


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("torch_cases", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch_cases"] = module
    spec.loader.exec_module(module)
    return module


torch_cases = _load()


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two processes on gloo compute."""
    folder = tmp_path_factory.mktemp("gloo")
    command = [sys.executable, "-W", "ignore", str(SCRIPT)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), "2", str(folder / "store"), str(folder)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return folder


def agrees(folder: Path, name: str, *, wrong: bool) -> bool:
    """Whether every rank's results are the reference's, or its parts of them."""
    case = torch_cases.CASES[name]
    _, expected = torch_cases.reference(case)
    same = True
    for rank in range(case.ranks):
        with np.load(folder / f"{name}-{wrong}-{rank}.npz") as found:
            assert found.files
            for key in found.files:
                want = torch_cases.part(expected[key], found[key].shape, rank)
                same &= np.allclose(found[key], want, rtol=1e-4, atol=1e-5)
    return same


def verdict(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, wrong: bool) -> Any:
    case = torch_cases.CASES[name]
    monkeypatch.setattr(torch_cases, "wrong", wrong)
    relation = tmp_path / "relation.toml"
    relation.write_text(case.relation, encoding="utf-8")
    return verify_torch(
        case.reference,
        case.implementation,
        mesh={case.axis: case.ranks},
        relation=relation if case.relation else None,
    )


@pytest.mark.parametrize("name", torch_cases.CASES)
def test_right(name: str, computed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agrees(computed, name, wrong=False)
    found = verdict(name, tmp_path, monkeypatch, wrong=False)
    assert found.verdict is Verdict.VERIFIED, found
    assert {a.kind for a in found.assumptions} <= {"inferred_relation", "ids_in_range"}


@pytest.mark.parametrize("name", torch_cases.CASES)
def test_wrong(name: str, computed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not agrees(computed, name, wrong=True)
    found = verdict(name, tmp_path, monkeypatch, wrong=True)
    assert found.verdict is Verdict.REFUTED, found
    assert found.location is not None and found.location.file == str(SCRIPT)


@pytest.mark.parametrize("wrong", [False, True])
def test_tensor_parallel_plan_of_a_model_library(wrong: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from torch.distributed.tensor import init_device_mesh

    settings = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }
    alone = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()
    alone.save_pretrained(tmp_path)
    ids = torch.zeros((2, 8), dtype=torch.int64)

    def program(model: Any) -> Any:
        def logits(ids: Any) -> Any:
            return model(input_ids=ids, use_cache=False).logits

        return logits, (ids,)

    def divided() -> Any:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        model = transformers.LlamaForCausalLM.from_pretrained(
            tmp_path, tp_plan="auto", device_mesh=mesh, attn_implementation="eager"
        ).eval()
        if wrong:
            model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-2
        return program(model)

    found = verify_torch(lambda: program(alone), divided, mesh={"tp": 2})
    assert found.verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED), found


@pytest.mark.parametrize("name", ["block", "dtensor_tp"])
@pytest.mark.parametrize("wrong", [False, True])
def test_backward(name: str, wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = torch_cases.CASES[name]
    monkeypatch.setattr(torch_cases, "wrong", wrong)
    found = verify_torch(case.reference, case.implementation, mesh={"tp": 2}, backward=True)
    assert found.verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED), found
    assert any(o.name == "grad.down.weight" for o in found.outputs)
