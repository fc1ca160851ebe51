"""Every primitive that is read, and what it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardproof.frontends.jaxpr import (
    collectives,
    contract,
    control,
    indexing,
    layout,
    linear_algebra,
    pointwise,
    random_keys,
    sharded,
    windows,
)
from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.frontends.jaxpr.unknown import is_own, lower_unknown
from shardproof.ir.module import Value

RULES: Final[Mapping[str, Rule]] = {
    **pointwise.RULES,
    **layout.RULES,
    **contract.RULES,
    **indexing.RULES,
    **collectives.RULES,
    **control.RULES,
    **sharded.RULES,
    **windows.RULES,
    **linear_algebra.RULES,
    **random_keys.RULES,
}


def rule_of(eqn: Any) -> Rule:
    """The rule of an equation; primitives without one are functions known by name, or refused.

    Rules are for JAX's own primitives; another library's may have the name of one.
    """
    if not is_own(eqn.primitive):
        return lower_unknown
    if eqn.primitive.name in random_keys.MOVED and random_keys.holds_keys(eqn):
        return _moved
    return RULES.get(eqn.primitive.name, lower_unknown)


def _moved(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    return random_keys.moved(state, eqn.source, operands)
