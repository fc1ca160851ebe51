"""Collectives of onnxruntime (domain com.microsoft): each is over all ranks, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardproof.frontends.onnx.state import Lowering, Node, Rule
from shardproof.ir.module import Value

_TOLD: Final = "give the files of all ranks in order, or the number of ranks as --mesh rank=N"


def _only(s: Lowering, n: Node) -> Value:
    """The tensor that is exchanged; the kernels read no other."""
    if len(n.inputs) != 1 or len(n.outputs) != 1:
        s.fail(f"exchanges {len(n.inputs)} tensors, one is supported")
    if s.divided:
        s.fail("exchanges data with other ranks, and annotations divide the model: one of them is supported")
    if not s.ranks_told:
        s.fail(f"exchanges data with other ranks, whose number is not known: {_TOLD}")
    return n.operand(0)


def _group(s: Lowering, n: Node) -> int:
    """The attribute `group_size`, which must be all ranks: onnxruntime has one group, of all of them."""
    size = n.attrs.get("group_size", 1)
    if size != s.ranks:
        s.fail(f"has a group_size of {size}, the only group is of all {s.ranks} ranks")
    return s.ranks


def _all_reduce(s: Lowering, n: Node) -> Value:
    """The sum, the only reduction of the operator."""
    x = _only(s, n)
    if n.attrs:
        s.fail(f"has the attribute {next(iter(n.attrs))}, the operator has none")
    return x if s.ranks == 1 else s.emit("all_reduce", x, kind="sum", groups=s.groups())


def _all_gather(s: Lowering, n: Node) -> Value:
    """Schema and kernel have different defaults for `axis`, so it must be written."""
    x = _only(s, n)
    _known(s, n, "axis", "group_size")
    _group(s, n)
    axis = n.attrs.get("axis")
    if axis is None or not 0 <= axis < len(x.type.shape):
        s.fail(f"gathers {x.type} along axis {axis}: write an axis from 0 on")
    return x if s.ranks == 1 else s.emit("all_gather", x, dim=axis, groups=s.groups())


def _all_to_all(s: Lowering, n: Node) -> Value:
    """The elements in row-major order are cut into one part per rank."""
    x = _only(s, n)
    _known(s, n, "group_size")
    count, shape = _group(s, n), x.type.shape
    if count == 1:
        return x
    if not shape or shape[0] % count:
        if x.type.size % count:
            s.fail(f"cuts {x.type} into {count} equal parts")
        x = s.reshape(x, (count, x.type.size // count))
    found = s.emit("all_to_all", x, split_dim=0, concat_dim=0, groups=s.groups())
    return s.reshape(found, shape)


def _known(s: Lowering, n: Node, *names: str) -> None:
    other = set(n.attrs.whole()) - set(names)
    if other:
        s.fail(f"has the attribute {min(other)}, {' and '.join(names)} are known")


RULES: Final[Mapping[str, Rule]] = {
    "AllGather": _all_gather,
    "AllReduce": _all_reduce,
    "AllToAll": _all_to_all,
}
