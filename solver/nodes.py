"""Results about PyTorch programs, in terms of the nodes of their graphs."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from shardproof.solver.verdict import Place, Result

_STEP: Final = re.compile(r"\b([A-Za-z_]\w*)(?:\.\d+)+'*(?![\w.])")
"""A value that lowering made on the way to that of a node: names of nodes have no dot."""
_QUOTED: Final = re.compile(r"`([^`]*)`")


def by_node(result: Result, kept: Collection[str] = ()) -> Result:
    """The result with values replaced by the nodes that they belong to, but for those in `kept`."""

    def node_of(text: str) -> str:
        return text if text in kept else _STEP.sub(lambda m: m[0] if m[0] in kept else m[1], text)

    def quoted(text: str) -> str:
        return _QUOTED.sub(lambda m: f"`{node_of(m[1])}`", text)

    def placed(place: Place | None) -> Place | None:
        return place and replace(place, value=node_of(place.value))

    return replace(
        result,
        message=quoted(result.message),
        expected=result.expected and quoted(result.expected),
        found=result.found and quoted(result.found),
        repair=result.repair and quoted(result.repair),
        help=tuple(map(quoted, result.help)),
        location=placed(result.location),
        reference_location=placed(result.reference_location),
        blocked=result.blocked and tuple(replace(b, value=node_of(b.value)) for b in result.blocked),
        assumptions=tuple(replace(a, text=quoted(a.text)) for a in result.assumptions),
    )
