"""Writes the dumps of this folder, the same byte for byte: `python make_decode_dumps.py [-o FOLDER]`."""

from __future__ import annotations

import argparse
import gzip
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "neuron_llama")]

import cache_variants as variants  # noqa: E402
import decoder  # noqa: E402
from model import Config  # noqa: E402

ONE = Config(batch=6, hidden=22, heads=16, kv_heads=8, head_dim=10, sequence=14, mlp=36, vocab=52)
TWO = replace(ONE, layers=2)


def programs() -> dict[str, decoder.TokenDecoder]:
    """File stem to the decoder that is traced into it."""
    kinds = {
        "slice": decoder.TokenDecoder,
        "scatter": variants.Scattered,
        "own_positions": variants.OwnPositions,
        "one_cache": variants.OneCache,
    }
    found = {}
    for tp in (1, 4):
        for name, kind in kinds.items():
            found[f"tp{tp}.{name}"] = kind(replace(ONE, tp=tp))
        found[f"tp{tp}_layer2.slice"] = decoder.TokenDecoder(replace(TWO, tp=tp))
    wrong = {
        "next_row": variants.NextRow,
        "next_row_scattered": variants.NextRowScattered,
        "wrong_half": variants.WrongHalf,
        "unseen_token": variants.UnseenToken,
    }
    return found | {f"tp4.{name}": kind(replace(ONE, tp=4)) for name, kind in wrong.items()}


def write_dumps(folder: Path) -> list[Path]:
    """Traces every program into `folder`; returns the files, in order of name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for stem, traced in sorted(programs().items()):
        path = folder / f"{stem}.hlo.pb.gz"
        path.write_bytes(gzip.compress(traced.trace(), mtime=0))
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "dumps")
    for path in write_dumps(parser.parse_args().output):
        print(path)


if __name__ == "__main__":
    main()
