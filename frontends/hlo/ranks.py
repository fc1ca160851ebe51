"""How many ranks a module has, and which flat rank each id in a collective means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shardproof.frontends.hlo.groups import MAX_RANKS, check_groups
from shardproof.frontends.hlo.instruction import Groups, HloInstruction, HloModule
from shardproof.ir.module import ModuleError

_BOTH: Final = frozenset({"all-reduce", "all-gather", "reduce-scatter"})
_ONE: Final = frozenset({"all-to-all", "collective-permute", "collective-broadcast"})
COLLECTIVES: Final = frozenset({*_BOTH, *_ONE, *(f"{name}-start" for name in _BOTH | _ONE)})


@dataclass(frozen=True, slots=True)
class Ranks:
    """`size` ranks; flat rank = replica * partitions + partition.

    `replicas` and `partitions` are None when nothing tells them apart; `note` says what was taken for
    granted to tell them apart.
    """

    size: int
    replicas: int | None
    partitions: int | None
    note: str | None = None

    def groups(self, op: HloInstruction) -> Groups:
        """The replica groups of `op` as flat ranks; no group means one of all."""
        where = f"`{op.name}`"
        groups: Groups = op.attrs["groups"]
        everyone = tuple(range(self.size))
        if self._flat_ids(op, max((rank for g in groups for rank in g), default=0)):
            flat = groups or (everyone,)
        elif _mode(op) == "replicas and partitions":
            replicas, partitions = self.replicas or 1, self.partitions or self.size
            ids = groups or (tuple(range(replicas)),)
            check_groups(ids, replicas, where, cover=True)
            flat = tuple(tuple(r * partitions + p for r in g for p in range(partitions)) for g in ids)
        else:
            check_groups(groups, 1, where, cover=False)
            flat = tuple((rank,) for rank in everyone)
        check_groups(flat, self.size, where, cover=not op.opcode.startswith("collective-broadcast"))
        return flat

    def pairs(self, op: HloInstruction) -> tuple[tuple[int, int], ...]:
        """The source-target pairs of a permute as flat ranks."""
        pairs: tuple[tuple[int, int], ...] = op.attrs["source_target_pairs"]
        where = f"`{op.name}`"
        if not self._flat_ids(op, max((rank for pair in pairs for rank in pair), default=0)):
            if any(a or b for a, b in pairs):
                raise ModuleError(f"{where} permutes ids that its ranks don't have")
            pairs = tuple((r, r) for r in range(self.size)) if pairs else ()
        for side in (0, 1):
            check_groups(tuple((pair[side],) for pair in pairs), self.size, where, cover=False)
        return pairs

    def _flat_ids(self, op: HloInstruction, largest: int) -> bool:
        """Whether the ids of `op` are flat ranks (the only alternative here: the one other id is 0)."""
        replicas, partitions, mode = self.replicas, self.partitions, _mode(op)
        if mode == "flat" or self.size == 1:
            return True
        if (replicas or 1) > 1 and (partitions or 1) > 1:
            raise ModuleError(
                f"`{op.name}` has no global ids in a module of {replicas} replicas x {partitions} "
                "partitions, which is not supported"
            )
        if mode == "replicas":
            return partitions in (None, 1)
        if mode == "partitions":
            return replicas in (None, 1)
        if partitions == 1:
            return True
        if replicas is None and largest:
            raise ModuleError(
                f"`{op.name}` has a channel and no global ids: its groups name replicas, and the file "
                "doesn't say how many there are; dump the module with its device assignment"
            )
        return False

    def has_id(self, op: HloInstruction) -> bool:
        """Whether partition-id or replica-id is the flat rank; False when it is always 0.

        Raises `ModuleError` when the file doesn't tell.
        """
        mine, other = self.partitions, self.replicas
        if op.opcode == "replica-id":
            mine, other = other, mine
        if self.size == 1 or mine == 1:
            return False
        if mine is None or other is None:
            raise ModuleError(
                f"`{op.name}`: the file doesn't say whether its ranks are replicas or partitions"
            )
        if other > 1:
            raise ModuleError(f"`{op.name}` is used with {other} times {mine} ranks, which is not supported")
        return True


def _mode(op: HloInstruction) -> str:
    """What the ids of a collective name, by XLA's rules for channel and global ids."""
    if op.attrs["use_global_device_ids"]:
        if not op.attrs["channel_id"]:
            raise ModuleError(f"`{op.name}` has global ids but no channel, which XLA doesn't define")
        return "flat"
    if not op.attrs["channel_id"]:
        return "replicas"
    return "replicas and partitions" if op.opcode.removesuffix("-start") in _BOTH else "partitions"


def _collectives(module: HloModule) -> Iterator[HloInstruction]:
    for body in module.computations.values():
        for op in body.instructions.values():
            if op.opcode in COLLECTIVES:
                yield op


def count_ranks(module: HloModule, asked: int | None) -> Ranks:
    """The ranks of `module`: as asked, else as the file says, else as the largest id in a collective needs.

    Raises `ModuleError` when these disagree, or when the module depends on a number that nothing tells.
    """
    replicas, partitions = module.replicas, module.partitions
    if replicas is None and partitions is not None:
        replicas = 1
    if partitions is None and replicas is not None:
        partitions = 1
    told = None if replicas is None or partitions is None else replicas * partitions
    if asked is not None and asked < 1:
        raise ModuleError(f"{asked} ranks were asked for, at least 1 is needed")
    if asked is not None and told is not None and asked != told:
        raise ModuleError(
            f"{asked} ranks were asked for, but the file says {replicas} replicas x {partitions} partitions"
        )
    used, open_ended, modes = 0, None, set()
    for op in _collectives(module):
        mode = _mode(op)
        modes.add(mode)
        groups = () if mode == "replicas and partitions" else op.attrs["groups"]
        ids = [rank for g in (*groups, *op.attrs["source_target_pairs"]) for rank in g]
        used = max(used, 1 + max(ids, default=-1))
        if not groups and not op.opcode.startswith("collective-permute"):
            open_ended = op
    asks = _rank_questions(module)
    size = asked if asked is not None else told
    if size is None:
        open_ended = open_ended or asks.get("partition-id") or asks.get("replica-id")
        if open_ended is not None and not used:
            raise ModuleError(
                f"`{open_ended.name}` depends on how many ranks there are, and the file doesn't say: "
                "give their number"
            )
        size = max(used, 1)
    if size > MAX_RANKS:
        raise ModuleError(f"the module has {size} ranks, at most {MAX_RANKS} are supported")
    note = None
    if replicas is None:
        by_partition = "partition-id" in asks or bool(modes & {"partitions"})
        by_replica = "replica-id" in asks or "replicas" in modes
        if by_partition != by_replica and "replicas and partitions" not in modes:
            replicas, partitions = (1, size) if by_partition else (size, 1)
            if asks:
                note = (
                    f"the file doesn't tell replicas from partitions: {next(iter(asks))} is read as the rank"
                )
    return Ranks(size, replicas, partitions, note)


def _rank_questions(module: HloModule) -> dict[str, HloInstruction]:
    """The first partition-id and the first replica-id."""
    found: dict[str, HloInstruction] = {}
    for body in module.computations.values():
        for op in body.instructions.values():
            if op.opcode in ("partition-id", "replica-id"):
                found.setdefault(op.opcode, op)
    return found
