"""HLO text to `HloModule`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from lark import Lark
from lark.exceptions import LarkError, UnexpectedInput, UnexpectedToken

from shardproof.frontends.hlo import text_values as read
from shardproof.frontends.hlo.elements import SPELLED, Shape, array_shape
from shardproof.frontends.hlo.instruction import (
    Alias,
    HloComputation,
    HloInstruction,
    HloModule,
    Key,
    complete_bitcast,
)
from shardproof.frontends.hlo.text_attributes import read_attributes
from shardproof.frontends.locate import Locator
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType, Frame, Location, TensorType

Node: TypeAlias = Any
"""A tree of the grammar; its rules say what its children are."""

_ARRAY: Final = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^}]*)\})?")
_METADATA: Final = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\{[^}]*\}|[^\s"}]+))')

_OWN_START: Final = frozenset(
    {"all-reduce", "all-gather", "collective-permute", "copy", "send", "recv", "async"}
)


@cache
def _grammar() -> Lark:
    text = (Path(__file__).parent / "hlo.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="contextual", maybe_placeholders=True)


def read_text(text: str, locator: Locator) -> HloModule:
    """HLO text as `HloModule`; raises `ModuleError` with the line for what is not HLO text."""
    try:
        tree = _grammar().parse(text)
    except UnexpectedInput as error:
        raise ModuleError(_syntax(text, error)) from None
    except LarkError as error:
        raise ModuleError(f"is not HLO text: {str(error).splitlines()[0]}") from None
    return _Reader(locator).module(tree)


def _syntax(text: str, error: UnexpectedInput) -> str:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return "HLO text ends too early: the file was cut short"
    lines = text.splitlines()
    line = lines[error.line - 1] if 0 < error.line <= len(lines) else ""
    column = max(error.column - 1, 0)
    found = line[column : column + 20].strip() or "the end of the line"
    return f"line {error.line}: {found!r} is not expected here in HLO text"


class _Reader:
    def __init__(self, locator: Locator) -> None:
        self.locator = locator
        self.shapes: dict[str, Shape] = {}
        self.sections: dict[str, dict[int, str]] = {}
        self.metadata: dict[str, Location | None] = {}
        self.frames: dict[int, Location | None] = {}
        self.wrapped: dict[Key, HloComputation] = {}

    def module(self, tree: Node) -> HloModule:
        name, header, *rest = tree.children
        attrs = _attributes(header)
        bodies: dict[Key, HloComputation] = {}
        entry: Key | None = None
        for node in rest:
            if node.data == "section":
                self.section(node)
        for node in rest:
            if node.data != "computation":
                continue
            body, is_entry = self.computation(node)
            if body.key in bodies:
                raise ModuleError(f"two computations have the name {body.name}")
            bodies[body.key] = body
            if is_entry:
                if entry is not None:
                    raise ModuleError("two computations are marked ENTRY")
                entry = body.key
        if entry is None:
            raise ModuleError("no computation is marked ENTRY")
        if attrs.get("is_dynamic") == "true":
            raise ModuleError("the module has dynamic dims, which are not supported")
        replicas = _count(attrs, "replica_count")
        partitions = _count(attrs, "num_partitions")
        return HloModule(
            name=str(name).removeprefix("%"),
            computations={**bodies, **self.wrapped},
            entry=entry,
            aliases=_aliases(attrs.get("input_output_alias", "")),
            replicas=replicas,
            partitions=partitions,
        )

    def section(self, node: Node) -> None:
        title, *entries = node.children
        rows = {int(e.children[0]): str(e.children[1]) for e in entries}
        self.sections[str(title)] = rows

    def computation(self, node: Node) -> tuple[HloComputation, bool]:
        entry, name, _signature, *rest = node.children
        instructions: dict[Key, HloInstruction] = {}
        root: Key | None = None
        for child in rest:
            if child.data != "instruction":
                continue
            op = self.instruction(child)
            if op.key in instructions:
                raise ModuleError(f"two instructions have the name `{op.name}`")
            if op.opcode == "bitcast":
                op = complete_bitcast(op, instructions)
            instructions[op.key] = op
            if child.children[0] is not None:
                root = op.key
        if root is None:
            root = next(reversed(instructions))
        plain = str(name).removeprefix("%")
        return HloComputation(plain, plain, instructions, root), entry is not None

    def instruction(self, node: Node) -> HloInstruction:
        _root, name_token, shape_node, operation, attribute_node = node.children
        name = str(name_token).removeprefix("%")
        where = f"`{name}`"
        shape = self.shape(shape_node, where)
        raw = _attributes(attribute_node)
        literal = None
        number = 0
        operands: list[Key] = []
        if operation.data == "constant":
            opcode = "constant"
            if shape.type is None or shape.type.dtype is DType.TOKEN:
                raise ModuleError(f"{where} is a constant of type {shape}, which is not supported")
            literal = read.literal(str(operation.children[0])[len("constant(") : -1], shape.type, where)
        else:
            opcode = str(operation.children[0])
            for operand in operation.children[1:]:
                if operand is None:
                    continue
                if operand.data == "number":
                    if opcode != "parameter":
                        raise ModuleError(f"{where} has a number as operand of {opcode}")
                    number = int(operand.children[0])
                else:
                    operands.append(str(operand.children[-1]).removeprefix("%"))
        attrs, called = read_attributes(opcode, raw, where)
        if opcode == "parameter" and operands:
            raise ModuleError(f"{where} is a parameter without a number")
        op = HloInstruction(
            key=name,
            name=name,
            opcode=opcode,
            shape=shape,
            operands=tuple(operands),
            attrs=attrs,
            called=called,
            number=number,
            literal=literal,
            sharding=read.sharding(raw["sharding"]) if "sharding" in raw else None,
            annotated="sharding" in raw,
            location=self.location(raw.get("metadata")),
        )
        return self.desugared(op)

    def desugared(self, op: HloInstruction) -> HloInstruction:
        """`reduce-scatter-start` and the like are printed for an async-start of a wrapped computation."""
        base, _, stage = op.opcode.rpartition("-")
        if stage not in ("start", "update", "done") or base in _OWN_START:
            return op
        if stage != "start":
            return HloInstruction(
                op.key, op.name, f"async-{stage}", op.shape, op.operands, location=op.location
            )
        shape = op.shape
        if shape.type is not None or len(shape.parts) < 2 or shape.parts[0].type is not None:
            raise ModuleError(f"`{op.name}` is declared as {shape}, (operands, result, ...) is needed")
        inputs = shape.parts[0].parts
        if len(inputs) != len(op.operands):
            raise ModuleError(f"`{op.name}` has {len(op.operands)} operands, its type lists {len(inputs)}")
        key = f"{op.name}.wrapped"
        parameters: dict[Key, HloInstruction] = {
            f"{key}.{k}": HloInstruction(f"{key}.{k}", f"{key}.{k}", "parameter", part, (), number=k)
            for k, part in enumerate(inputs)
        }
        inner = HloInstruction(
            key=f"{key}.root",
            name=op.name,
            opcode=base,
            shape=shape.parts[1],
            operands=tuple(parameters),
            attrs=op.attrs,
            called=op.called,
            location=op.location,
        )
        self.wrapped[key] = HloComputation(key, key, {**parameters, inner.key: inner}, inner.key)
        return HloInstruction(
            op.key, op.name, "async-start", shape, op.operands, called=(key,), location=op.location
        )

    def shape(self, node: Node, where: str) -> Shape:
        if node.data == "tuple":
            return Shape(
                None, tuple(self.shape(child, where) for child in node.children if child is not None)
            )
        text = str(node.children[0])
        found = self.shapes.get(text)
        if found is None:
            found = self.shapes[text] = _array(text, where)
        return found

    def location(self, metadata: str | None) -> Location | None:
        if metadata is None:
            return None
        if metadata not in self.metadata:
            self.metadata[metadata] = self._location(metadata)
        return self.metadata[metadata]

    def _location(self, metadata: str) -> Location | None:
        fields = {key: (quoted, bare) for key, quoted, bare in _METADATA.findall(metadata)}
        frame = fields.get("stack_frame_id", ("", ""))[1]
        if frame.isascii() and frame.isdigit():
            number = int(frame)
            if number not in self.frames:
                self.frames[number] = self.locator.from_frames(self._stack(number))
            return self.frames[number]
        file = read.unescape(fields.get("source_file", ("", ""))[0])
        line = fields.get("source_line", ("", ""))[1]
        if not file:
            return None
        return self.locator.from_text(file, int(line) if line.isascii() and line.isdigit() else 0)

    def _stack(self, number: int) -> list[Frame]:
        stack = {n: _numbers(row) for n, row in self.sections.get("StackFrames", {}).items()}
        places = self.sections.get("FileLocations", {})
        offset = 1 if any(row.get("parent_frame_id") == n for n, row in stack.items()) else 0
        frames: list[Frame] = []
        seen: set[int] = set()
        while number in stack and number not in seen:
            seen.add(number)
            row = stack[number]
            place = _numbers(places.get(row.get("file_location_id", 0), ""))
            file = self.sections.get("FileNames", {}).get(place.get("file_name_id", 0))
            function = self.sections.get("FunctionNames", {}).get(place.get("function_name_id", 0))
            if file is not None:
                known = read.unquoted(function) if function is not None else None
                frames.append(Frame(read.unquoted(file), place.get("line", 0), known))
            number = row.get("parent_frame_id", 0) - offset
        return frames[::-1]


def _numbers(row: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"(\w+)=([0-9]{1,9})\b", row)}


def _attributes(node: Node) -> dict[str, str]:
    found: dict[str, str] = {}
    for attribute in node.children:
        if attribute is None:
            continue
        key, value = attribute.children
        if str(key) in found:
            raise ModuleError(f"the attribute {key} is given twice")
        found[str(key)] = "" if value is None else str(value)
    return found


def _count(attrs: Mapping[str, str], key: str) -> int | None:
    if key not in attrs:
        return None
    count = read.integer(key, attrs[key], "the module")
    if count < 1:
        raise ModuleError(f"the module has {key}={count}")
    return count


def _array(text: str, where: str) -> Shape:
    match = _ARRAY.fullmatch(text)
    if match is None:
        raise ModuleError(f"{where} has the type {text}, which is not understood")
    element, inner, layout_text = match.groups()
    dtype = SPELLED.get(element)
    if dtype is None:
        raise ModuleError(f"{where} has the element type {element}, which is not supported")
    if dtype is DType.TOKEN:
        return Shape(TensorType(dtype, ()))
    if "<=" in inner or "?" in inner:
        raise ModuleError(f"{where} has a dynamic dim in {text}, which is not supported")
    dims = read.numbers(inner)
    layout, physical = None, True
    if layout_text is not None:
        order, _, tiling = layout_text.partition(":")
        if order.strip() or not dims:
            layout = read.numbers(order)
        physical = "T(" not in tiling
    return array_shape(dtype, dims, layout, where, physical=physical)


def _aliases(text: str) -> tuple[Alias, ...]:
    if not text:
        return ()
    entry = re.compile(r"\{([0-9,\s]*)\}:\s*\(([0-9]{1,9}),\s*\{([0-9,\s]*)\}(?:,\s*(?:may|must)-alias)?\)")
    inner = text.strip()[1:-1]
    if re.sub(r"[\s,]", "", entry.sub("", inner)):
        raise ModuleError(f"input_output_alias={text[:60]} is not understood")

    return tuple(Alias(read.numbers(m[1]), int(m[2]), read.numbers(m[3])) for m in entry.finditer(inner))
