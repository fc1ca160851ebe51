"""The decoder's extents, the same in every framework, and the mistakes that its programs can make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Bug = Literal[
    "missing_all_reduce",
    "wrong_key_slice",
    "rotary_sign",
    "epsilon",
    "scaled_twice",
    "swapped_gate",
    "wrong_group",
    "mask_off_by_one",
]
BUGS: Final[tuple[Bug, ...]] = get_args(Bug)

@dataclass(frozen=True, slots=True)
class Config:
    """Global extents; `tp` ranks divide heads, key-value heads, `intermediate` and `vocab`."""

    layers: int = 2
    hidden: int = 32
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 16
    intermediate: int = 40
    vocab: int = 56
    sequence: int = 12
    batch: int = 2
    eps: float = 1e-5
    theta: float = 500_000.0
    tp: int = 1
    bug: Bug | None = None
