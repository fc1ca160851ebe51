"""Blocks of decoders of the transformers package, of tiny random configurations, as functions of tensors.

Every block takes tensors and gives tensors; what a decoder computes for its layers (rotary tables, masks)
is computed inside by the package's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import transformers
from transformers.masking_utils import create_causal_mask
from transformers.models.gemma import modeling_gemma
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2 import modeling_qwen2

BATCH: Final = 2
LENGTH: Final = 6
WIDTH: Final = 32
VOCABULARY: Final = 48
BLOCKS: Final = ("norm", "mlp", "attention", "layer", "ends", "model")
"""`ends` are the embedding, the last norm and the head; `model` is the whole causal LM of two layers."""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: its configuration and classes."""

    config: Any
    norm: Callable[[Any], Any]
    mlp: Callable[[Any], Any]
    attention: Callable[..., Any]
    layer: Callable[..., Any]
    rotary: Callable[[Any], Any] | None
    model: Callable[[Any], Any]


def _config(kind: Any, **more: Any) -> Any:
    """Two layers, four heads of eight over two heads of keys and values."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": WIDTH // 4,
        "max_position_embeddings": 64,
        "attn_implementation": "sdpa",
        "use_cache": False,
    }
    return kind(**(sizes | more))


def _gpt2() -> Any:
    return transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=WIDTH,
        n_layer=2,
        n_head=4,
        attn_implementation="sdpa",
        use_cache=False,
    )


def _rms(kind: Any) -> Callable[[Any], Any]:
    return lambda config: kind(config.hidden_size, eps=config.rms_norm_eps)


FAMILIES: Final[Mapping[str, Callable[[], Family]]] = {
    "llama": lambda: Family(
        _config(transformers.LlamaConfig),
        _rms(modeling_llama.LlamaRMSNorm),
        modeling_llama.LlamaMLP,
        modeling_llama.LlamaAttention,
        modeling_llama.LlamaDecoderLayer,
        modeling_llama.LlamaRotaryEmbedding,
        modeling_llama.LlamaForCausalLM,
    ),
    "qwen2": lambda: Family(
        _config(transformers.Qwen2Config),
        _rms(modeling_qwen2.Qwen2RMSNorm),
        modeling_qwen2.Qwen2MLP,
        modeling_qwen2.Qwen2Attention,
        modeling_qwen2.Qwen2DecoderLayer,
        modeling_qwen2.Qwen2RotaryEmbedding,
        modeling_qwen2.Qwen2ForCausalLM,
    ),
    "mixtral": lambda: Family(
        _config(
            transformers.MixtralConfig,
            num_local_experts=4,
            num_experts_per_tok=2,
            experts_implementation="batched_mm",
        ),
        _rms(modeling_mixtral.MixtralRMSNorm),
        modeling_mixtral.MixtralSparseMoeBlock,
        modeling_mixtral.MixtralAttention,
        modeling_mixtral.MixtralDecoderLayer,
        modeling_mixtral.MixtralRotaryEmbedding,
        modeling_mixtral.MixtralForCausalLM,
    ),
    "gemma": lambda: Family(
        _config(transformers.GemmaConfig),
        _rms(modeling_gemma.GemmaRMSNorm),
        modeling_gemma.GemmaMLP,
        modeling_gemma.GemmaAttention,
        modeling_gemma.GemmaDecoderLayer,
        modeling_gemma.GemmaRotaryEmbedding,
        modeling_gemma.GemmaForCausalLM,
    ),
    "gpt2": lambda: Family(
        _gpt2(),
        lambda config: torch.nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon),
        lambda config: modeling_gpt2.GPT2MLP(4 * config.n_embd, config),
        modeling_gpt2.GPT2Attention,
        modeling_gpt2.GPT2Block,
        None,
        modeling_gpt2.GPT2LMHeadModel,
    ),
}


class Layer(torch.nn.Module):
    """A decoder layer, or its attention alone, with the rotary tables and the causal mask that it needs."""

    def __init__(self, family: Family, block: torch.nn.Module) -> None:
        super().__init__()
        self.config = family.config
        self.block = block
        self.rotary = family.rotary(family.config) if family.rotary is not None else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(hidden.shape[1]).unsqueeze(0)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=None,
            past_key_values=None,
            position_ids=positions,
        )
        more = {} if self.rotary is None else {"position_embeddings": self.rotary(hidden, positions)}
        found = self.block(hidden, attention_mask=mask, **more)
        return found[0] if isinstance(found, tuple) else found


class Ends(torch.nn.Module):
    """The model without its layers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        inner = model.get_decoder()
        self.embedding = model.get_input_embeddings()
        self.norm = inner.ln_f if hasattr(inner, "ln_f") else inner.norm
        self.head = model.get_output_embeddings()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(input_ids)))


class Model(torch.nn.Module):
    """The whole causal LM: logits of ids, with a padding mask."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


def block(family: str, name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The block with random weights, and inputs to export it with."""
    torch.manual_seed(0)
    own = FAMILIES[family]()
    config = own.config
    hidden = torch.randn(BATCH, LENGTH, WIDTH)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    made: torch.nn.Module
    inputs: tuple[torch.Tensor, ...] = (hidden,)
    if name == "norm":
        made = own.norm(config)
    elif name == "mlp":
        made = own.mlp(config)
    elif name == "attention":
        made = Layer(own, own.attention(config, layer_idx=0))
    elif name == "layer":
        made = Layer(own, own.layer(config, layer_idx=0))
    else:
        made, inputs = (Ends if name == "ends" else Model)(own.model(config)), (ids,)
        if name == "padded":
            inputs = (ids, torch.ones(BATCH, LENGTH, dtype=torch.long))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return made.eval(), inputs
