"""What every way of reading a PyTorch program makes: a flat list of operator calls with their literals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from shardproof.ir.types import Array, DType, Location

NodeKind: TypeAlias = Literal["placeholder", "call_function", "get_attr", "output"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Element type and shape as the tracer recorded them; a str is a symbolic size such as `2*s0`."""

    dtype: DType
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of an earlier node."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbolic number: as an argument, or as the recorded meaning of a node that computes a size."""

    expr: str


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator as an argument, by its canonical name: the callee of `higher_order.auto_functionalized`."""

    name: str


Argument: TypeAlias = (
    Ref
    | Symbol
    | Operator
    | DType
    | int
    | float
    | complex
    | bool
    | str
    | slice
    | tuple["Argument", ...]
    | None
)
"""A literal or a reference; lists are tuples. A device, layout or memory format is a str: `cuda:0`,
`strided`, `contiguous_format`; the bounds of a slice are arguments themselves."""

Meta: TypeAlias = Tensor | Symbol | tuple["Meta", ...] | None
"""What the tracer recorded of a result; None where it says nothing (None also for a None in a tuple)."""


@dataclass(frozen=True, slots=True)
class Node:
    """One step of the program; `name` is unique within its graph.

    `target` is, by `op`:
      call_function  `namespace.operator.overload` (`aten.add.Tensor`), `higher_order.auto_functionalized`,
                     the bare name of a function of Python's `operator` module or a `sym_*` of torch on items
                     and sizes (`getitem`, `add`, `floordiv`, `neg`, `sym_max`; on a Tensor, see its meta,
                     `getitem` indexes and arithmetic is elementwise), or `math.ceil` and the like
      placeholder    the parameter's name
      get_attr       the attribute's name, a key of `Graph.constants`
      output         `output`; its single argument is the nested result
    """

    name: str
    op: NodeKind
    target: str
    args: tuple[Argument, ...] = ()
    kwargs: Mapping[str, Argument] = field(default_factory=dict)
    meta: Meta = None
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """One program of one rank: placeholders first, the output node last, every Ref names an earlier node.

    `constants` holds every attribute that the nodes read, None where the source has no value for it.
    `titles` are the model's own names of placeholders (`layers.0.weight`), where the source has them;
    `updates` names, by position in the flat outputs, the placeholder whose buffer that output overwrites;
    `computed` are the model's names of buffers that it computes itself, whose elements the source has not;
    `groups` are the members, in order, of process groups by name; `rank` is the rank the source names.
    """

    name: str
    nodes: tuple[Node, ...]
    outputs: Argument
    source: str
    rank: int | None = None
    constants: Mapping[str, Array | None] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[int, str] = field(default_factory=dict)
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    computed: frozenset[str] = frozenset()

    @property
    def placeholders(self) -> tuple[Node, ...]:
        """The parameters in the caller's order."""
        return tuple(node for node in self.nodes if node.op == "placeholder")


def references(argument: Argument) -> Iterator[str]:
    """The names of the nodes that `argument` reads, in order, with repetition."""
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple):
        for part in argument:
            yield from references(part)
    elif isinstance(argument, slice):
        for part in (argument.start, argument.stop, argument.step):
            yield from references(part)


def titled(graph: Graph) -> Graph:
    """The graph with placeholders called by the model's own names, where nothing else is called so."""
    taken = {node.name for node in graph.nodes}
    counts = Counter(graph.titles.values())
    names = {n: t for n, t in graph.titles.items() if t not in taken and counts[t] == 1}
    if not names:
        return graph

    def renamed(value: Argument) -> Argument:
        if isinstance(value, Ref):
            return Ref(names.get(value.name, value.name))
        if isinstance(value, tuple):
            return tuple(map(renamed, value))
        if isinstance(value, slice):
            return slice(renamed(value.start), renamed(value.stop), renamed(value.step))
        return value

    nodes = tuple(
        replace(node, name=names[node.name], target=names[node.name])
        if node.name in names
        else replace(
            node,
            args=tuple(map(renamed, node.args)),
            kwargs={k: renamed(a) for k, a in node.kwargs.items()},
        )
        for node in graph.nodes
    )
    return replace(
        graph,
        nodes=nodes,
        outputs=renamed(graph.outputs),
        titles={names.get(n, n): t for n, t in graph.titles.items()},
        updates={k: names.get(n, n) for k, n in graph.updates.items()},
    )
