"""FX code dumps, as `print_readable`, `TORCH_LOGS=aot_graphs` and tlparse write them, read as data.

A dump is a class with one method, `forward`, of one statement per line: a call of an operator, an item, a
number computed from sizes. Lines are parsed one at a time with `ast`, under limits, and nothing is run.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from shardproof.frontends.fx.code.lines import Frame, after_return, frame, logical, split_lines
from shardproof.frontends.fx.code.meta import location_of, shown, title_of
from shardproof.frontends.fx.code.scope import Scope
from shardproof.frontends.fx.code.statements import (
    Declared,
    Flattened,
    Line,
    Returned,
    annotation,
    parse,
    statement,
)
from shardproof.frontends.fx.graph import Argument, Graph, Meta, Node
from shardproof.ir.module import ModuleError
from shardproof.ir.types import Location

MAX_NODES: Final = 1_000_000


@dataclass(slots=True)
class Reading:
    """A dump that was read: its lines, what each did, and the names as they stood at each."""

    lines: list[str]
    effects: dict[int, Line]
    scope: Scope
    graph: Graph
    head: Frame
    metas: dict[str, Meta]


def read_code(text: str, source: str) -> Graph:
    """The graph that a dump writes. Raises `ModuleError`: file and line, what was found, what is needed."""
    return read(split(text, source), source).graph


def split(text: str, source: str) -> list[str]:
    """The lines of `text` as `read` takes them. Raises `ModuleError` beyond the limits."""
    try:
        return split_lines(text)
    except ModuleError as error:
        raise ModuleError(f"{source}: {error}") from None


def read(lines: list[str], source: str) -> Reading:
    """As `read_code`, of lines, keeping what is needed to read other ranks' dumps by their difference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Reader(lines, source).run()


@dataclass(slots=True)
class _Reader:
    lines: list[str]
    source: str
    line: int = 0
    scope: Scope = field(default_factory=Scope)
    nodes: list[Node] = field(default_factory=list)
    effects: dict[int, Line] = field(default_factory=dict)
    metas: dict[str, Meta] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    locations: dict[str, Location | None] = field(default_factory=dict)
    location: Location | None = None
    parameters: dict[str, Meta] = field(default_factory=dict)
    declared: dict[str, Meta] | None = None
    started: bool = False

    def run(self) -> Reading:
        try:
            head = frame(self.lines)
            self.line = head.def_line
            start = self._signature(head.def_line)
            outputs, end = self._body(start)
            after_return(self.lines, end)
        except ModuleError as error:
            text = str(error)
            if text[:1].isdigit():
                raise ModuleError(f"{self.source}:{text}") from None
            if text.startswith("holds "):
                raise ModuleError(f"{self.source}: {text}") from None
            raise ModuleError(f"{self.source}:{self.line + 1}: found {text}") from None
        self.nodes.append(Node("output", "output", "output", (outputs,)))
        constants = {node.target: None for node in self.nodes if node.op == "get_attr"}
        graph = Graph(
            head.name,
            tuple(self.nodes),
            outputs,
            self.source,
            head.rank,
            constants=constants,
            titles={name: title for name, title in self.titles.items() if name in self.parameters},
        )
        return Reading(self.lines, self.effects, self.scope, graph, head, self.metas)

    def _signature(self, index: int) -> int:
        _, end, text = next(logical(self.lines, index))
        for line in self.lines[index:end]:
            title = title_of(line) if "AOTInput" in line else None
            if title is not None:
                self.titles[title[0]] = title[1]
        tree = parse(text.strip() + " pass")
        if len(tree) != 1 or not isinstance(tree[0], ast.FunctionDef):
            raise ModuleError("something that isn't the signature of forward")
        signature = tree[0].args
        if signature.vararg or signature.kwarg or signature.kwonlyargs or signature.posonlyargs:
            raise ModuleError("a signature with * or /, named parameters are needed")
        if any(not isinstance(default, ast.Constant) for default in signature.defaults):
            raise ModuleError("a default value that is computed")
        if not signature.args or signature.args[0].arg != "self":
            raise ModuleError("a forward whose first parameter isn't self")
        for parameter in signature.args[1:]:
            meta = None if parameter.annotation is None else annotation(parameter.annotation, self.metas)
            self.parameters[parameter.arg] = meta
        return end

    def _body(self, start: int) -> tuple[Argument, int]:
        for index, end, text in logical(self.lines, start):
            stripped = text.strip()
            self.line = self.scope.line = index
            if not stripped:
                continue
            if stripped.startswith("#"):
                if stripped not in self.locations:
                    self.locations[stripped] = location_of(stripped)
                self.location = self.locations[stripped]
                continue
            outcome = self._line(stripped)
            if isinstance(outcome, Returned):
                return outcome.value, end
            if outcome is not None and end == index + 1:
                self.effects[index] = outcome
        raise ModuleError("the end of the file before the graph's return: the dump is cut off")

    def _line(self, text: str) -> Line | Returned | None:
        """Reads one logical line; None when it does more than make nodes and delete names."""
        trees = parse(text)
        is_plain = self.started
        if not self.started and not any(_is_unpacking(tree) or _is_declaration(tree) for tree in trees):
            self._start(None)
            is_plain = True
        count = len(self.nodes)
        deleted: list[str] = []
        for tree in trees:
            outcome = statement(tree, self.scope, self.location, self.metas)
            if isinstance(outcome, tuple):
                deleted.extend(outcome)
                continue
            if deleted:
                raise ModuleError("a statement behind deleted names, on the same line")
            if isinstance(outcome, Node):
                self.nodes.append(outcome)
            elif isinstance(outcome, Declared):
                self._declare(outcome)
            elif isinstance(outcome, Flattened):
                self._start(outcome.names)
            elif isinstance(outcome, Returned):
                return outcome
            else:
                is_plain = False
        if len(self.nodes) > MAX_NODES:
            raise ModuleError(f"more than {MAX_NODES} nodes")
        for name in deleted:
            self.scope.delete(name)
        return Line(count, tuple(self.nodes[count:]), tuple(deleted)) if is_plain else None

    def _declare(self, declared: Declared) -> None:
        if self.started:
            raise ModuleError(f"{shown(declared.name)} declared without a value among the statements")
        if self.declared is None:
            self.declared = {}
        if declared.name in self.declared:
            raise ModuleError(f"a second declaration of {shown(declared.name)}")
        self.declared[declared.name] = declared.meta

    def _start(self, unpacked: Sequence[str] | None) -> None:
        """Defines the parameters: those of the signature, or those unpacked from it."""
        if self.started:
            raise ModuleError("parameters unpacked after the first statement")
        if unpacked is None and self.declared is not None:
            raise ModuleError("parameters declared but never unpacked")
        self.started = True
        if unpacked is not None:
            if len(set(unpacked)) != len(unpacked):
                raise ModuleError("a parameter unpacked twice")
            known = self.declared or {}
            self.parameters = {name: known.get(name, self.parameters.get(name)) for name in unpacked}
        for name, meta in self.parameters.items():
            self.scope.define(name, line=0)
            self.nodes.append(Node(name, "placeholder", name, meta=meta))


def _is_unpacking(tree: ast.stmt) -> bool:
    return isinstance(tree, ast.Assign) and isinstance(tree.targets[0], ast.Tuple)


def _is_declaration(tree: ast.stmt) -> bool:
    return isinstance(tree, ast.AnnAssign) and tree.value is None
