"""What the proto reader and the text reader both produce, and the lowering consumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from shardproof.frontends.hlo.elements import Shape
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Array, Location

Key: TypeAlias = int | str
"""Identifies an instruction or a computation: its id in a proto, its name in text."""

Groups: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class WindowDim:
    """One dim of a window, with XLA's defaults filled in."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    window_dilation: int = 1
    base_dilation: int = 1
    reversal: bool = False


@dataclass(frozen=True, slots=True)
class HloInstruction:
    """One instruction; `attrs` are normalised, the same for both file forms.

    Keys of `attrs`, present when the opcode has them (names of the text form):
    `dimensions`, `slice` (starts, limits, strides), `dynamic_slice_sizes`, `padding` (low, high, interior),
    `window` (WindowDims), `dim_labels` (lhs, rhs, out), `feature_group_count`, `batch_group_count`,
    `lhs_contracting_dims` and the other three of a dot, the dimension numbers of gather and scatter,
    `direction`, `type` (TOTALORDER or ""), `index`, `is_stable`, `unique_indices`, `k`, `largest`,
    `custom_call_target`, `backend_config`, `custom_call_has_side_effect`, `distribution`, `algorithm`,
    `exponent_bits`, `mantissa_bits`, `operand_layout` (of a bitcast: layout, physical), `channel_id`,
    `use_global_device_ids`, `groups` (explicit ids, `()` for one group of all), `source_target_pairs`,
    `extra` (text that only tells opaque operators apart).
    """

    key: Key
    name: str
    opcode: str
    shape: Shape
    operands: tuple[Key, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    called: tuple[Key, ...] = ()
    number: int = 0
    literal: Array | None = None
    sharding: tuple[int, ...] | None = None
    annotated: bool = False
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class HloComputation:
    """Instructions by key, operands first; `root` is the key of the result."""

    key: Key
    name: str
    instructions: Mapping[Key, HloInstruction]
    root: Key

    def parameters(self) -> list[HloInstruction]:
        """Its parameters by number."""
        found = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return sorted(found, key=lambda i: i.number)


@dataclass(frozen=True, slots=True)
class Alias:
    """The output at `output` (index path) overwrites parameter `parameter` at `path`."""

    output: tuple[int, ...]
    parameter: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HloModule:
    """A whole file; `replicas` and `partitions` are None when it doesn't say."""

    name: str
    computations: Mapping[Key, HloComputation]
    entry: Key
    aliases: tuple[Alias, ...] = ()
    replicas: int | None = None
    partitions: int | None = None
    partitioned: bool = False
    shardings: tuple[tuple[int, ...] | None, ...] = ()


def complete_bitcast(op: HloInstruction, before: Mapping[Key, HloInstruction]) -> HloInstruction:
    """A bitcast with its operand's layout, which its meaning depends on, as attribute `operand_layout`."""
    source = before.get(op.operands[0]) if op.operands else None
    if source is None:
        return op
    return replace(op, attrs={"operand_layout": (source.shape.layout, source.shape.physical)})


def comparison_type(kind: str, where: str) -> str:
    """`TOTALORDER`, or "" for the types that an element type has anyway."""
    if kind not in ("", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"):
        raise ModuleError(f"{where} has the comparison type {kind!r}, which is not known")
    return kind if kind == "TOTALORDER" else ""
