"""Runs a module on folded tensors: what `shardproof.ir.interpret` computes, up to the order of sums.

Ranks whose operands are the same objects share the work and the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shardproof.ir.collectives import members
from shardproof.ir.evaluate import last_uses, rank_number
from shardproof.ir.module import Module, Op
from shardproof.ir.numpy_compute import monoid
from shardproof.ir.numpy_meaning import InterpretError, Unsupported, settle
from shardproof.ir.ops import TABLE
from shardproof.solver.replay.folded import Folded, common, compressed, spread
from shardproof.solver.replay.folded_index import gather, scatter
from shardproof.solver.replay.folded_rules import (
    RULES,
    Room,
    Rule,
    aligned,
    concatenated,
    pointwise,
    sliced,
    whole,
)
from shardproof.solver.replay.partitions import single
from shardproof.solver.replay.steadiness import rounding_decides
from shardproof.solver.replay.structure import order_dim, order_key, orders, wanted

Store = Mapping[str, list[Folded]]
"""Name -> one tensor per rank."""
Draw = Callable[[Op, int, int, int], Folded]
"""(rng operator, low, high, rank) -> what it draws."""
_ALL: Final[Mapping[str, Rule]] = {**RULES, "gather": gather, "scatter": scatter}


class Run:
    """One run of a module; `outputs` holds its outputs, `values` every value if they were asked for.

    `unsure` tells whether a branch was within rounding or an order of equals mattered, when `watch` asks for
    it; `strayed` whether a
    position that was read at or written to was out of range. `draw` gives what `rng` draws; without it
    there is no `rng`. Operators that no output depends on are left out. Raises InterpretError, TooLarge,
    TooLong.
    """

    def __init__(
        self,
        module: Module,
        inputs: Mapping[str, Folded],
        *,
        budget: int,
        watch: bool = False,
        keep: bool = False,
        check: Callable[[], None] = lambda: None,
        draw: Draw | None = None,
    ) -> None:
        self._draw = draw
        self._room = Room(budget)
        self._watch = watch
        self.unsure = False
        self._ranks = module.mesh.size
        self._needed = needed = wanted(module)
        store = {i.name: [inputs[i.name]] * self._ranks for i in module.inputs if i.name in inputs}
        missing = [i.name for i in module.inputs if i.name not in inputs and i.value in needed]
        if missing:
            raise InterpretError(f"input {missing[0]} is missing")
        self._room.alive = sum(_bytes(tensors) for tensors in store.values())
        free = last_uses(module)
        with np.errstate(all="ignore"):
            for n, op in enumerate(module.ops):
                if not any(r in needed for r in op.results):
                    continue
                check()
                results = self._step(op, [store[v.name] for v in op.operands])
                for value, tensors in zip(op.results, results, strict=True):
                    store[value.name] = tensors
                    self._room.alive += _bytes(tensors)
                for name in free[n] if not keep else ():
                    if name in store:
                        self._room.alive -= _bytes(store.pop(name))
        self.values: Store = store if keep else {}
        self.outputs: Store = {o.name: store[o.value.name] for o in module.outputs}
        self.strayed = self._room.strayed

    def _step(self, op: Op, operands: list[list[Folded]]) -> list[list[Folded]]:
        """For each result, its tensor on each rank."""
        row = TABLE.get(op.opcode)
        if op.opcode == "rank_id":
            return [[Folded(rank_number(op, rank), ()) for rank in range(self._ranks)]]
        if row is not None and "collective" in row.traits:
            return [self._communicate(op, operands[0])]
        if op.opcode == "rng" and self._draw is not None:
            low, high = (int(x[0].core) for x in operands)
            return [[self._draw(op, low, high, rank) for rank in range(self._ranks)]]
        if row is None or row.numpy is None:
            raise Unsupported(op.opcode)
        rule = _ALL.get(op.opcode) or (pointwise if "elementwise" in row.traits else whole)
        done: dict[tuple[int, ...], tuple[Folded, ...]] = {}
        found = []
        for rank in range(self._ranks):
            mine = [tensors[rank] for tensors in operands]
            key = tuple(map(id, mine))
            if key not in done:
                if self._watch and not self.unsure:
                    tied = orders(op, self._needed) and _tied(op, mine[order_key(op)])
                    self.unsure = tied or _unsure(op, mine)
                done[key] = _checked(op, rule(op, mine, self._room))
            found.append(done[key])
        return [[results[i] for results in found] for i in range(len(op.results))]

    def _communicate(self, op: Op, operand: list[Folded]) -> list[Folded]:
        done: dict[tuple[int, ...], dict[int, Folded]] = {}
        results: list[Folded] = []
        for rank, x in enumerate(operand):
            group = members(op, rank)
            if not group:
                results.append(_zeros(x))
                continue
            if group not in done:
                done[group] = self._exchange(op, {r: operand[r] for r in group})
            results.append(done[group][rank])
        return results

    def _exchange(self, op: Op, operands: Mapping[int, Folded]) -> dict[int, Folded]:
        ranks, xs = list(operands), list(operands.values())
        if op.opcode == "collective_permute":
            sources = {target: source for source, target in op.attrs["pairs"]}
            return {r: operands[sources[r]] if r in sources else _zeros(operands[r]) for r in ranks}
        if op.opcode == "collective_broadcast":
            return dict.fromkeys(ranks, xs[0])
        if op.opcode == "agree":
            return dict(operands)
        if op.opcode == "all_gather":
            return dict.fromkeys(ranks, concatenated(op, xs, op.attrs["dim"], self._room))
        if op.opcode in ("all_reduce", "reduce_scatter"):
            summed = _combined(op, xs, self._room)
            if op.opcode == "all_reduce":
                return dict.fromkeys(ranks, summed)
            return dict(zip(ranks, _split(summed, len(ranks), op.attrs["dim"]), strict=True))
        if op.opcode != "all_to_all":
            raise Unsupported(op.opcode)
        parts = [_split(x, len(ranks), op.attrs["split_dim"]) for x in xs]
        dim = op.attrs["concat_dim"]
        return {r: concatenated(op, [p[i] for p in parts], dim, self._room) for i, r in enumerate(ranks)}


def _checked(op: Op, results: tuple[Folded, ...]) -> tuple[Folded, ...]:
    for value, x in zip(op.results, results, strict=True):
        if x.shape != value.type.shape:
            raise InterpretError(f"{op.opcode} %{value.name} gave shape {list(x.shape)}, not {value.type}")
    return results


def _unsure(op: Op, xs: Sequence[Folded]) -> bool:
    if len(xs) > 1 and all(x.shape == xs[0].shape for x in xs):
        return rounding_decides(op, aligned(xs)[1])
    return rounding_decides(op, [x.core for x in xs])


def _tied(op: Op, x: Folded) -> bool:
    """Whether two positions that an operator orders hold one real, an extreme one if it looks for that."""
    dim = order_dim(op)
    core: Any = np.moveaxis(x.core, dim, -1)
    sizes = x.parts[dim].sizes
    if op.opcode == "argreduce":
        most = core.max(axis=-1) if op.attrs["kind"] == "max" else core.min(axis=-1)
        return bool(np.any(((core == most[..., None]) * sizes).sum(axis=-1) > 1))
    return bool(np.any(sizes > 1) or np.any(np.diff(np.sort(core, axis=-1), axis=-1) == 0))


def _bytes(tensors: Sequence[Folded]) -> int:
    """What they take on all ranks, at most: several may be parts of one array."""
    return sum({id(x): x.core.nbytes for x in tensors}.values())


def _zeros(x: Folded) -> Folded:
    return Folded(np.zeros([1 if n else 0 for n in x.shape], x.core.dtype), tuple(map(single, x.shape)))


def _split(x: Folded, count: int, dim: int) -> list[Folded]:
    whole_ranges = [(0, n, 1) for n in x.shape]
    size = x.shape[dim] // count
    pieces = []
    for n in range(count):
        ranges = [*whole_ranges[:dim], (n * size, (n + 1) * size, 1), *whole_ranges[dim + 1 :]]
        pieces.append(sliced(x, ranges))
    return pieces


def _combined(op: Op, xs: Sequence[Folded], room: Room) -> Folded:
    dtype = op.result.type.dtype
    function = monoid(op.attrs["kind"], dtype)
    parts = common(xs)
    room.need(op, [p.count for p in parts], xs[0].core.dtype)
    result: Any = spread(xs[0], parts)
    for x in xs[1:]:
        result = settle(function(result, spread(x, parts)), dtype)
    return compressed(Folded(np.broadcast_to(result, [p.count for p in parts]), parts))
