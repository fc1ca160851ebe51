"""Models annotated for several devices: `ModelProto.configuration` and `NodeProto.device_configurations`.

The devices of a configuration are the ranks. An annotated node computes what it computes without
annotations, of its operands put together from their shards; an annotated result is cut into shards, of which
every rank keeps its own. What is not annotated is whole on every rank. An input that all nodes which annotate
it cut alike, into one shard for each device in order along one dim, is held in these shards; any other is
whole, and so are its readers' operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NoReturn

import numpy as np

from shardproof.frontends.onnx.state import Items, Lowering
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import DType, TensorType

AXIS: Final = "rank"
Fail = Callable[[str], NoReturn]


@dataclass(frozen=True, slots=True)
class Sharding:
    """`dims` are the divided dims with their numbers of parts, in the order in which shards are numbered, row
    by row; `holders` the ranks that hold each shard, equally many."""

    dims: tuple[tuple[int, int], ...]
    holders: tuple[tuple[int, ...], ...]

    def digits(self, at: int) -> list[int]:
        """Which part along divided dim number `at` each rank holds."""
        after = prod(parts for _, parts in self.dims[at + 1 :])
        shard_of = {rank: k for k, ranks in enumerate(self.holders) for rank in ranks}
        return [shard_of[r] // after % self.dims[at][1] for r in range(len(shard_of))]

    def in_order(self) -> bool:
        """Whether there is one shard for each rank, in order, along one dim."""
        return len(self.dims) == 1 and self.holders == tuple((r,) for r in range(len(self.holders)))

    def part(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a shard."""
        parts = dict(self.dims)
        return tuple(n // parts.get(d, 1) for d, n in enumerate(shape))


def configuration(model: Any, ranks: int | None) -> Any:
    """The configuration that the model is divided by.

    None where nothing is annotated, and for one rank, which runs the model as it is. Raises ModuleError.
    """
    used = {d.configuration_id for n in model.graph.node for d in n.device_configurations}
    if not used or ranks == 1:
        return None
    known = {c.name: c for c in model.configuration}
    if len(known) < len(model.configuration):
        raise ModuleError("has two configurations of devices of one name")
    for name in sorted(used - known.keys()):
        text = ", ".join(f"`{n}`" for n in known) or "none"
        raise ModuleError(f"annotates nodes for the configuration `{name}`, which it lacks (it has {text})")
    found = [known[n] for n in sorted(used) if ranks in (None, known[n].num_devices)]
    if len(found) != 1:
        have = ", ".join(f"`{n}` of {known[n].num_devices} devices" for n in sorted(used))
        raise ModuleError(f"is annotated for {have}: tell which by its number, as in --mesh {AXIS}=2")
    if found[0].num_devices < 1:
        raise ModuleError(f"has the configuration `{found[0].name}` of {found[0].num_devices} devices")
    return found[0]


class Devices:
    """The annotations of one configuration in a model, whose program is being made in `state`."""

    def __init__(self, state: Lowering, configuration: Any) -> None:
        self.state = state
        self.name, self.count = configuration.name, configuration.num_devices
        self.shards: dict[str, Value] = {}
        """The own shard of each annotated result."""

    def specs(self, node: Any) -> Iterator[Any]:
        """The annotations of a node for this configuration."""
        own = [d for d in node.device_configurations if d.configuration_id == self.name]
        if len(own) > 1:
            self.state.fail(f"is annotated twice for the configuration `{self.name}`")
        for found in own:
            yield from found.sharding_spec

    def input(self, name: str, type: TensorType, nodes: Sequence[Any]) -> Value:
        """A graph input or weight: whole for its readers, and put together where ranks hold shards of it."""
        state = self.state
        if name in state.constants:
            return state.input(name, type)
        told = {
            self._sharding(spec, type.shape)
            for node in nodes
            if name in node.input
            for spec in self.specs(node)
            if spec.tensor_name == name
        }
        if len(told) != 1 or not (one := told.pop()).in_order():
            return state.input(name, type)
        parts = dict(one.dims)
        sharding = tuple(parts.get(d, 1) for d in range(len(type.shape)))
        shard = state.input(name, TensorType(type.dtype, one.part(type.shape)), sharding)
        return self._gathered(shard, one)

    def apply(self, node: Any, scope: dict[str, Value | Items]) -> None:
        """Cut what a node gives, and check what it says of its operands."""
        seen: set[str] = set()
        for spec in self.specs(node):
            name = spec.tensor_name
            if name in seen:
                self.state.fail(f"annotates `{name}` twice")
            seen.add(name)
            if not name or name not in (*node.input, *node.output):
                self.state.fail(f"annotates `{name}`, which it neither reads nor gives")
            value = scope[name]
            if not isinstance(value, Value):
                self.state.fail(f"annotates `{name}`, a sequence of tensors")
            sharding = self._sharding(spec, value.type.shape)
            if name in node.output:
                self.shards[name] = self._cut(value, sharding)
                scope[name] = self._gathered(self.shards[name], sharding)

    # shards

    def _cut(self, whole: Value, sharding: Sharding) -> Value:
        s, found = self.state, whole
        zero = s.scalar(0, DType.S32)
        for at, (dim, parts) in enumerate(sharding.dims):
            extent = whole.type.shape[dim] // parts
            start = self._by_rank([extent * digit for digit in sharding.digits(at)], extent)
            sizes = tuple(extent if d == dim else n for d, n in enumerate(found.type.shape))
            starts = [start if d == dim else zero for d in range(len(sizes))]
            found = s.emit("dynamic_slice", found, *starts, sizes=sizes)
        return found

    def _by_rank(self, numbers: Sequence[int], step: int) -> Value:
        """The number of this rank."""
        s = self.state
        rank = s.emit("rank_id", type=TensorType(DType.S32, ()))
        if list(numbers) == [step * r for r in range(self.count)]:
            return s.pair("multiply", rank, step)
        table = s.literal(np.asarray(numbers, np.int32), DType.S32)
        return s.reshape(s.emit("dynamic_slice", table, rank, sizes=(1,)), ())

    def _gathered(self, shard: Value, sharding: Sharding) -> Value:
        """The whole tensor; each group has one holder of each shard."""
        s, shape = self.state, shard.type.shape
        if len(sharding.holders) == 1:
            return shard
        groups = tuple(zip(*sharding.holders, strict=True))
        if len(sharding.dims) == 1:
            return s.emit("all_gather", shard, dim=sharding.dims[0][0], groups=groups)
        parts = [n for _, n in sharding.dims]
        every = s.emit("all_gather", s.reshape(shard, (1, *shape)), dim=0, groups=groups)
        spread = s.reshape(every, (*parts, *shape))
        ahead = {dim: at for at, (dim, _) in enumerate(sharding.dims)}
        order = [i for d in range(len(shape)) for i in (*([ahead[d]] if d in ahead else []), len(parts) + d)]
        counts = dict(sharding.dims)
        return s.reshape(s.transpose(spread, order), [n * counts.get(d, 1) for d, n in enumerate(shape)])

    # annotations

    def _sharding(self, spec: Any, shape: tuple[int, ...]) -> Sharding:
        """What an annotation says of a tensor. Raises ModuleError."""

        def fail(text: str) -> NoReturn:
            self.state.fail(f"annotates `{spec.tensor_name}`, {list(shape)}: {text}")

        dims = tuple(_dim(item, shape, fail) for item in spec.sharded_dim)
        if len({d for d, _ in dims}) < len(dims):
            fail("a dim is divided twice")
        holders = self._holders(spec, prod(n for _, n in dims), fail)
        return Sharding(tuple(d for d in dims if d[1] > 1), holders)

    def _holders(self, spec: Any, count: int, fail: Fail) -> tuple[tuple[int, ...], ...]:
        """The ranks that hold each shard."""
        groups = {entry.key: tuple(entry.value) for entry in spec.index_to_device_group_map}
        if len(groups) < len(spec.index_to_device_group_map):
            fail("an index stands for two groups of devices")
        listed = [groups.get(v, (v,)) for v in spec.device]
        ranks = [r for group in listed for r in group]
        if any(r not in range(self.count) for r in ranks):
            fail(f"names a device beyond the {self.count} of configuration `{self.name}`")
        if len(set(ranks)) < len(ranks):
            fail("names a device twice")
        if len(ranks) < self.count:
            fail(f"is on {len(ranks)} of {self.count} devices, only a tensor on all of them is supported")
        if count == 1:
            return (tuple(ranks),)
        if len(listed) != count:
            fail(f"has {count} shards for {len(listed)} devices or groups of devices")
        if len({len(group) for group in listed}) > 1:
            fail("its shards are on different numbers of devices, which is not supported")
        return tuple(listed)


def _dim(item: Any, shape: tuple[int, ...], fail: Fail) -> tuple[int, int]:
    """A divided dim and its number of parts."""
    rank = len(shape)
    if not item.HasField("axis") or not -rank <= item.axis < rank:
        fail(f"axis {item.axis} is out of range")
    dim = item.axis % rank
    if len(item.simple_sharding) != 1:
        fail(f"axis {dim} has {len(item.simple_sharding)} simple shardings, one is supported")
    (simple,) = item.simple_sharding
    if simple.HasField("dim_value") and simple.dim_value != shape[dim]:
        fail(f"axis {dim} is said to be of extent {simple.dim_value}")
    parts = simple.num_shards
    if parts < 1 or shape[dim] % parts:
        fail(f"axis {dim} does not divide into {parts} shards")
    return dim, parts
