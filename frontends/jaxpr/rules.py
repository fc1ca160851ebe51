"""Every primitive that is read, and what it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardproof.frontends.jaxpr import collectives, contract, control, indexing, layout, pointwise, sharded
from shardproof.frontends.jaxpr.state import Rule

RULES: Final[Mapping[str, Rule]] = {
    **pointwise.RULES,
    **layout.RULES,
    **contract.RULES,
    **indexing.RULES,
    **collectives.RULES,
    **control.RULES,
    **sharded.RULES,
}
