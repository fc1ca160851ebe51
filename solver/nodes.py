"""Results about PyTorch programs, in terms of the nodes of their graphs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from shardproof.solver.verdict import Place, Result

_STEP: Final = re.compile(r"\b([A-Za-z_]\w*)(?:\.\d+)+'*(?![\w.])")
"""A value that lowering made on the way to that of a node: names of nodes have no dot."""


def node_of(value: str) -> str:
    """The node in whose lowering a value was made."""
    return _STEP.sub(r"\1", value)


def by_node(result: Result) -> Result:
    """The result with values replaced by the nodes that they belong to."""
    return replace(
        result,
        message=_quoted(result.message),
        expected=result.expected and _quoted(result.expected),
        found=result.found and _quoted(result.found),
        repair=result.repair and _quoted(result.repair),
        help=tuple(map(_quoted, result.help)),
        location=_place(result.location),
        reference_location=_place(result.reference_location),
        blocked=result.blocked and tuple(replace(b, value=node_of(b.value)) for b in result.blocked),
        assumptions=tuple(replace(a, text=_quoted(a.text)) for a in result.assumptions),
    )


def _place(place: Place | None) -> Place | None:
    return place and replace(place, value=node_of(place.value))


def _quoted(text: str) -> str:
    return re.sub(r"`[^`]*`", lambda m: node_of(m.group()), text)
