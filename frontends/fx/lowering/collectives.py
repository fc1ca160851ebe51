"""Collectives over process groups, and the waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shardproof.frontends.fx.lowering.call import Table, entries
from shardproof.frontends.fx.lowering.create import uninitialised
from shardproof.frontends.fx.lowering.state import Arguments, Groups, Lowering, Pending, Rule
from shardproof.ir.module import Value
from shardproof.ir.types import TensorType

_KINDS: Final = {
    "sum": "sum",
    "avg": "sum",
    "max": "max",
    "min": "min",
    "product": "prod",
    "band": "and",
    "bor": "or",
}


def group_of(s: Lowering, name: Any, size: int | None) -> Groups | None:
    """The ranks of every group that `name` stands for on its rank; None where that is not known.

    `size` is the number of members if the operator says it.
    """
    if not isinstance(name, str):
        s.fail(f"runs on the group {name!r}, which has no name")
    known = s.groups.get(name)
    if known is not None:
        if size is not None and any(len(g) != size for g in known):
            s.fail(f"runs on a group of {size} ranks, group {name!r} has {len(known[0])}")
        return known
    if size is not None and s.ranks % size:
        s.fail(f"runs on a group of {size} ranks, the program has {s.ranks}: give the files of all ranks")
    alone = tuple((r,) for r in range(s.ranks))
    if size == 1:
        return alone
    if s.ranks == 1:
        if size is not None:
            s.fail(f"runs on a group of {size} ranks, the program has 1: give the files of all ranks")
        s.guess("group_guess", f"group {name!r} has the one rank of this program", name)
        return alone
    if name in s.shared and size in (None, s.ranks):
        s.guess("group_guess", f"group {name!r} has all {s.ranks} ranks in order", name)
        return (tuple(range(s.ranks)),)
    return None


def _unknown(s: Lowering, name: str, type: TensorType) -> Value:
    """The result of a collective over an unknown group: any value at all."""
    s.warn(f"runs on group {name!r}, whose ranks are not known: its result is unknown, name them in [groups]")
    return uninitialised(s, type.dtype, type.shape)


def _trivial(groups: Groups) -> bool:
    return all(len(g) == 1 for g in groups)


def _kind(s: Lowering, op: Any) -> str:
    kind = _KINDS.get(op.lower()) if isinstance(op, str) else None
    if kind is None:
        s.fail(f"reduces by {op!r}, which is not known")
    return kind


def _averaged(s: Lowering, x: Value, op: str, groups: Groups) -> Value:
    """The sum of a group as its average, if that was asked for."""
    if op.lower() != "avg":
        return x
    if len({len(g) for g in groups}) != 1:
        s.fail("averages over groups of different sizes, which is not supported")
    return s.pair("divide", x, len(groups[0]))


def reduced(s: Lowering, x: Value, op: Any, name: Any) -> Value:
    kind, groups = _kind(s, op), group_of(s, name, None)
    if groups is None:
        return _unknown(s, name, x.type)
    if _trivial(groups):
        if s.ranks == 1:
            return x
        groups = tuple((r,) for r in range(s.ranks))
    return _averaged(s, s.emit("all_reduce", x, kind=kind, groups=groups), op, groups)


def gathered(s: Lowering, x: Value, dim: int, size: Any, name: Any) -> Value:
    count = s.size(size)
    groups = group_of(s, name, count)
    if groups is None:
        shape = tuple(n * count if d == dim else n for d, n in enumerate(x.type.shape))
        return _unknown(s, name, TensorType(x.type.dtype, shape))
    return x if _trivial(groups) else s.emit("all_gather", x, dim=dim, groups=groups)


def scattered(s: Lowering, x: Value, dim: int, op: Any, size: Any, name: Any) -> Value:
    count, kind = s.size(size), _kind(s, op)
    if x.type.shape[dim] % max(count, 1):
        s.fail(f"cuts dim {dim} of {x.type} into {count} parts")
    groups = group_of(s, name, count)
    if groups is None:
        shape = tuple(n // count if d == dim else n for d, n in enumerate(x.type.shape))
        return _unknown(s, name, TensorType(x.type.dtype, shape))
    if _trivial(groups):
        return x
    return _averaged(s, s.emit("reduce_scatter", x, dim=dim, kind=kind, groups=groups), op, groups)


def exchanged(s: Lowering, x: Value, received: Any, sent: Any, name: Any) -> Value:
    """`all_to_all_single` of equal parts; without sizes the parts are equal."""
    groups = group_of(s, name, len(sent) if sent else None)
    sizes = {s.size(n) for n in (*(received or ()), *(sent or ()))}
    if len(sizes) > 1:
        s.fail(f"exchanges parts of the sizes {sorted(sizes)}, equal ones are supported")
    if groups is None:
        return _unknown(s, name, x.type)
    return x if _trivial(groups) else s.emit("all_to_all", x, split_dim=0, concat_dim=0, groups=groups)


def spread_from(s: Lowering, x: Value, source: Any, name: Any) -> Value:
    """A broadcast from the member at position `source` of its group."""
    groups, at = group_of(s, name, None), s.size(source)
    if groups is None:
        return _unknown(s, name, x.type)
    if any(not 0 <= at < len(g) for g in groups):
        s.fail(f"sends from position {at} of a group of {min(map(len, groups))}")
    if _trivial(groups):
        return x
    return s.emit("collective_broadcast", x, groups=tuple((g[at], *g[:at], *g[at + 1 :]) for g in groups))


def _all_reduce(s: Lowering, a: Arguments) -> Value:
    return reduced(s, a["input"], a["reduce_op"], a["group_name"])


def _all_gather(s: Lowering, a: Arguments) -> Value:
    return gathered(s, a["input"], 0, a["group_size"], a["group_name"])


def _reduce_scatter(s: Lowering, a: Arguments) -> Value:
    return scattered(s, a["input"], 0, a["reduce_op"], a["group_size"], a["group_name"])


def _all_to_all(s: Lowering, a: Arguments) -> Value:
    return exchanged(s, a["input"], a["output_split_sizes"], a["input_split_sizes"], a["group_name"])


def _broadcast(s: Lowering, a: Arguments) -> Value:
    return spread_from(s, a["input"], a["src"], a["group_name"])


def _later(rule: Rule) -> Rule:
    """An asynchronous collective, whose result must be waited for."""

    def started(s: Lowering, a: Arguments) -> Pending:
        return Pending(rule(s, a), s.node.name)

    return started


def _each(rule: Rule) -> Rule:
    """A collective on each tensor of a list."""

    def started(s: Lowering, a: Arguments) -> tuple[Pending, ...]:
        return tuple(Pending(rule(s, {**a, "input": x}), s.node.name) for x in a["input"])

    return started


def _vllm_gather(s: Lowering, a: Arguments) -> Value:
    x = a["input"]
    return gathered(s, x, s.dim(a["dim"], len(x.type.shape)), a["group_size"], a["group_name"])


def _vllm_scatter(s: Lowering, a: Arguments) -> Value:
    x = a["input"]
    return scattered(s, x, s.dim(a["dim"], len(x.type.shape)), "sum", a["group_size"], a["group_name"])


def _named(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))


def _by_ranks(rule: Rule) -> Rule:
    """A collective of the older kind, which lists the ranks of its group; that list is the group's name."""

    def started(s: Lowering, a: Arguments) -> Pending:
        ranks = s.shape(a["ranks"])
        if ranks == tuple(range(s.ranks)) and _named(ranks) not in s.groups:
            s.groups = {**s.groups, _named(ranks): (ranks,)}
        return Pending(rule(s, {**a, "group_name": _named(ranks)}), s.node.name)

    return started


