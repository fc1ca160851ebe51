"""Relation files (TOML): reading, matching names with layer numbers, and writing."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from shardproof.ir.module import Module
from shardproof.ir.types import Mesh
from shardproof.solver.relation import Relation, Segments, Spec
from shardproof.solver.steps import Layout, RelationError, parse

LAYERS: Final = 512
"""Most layers that a pattern with `{l}` is tried for."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A relation file, its names still patterns. Sections: mesh, inputs, outputs, ranges, reference."""

    mesh: Mesh | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, Any] = field(default_factory=dict)
    reference_mesh: Mesh | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)


SECTIONS: Final = {"mesh", "inputs", "outputs", "ranges", "groups", "constants", "reference", "reference_mesh"}


def read(path: str | Path) -> Declared:
    """The file's content, checked; RelationError says what is wrong."""
    try:
        with open(path, "rb") as f:
            data = tomllib.load(f)
    except OSError as e:
        raise RelationError(f"{path}: {(e.strerror or str(e)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise RelationError(f"{path}: not TOML: {e}") from None
    try:
        return _declared(data)
    except RelationError as e:
        raise RelationError(f"{path}: {e}") from None


def _declared(data: Mapping[str, Any]) -> Declared:
    unknown = sorted(set(data) - SECTIONS)
    if unknown:
        raise RelationError(f"unknown section `{unknown[0]}`; a relation has {', '.join(sorted(SECTIONS))}")
    tables = {}
    for name in ("inputs", "outputs", "ranges", "groups", "constants", "reference"):
        tables[name] = data.get(name, {})
        if not isinstance(tables[name], dict):
            raise RelationError(f"`{name}` is a table of names")
    ranges = {}
    for name, pair in tables["ranges"].items():
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(x) is int for x in pair) and pair[0] < pair[1]):
            raise RelationError(f"range of `{name}`: write [low, high] with low < high (exclusive)")
        ranges[name] = (pair[0], pair[1])
    return Declared(
        _mesh(data.get("mesh")),
        {k: _spec(k, v) for k, v in tables["inputs"].items()},
        {k: _spec(k, v) for k, v in tables["outputs"].items()},
        {k: _spec(k, v) for k, v in tables["reference"].items()},
        _mesh(data.get("reference_mesh")),
        ranges,
        tables["groups"],
        tables["constants"],
    )


def _mesh(data: Any) -> Mesh | None:
    if data is None:
        return None
    if not isinstance(data, dict) or not all(type(n) is int and n >= 1 for n in data.values()):
        raise RelationError("`mesh` is a table of axis sizes, as in { tp = 4 }")
    return Mesh(tuple(data.items()))


