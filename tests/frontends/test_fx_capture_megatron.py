"""Megatron-Core as it is installed: a GPT block on two ranks, with and without sequence parallelism."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from shardproof.solver.verdict import Result, Verdict  # noqa: E402
from shardproof.solver.verify import verify  # noqa: E402
from shardproof.torch_api import capture_torch, verify_torch  # noqa: E402

TIME, BATCH, HIDDEN, VOCABULARY = 8, 2, 16, 32
ASSUMED = {"inferred_relation", "ids_in_range"}


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-Core asks for a device, a generator on it, and a norm that knows sequence parallelism."""
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    def norm(kind: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        made = torch.nn.RMSNorm(hidden_size, eps=eps)
        made.weight.sequence_parallel = config.sequence_parallel
        return made

    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(CudaRNGStatesTracker, "fork", lambda self, name="": nullcontext())
    monkeypatch.setattr(WrappedTorchNorm, "__new__", staticmethod(norm))


def gpt(sequence_parallel: bool) -> Any:
    """A GPT of one block over all ranks."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    ranks = torch.distributed.get_world_size()
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=ranks, create_gloo_process_groups=False
    )
    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        ffn_hidden_size=2 * HIDDEN,
        num_attention_heads=4,
        num_query_groups=2,
        tensor_model_parallel_size=ranks,
        sequence_parallel=sequence_parallel and ranks > 1,
        use_cpu_initialization=True,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=VOCABULARY,
        max_sequence_length=TIME,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        parallel_output=True,
    )


def tokens() -> tuple[Any, ...]:
    ids = torch.zeros((BATCH, TIME), dtype=torch.int64)
    hidden = torch.ones((1, 1, TIME, TIME), dtype=torch.bool).triu(1)
    return ids, torch.arange(TIME).expand(BATCH, TIME).contiguous(), hidden


def logits(sequence_parallel: bool = False) -> Any:
    def make() -> Any:
        model = gpt(sequence_parallel).eval()
        return lambda ids, positions, hidden: model(ids, positions, hidden), tokens()

    return make


class Wrapped(torch.nn.Module):
    """What Megatron-Core makes of a model for data parallelism, as far as its gradients need it."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.ddp_config = type("Settings", (), {"use_megatron_fsdp": False, "use_custom_fsdp": False})()


def trained(sequence_parallel: bool = False, finalized: bool = True) -> Any:
    """Loss and gradients, summed over ranks where Megatron-Core does so at the end of a step."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy

    def make() -> Any:
        model = gpt(sequence_parallel)

        def step(ids: Any, positions: Any, hidden: Any, labels: Any) -> Any:
            scores = model(ids, positions, hidden).transpose(0, 1).contiguous()
            loss = vocab_parallel_cross_entropy(scores, labels.t().contiguous()).mean()
            loss.backward()
            for parameter in model.parameters():
                parameter.main_grad = parameter.grad
            if finalized and model.config.sequence_parallel:
                group = parallel_state.get_tensor_model_parallel_group()
                finalize = import_module("megatron.core.distributed.finalize_model_grads")
                finalize._allreduce_non_tensor_model_parallel_grads([Wrapped(model)], model.config, group)
            return {"loss": loss.detach(), **{n: p.main_grad for n, p in model.named_parameters()}}

        return step, (*tokens(), torch.zeros((BATCH, TIME), dtype=torch.int64))

    return make


def verdict(reference: Any, implementation: Any, relation: Path | None = None) -> Result:
    return verify_torch(reference, implementation, mesh={"tp": 2}, relation=relation)


def verify_saving(path: Path) -> Verdict:
    """The verdict of the right program, whose layouts go to a relation file."""
    both = capture_torch(logits()), capture_torch(logits(), mesh={"tp": 2})
    return verify(*both, save_relation=path).verdict


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_block(sequence_parallel: bool) -> None:
    found = verdict(logits(), logits(sequence_parallel))
    assert found.verdict is Verdict.VERIFIED, found
    assert {a.kind for a in found.assumptions} <= ASSUMED
    layouts = found.inferred_relation or {}
    assert layouts["decoder.layers.0.mlp.linear_fc1.weight"] == "[32 | 32] each sharded over tp on dim 0"


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_block_without_the_sum_of_row_parallel_layers(
    sequence_parallel: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from megatron.core.tensor_parallel import layers, mappings

    layouts = tmp_path / "layouts.toml"
    assert verify_saving(layouts) is Verdict.VERIFIED

    if sequence_parallel:
        scatter = mappings.scatter_to_sequence_parallel_region
        monkeypatch.setattr(layers, "reduce_scatter_to_sequence_parallel_region", scatter)
    else:
        monkeypatch.setattr(layers, "reduce_from_tensor_model_parallel_region", lambda x, **_: x)
    found = verdict(logits(), logits(sequence_parallel), layouts)
    assert found.verdict is Verdict.REFUTED, found


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_training(sequence_parallel: bool) -> None:
    found = verdict(trained(), trained(sequence_parallel))
    assert found.verdict is Verdict.VERIFIED, found
    assert {a.kind for a in found.assumptions} <= ASSUMED
    (fused,) = (o for o in found.outputs if o.name.endswith("linear_fc1.weight"))
    assert fused.placement == "[32 | 32] each sharded over tp on dim 0"


def test_gradients_of_norms_that_are_not_summed() -> None:
    found = verdict(trained(), trained(sequence_parallel=True, finalized=False))
    assert found.verdict is Verdict.REFUTED, found
    assert found.location is not None and found.location.file == __file__
