"""One rank of a capture: its graph, the names of its results, and placements that DTensors state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardproof.frontends.fx.graph import Graph


@dataclass(frozen=True, slots=True)
class Placed:
    """How a DTensor lies on its device mesh: `ranks` in row-major order over `dims`, a placement per dim.

    A placement is `replicate`, `shard(D)` or `partial`; None for others.
    """

    shape: tuple[int, ...]
    dims: tuple[tuple[str, int], ...]
    ranks: tuple[int, ...]
    placements: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """One rank's graph, names of its results in order, and placements of inputs and results by name.

    `data` are the inputs that are example inputs, not parameters or buffers.
    """

    graph: Graph
    outputs: tuple[str, ...]
    inputs_placed: Mapping[str, Placed] = field(default_factory=dict)
    outputs_placed: Mapping[str, Placed] = field(default_factory=dict)
    data: tuple[str, ...] = ()

    @property
    def rank(self) -> int | None:
        return self.graph.rank
