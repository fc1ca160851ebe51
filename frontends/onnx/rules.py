"""The operators that have a rule, by domain and name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardproof.frontends.onnx import (
    contract,
    control,
    convolutions,
    einsum,
    indexing,
    layout,
    norms,
    pads,
    pointwise,
    pools,
    ranks,
    reductions,
    resize,
    search,
    sequences,
    signal,
)
from shardproof.frontends.onnx.state import Rule

_DEFAULT: Final = (
    contract.RULES,
    control.RULES,
    convolutions.RULES,
    einsum.RULES,
    indexing.RULES,
    layout.RULES,
    norms.RULES,
    pads.RULES,
    pointwise.RULES,
    pools.RULES,
    reductions.RULES,
    resize.RULES,
    search.RULES,
    sequences.RULES,
    signal.RULES,
)

TABLE: Final[Mapping[tuple[str, str], Rule]] = {
    **{("", name): rule for rules in _DEFAULT for name, rule in rules.items()},
    **{("com.microsoft", name): rule for name, rule in ranks.RULES.items()},
}
"""Other operators of the standard are read by the function that defines them, if there is one."""
