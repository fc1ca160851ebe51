"""All ranks of a run as one program of one rank: collectives and messages are written out.

For ranks that do not run the same operators, such as the stages of a pipeline. Each rank's nodes keep their
order; a collective is computed when all its members have come to it, a received value is the one that the
k-th send on the same channel sent, where the receive is the k-th. A send never waits for its receiver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from shardproof.frontends.fx.capture.collectives import RECEIVE, SEND
from shardproof.frontends.fx.graph import Argument, Graph, Node, Ref, Tensor, references
from shardproof.ir.module import ModuleError

ALONE: Final = "one rank"
"""The group of one that stands for every group after its collectives are written out."""
_FAMILY: Final = "_c10d_functional"
_KINDS: Final = {
    "sum": "aten.add.Tensor",
    "avg": "aten.add.Tensor",
    "max": "aten.maximum.default",
    "min": "aten.minimum.default",
    "product": "aten.mul.Tensor",
}
_OPERATORS: Final = frozenset(
    f"{family}.{name}.default"
    for family in (_FAMILY, f"{_FAMILY}_autograd")
    for name in (
        *("all_reduce", "all_reduce_", "all_gather_into_tensor", "reduce_scatter_tensor"),
        *("all_to_all_single", "broadcast", "broadcast_"),
    )
)

Channel = tuple[int, int, int, tuple[int, ...]]
"""From a rank, to a rank, tag and members of the group."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The program of all ranks, the names of its results, and the name of its group of one."""

    graph: Graph
    outputs: tuple[str, ...]
    group: str = ALONE


def exchanges(graph: Graph) -> bool:
    """Whether the rank sends to or receives from a single other."""
    return any(node.target in (SEND, RECEIVE) for node in graph.nodes)


def joined(graphs: Sequence[Graph], outputs: Sequence[Sequence[str]]) -> Joined:
    """The program of all ranks; `outputs` are the names of each rank's results.

    A name that one rank only uses for an input or result is kept, others get `@RANK`. Raises ModuleError when
    the ranks wait for each other, or disagree about a collective or message.
    """
    return _Join(list(graphs)).run(outputs)


@dataclass(slots=True)
class _Rank:
    graph: Graph
    place: int
    names: dict[str, str] = field(default_factory=dict)
    metas: dict[str, Tensor] = field(default_factory=dict)
    tickets: dict[str, tuple[Channel, int]] = field(default_factory=dict)
    at: int = 0