def _functional(namespace: str) -> Table:
    def named(*operators: str) -> tuple[str, ...]:
        return tuple(f"{namespace}.{operator}" for operator in operators)

    return {
        **entries("input reduce_op group_name", _later(_all_reduce), *named("all_reduce", "all_reduce_")),
        **entries("input group_size group_name", _later(_all_gather), *named("all_gather_into_tensor")),
        **entries(
            "input reduce_op group_size group_name", _later(_reduce_scatter), *named("reduce_scatter_tensor")
        ),
        **entries(
            "input output_split_sizes input_split_sizes group_name",
            _later(_all_to_all),
            *named("all_to_all_single"),
        ),
        **entries("input src group_name", _later(_broadcast), *named("broadcast", "broadcast_")),
        **entries(
            "input reduce_op group_name",
            _each(_all_reduce),
            *named("all_reduce_coalesced", "all_reduce_coalesced_"),
        ),
        **entries(
            "input group_size group_name", _each(_all_gather), *named("all_gather_into_tensor_coalesced")
        ),
        **entries(
            "input reduce_op group_size group_name",
            _each(_reduce_scatter),
            *named("reduce_scatter_tensor_coalesced"),
        ),
    }


TABLE: Final[Table] = {
    **_functional("_c10d_functional"),
    **_functional("_c10d_functional_autograd"),
    **entries("input reduce_op tag ranks group_size", _by_ranks(_all_reduce), "c10d_functional.all_reduce"),
    **entries("input tag ranks group_size", _by_ranks(_all_gather), "c10d_functional.all_gather_into_tensor"),
    **entries(
        "input reduce_op tag ranks group_size",
        _by_ranks(_reduce_scatter),
        "c10d_functional.reduce_scatter_tensor",
    ),
    **entries(
        "input output_split_sizes input_split_sizes tag ranks group_size",
        _by_ranks(_all_to_all),
        "c10d_functional.all_to_all_single",
    ),
    **entries("input src tag ranks group_size", _by_ranks(_broadcast), "c10d_functional.broadcast"),
    **entries(
        "input group_name", lambda s, a: reduced(s, a["input"], "sum", a["group_name"]), "vllm.all_reduce"
    ),
    **entries("input dim group_size group_name", _vllm_gather, "vllm.all_gather"),
    **entries("input dim group_size group_name", _vllm_scatter, "vllm.reduce_scatter"),
}
WAITS: Final = frozenset(
    f"{namespace}.wait_tensor.default"
    for namespace in ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd")
)
