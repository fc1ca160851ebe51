"""Serialised HLO to `HloModule`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError

from shardproof.frontends.hlo import hlo_pb2
from shardproof.frontends.hlo.elements import PRIMITIVE, TOKEN, TUPLE, Shape, array_shape
from shardproof.frontends.hlo.instruction import (
    Alias,
    HloComputation,
    HloInstruction,
    HloModule,
    Key,
    complete_bitcast,
)
from shardproof.frontends.hlo.literal import from_proto
from shardproof.frontends.hlo.proto_attributes import ATTRIBUTES, extra
from shardproof.frontends.hlo.sharding import tile_counts
from shardproof.frontends.hlo.unknown_fields import has_unknown_fields, refuse_unknown_fields
from shardproof.frontends.locate import Locator
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType, Frame, Location, TensorType

pb: Any = hlo_pb2


def parse(data: bytes) -> Any:
    """The HloModuleProto in `data`, bare or inside an HloProto.

    Raises `ModuleError` when `data` is neither, or has a field that hlo.proto doesn't declare.
    """
    decoded, found = False, None
    for kind, inner in ((pb.HloModuleProto, None), (pb.HloProto, "hlo_module")):
        message = kind()
        try:
            message.ParseFromString(data)
        except (DecodeError, ValueError, TypeError):
            continue
        decoded = True
        module = message if inner is None else getattr(message, inner)
        if not module.computations:
            continue
        if found is None or _has_entry(module):
            found = kind, inner, message, module
        if _has_entry(module):
            break
    if found is not None:
        kind, inner, message, module = found
        if has_unknown_fields(message):
            message = kind()
            message.ParseFromString(data)
            refuse_unknown_fields(message)
        return module
    if decoded:
        raise ModuleError("decodes as a protobuf message, but holds no HLO computation")
    raise ModuleError("is not a serialised HLO module, or was cut short")


def _has_entry(module: Any) -> bool:
    """Whether the entry computation is there, as in any module and hardly in other bytes."""
    return any(
        c.id == module.entry_computation_id or c.name == module.entry_computation_name
        for c in module.computations
    )


def read_proto(module: Any, locator: Locator) -> HloModule:
    """An HloModuleProto as `HloModule`; raises `ModuleError` for what it can't mean."""
    return _Reader(module, locator).read()