@dataclass(slots=True)
class _Join:
    graphs: list[Graph]
    ranks: list[_Rank] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, object] = field(default_factory=dict)
    sent: dict[Channel, list[tuple[str, Node]]] = field(default_factory=dict)
    asked: Counter[Channel] = field(default_factory=Counter)
    count: int = 0

    def run(self, outputs: Sequence[Sequence[str]]) -> Joined:
        self.ranks = [_Rank(g, r) for r, g in enumerate(self.graphs)]
        uses = Counter(n.name for g in self.graphs for n in g.placeholders)
        for rank in self.ranks:
            for node in rank.graph.placeholders:
                name = node.name if uses[node.name] == 1 else f"{node.name}@{rank.place}"
                self._define(rank, node, replace(node, name=name, target=name))
        while True:
            moved = [self._advance(rank) for rank in self.ranks]
            moved.append(self._meet())
            if not any(moved):
                break
        for rank in self.ranks:
            if rank.at < len(rank.graph.nodes):
                self._stuck(rank)
        whole = tuple(
            leaf
            for rank in self.ranks
            for leaf in _flat(self._renamed(rank, rank.graph.outputs))
            if leaf is not None
        )
        names = Counter(n for own in outputs for n in own)
        titled = [
            n if names[n] == 1 else f"{n}@{rank.place}"
            for rank, own in zip(self.ranks, outputs, strict=True)
            for n in own
        ]
        self.nodes.append(Node("output", "output", "output", (whole,)))
        first = self.graphs[0]
        constants = {
            f"{name}@{rank}": v for rank, g in enumerate(self.graphs) for name, v in g.constants.items()
        }
        lost = [f"a message of rank {c[0]} to rank {c[1]} is not received" for c in self._unread()]
        graph = Graph(
            first.name,
            tuple(self.nodes),
            whole,
            first.source,
            constants=constants,
            warnings=tuple(dict.fromkeys([*(w for g in self.graphs for w in g.warnings), *lost])),
        )
        return Joined(graph, tuple(titled))

    def _define(self, rank: _Rank, old: Node, new: Node) -> None:
        rank.names[old.name] = new.name
        if isinstance(old.meta, Tensor):
            rank.metas[old.name] = old.meta
        self.nodes.append(new)

    def _renamed(self, rank: _Rank, value: Argument) -> Argument:
        if isinstance(value, Ref):
            return Ref(rank.names[value.name])
        if isinstance(value, tuple):
            return tuple(self._renamed(rank, v) for v in value)
        if isinstance(value, slice):
            return slice(*(self._renamed(rank, v) for v in (value.start, value.stop, value.step)))
        return value

    def _advance(self, rank: _Rank) -> bool:
        """Run a rank's nodes up to a collective, or one that reads what is not sent yet."""
        start = rank.at
        while rank.at < len(rank.graph.nodes):
            node = rank.graph.nodes[rank.at]
            if node.op == "placeholder":
                rank.at += 1
                continue
            if node.target in _OPERATORS or not self._receive(rank, node):
                break
            if node.op == "output":
                pass
            elif node.target == SEND:
                self._send(rank, node)
            elif node.target == RECEIVE:
                channel = self._channel(rank, node, arrives=True)
                rank.tickets[node.name] = (channel, self.asked[channel])
                self.asked[channel] += 1
            else:
                self._copy(rank, node)
            rank.at += 1
        return rank.at > start

    def _copy(self, rank: _Rank, node: Node) -> None:
        args = tuple(self._renamed(rank, a) for a in node.args)
        kwargs = {k: self._renamed(rank, a) for k, a in node.kwargs.items()}
        name = f"{node.name}@{rank.place}"
        target = f"{node.target}@{rank.place}" if node.op == "get_attr" else node.target
        self._define(rank, node, replace(node, name=name, target=target, args=args, kwargs=kwargs))

    def _channel(self, rank: _Rank, node: Node, *, arrives: bool) -> Channel:
        _, peer, tag, group = node.args
        assert isinstance(peer, int) and isinstance(tag, int) and isinstance(group, str)
        members = self._members(rank, node, group)
        if peer not in members or peer == rank.place:
            _refuse(rank, node, f"is about rank {peer}, which is no other member of {list(members)}")
        pair = (peer, rank.place) if arrives else (rank.place, peer)
        return (*pair, tag, members)

    def _send(self, rank: _Rank, node: Node) -> None:
        value = node.args[0]
        assert isinstance(value, Ref)
        channel = self._channel(rank, node, arrives=False)
        name = f"{node.name}@{rank.place}"
        meta = rank.metas.get(value.name)
        copy = Node(
            name,
            "call_function",
            "aten.clone.default",
            (Ref(rank.names[value.name]),),
            {},
            meta,
            node.location,
        )
        self.nodes.append(copy)
        self.sent.setdefault(channel, []).append((name, copy))

    def _receive(self, rank: _Rank, node: Node) -> bool:
        """Put what was sent where `node` reads it; False when it is not sent yet."""
        for name in references((*node.args, *node.kwargs.values())):
            if name not in rank.tickets or name in rank.names:
                continue
            channel, number = rank.tickets[name]
            waiting = self.sent.get(channel, [])
            if number >= len(waiting):
                return False
            own = next(n for n in rank.graph.nodes if n.name == name)
            source, copy = waiting[number]
            if own.meta != copy.meta:
                _refuse(rank, own, f"receives {own.meta}, rank {channel[0]} sends {copy.meta}")
            self._define(
                rank,
                own,
                Node(
                    f"{name}@{rank.place}",
                    "call_function",
                    "aten.clone.default",
                    (Ref(source),),
                    {},
                    own.meta,
                    own.location,
                ),
            )
        return True

    def _unread(self) -> list[Channel]:
        return [c for c, values in self.sent.items() if len(values) > self.asked[c]]

    def _members(self, rank: _Rank, node: Node, group: str) -> tuple[int, ...]:
        members = rank.graph.groups.get(group)
        if members is None:
            _refuse(rank, node, f"runs on group {group!r}, whose members are not recorded")
        return members

    # collectives

    def _waiting(self, rank: _Rank) -> Node | None:
        """The collective that a rank has come to, once all it reads is there."""
        if rank.at >= len(rank.graph.nodes):
            return None
        node = rank.graph.nodes[rank.at]
        return node if node.target in _OPERATORS and self._receive(rank, node) else None

    def _meet(self) -> bool:
        """Write out every collective that all its members have come to."""
        moved = False
        for rank in self.ranks:
            node = self._waiting(rank)
            if node is None:
                continue
            members = self._group_of(rank, node)
            calls = [self._waiting(self.ranks[m]) for m in members]
            if any(
                c is None or self._group_of(self.ranks[m], c) != members
                for m, c in zip(members, calls, strict=True)
            ):
                continue
            present = [c for c in calls if c is not None]
            self._write_out(members, present)
            for m in members:
                self.ranks[m].at += 1
            moved = True
        return moved

    def _group_of(self, rank: _Rank, node: Node) -> tuple[int, ...]:
        group = node.args[-1]
        if not isinstance(group, str):
            _refuse(rank, node, "runs on a group that has no name")
        return self._members(rank, node, group)

    def _write_out(self, members: tuple[int, ...], calls: Sequence[Node]) -> None:
        ranks = [self.ranks[m] for m in members]
        kinds = {c.target.split(".")[1].removesuffix("_") for c in calls}
        if len(kinds) != 1:
            _refuse(ranks[0], calls[0], f"meets {', '.join(sorted(kinds))} of the same group on other ranks")
        (kind,) = kinds
        if kind != "all_to_all_single" and len({c.args[1:-1] for c in calls}) != 1:
            _refuse(ranks[0], calls[0], "has other arguments on other ranks of its group")
        values, metas = [], []
        for rank, call in zip(ranks, calls, strict=True):
            (value, *_) = call.args
            if not isinstance(value, Ref) or value.name not in rank.metas:
                _refuse(rank, call, "has no tensor of a recorded type")
            values.append(Ref(rank.names[value.name]))
            metas.append(rank.metas[value.name])
        if kind != "all_to_all_single" and len({str(m) for m in metas}) != 1:
            _refuse(ranks[0], calls[0], f"takes {', '.join(map(str, metas))} on the ranks of its group")
        results = self._results(kind, calls, values, metas)
        for rank, call, result in zip(ranks, calls, results, strict=True):
            self._hand_over(rank, call, result)

    def _results(
        self, kind: str, calls: Sequence[Node], values: Sequence[Ref], metas: Sequence[Tensor]
    ) -> list[Ref]:
        """What each member gets."""
        size = len(calls)
        if kind == "broadcast":
            source = calls[0].args[1]
            assert isinstance(source, int)
            return [values[source]] * size
        if kind == "all_gather_into_tensor":
            return [self._emit(calls[0], "aten.cat.default", tuple(values), 0)] * size
        if kind == "all_to_all_single":
            return self._exchange(calls, values, metas)
        whole = self._reduced(calls[0], values)
        if kind == "all_reduce":
            return [whole] * size
        rows = metas[0].shape[0]
        if not isinstance(rows, int) or rows % size:
            raise ModuleError(f"`{calls[0].name}`: scatters {rows} rows among {size} ranks")
        part = rows // size
        return [
            self._emit(calls[0], "aten.slice.Tensor", whole, 0, k * part, (k + 1) * part) for k in range(size)
        ]

    def _reduced(self, call: Node, values: Sequence[Ref]) -> Ref:
        op = call.args[1]
        if not isinstance(op, str) or op not in _KINDS:
            raise ModuleError(f"`{call.name}`: reduces by {op!r}, which is not known")
        total = values[0]
        for value in values[1:]:
            total = self._emit(call, _KINDS[op], total, value)
        return self._emit(call, "aten.div.Tensor", total, len(values)) if op == "avg" else total

    def _exchange(self, calls: Sequence[Node], values: Sequence[Ref], metas: Sequence[Tensor]) -> list[Ref]:
        received, sent = [], []
        for call, meta in zip(calls, metas, strict=True):
            sizes = [_sizes(call.args[k], meta, len(calls)) for k in (1, 2)]
            received.append(sizes[0])
            sent.append(sizes[1])
        results = []
        for k, call in enumerate(calls):
            parts = []
            for j, value in enumerate(values):
                if received[k][j] != sent[j][k]:
                    raise ModuleError(
                        f"`{call.name}`: member {k} expects {received[k][j]} rows of member {j}, which sends "
                        f"{sent[j][k]}"
                    )
                start = sum(sent[j][:k])
                parts.append(self._emit(call, "aten.slice.Tensor", value, 0, start, start + sent[j][k]))
            results.append(self._emit(call, "aten.cat.default", tuple(parts), 0))
        return results

    def _emit(self, call: Node, target: str, *args: Argument) -> Ref:
        self.count += 1
        name = f"{call.name}@all_{self.count}"
        self.nodes.append(Node(name, "call_function", target, args, {}, None, call.location))
        return Ref(name)

    def _hand_over(self, rank: _Rank, call: Node, result: Ref) -> None:
        """The member's own call, on a group of one: so it still must be waited for."""
        name = f"{call.name}@{rank.place}"
        target, value = f"{_FAMILY}.all_reduce.default", result
        first = call.args[0]
        if call.target.endswith("_.default"):
            assert isinstance(first, Ref)
            value = Ref(rank.names[first.name])
            self._emit(call, "aten.copy_.default", value, result)
            target = f"{_FAMILY}.all_reduce_.default"
        new = Node(name, "call_function", target, (value, "sum", ALONE), {}, call.meta, call.location)
        self._define(rank, call, new)

    def _stuck(self, rank: _Rank) -> NoReturn:
        node = rank.graph.nodes[rank.at]
        _refuse(rank, node, "waits for other ranks, which never come: the run would hang")


def _sizes(given: Argument, meta: Tensor, size: int) -> tuple[int, ...]:
    rows = meta.shape[0]
    if given in (None, ()) and isinstance(rows, int) and rows % size == 0:
        return (rows // size,) * size
    if not isinstance(given, tuple) or len(given) != size:
        raise ModuleError(f"exchanges parts of the sizes {given}, {size} numbers are needed")
    found = tuple(n for n in given if isinstance(n, int) and not isinstance(n, bool))
    if len(found) != size:
        raise ModuleError(f"exchanges parts of the sizes {given}, which the data decides")
    return found


def _refuse(rank: _Rank, node: Node, text: str) -> NoReturn:
    place = f" at {node.location}" if node.location is not None else ""
    raise ModuleError(f"rank {rank.place}: `{node.name}` ({node.target}{place}): {text}")


def _flat(value: Argument) -> list[Argument]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]
