"""Export archives (`.pt2`, as `torch.export.save` writes them), read as zip, JSON and raw bytes.

Neither torch nor pickle is imported: what an archive holds pickled (its sample inputs) stays unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from shardproof.frontends.fx.archive.payload import Payloads
from shardproof.frontends.fx.archive.values import (
    argument,
    frames,
    member,
    named,
    number,
    operator,
    tensor,
    variant,
)
from shardproof.frontends.fx.archive.zip import MODEL, Archive
from shardproof.frontends.fx.code.meta import shown
from shardproof.frontends.fx.code.statements import MATH_FUNCTIONS, OPERATOR_FUNCTIONS, SYMBOLIC_FUNCTIONS
from shardproof.frontends.fx.graph import Argument, Graph, Meta, Node, Ref, Symbol, references
from shardproof.frontends.locate import Locator
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Array

SCHEMA: Final = 8
"""The major version of the schema that is read; others differ in meaning."""

_MUTATIONS: Final = {
    "buffer_mutation": "buffer_name",
    "parameter_mutation": "parameter_name",
    "user_input_mutation": "user_input_name",
}
_RESULTS: Final = ("user_output", "loss_output", "gradient_to_parameter", "gradient_to_user_input")


def read_archive(file: IO[bytes] | Path, source: str, locator: Locator | None = None) -> Graph:
    """The graph of the archive's only model.

    Parameters and buffers are placeholders, titled by the model's names; lifted constants are `get_attr`
    nodes with their values, and so are buffers that the module computes itself: no checkpoint holds them,
    nothing overwrites them, and the archive has their elements. Raises `ModuleError`: file, what was found,
    what is needed.
    """
    try:
        archive = Archive(file)
        return _Reader(archive, source, locator or Locator()).run()
    except ModuleError as error:
        text = str(error)
        raise ModuleError(text if text.startswith(f"{source}:") else f"{source}: {text}") from None


def read_weights(file: IO[bytes] | Path, source: str) -> Mapping[str, Array]:
    """Every parameter, buffer and constant of the archive that it holds elements of, by the model's names."""
    try:
        payloads = Payloads(Archive(file))
        values = {name: payloads.read(name) for name in payloads.names}
    except ModuleError as error:
        raise ModuleError(f"{source}: {error}") from None
    return {name: value for name, value in values.items() if value is not None}