def _spec(name: str, value: Any) -> Any:
    """A layout text, or segments, with `{...}` expressions still inside."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(value) <= {"dim", "segments", "source"} and type(value.get("dim")) is int:
        segments = value.get("segments")
        if isinstance(segments, list) and segments:
            for s in segments:
                if not isinstance(s, dict) or not set(s) <= {"size", "steps", "name"} or type(s.get("size", 1)) is not int:
                    break
            else:
                if len({"size" in s for s in segments}) > 1:
                    raise RelationError(f"`{name}`: give a size to every segment or to none")
                return value
    raise RelationError(
        f'`{name}`: write "source | step | ..." or {{ dim = 1, segments = [{{ size = 64, steps = "shard(1)" }}] }}'
    )


_HOLE: Final = re.compile(r"\{([^{}]*)\}")


def fill(text: str, layer: int, layers: int) -> str:
    """`text` with its integer expressions over `l` and `L` put in."""
    return _HOLE.sub(lambda m: str(_integer(m.group(1), {"l": layer, "L": layers})), text)


def _integer(text: str, names: Mapping[str, int]) -> int:
    try:
        if len(text) > 200:
            raise ValueError
        return _value(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        raise RelationError(f"`{{{text}}}` is no integer expression over l and L") from None


def _value(node: ast.expr, names: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    if isinstance(node, ast.BinOp):
        a, b = _value(node.left, names), _value(node.right, names)
        if isinstance(node.op, ast.Add):
            return a + b
        if isinstance(node.op, ast.Sub):
            return a - b
        if isinstance(node.op, ast.Mult):
            return a * b
        if isinstance(node.op, ast.FloorDiv | ast.Div):
            return a // b
        if isinstance(node.op, ast.Mod):
            return a % b
    raise ValueError


def _instances(patterns: Mapping[str, Any], layers: int) -> Iterator[tuple[str, str, Any, int]]:
    """(pattern, name, value, layer) for every layer."""
    for pattern, value in patterns.items():
        uses_layer = any(re.search(r"\bl\b", hole) for hole in _HOLE.findall(pattern))
        for layer in range(layers) if uses_layer else (0,):
            yield pattern, fill(pattern, layer, layers), value, layer


def _built(value: Any, layer: int, layers: int) -> Spec:
    if isinstance(value, str):
        return parse(fill(value, layer, layers))
    parts = tuple(
        (s.get("size"), parse(fill(s.get("steps", "replicate"), layer, layers))) for s in value["segments"]
    )
    source = value.get("source")
    return Segments(value["dim"], parts, fill(source, layer, layers) if source else None)


def matching(pattern: str, name: str, number: int, letter: str) -> bool:
    """Whether a filled-in key of a relation file means this input (`p9`) or output (`o0`)."""
    return pattern == name or pattern == f"{letter}{number}" or any(c in pattern for c in "*?[") and fnmatchcase(name, pattern)


def _layers(declared: Declared, module: Module) -> int:
    """The number of layers for which the keys with `{l}` or `{L}` name each input at most once and all exist."""
    if not any("{" in p for p in (*declared.inputs, *declared.outputs, *declared.ranges)):
        return 0
    best: tuple[int, int] | None = None
    names = [(i.name, i.number) for i in module.inputs]
    for layers in range(1, LAYERS):
        hit: set[str] = set()
        fits = True
        for _, name, _, _ in _instances(declared.inputs, layers):
            found = [n for n, k in names if matching(name, n, k, "p")]
            if not found or any(n in hit for n in found):
                fits = False
                break
            hit.update(found)
        if fits and (best is None or len(hit) > best[0]):
            best = (len(hit), layers)
        if len(hit) >= len(names) and fits or 2 * layers > 4 * len(names):
            break
    if best is None:
        raise RelationError(f"no number of layers fits the names with {{l}} to the {len(names)} inputs")
    return best[1]


def resolve(declared: Declared, reference: Module, implementation: Module) -> Relation:
    """The declared layouts by actual name; inputs and outputs that no key names are left out."""
    layers = _layers(declared, implementation)
    inputs: dict[str, Spec] = {}
    outputs: dict[str, Spec] = {}
    sources: dict[str, str] = {}
    by_number = {i.number: i.name for i in reference.inputs}
    own_names = {i.name for i in reference.inputs}
    for pattern, name, value, layer in _instances(declared.inputs, layers):
        found = [i for i in implementation.inputs if matching(name, i.name, i.number, "p")]
        if not found:
            raise RelationError(f"input `{pattern}`: the implementation has no input `{name}`")
        for i in found:
            if i.name in inputs:
                raise RelationError(f"input `{i.name}` is named by two keys, the second is `{pattern}`")
            spec = _built(value, layer, layers)
            inputs[i.name] = spec
            if spec.source is None:
                sources[i.name] = i.name if i.name in own_names else by_number.get(i.number, i.name)
            else:
                sources[i.name] = _reference_name(spec.source, reference)
    for pattern, name, value, layer in _instances(declared.outputs, layers):
        matches = [o for n, o in enumerate(implementation.outputs) if matching(name, o.name, n, "o")]
        if not matches:
            raise RelationError(
                f"output `{pattern}`: the implementation has no output `{name}`; "
                f"name it or write o0, o1, ... (it has {', '.join(o.name for o in implementation.outputs[:4])})"
            )
        for o in matches:
            spec = _built(value, layer, layers)
            outputs[o.name] = spec
            if spec.source is not None:
                sources["output " + o.name] = _output_name(spec.source, reference)
    ranges = {}
    for pattern, name, pair, _ in _instances(declared.ranges, layers):
        found = [i for i in reference.inputs if matching(name, i.name, i.number, "p")]
        if not found:
            raise RelationError(f"range `{pattern}`: the reference has no input `{name}`")
        ranges.update((i.name, pair) for i in found)
    reference_specs = {}
    for pattern, name, value, layer in _instances(declared.reference, layers):
        for i in reference.inputs:
            if matching(name, i.name, i.number, "p"):
                reference_specs[i.name] = _built(value, layer, layers)
    return Relation(inputs, outputs, sources, reference_specs, {}, ranges)


def _reference_name(name: str, reference: Module) -> str:
    for i in reference.inputs:
        if matching(name, i.name, i.number, "p"):
            return i.name
    raise RelationError(f"the reference has no input `{name}`")


def _output_name(name: str, reference: Module) -> str:
    for n, o in enumerate(reference.outputs):
        if matching(name, o.name, n, "o"):
            return o.name
    raise RelationError(f"the reference has no output `{name}`")


def write(relation: Relation, mesh: Mesh) -> str:
    """The relation as the text of a file that declares it."""
    lines = ["# layouts of the implementation's inputs and outputs; review before use", ""]
    axes = ", ".join(f"{name} = {size}" for name, size in mesh.axes)
    lines += [f"mesh = {{ {axes} }}", "", "[inputs]"]
    lines += [f"{_quoted(name)} = {_toml(spec)}" for name, spec in relation.inputs.items()]
    if relation.reference:
        lines += ["", "[reference]"]
        lines += [f"{_quoted(name)} = {_toml(spec)}" for name, spec in relation.reference.items()]
    lines += ["", "[outputs]"]
    lines += [f"{_quoted(name)} = {_toml(spec)}" for name, spec in relation.outputs.items()]
    if relation.ranges:
        lines += ["", "[ranges]"]
        lines += [f"{_quoted(name)} = [{low}, {high}]" for name, (low, high) in relation.ranges.items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _toml(spec: Spec) -> str:
    if isinstance(spec, Layout):
        return _quoted(str(spec))
    parts = ", ".join(
        "{ " + (f"size = {size}, " if size is not None else "") + f"steps = {_quoted(str(layout))} }}"
        for size, layout in spec.parts
    )
    return f"{{ dim = {spec.dim}, segments = [{parts}] }}"
