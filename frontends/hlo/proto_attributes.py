"""The attributes of each opcode, out of an HloInstructionProto."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from shardproof.frontends.hlo.groups import AxisRef, cut, iota_devices, mesh_groups
from shardproof.frontends.hlo.instruction import Groups, WindowDim, comparison_type
from shardproof.ir.module import ModuleError

DISTRIBUTION: Final = {1: "uniform", 2: "normal"}
ALGORITHM: Final = {0: "rng_default", 1: "rng_three_fry", 2: "rng_philox"}


def extra(i: Any) -> str:
    fields = (i.feature_index, i.epsilon, i.fft_type, tuple(i.fft_length), i.delta)
    return f"{fields} {bytes(i.triangular_solve_options).hex()} {bytes(i.cholesky_options).hex()}"


def _dimensions(i: Any, where: str) -> dict[str, Any]:
    return {"dimensions": tuple(i.dimensions)}


def _slice(i: Any, where: str) -> dict[str, Any]:
    cuts = i.slice_dimensions
    return {
        "slice": (
            tuple(d.start for d in cuts),
            tuple(d.limit for d in cuts),
            tuple(d.stride for d in cuts),
        )
    }


def _dot(i: Any, where: str) -> dict[str, Any]:
    d = i.dot_dimension_numbers
    return {
        "lhs_contracting_dims": tuple(d.lhs_contracting_dimensions),
        "rhs_contracting_dims": tuple(d.rhs_contracting_dimensions),
        "lhs_batch_dims": tuple(d.lhs_batch_dimensions),
        "rhs_batch_dims": tuple(d.rhs_batch_dimensions),
    }


def _gather(i: Any, where: str) -> dict[str, Any]:
    g = i.gather_dimension_numbers
    return {
        "offset_dims": tuple(g.offset_dims),
        "collapsed_slice_dims": tuple(g.collapsed_slice_dims),
        "start_index_map": tuple(g.start_index_map),
        "index_vector_dim": g.index_vector_dim,
        "slice_sizes": tuple(i.gather_slice_sizes),
        "operand_batching_dims": tuple(g.operand_batching_dims),
        "start_indices_batching_dims": tuple(g.start_indices_batching_dims),
    }


def _scatter(i: Any, where: str) -> dict[str, Any]:
    s = i.scatter_dimension_numbers
    return {
        "update_window_dims": tuple(s.update_window_dims),
        "inserted_window_dims": tuple(s.inserted_window_dims),
        "scatter_dims_to_operand_dims": tuple(s.scatter_dims_to_operand_dims),
        "index_vector_dim": s.index_vector_dim,
        "input_batching_dims": tuple(s.input_batching_dims),
        "scatter_indices_batching_dims": tuple(s.scatter_indices_batching_dims),
        "unique_indices": i.unique_indices,
    }


def _window(i: Any, where: str) -> dict[str, Any]:
    return {
        "window": tuple(
            WindowDim(
                d.size,
                d.stride,
                d.padding_low,
                d.padding_high,
                d.window_dilation,
                d.base_dilation,
                d.window_reversal,
            )
            for d in i.window.dimensions
        )
    }


def _convolution(i: Any, where: str) -> dict[str, Any]:
    if i.convolution_extension:
        raise ModuleError(f"{where} has a convolution extension (field 98), which is not known")
    if i.padding_type > 1:
        raise ModuleError(f"{where} is a convolution with dynamic padding, which is not supported")
    c = i.convolution_dimension_numbers
    return {
        **_window(i, where),
        "dim_labels": (
            (c.input_batch_dimension, c.input_feature_dimension, *c.input_spatial_dimensions),
            (
                c.kernel_input_feature_dimension,
                c.kernel_output_feature_dimension,
                *c.kernel_spatial_dimensions,
            ),
            (c.output_batch_dimension, c.output_feature_dimension, *c.output_spatial_dimensions),
        ),
        "feature_group_count": i.feature_group_count or 1,
        "batch_group_count": i.batch_group_count or 1,
    }


def _pad(i: Any, where: str) -> dict[str, Any]:
    dims = i.padding_config.dimensions
    return {
        "padding": (
            tuple(d.edge_padding_low for d in dims),
            tuple(d.edge_padding_high for d in dims),
            tuple(d.interior_padding for d in dims),
        )
    }


def _lists(groups: Iterable[Any]) -> Groups:
    return tuple(tuple(g.replica_ids) for g in groups)


def _iota(message: Any, where: str) -> Groups:
    devices = iota_devices(list(message.iota_reshape_dims), list(message.iota_transpose_perm), where)
    return cut(devices, message.num_replica_groups, message.num_devices_per_group, where)


def expand_groups(i: Any, where: str) -> Groups:
    """The replica groups of a collective, whichever of its four fields holds them; `()` when none does."""
    found: list[Groups] = []
    if i.replica_groups:
        found.append(_lists(i.replica_groups))
    if i.HasField("collective_device_list"):
        devices = i.collective_device_list
        if devices.replica_groups:
            found.append(_lists(devices.replica_groups))
        if devices.HasField("iota_replica_group_list"):
            found.append(_iota(devices.iota_replica_group_list, where))
    if i.HasField("iota_collective_device_list"):
        found.append(_iota(i.iota_collective_device_list, where))
    if i.HasField("mesh_axes_replica_group_list"):
        found.append(_mesh_axes(i.mesh_axes_replica_group_list, where))
    if any(groups != found[0] for groups in found):
        raise ModuleError(f"{where} gives its replica groups twice, and they differ")
    return found[0] if found else ()


def _mesh_axes(message: Any, where: str) -> Groups:
    mesh = message.mesh
    sizes = [axis.size for axis in mesh.axes]
    dims, permutation = sizes, []
    if mesh.HasField("iota_device_assignment"):
        dims = list(mesh.iota_device_assignment.reshape_dims)
        permutation = list(mesh.iota_device_assignment.transpose_perm)
    devices = list(mesh.device_ids) or iota_devices(dims, permutation, where)
    axes = [
        AxisRef(a.mesh_axis_index, a.sub_axis_info.pre_size, a.sub_axis_info.size)
        if a.HasField("sub_axis_info")
        else AxisRef(a.mesh_axis_index)
        for a in message.axes
    ]
    iota_devices(sizes, [], where)
    return mesh_groups(sizes, devices, axes, where)


def _collective(i: Any, where: str) -> dict[str, Any]:
    return {
        "dimensions": tuple(i.dimensions),
        "groups": expand_groups(i, where),
        "source_target_pairs": tuple((p.source, p.target) for p in i.source_target_pairs),
        "channel_id": max(i.channel_id, i.all_reduce_id, 0),
        "use_global_device_ids": i.use_global_device_ids,
    }


def _custom_call(i: Any, where: str) -> dict[str, Any]:
    attrs: dict[str, Any] = {
        "custom_call_target": i.custom_call_target,
        "backend_config": _text(i.backend_config),
        "custom_call_has_side_effect": i.custom_call_has_side_effect,
    }
    if i.HasField("window"):
        attrs |= _window(i, where)
    if i.HasField("dot_dimension_numbers"):
        attrs |= _dot(i, where)
    if i.HasField("convolution_dimension_numbers"):
        attrs |= _convolution(i, where)
    return attrs


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"bytes {raw.hex()}"


def _chosen(table: Mapping[int, str], number: int, what: str, where: str) -> str:
    if number not in table:
        raise ModuleError(f"{where} has {what} number {number}, which is not known")
    return table[number]


ATTRIBUTES: Final[Mapping[str, Callable[[Any, str], Mapping[str, Any]]]] = {
    **dict.fromkeys(
        (
            "all-reduce",
            "all-reduce-start",
            "all-gather",
            "all-gather-start",
            "reduce-scatter",
            "all-to-all",
            "collective-permute",
            "collective-permute-start",
            "collective-broadcast",
        ),
        _collective,
    ),
    **dict.fromkeys(
        ("broadcast", "transpose", "concatenate", "reduce", "iota", "reverse", "get-dimension-size"),
        _dimensions,
    ),
    "sort": lambda i, w: {"dimensions": tuple(i.dimensions), "is_stable": i.is_stable},
    "slice": _slice,
    "dynamic-slice": lambda i, w: {"dynamic_slice_sizes": tuple(i.dynamic_slice_sizes)},
    "pad": _pad,
    "dot": _dot,
    "gather": _gather,
    "scatter": _scatter,
    "convolution": _convolution,
    "reduce-window": _window,
    "select-and-scatter": _window,
    "compare": lambda i, w: {
        "direction": i.comparison_direction,
        "type": comparison_type(i.comparison_type, w),
    },
    "get-tuple-element": lambda i, w: {"index": i.tuple_index},
    "reduce-precision": lambda i, w: {"exponent_bits": i.exponent_bits, "mantissa_bits": i.mantissa_bits},
    "rng": lambda i, w: {"distribution": _chosen(DISTRIBUTION, i.distribution, "distribution", w)},
    "rng-bit-generator": lambda i, w: {"algorithm": _chosen(ALGORITHM, i.rng_algorithm, "algorithm", w)},
    "topk": lambda i, w: {"k": i.k, "largest": i.largest},
    "custom-call": _custom_call,
}
"""Opcode to the reader of its attributes; an opcode that is not here has none."""
