"""Right and wrong programs made of captured PyTorch dumps: repairs of bugs, edits of one operator."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

LAYER_NORM, WRONG_CONFIG = "bug_missing_layernorm_allreduce", "bug_missing_allreduce_under_wrong_config"
NORMS = [f"getitem_{n}" for n in (58, 59, 61, 62, 64, 65, 67, 68)]
"""Gradients of layer norms, each summed over the positions or heads of one rank."""
FAULTS: Mapping[str, Sequence[str]] = {
    LAYER_NORM: [*NORMS, "add_13"],
    WRONG_CONFIG: ["mm_5", "_unsafe_view_11"],
    "bug_missing_switchmlp_allreduce": ["mm_12", "t_16", "t_20", "add_45", "zeros_1"],
}

BOTH_NORMS = ("view_42", "view_52")
"""Gradients of the biases of the same layers, partial sums as well."""
EDITS: Mapping[str, tuple[str, str, str]] = {
    "beta": ("beta = 0.0", "beta = 1.0", "baddbmm"),
    "alpha": ("alpha = 0.17677669529663687", "alpha = 0.25", "baddbmm"),
    "dropout": ("default(_softmax, 0.1, True)", "default(_softmax, 0.2, True)", "getitem_9"),
    "eps": ("[768], 1e-05)", "[768], 1e-06)", "fused_layer_norm_affine_fwd"),
    "gelu": ("gelu.default(add_4)", "gelu.default(add_4, approximate = 'tanh')", "gelu"),
    "mask": ("_to_copy_1, -10000.0)", "_to_copy_1, -1000.0)", "masked_fill"),
    "group of one": ("(sum_1, 'sum', '12')", "(sum_1, 'sum', '7')", "all_reduce_3"),
    "group of one at the ids": ("(slice_scatter, 'sum', '12')", "(slice_scatter, 'sum', '7')", "all_reduce"),
    "offset": ("aten.sub.Tensor(clone, 49152)", "aten.sub.Tensor(clone, 49153)", "sub"),
    "first id": ("aten.lt.Scalar(_to_copy, 49152)", "aten.lt.Scalar(_to_copy, 49153)", "lt"),
    "no dropout": ("default(add_2, 0.1, True)", "default(add_2, 0.0, True)", "add_3"),
    "group of one at the maximum": ("(getitem_20, 'max', '12')", "(getitem_20, 'max', '7')", "all_reduce_1"),
    "no maximum over ranks": (
        "torch.ops._c10d_functional.all_reduce.default(getitem_20, 'max', '12')",
        "torch.ops.aten.clone.default(getitem_20)",
        "sub_1",
    ),
    "first label": ("aten.lt.Scalar(clone_4, 49152)", "aten.lt.Scalar(clone_4, 49153)", "lt_1"),
}
"""An edit of the program of two ranks, and the value that is wrong then. One that is not in the program of
each rank is one of that rank alone."""


def summed(text: str, value: str) -> str:
    """The program with a value summed over the tensor-parallel group before it is read."""
    made = re.search(rf'^(\s*){value}: ("[^"]*") = .*$', text, re.MULTILINE)
    assert made is not None, value
    space, type_ = made.groups()
    call = "torch.ops._c10d_functional"
    lines = (
        f"{space}{value}_sum: {type_} = {call}.all_reduce.default({value}, 'sum', '12')",
        f"{space}{value}_whole: {type_} = {call}.wait_tensor.default({value}_sum);  {value}_sum = None",
    )
    after = re.sub(rf"\b{value}\b", f"{value}_whole", text[made.end() :])
    return text[: made.end()] + "\n".join(("", *lines)) + after


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def repaired(paths: Sequence[Path], values: Sequence[str], to: Path) -> list[Path]:
    """The programs with each of some values summed over the ranks, in a folder."""
    found = []
    for path in paths:
        text = text_of(path)
        for value in values:
            text = summed(text, value)
        found.append(to / path.name.removesuffix(".gz"))
        found[-1].write_text(text)
    return found


def edited(paths: Sequence[Path], old: str, new: str, to: Path) -> list[Path]:
    """The programs with a text replaced once in each that has it, in a folder.

    Raises ValueError if none has it.
    """
    texts = {to / path.name.removesuffix(".gz"): text_of(path) for path in paths}
    if not any(old in text for text in texts.values()):
        raise ValueError(f"no program has {old}")
    for path, text in texts.items():
        path.write_text(text.replace(old, new, 1))
    return list(texts)
