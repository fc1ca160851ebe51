"""The PyTorch program that the NeuronX dumps were made from, exported: `python reference.py -o FOLDER`.

It is the Llama of Hugging Face's `transformers`, its modelling code as installed, called the way the dumps
are: embedded tokens come in with the hidden dim first or last, positions double as the keys that a query
may see, the first token of each sequence is given, and the scores of one position go out next to the keys
and values of every layer. Weights stay on the meta device, so a program of any size is exported in
seconds; the frequencies of the rotary table are computed, and are constants of the program.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Sizes:
    """Extents of a model and of its calls.

    `order` says how activations lie in memory: the places of batch, sequence and hidden dim in the order
    that the caller uses. Logits come out in the same order, the vocabulary in place of the hidden dim.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    sequence: int
    batch: int
    rope: dict[str, Any]
    order: tuple[int, int, int]

    def config(self, layers: int) -> LlamaConfig:
        return LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.mlp,
            num_hidden_layers=layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab,
            rms_norm_eps=1e-5,
            rope_parameters=self.rope,
            max_position_embeddings=131072,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the embedded tokens."""
        own = (self.batch, self.sequence, self.hidden)
        return tuple(own[d] for d in self.order)


SMALL: Final = Sizes(
    hidden=40,
    heads=8,
    kv_heads=4,
    head_dim=6,
    mlp=44,
    vocab=68,
    sequence=20,
    batch=10,
    rope={"rope_type": "default", "rope_theta": 10000.0},
    order=(1, 0, 2),
)
"""The model that `make_dumps.py` traces."""

LLAMA_3_2_1B: Final = Sizes(
    hidden=2048,
    heads=32,
    kv_heads=8,
    head_dim=64,
    mlp=8192,
    vocab=128256,
    sequence=64,
    batch=4,
    rope={
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    order=(2, 1, 0),
)
"""The published model, as transformers-neuronx compiles its prefill step."""


MODELS: Final = {"small": (SMALL, (1, 2)), "full": (LLAMA_3_2_1B, (1, 2, 4, 8))}
"""Models by the start of the names of their files, with the depths that are shipped."""


class Prefill(torch.nn.Module):
    """The model behind the calling convention of the dumps."""

    def __init__(self, model: LlamaForCausalLM, order: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.order = tuple(order)

    def forward(
        self,
        hidden: torch.Tensor,
        cache_ids: torch.Tensor,
        start_ids: torch.Tensor,
        last_token_id: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Logits of the last token, then keys and values of each layer as [sequence, batch, heads, size]."""
        tokens = hidden.permute(*(self.order.index(d) for d in range(3)))
        batch, sequence = tokens.shape[:2]
        places = torch.arange(sequence, device=tokens.device)
        before = places[None, None] <= cache_ids[None, :, None]
        begun = places[None, None] >= start_ids[:, None, None]
        hidden_keys = torch.zeros(batch, 1, sequence, sequence, dtype=tokens.dtype, device=tokens.device)
        mask = hidden_keys.masked_fill(~(before & begun)[:, None], float("-inf"))
        cache = DynamicCache(config=self.model.config)
        output = self.model.model(
            inputs_embeds=tokens,
            attention_mask=mask,
            position_ids=cache_ids[None].expand(batch, sequence),
            past_key_values=cache,
            use_cache=True,
        )
        last = output.last_hidden_state.index_select(1, last_token_id)
        logits = self.model.lm_head(last).permute(*self.order)
        states = [state.permute(2, 0, 1, 3) for layer in cache.layers for state in (layer.keys, layer.values)]
        return logits, *states


def build(sizes: Sizes, layers: int) -> tuple[Prefill, tuple[torch.Tensor, ...]]:
    """The module with weights on the meta device, and example inputs."""
    config = sizes.config(layers)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).half().eval()
        inputs = (
            torch.empty(sizes.shape, dtype=torch.half),
            torch.empty(sizes.sequence, dtype=torch.int32),
            torch.empty(sizes.batch, dtype=torch.int32),
            torch.empty(1, dtype=torch.int32),
        )
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    return Prefill(model, sizes.order), inputs


def export(sizes: Sizes, layers: int) -> torch.export.ExportedProgram:
    """The exported program, with the places of the source relative to where packages are installed."""
    module, inputs = build(sizes, layers)
    with torch.no_grad():
        program = torch.export.export(module, inputs, strict=False)
    for node in program.graph.nodes:
        if "stack_trace" in node.meta:
            node.meta["stack_trace"] = shortened(node.meta["stack_trace"])
    return program


def shortened(stack: str) -> str:
    """The places of a stack without the lines of code, files from their package on."""
    places = re.findall(r'File "([^"\n]+)", line (\d+), in (\w+)', stack)
    below = ((re.sub(r".*/(?:site-packages|examples)/", "", file), line, name) for file, line, name in places)
    return "\n".join(f'  File "{file}", line {line}, in {name}' for file, line, name in below)


def save(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write the archive compressed, without example inputs, in the same bytes each time."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / path.name
        torch.export.save(program, plain)
        with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(source.namelist()):
                if "/data/sample_inputs/" not in name:
                    archive.writestr(zipfile.ZipInfo(name), source.read(name), zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "programs")
    parser.add_argument("--only", choices=MODELS, help="one of the models, not both")
    parser.add_argument("--layers", type=int, nargs="+", help="other depths than those that are shipped")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, (sizes, layers) in MODELS.items():
        for depth in (arguments.layers or layers) if arguments.only in (None, name) else ():
            path = arguments.output / f"{name}_layer{depth}.pt2"
            save(export(sizes, depth), path)
            print(path)


if __name__ == "__main__":
    main()
