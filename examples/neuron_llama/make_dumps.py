"""Writes the dumps of this folder: `python make_dumps.py [-o FOLDER] [--scaling]`.

The same source gives the same programs, byte for byte. `--scaling` adds programs of 1 to 8 layers on 1
to 8 ranks, for measurements.
"""

from __future__ import annotations

import argparse
import gzip
from dataclasses import replace
from pathlib import Path

from model import Config, Decoder
from variants import (
    InterleavedQkv,
    PaddedHeads,
    PermutedHead,
    SequenceParallel,
    UnjoinedMlp,
    ValueFromKeyColumns,
)

HERE = Path(__file__).resolve().parent

ONE = Config()
MEAN = Config(mean_output=True)
SQUARE = Config(mlp=4 * ONE.hidden)
FEW_HEADS = Config(heads=4, kv_heads=2, vocab=51)


def programs() -> dict[str, Decoder]:
    """File stem to the decoder that is traced into it."""
    return {
        "tp1_layer1": Decoder(ONE),
        "tp1_layer2": Decoder(replace(ONE, layers=2)),
        "tp4_layer1": Decoder(replace(ONE, tp=4)),
        "tp4_layer2": Decoder(replace(ONE, layers=2, tp=4)),
        "tp4_layer1.wrong_slice": ValueFromKeyColumns(replace(ONE, tp=4)),
        "tp4_layer1.missing_all_reduce": UnjoinedMlp(replace(ONE, tp=4)),
        "tp4_layer1.sequence_parallel": SequenceParallel(replace(ONE, tp=4)),
        "tp4_layer1.interleaved_qkv": InterleavedQkv(replace(ONE, tp=4)),
        "tp4_layer1.permuted_head": PermutedHead(replace(ONE, tp=4)),
        "tp1_layer1.mean": Decoder(MEAN),
        "dp2_tp4_layer1.mean": Decoder(replace(MEAN, dp=2, tp=4)),
        "dp2_tp2_layer1.mean": Decoder(replace(MEAN, dp=2, tp=2)),
        "tp1_layer1.square": Decoder(SQUARE),
        "tp4_layer1.square": Decoder(replace(SQUARE, tp=4)),
        "tp1_layer1.few_heads": Decoder(FEW_HEADS),
        "tp3_layer1.few_heads": PaddedHeads(replace(FEW_HEADS, tp=3, mlp=45)),
    }


def scaling_programs() -> dict[str, Decoder]:
    """One model at 1, 2, 4 and 8 layers on 1, 2, 4 and 8 ranks; its extents divide by 8."""
    extents = [1, 2, 4, 8]
    configs = [replace(ONE, layers=n, tp=tp, mlp=48, vocab=72) for n in extents for tp in extents]
    return {f"scaling_tp{c.tp}_layer{c.layers}": Decoder(c) for c in configs}


def write_dumps(folder: Path, decoders: dict[str, Decoder]) -> list[Path]:
    """Traces every program into `folder`; returns the files, in order of name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for stem, decoder in sorted(decoders.items()):
        path = folder / f"{stem}.hlo.pb.gz"
        path.write_bytes(gzip.compress(decoder.trace(), mtime=0))
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "dumps")
    parser.add_argument("--scaling", action="store_true")
    arguments = parser.parse_args()
    decoders = programs() | (scaling_programs() if arguments.scaling else {})
    for path in write_dumps(arguments.output, decoders):
        print(path)


if __name__ == "__main__":
    main()
