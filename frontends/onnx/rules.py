"""The operators that have a rule, by domain and name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardproof.frontends.onnx import (
    attention,
    contract,
    control,
    convolutions,
    einsum,
    indexing,
    layout,
    microsoft,
    microsoft_attention,
    norms,
    pads,
    pointwise,
    pools,
    quantised,
    ranks,
    recurrent,
    reductions,
    resize,
    sampling,
    search,
    selections,
    sequences,
    signal,
)
from shardproof.frontends.onnx.state import Rule

_DEFAULT: Final = (
    attention.RULES,
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
    quantised.RULES,
    recurrent.RULES,
    reductions.RULES,
    resize.RULES,
    sampling.RULES,
    search.RULES,
    selections.RULES,
    sequences.RULES,
    signal.RULES,
)

_MICROSOFT: Final = (microsoft.RULES, microsoft_attention.RULES, ranks.RULES)

TABLE: Final[Mapping[tuple[str, str], Rule]] = {
    **{("", name): rule for rules in _DEFAULT for name, rule in rules.items()},
    **{(f"{microsoft.DOMAIN}.nchwc", name): rule for name, rule in microsoft.BLOCKED.items()},
    **{(microsoft.DOMAIN, name): rule for rules in _MICROSOFT for name, rule in rules.items()},
}
"""Other operators of the standard are read by the function that defines them, if there is one."""
