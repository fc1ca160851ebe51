"""The attributes of each opcode, out of HLO text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardproof.frontends.hlo import text_values as read
from shardproof.frontends.hlo.instruction import Key, comparison_type
from shardproof.ir.module import ModuleError

IGNORED: Final = frozenset(
    {
        "api_version",
        "async_execution_thread",
        "constrain_layout",
        "control-predecessors",
        "cross_program_prefetch_index",
        "custom_call_schedule",
        "domain",
        "execution_thread",
        "exec_thread",
        "frontend_attributes",
        "indices_are_sorted",
        "is_composite",
        "is_cross_program_prefetch",
        "kind",
        "operand_layout_constraints",
        "operand_precision",
        "origin",
        "original_value",
        "output_to_operand_aliasing",
        "parameter_replication",
        "result_accuracy",
        "schedule",
        "statistics",
        "visualization",
    }
)
"""Attributes of instructions that can't change what is computed."""

_EXTRA: Final = frozenset(
    {
        "adjoint_a",
        "delta",
        "epsilon",
        "feature_index",
        "fft_length",
        "fft_type",
        "left_side",
        "lower",
        "transpose_a",
        "unit_diagonal",
    }
)
_CALLED: Final = (
    "to_apply",
    "calls",
    "body",
    "condition",
    "true_computation",
    "false_computation",
    "branch_computations",
    "called_computations",
    "select",
    "scatter",
)
_INTEGER_LISTS: Final = (
    "dimensions",
    "dynamic_slice_sizes",
    "lhs_contracting_dims",
    "rhs_contracting_dims",
    "lhs_batch_dims",
    "rhs_batch_dims",
    "offset_dims",
    "collapsed_slice_dims",
    "start_index_map",
    "slice_sizes",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "update_window_dims",
    "inserted_window_dims",
    "scatter_dims_to_operand_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
)
_VALUES: Final[Mapping[str, Callable[[str, str, str], Any]]] = {
    **dict.fromkeys(_INTEGER_LISTS, read.integers),
    **dict.fromkeys(
        (
            "index",
            "index_vector_dim",
            "channel_id",
            "feature_group_count",
            "batch_group_count",
            "exponent_bits",
            "mantissa_bits",
            "k",
        ),
        read.integer,
    ),
    **dict.fromkeys(
        ("is_stable", "unique_indices", "use_global_device_ids", "largest", "custom_call_has_side_effect"),
        read.boolean,
    ),
    "slice": read.slices,
    "padding": read.padding,
    "window": read.window,
    "dim_labels": read.dim_labels,
    "source_target_pairs": read.rank_pairs,
    "direction": lambda key, text, where: text,
    "distribution": lambda key, text, where: text.removeprefix("rng_"),
    "algorithm": lambda key, text, where: text,
    "custom_call_target": lambda key, text, where: read.unquoted(text),
    "iota_dimension": read.integer,
    "type": lambda key, text, where: text,
    "backend_config": lambda key, text, where: read.unquoted(text),
}
_DOT_DEFAULTS: Final = dict.fromkeys(
    ("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims"), ()
)
_GROUP_DEFAULTS: Final = {
    "dimensions": (),
    "groups": (),
    "source_target_pairs": (),
    "channel_id": 0,
    "use_global_device_ids": False,
}
COLLECTIVES: Final = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    **{f"{name}{end}": _GROUP_DEFAULTS for name in COLLECTIVES for end in ("", "-start")},
    "broadcast": {"dimensions": ()},
    "compare": {"type": ""},
    "convolution": {"feature_group_count": 1, "batch_group_count": 1, "window": ()},
    "custom-call": {"backend_config": "", "custom_call_has_side_effect": False},
    "dot": _DOT_DEFAULTS,
    "dynamic-slice": {"dynamic_slice_sizes": ()},
    "gather": {"operand_batching_dims": (), "start_indices_batching_dims": ()},
    "pad": {"padding": ((), (), ())},
    "reduce": {"dimensions": ()},
    "reduce-window": {"window": ()},
    "reverse": {"dimensions": ()},
    "scatter": {"input_batching_dims": (), "scatter_indices_batching_dims": (), "unique_indices": False},
    "slice": {"slice": ((), (), ())},
    "sort": {"is_stable": False},
    "topk": {"largest": False},
    "transpose": {"dimensions": ()},
}


def read_attributes(
    opcode: str, raw: Mapping[str, str], where: str
) -> tuple[dict[str, Any], tuple[Key, ...]]:
    """The normalised attributes of an instruction, and the computations that it calls.

    Raises `ModuleError` for an attribute that is neither understood nor known to be irrelevant.
    """
    base = opcode.removesuffix("-start") if opcode.removesuffix("-start") in COLLECTIVES else opcode
    attrs: dict[str, Any] = dict(_DEFAULTS.get(base, {}))
    extra: list[str] = []
    for key, text in raw.items():
        if key in IGNORED or key in ("metadata", "sharding", "device_ids") or key in _CALLED:
            continue
        if key == "replica_groups":
            attrs["groups"] = read.replica_groups(text, raw.get("device_ids"), where)
        elif key in _EXTRA:
            extra.append(f"{key}={text}")
        elif (key == "backend_config" and opcode != "custom-call") or (
            key == "algorithm" and opcode != "rng-bit-generator"
        ):
            continue
        elif key in _VALUES:
            attrs[key] = _VALUES[key](key, text, where)
        else:
            raise ModuleError(f"{where} has the attribute {key}, which is not known")
    if "device_ids" in raw and "replica_groups" not in raw:
        raise ModuleError(f"{where} has device_ids without replica groups")
    if "iota_dimension" in attrs:
        attrs["dimensions"] = (attrs.pop("iota_dimension"),)
    if opcode == "compare":
        attrs["type"] = comparison_type(attrs["type"], where)
    if extra:
        attrs["extra"] = " ".join(sorted(extra))
    called = tuple(key for name in _CALLED if name in raw for key in read.names(raw[name]))
    return attrs, called