@dataclass(slots=True)
class _Reader:
    archive: Archive
    source: str
    locator: Locator
    nodes: list[Node] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    metas: dict[str, Meta] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    computed: set[str] = field(default_factory=set)
    constants: dict[str, Array | None] = field(default_factory=dict)

    def run(self) -> Graph:
        if MODEL not in self.archive:
            raise ModuleError(
                f"lacks {MODEL!r}: save the program with torch.export.save of torch 2.7 or newer"
            )
        model = self.archive.read_json(MODEL)
        version = member(member(model, "schema_version", dict), "major", int)
        if version != SCHEMA:
            raise ModuleError(f"is written in version {version} of the export schema, {SCHEMA} is read")
        program = member(model, "graph_module", dict)
        signature, graph = member(program, "signature", dict), member(program, "graph", dict)
        payloads = Payloads(self.archive)
        self._read_metas(graph)
        results = member(signature, "output_specs", list)
        self._inputs(member(signature, "input_specs", list), payloads, _overwritten(results))
        for entry in member(graph, "nodes", list):
            self._node(entry)
        outputs = tuple(argument(part) for part in member(graph, "outputs", list))
        self._check(outputs, "the result")
        name = "output"
        self.nodes.append(Node(name, "output", name, (outputs,)))
        rank, groups = self._distribution()
        return Graph(
            Path(self.source).stem,
            tuple(self.nodes),
            outputs,
            self.source,
            rank,
            constants=self.constants,
            titles=self.titles,
            computed=frozenset(self.computed),
            updates=self._updates(results, len(outputs)),
            groups=groups,
        )

    def _read_metas(self, graph: object) -> None:
        for name, meta in member(graph, "tensor_values", dict).items():
            self.metas[str(name)] = tensor(meta)
        for table in ("sym_int_values", "sym_float_values", "sym_bool_values"):
            content = graph.get(table) if isinstance(graph, dict) else None
            for name, value in content.items() if isinstance(content, dict) else ():
                self.metas[str(name)] = Symbol(str(number(value)))

    def _define(self, name: str) -> str:
        if not name.replace(".", "_").isidentifier() or not name.isascii():
            raise ModuleError(f"a value named {shown(name)}, which is not a name")
        if name in self.defined or name == "output":
            raise ModuleError(f"a second definition of {shown(name)}, every value needs a name of its own")
        self.defined.add(name)
        return name

    def _check(self, value: Argument, where: str) -> None:
        for name in references(value):
            if name not in self.defined:
                raise ModuleError(f"{where} reads {shown(name)}, which nothing before defines")

    def _inputs(self, specs: Sequence[object], payloads: Payloads, overwritten: frozenset[str]) -> None:
        constants: list[Node] = []
        for spec in specs:
            kind, content = variant(spec)
            if kind == "constant_input":
                continue
            if kind == "user_input":
                value = argument(member(content, "arg", dict))
                if isinstance(value, Ref):
                    self._placeholder(value.name)
            elif kind in ("parameter", "buffer"):
                name = named(member(content, "arg", dict)).name
                title = member(content, f"{kind}_name", str)
                computed = kind == "buffer" and not member(content, "persistent", bool)
                elements = payloads.read(title) if computed and title not in overwritten else None
                if elements is None:
                    self._placeholder(name)
                    self.titles[name] = title
                    if computed and title not in overwritten:
                        self.computed.add(title)
                else:
                    constants.append(self._constant(self._define(name), title, elements))
            elif kind == "tensor_constant":
                name = self._define(named(member(content, "arg", dict)).name)
                title = member(content, "tensor_constant_name", str)
                constants.append(self._constant(name, title, payloads.read(title)))
            else:
                raise ModuleError(f"an input of kind {shown(kind)}, which is not read")
        self.nodes.extend(constants)

    def _constant(self, name: str, title: str, value: Array | None) -> Node:
        self.constants[title] = value
        return Node(name, "get_attr", title, meta=self.metas.get(name))

    def _placeholder(self, name: str) -> None:
        self.nodes.append(Node(self._define(name), "placeholder", name, meta=self.metas.get(name)))

    def _node(self, entry: object) -> None:
        target = _target(member(entry, "target", str))
        inputs = member(entry, "inputs", list)
        args = tuple(argument(member(part, "arg", dict)) for part in inputs if not _is_keyword(part, target))
        kwargs = {
            member(part, "name", str): argument(member(part, "arg", dict))
            for part in inputs
            if _is_keyword(part, target)
        }
        self._check((args, *kwargs.values()), f"a call of {target}")
        location = self.locator.from_frames(
            frames(entry.get("metadata") if isinstance(entry, dict) else None)
        )
        outputs = [variant(output) for output in member(entry, "outputs", list)]
        if len(outputs) == 1 and outputs[0][0] not in ("as_tensors", "as_none"):
            result = argument(dict(outputs))
            if not isinstance(result, Ref):
                raise ModuleError(f"a call of {target} whose result is not a value")
            name = self._define(result.name)
            self.nodes.append(
                Node(name, "call_function", target, args, kwargs, self.metas.get(name), location)
            )
            return
        if len(outputs) == 1 and outputs[0][0] == "as_tensors":
            parts = argument(dict(outputs))
        else:
            parts = tuple(argument({key: content}) for key, content in outputs)
        assert isinstance(parts, tuple)
        if not all(part is None or isinstance(part, Ref) for part in parts):
            raise ModuleError(f"a call of {target} whose results are not values")
        metas = tuple(self.metas.get(part.name) if isinstance(part, Ref) else None for part in parts)
        name = self._define(self._name_of(entry, target))
        self.nodes.append(Node(name, "call_function", target, args, kwargs, metas or None, location))
        for position, part in enumerate(parts):
            if isinstance(part, Ref):
                item = self._define(part.name)
                arguments = (Ref(name), position)
                meta = metas[position]
                self.nodes.append(Node(item, "call_function", "getitem", arguments, {}, meta, location))

    def _name_of(self, entry: object, target: str) -> str:
        name = entry.get("name") if isinstance(entry, dict) else None
        base = name if isinstance(name, str) else target.replace(".", "_")
        count = 0
        while base in self.defined or base in self.metas:
            count += 1
            base = f"{target.replace('.', '_')}_{count}"
        return base

    def _updates(self, specs: Sequence[object], count: int) -> dict[int, str]:
        by_title = {title: name for name, title in self.titles.items()}
        if len(specs) != count:
            raise ModuleError(f"describes {len(specs)} results, the graph has {count}")
        updates: dict[int, str] = {}
        for position, spec in enumerate(specs):
            kind, content = variant(spec)
            if kind in _MUTATIONS:
                title = member(content, _MUTATIONS[kind], str)
                name = title if kind == "user_input_mutation" else by_title.get(title)
                if name not in self.defined:
                    raise ModuleError(f"a result overwrites {shown(title)}, which is no input")
                assert name is not None
                updates[position] = name
            elif kind not in _RESULTS:
                raise ModuleError(f"a result of kind {shown(kind)}, which is not read")
        return updates

    def _distribution(self) -> tuple[int | None, dict[str, tuple[int, ...]]]:
        """The rank and process groups, where `extra/dist.json` records them."""
        if "extra/dist.json" not in self.archive:
            return None, {}
        record = self.archive.read_json("extra/dist.json")
        rank = record.get("rank") if isinstance(record, dict) else None
        groups = {}
        for name, members in member(record, "groups", dict).items():
            if not isinstance(members, list) or not all(type(rank) is int and rank >= 0 for rank in members):
                raise ModuleError(f"the members of group {shown(str(name))} are not ranks")
            groups[str(name)] = tuple(members)
        return rank if type(rank) is int else None, groups


def _overwritten(results: Sequence[object]) -> frozenset[str]:
    """The model's names of the buffers that the program writes to."""
    entries = [variant(spec) for spec in results]
    return frozenset(
        member(content, "buffer_name", str) for kind, content in entries if kind == "buffer_mutation"
    )


def _is_keyword(part: object, target: str) -> bool:
    kind = part.get("kind") if isinstance(part, dict) else None
    return kind == 2 or (kind != 1 and "." in target)


def _target(target: str) -> str:
    if target.startswith("torch.ops."):
        return operator(target).name
    module, _, function = target.rpartition(".")
    if module in ("_operator", "operator") and function in OPERATOR_FUNCTIONS:
        return function
    if module == "torch" and function in SYMBOLIC_FUNCTIONS:
        return function
    if module == "math" and function in MATH_FUNCTIONS:
        return f"math.{function}"
    raise ModuleError(f"a call of {shown(target)}, which is no operator torch.ops.*")
