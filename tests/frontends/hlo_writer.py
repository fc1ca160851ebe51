"""Writes an `HloModule` in the serialised form, so that tests can compare both readers on one program."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardproof.frontends.hlo import hlo_pb2
from shardproof.frontends.hlo.elements import PRIMITIVE, TOKEN, TUPLE, Shape
from shardproof.frontends.hlo.instruction import HloInstruction, HloModule, Key
from shardproof.frontends.hlo.literal import FLOAT8, float8_values
from shardproof.frontends.hlo.read_text import read_text
from shardproof.frontends.locate import Locator
from shardproof.ir.types import DType

pb: Any = hlo_pb2
NUMBER = {dtype: number for number, dtype in PRIMITIVE.items()}


def to_proto(text: str) -> Any:
    """The HloModuleProto that XLA would write for HLO text."""
    module = read_text(text, Locator())
    message = pb.HloModuleProto(name=module.name)
    ids: dict[Key, int] = {key: 1 + k for k, key in enumerate(module.computations)}
    for key, body in module.computations.items():
        computation = message.computations.add(name=body.name, id=ids[key])
        numbers: dict[Key, int] = {k: (ids[key] << 32) | n for n, k in enumerate(body.instructions)}
        computation.root_id = numbers[body.root]
        for op in body.instructions.values():
            _instruction(computation.instructions.add(), op, numbers, ids)
    message.entry_computation_id = ids[module.entry]
    message.entry_computation_name = module.computations[module.entry].name
    _module(message, module)
    return message


def to_bytes(text: str) -> bytes:
    data: bytes = to_proto(text).SerializeToString()
    return data


def _module(message: Any, module: HloModule) -> None:
    for alias in module.aliases:
        message.input_output_alias.entries.add(
            output_shape_index=alias.output,
            parameter_number=alias.parameter,
            parameter_shape_index=alias.path,
            kind=2,
        )
    if module.replicas is not None or module.partitions is not None:
        message.device_assignment.replica_count = module.replicas or 1
        message.device_assignment.computation_count = module.partitions or 1


def _shape(message: Any, shape: Shape) -> None:
    if shape.type is None:
        message.element_type = TUPLE
        message.SetInParent()
        for part in shape.parts:
            _shape(message.tuple_shapes.add(), part)
        return
    if shape.type.dtype is DType.TOKEN:
        message.element_type = TOKEN
        return
    message.element_type = NUMBER[shape.type.dtype]
    message.dimensions.extend(shape.type.shape)
    rank = len(shape.type.shape)
    message.layout.minor_to_major.extend(shape.layout or range(rank - 1, -1, -1))


def _literal(message: Any, op: HloInstruction) -> None:
    assert op.literal is not None and op.shape.type is not None
    _shape(message.shape, op.shape)
    dtype = op.shape.type.dtype
    value = op.literal
    if op.shape.layout is not None:
        value = value.transpose(tuple(reversed(op.shape.layout)))
    flat = np.ascontiguousarray(value).ravel()
    name = f"{'pred' if dtype is DType.BOOL else dtype.value}s"
    if dtype in FLOAT8:
        table = float8_values(dtype)
        codes = [int(np.flatnonzero(table == x)[0]) for x in flat]
        setattr(message, name, bytes(codes))
    elif dtype is DType.BF16:
        setattr(message, name, (flat.view(np.uint32) >> 16).astype("<u2").tobytes())
    elif dtype is DType.F16:
        setattr(message, name, flat.astype("<f2").tobytes())
    elif dtype in (DType.S4, DType.U4):
        setattr(message, name, (flat.astype(np.int16) & 0xF).astype(np.uint8).tobytes())
    elif dtype in (DType.S8, DType.U8, DType.S16, DType.U16):
        setattr(message, name, flat.tobytes())
    elif dtype.kind == "complex":
        getattr(message, name).extend(flat.view(flat.real.dtype).tolist())
    else:
        getattr(message, name).extend(flat.tolist())


_FIELDS = {
    "dimensions": "dimensions",
    "dynamic_slice_sizes": "dynamic_slice_sizes",
    "slice_sizes": "gather_slice_sizes",
    "feature_group_count": "feature_group_count",
    "batch_group_count": "batch_group_count",
    "direction": "comparison_direction",
    "type": "comparison_type",
    "index": "tuple_index",
    "is_stable": "is_stable",
    "unique_indices": "unique_indices",
    "k": "k",
    "largest": "largest",
    "custom_call_target": "custom_call_target",
    "custom_call_has_side_effect": "custom_call_has_side_effect",
    "exponent_bits": "exponent_bits",
    "mantissa_bits": "mantissa_bits",
    "channel_id": "channel_id",
    "use_global_device_ids": "use_global_device_ids",
}
_DOT = {
    "lhs_contracting_dims": "lhs_contracting_dimensions",
    "rhs_contracting_dims": "rhs_contracting_dimensions",
    "lhs_batch_dims": "lhs_batch_dimensions",
    "rhs_batch_dims": "rhs_batch_dimensions",
}


def _instruction(message: Any, op: HloInstruction, numbers: dict[Key, int], ids: dict[Key, int]) -> None:
    message.name, message.opcode, message.id = op.name, op.opcode, numbers[op.key]
    message.parameter_number = op.number
    message.operand_ids.extend(numbers[k] for k in op.operands)
    message.called_computation_ids.extend(ids[k] for k in op.called)
    _shape(message.shape, op.shape)
    if op.literal is not None:
        _literal(message.literal, op)
    if op.location is not None:
        message.metadata.source_file = op.location.file
        message.metadata.source_line = op.location.line
    for key, value in op.attrs.items():
        _attribute(message, op.opcode, key, value)


def _attribute(message: Any, opcode: str, key: str, value: Any) -> None:
    if key in _FIELDS:
        if isinstance(value, tuple):
            getattr(message, _FIELDS[key]).extend(value)
        else:
            setattr(message, _FIELDS[key], value)
    elif key in _DOT:
        getattr(message.dot_dimension_numbers, _DOT[key]).extend(value)
    elif key == "slice":
        for start, limit, stride in zip(*value, strict=True):
            message.slice_dimensions.add(start=start, limit=limit, stride=stride)
    elif key == "padding":
        for low, high, interior in zip(*value, strict=True):
            message.padding_config.dimensions.add(
                edge_padding_low=low, edge_padding_high=high, interior_padding=interior
            )
    elif key == "window":
        for w in value:
            message.window.dimensions.add(
                size=w.size,
                stride=w.stride,
                padding_low=w.low,
                padding_high=w.high,
                window_dilation=w.window_dilation,
                base_dilation=w.base_dilation,
                window_reversal=w.reversal,
            )
    elif key == "dim_labels":
        lhs, rhs, out = value
        c = message.convolution_dimension_numbers
        c.input_batch_dimension, c.input_feature_dimension = lhs[:2]
        c.kernel_input_feature_dimension, c.kernel_output_feature_dimension = rhs[:2]
        c.output_batch_dimension, c.output_feature_dimension = out[:2]
        c.input_spatial_dimensions.extend(lhs[2:])
        c.kernel_spatial_dimensions.extend(rhs[2:])
        c.output_spatial_dimensions.extend(out[2:])
    elif key == "groups":
        for group in value:
            message.replica_groups.add(replica_ids=group)
    elif key == "source_target_pairs":
        for source, target in value:
            message.source_target_pairs.add(source=source, target=target)
    elif key == "backend_config":
        message.backend_config = value.encode()
    elif key == "distribution":
        message.distribution = {"uniform": 1, "normal": 2}[value]
    elif key == "algorithm":
        message.rng_algorithm = {"rng_default": 0, "rng_three_fry": 1, "rng_philox": 2}[value]
    elif key != "operand_layout":
        numbers = (
            message.scatter_dimension_numbers if opcode == "scatter" else message.gather_dimension_numbers
        )
        if isinstance(value, tuple):
            getattr(numbers, key).extend(value)
        else:
            setattr(numbers, key, value)