class _Reader:
    def __init__(self, module: Any, locator: Locator) -> None:
        self.module = module
        self.locator = locator
        self.shapes: dict[bytes, Shape] = {}
        self.frames: dict[int, Location | None] = {}

    def read(self) -> HloModule:
        module = self.module
        if module.is_dynamic:
            raise ModuleError(f"module {module.name} has dynamic dims, which are not supported")
        computations: dict[Key, HloComputation] = {}
        for computation in module.computations:
            if computation.id in computations:
                raise ModuleError(f"two computations have the id {computation.id}")
            computations[computation.id] = self.computation(computation)
        entry = module.entry_computation_id
        if entry not in computations:
            entry = next(
                (c.key for c in computations.values() if c.name == module.entry_computation_name), None
            )
        if entry is None:
            raise ModuleError(f"module {module.name} has no entry computation")
        replicas = partitions = None
        if module.HasField("device_assignment"):
            replicas = module.device_assignment.replica_count
            partitions = module.device_assignment.computation_count
            if replicas < 1 or partitions < 1:
                raise ModuleError(f"device_assignment has {replicas} replicas and {partitions} partitions")
        return HloModule(
            name=module.name,
            computations=computations,
            entry=entry,
            aliases=tuple(
                Alias(tuple(a.output_shape_index), a.parameter_number, tuple(a.parameter_shape_index))
                for a in module.input_output_alias.entries
            ),
            replicas=replicas,
            partitions=partitions,
            partitioned=len(module.spmd_parameters_shardings) > 0,
            shardings=tuple(self.sharding(s) for s in module.spmd_parameters_shardings),
        )

    def computation(self, computation: Any) -> HloComputation:
        instructions: dict[Key, HloInstruction] = {}
        for instruction in computation.instructions:
            read = self.instruction(instruction)
            if read.key in instructions:
                other = instructions[read.key].name
                raise ModuleError(f"`{read.name}` and `{other}` have the same id {read.key}")
            if read.opcode == "bitcast":
                read = complete_bitcast(read, instructions)
            instructions[read.key] = read
        if computation.root_id not in instructions:
            raise ModuleError(f"computation {computation.name} has no root instruction")
        return HloComputation(computation.id, computation.name, instructions, computation.root_id)

    def instruction(self, i: Any) -> HloInstruction:
        name, opcode = i.name, i.opcode
        where = f"`{name}`"
        if not name:
            raise ModuleError(f"an instruction with opcode {opcode!r} and id {i.id} has no name")
        if not i.HasField("shape"):
            raise ModuleError(f"{where} has no shape")
        shape = self.shape(i.shape, where)
        read = ATTRIBUTES.get(opcode)
        attrs: Mapping[str, Any] = read(i, where) if read is not None else {}
        if i.feature_index or i.fft_type or i.triangular_solve_options or i.cholesky_options or i.delta:
            attrs = {**attrs, "extra": extra(i)}
        literal = None
        if opcode == "constant":
            literal = self.literal(i, shape, where)
        sharding, annotated = None, False
        if i.HasField("sharding"):
            sharding, annotated = self.sharding(i.sharding), True
        return HloInstruction(
            key=i.id,
            name=name,
            opcode=opcode,
            shape=shape,
            operands=tuple(i.operand_ids),
            attrs=attrs,
            called=tuple(i.called_computation_ids),
            number=i.parameter_number,
            literal=literal,
            sharding=sharding,
            annotated=annotated,
            location=self.location(i.metadata),
        )

    def shape(self, message: Any, where: str) -> Shape:
        key = message.SerializeToString()
        found = self.shapes.get(key)
        if found is None:
            found = self.shapes[key] = self._shape(message, where)
        return found

    def _shape(self, message: Any, where: str) -> Shape:
        code = message.element_type
        if code == TUPLE:
            return Shape(None, tuple(self.shape(part, where) for part in message.tuple_shapes))
        if code == TOKEN:
            return Shape(TensorType(DType.TOKEN, ()))
        dtype = PRIMITIVE.get(code)
        if dtype is None:
            raise ModuleError(f"{where} has element type number {code}, which is not supported")
        if any(message.is_dynamic_dimension):
            raise ModuleError(f"{where} has a dynamic dim, which is not supported")
        layout, physical = None, True
        if message.HasField("layout"):
            order = tuple(message.layout.minor_to_major)
            layout = order if order or not message.dimensions else None
            physical = not message.layout.tiles
        return array_shape(dtype, tuple(message.dimensions), layout, where, physical=physical)

    def literal(self, i: Any, shape: Shape, where: str) -> Any:
        if shape.is_tuple or shape.type is None:
            raise ModuleError(f"{where} is a constant tuple, which is not supported")
        if not i.HasField("literal"):
            raise ModuleError(f"{where} is a constant without a value")
        stored = self.shape(i.literal.shape, where)
        if stored.type != shape.type:
            raise ModuleError(f"{where} has the type {shape}, its value has {stored}")
        return from_proto(i.literal, shape.type, stored.layout, where)

    def sharding(self, s: Any) -> tuple[int, ...] | None:
        """Parts per dim; `()` for replicated, whatever the rank."""
        if s.type == 0:
            return ()
        if s.type != 3 or s.named_sharding or s.is_shard_group:
            return None
        devices = list(s.tile_assignment_devices) or None
        return tile_counts(
            list(s.tile_assignment_dimensions),
            devices,
            list(s.iota_transpose_perm),
            replicate_last=s.replicate_on_last_tile_dim,
            subgroups=len(s.last_tile_dims),
        )

    def location(self, metadata: Any) -> Location | None:
        frame = metadata.stack_frame_id
        if frame:
            if frame not in self.frames:
                self.frames[frame] = self.locator.from_frames(self._stack(frame))
            return self.frames[frame]
        file = metadata.source_file
        return self.locator.from_text(file, metadata.source_line) if file else None

    def _stack(self, frame: int) -> list[Frame]:
        index = self.module.stack_frame_index
        frames: list[Frame] = []
        seen: set[int] = set()
        while 0 < frame <= len(index.stack_frames) and frame not in seen:
            seen.add(frame)
            entry = index.stack_frames[frame - 1]
            at = entry.file_location_id
            if 0 < at <= len(index.file_locations):
                place = index.file_locations[at - 1]
                file = _named(index.file_names, place.file_name_id)
                if file is not None:
                    frames.append(
                        Frame(file, place.line, _named(index.function_names, place.function_name_id))
                    )
            frame = entry.parent_frame_id
        return frames[::-1]


def _named(names: Any, number: int) -> str | None:
    return names[number - 1] if 0 < number <= len(names) else None
