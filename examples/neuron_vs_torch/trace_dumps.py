"""Traces the NeuronX side of this example: `python trace_dumps.py [-o FOLDER]`.

The tracer is that of examples/neuron_llama. Next to the programs as they should be, on one and on four ranks,
there are some with one mistake each. The same source gives the same programs, byte for byte.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "neuron_llama"))

import mistakes  # noqa: E402
from make_dumps import write_dumps  # noqa: E402
from model import Config, Decoder  # noqa: E402
from variants import UnjoinedMlp, ValueFromKeyColumns  # noqa: E402

ONE: Final = Config(hidden=40, heads=8, kv_heads=4, head_dim=6, sequence=20, batch=10, mlp=44, vocab=68)
TWO: Final = replace(ONE, tp=2)
FOUR: Final = replace(ONE, tp=4)


def programs() -> dict[str, Decoder]:
    """File stem to the decoder that is traced into it."""
    wrong = {
        "key_columns": mistakes.KeyFromQueryColumns,
        "value_columns": ValueFromKeyColumns,
        "swapped_tables": mistakes.SwappedTables,
        "unnormalised": mistakes.UnnormalisedMlp,
        "other_projection": mistakes.UpThroughSilu,
        "missing_all_reduce": UnjoinedMlp,
        "residual_on_each_rank": mistakes.ResidualOnEachRank,
        "other_epsilon": mistakes.SmallerEpsilon,
    }
    return {
        "tp1_layer1": Decoder(ONE),
        "tp1_layer2": Decoder(replace(ONE, layers=2)),
        "tp2_layer1": Decoder(TWO),
        "tp4_layer1": Decoder(FOUR),
        "tp4_layer2": Decoder(replace(FOUR, layers=2)),
        "tp4_layer1.tiled_heads": mistakes.TiledHeads(FOUR),
        "tp2_layer1.tiled_heads": mistakes.TiledHeads(TWO),
        **{f"tp4_layer1.{name}": made(FOUR) for name, made in wrong.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "programs")
    for path in write_dumps(parser.parse_args().output, programs()):
        print(path)


if __name__ == "__main__":
    main()
