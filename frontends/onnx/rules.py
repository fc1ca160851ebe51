"""The operators that have a rule, by domain and name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardproof.frontends.onnx import contract, layout, pointwise, reductions
from shardproof.frontends.onnx.state import Rule

_DEFAULT: Final = (contract.RULES, layout.RULES, pointwise.RULES, reductions.RULES)

TABLE: Final[Mapping[tuple[str, str], Rule]] = {
    ("", name): rule for rules in _DEFAULT for name, rule in rules.items()
}
"""Other operators of the standard are read by the function that defines them, if there is one."""
