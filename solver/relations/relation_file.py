"""Relation files (TOML): reading, matching names with layer numbers, and writing."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, get_args

from shardproof.frontends.source import Initializers
from shardproof.ir.module import Module
from shardproof.ir.types import Mesh
from shardproof.solver.relations.relation import REPLICATE, Relation, Segments, Spec
from shardproof.solver.relations.steps import Layout, RelationError, Step, parse

Groups = tuple[tuple[int, ...], ...]
Constant = float | tuple[float, ...]
LAYERS: Final = 512
"""Most layers that a pattern with `{l}` is tried for."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A relation file, its names still patterns.

    `groups` and `constants` say what PyTorch dumps leave open: the ranks of process groups by name, and
    values of constants by name or pattern; those of a distributed reference are in `reference_groups`.
    `initializers` says which stored tensors of ONNX models are inputs.
    """

    mesh: Mesh | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, Any] = field(default_factory=dict)
    reference_outputs: Mapping[str, Any] = field(default_factory=dict)
    reference_mesh: Mesh | None = None
    layers: int | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    groups: Mapping[str, Groups] = field(default_factory=dict)
    reference_groups: Mapping[str, Groups] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    initializers: Initializers = "auto"


TABLES: Final = (
    "inputs",
    "outputs",
    "ranges",
    "reference",
    "reference_outputs",
    "groups",
    "reference_groups",
    "constants",
)
SECTIONS: Final = (*TABLES, "mesh", "reference_mesh", "layers", "initializers")


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


def told(relation: str | Path | Declared | None) -> Declared:
    """What a file, or its content, says; nothing without one."""
    if isinstance(relation, Declared):
        return relation
    return Declared() if relation is None else read(relation)


def _declared(data: Mapping[str, Any]) -> Declared:
    unknown = sorted(set(data) - {*SECTIONS})
    if unknown:
        raise RelationError(f"unknown section `{unknown[0]}`; a relation has {', '.join(sorted(SECTIONS))}")
    tables = {name: data.get(name, {}) for name in TABLES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise RelationError(f"`{name}` is a table of names")
    layers = data.get("layers")
    if layers is not None and (type(layers) is not int or not 0 <= layers <= LAYERS):
        raise RelationError(f"`layers` is a number from 0 to {LAYERS}")
    ranges = {}
    for name, pair in tables["ranges"].items():
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and all(type(x) is int for x in pair)
            and pair[0] < pair[1]
        ):
            raise RelationError(f"range of `{name}`: write [low, high] with low < high (exclusive)")
        ranges[name] = (pair[0], pair[1])
    return Declared(
        _mesh("mesh", data.get("mesh")),
        {k: _spec(k, v) for k, v in tables["inputs"].items()},
        {k: _spec(k, v) for k, v in tables["outputs"].items()},
        {k: _spec(k, v) for k, v in tables["reference"].items()},
        {k: _spec(k, v) for k, v in tables["reference_outputs"].items()},
        _mesh("reference_mesh", data.get("reference_mesh")),
        layers,
        ranges,
        {k: _group(k, v) for k, v in tables["groups"].items()},
        {k: _group(k, v) for k, v in tables["reference_groups"].items()},
        {k: _constant(k, v) for k, v in tables["constants"].items()},
        _initializers(data.get("initializers", "auto")),
    )


def _initializers(value: Any) -> Initializers:
    if value not in get_args(Initializers):
        raise RelationError(f"`initializers` is one of {', '.join(get_args(Initializers))}, not `{value}`")
    found: Initializers = value
    return found


def _mesh(name: str, data: Any) -> Mesh | None:
    if data is None:
        return None
    if not isinstance(data, dict) or not all(type(n) is int and n >= 1 for n in data.values()):
        raise RelationError(f"`{name}` is a table of axis sizes, as in {{ tp = 4 }}")
    return Mesh(tuple(data.items()))


def _group(name: str, value: Any) -> Groups:
    """Disjoint groups of ranks: one list of ranks, or a list of those."""
    several = isinstance(value, list) and bool(value) and all(isinstance(g, list) for g in value)
    groups = value if several else [value]
    if not all(isinstance(g, list) and g and all(type(r) is int and r >= 0 for r in g) for g in groups):
        raise RelationError(f"group `{name}`: write its ranks in order, as in [0, 1] or [[0, 1], [2, 3]]")
    ranks = [r for g in groups for r in g]
    if len(set(ranks)) != len(ranks):
        raise RelationError(f"group `{name}`: a rank is named twice")
    return tuple(map(tuple, groups))


def _constant(name: str, value: Any) -> Constant:
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(isinstance(n, int | float) for n in numbers):
        raise RelationError(f"constant `{name}`: write a number, a list of numbers, or true or false")
    return tuple(value) if isinstance(value, list) else value


def _spec(name: str, value: Any) -> Any:
    """A layout text, or segments, with `{...}` expressions still inside."""
    if isinstance(value, str):
        return value
    fits = isinstance(value, dict) and set(value) <= {"dim", "segments", "source"}
    segments = value.get("segments") if fits else None
    if (
        not isinstance(segments, list)
        or not segments
        or type(value.get("dim")) is not int
        or not isinstance(value.get("source", ""), str)
        or not all(map(_is_segment, segments))
    ):
        example = '{ dim = 1, segments = [{ size = 64, steps = "shard(1)" }] }'
        raise RelationError(f'`{name}`: write "source | step | ..." or {example}')
    if len({"size" in s for s in segments}) > 1:
        raise RelationError(f"`{name}`: give a size to every segment or to none")
    return value


def _is_segment(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and set(data) <= {"size", "steps"}
        and type(data.get("size", 1)) is int
        and isinstance(data.get("steps", ""), str)
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


def _uses(text: str, variable: str) -> bool:
    return any(re.search(rf"\b{variable}\b", hole) for hole in _HOLE.findall(text))


def instances(patterns: Mapping[str, Any], layers: int) -> Iterator[tuple[str, str, Any, int]]:
    """(pattern, name, value, layer) for every layer."""
    for pattern, value in patterns.items():
        each = _uses(pattern, "l")
        if not each and any(_uses(text, "l") for text in _texts(value)):
            raise RelationError(f"`{pattern}`: its layout depends on the layer `l`, the key does not")
        if not layers and any("{" in text for text in _texts(value)):
            raise RelationError(f"`{pattern}`: write layers = ..., no key has `{{l}}` or `{{L}}`")
        for layer in range(layers) if each else (0,):
            yield pattern, fill(pattern, layer, layers), value, layer


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, dict):
        return []
    return [value.get("source", ""), *(s.get("steps", "") for s in value["segments"])]


def built(value: Any, layer: int, layers: int) -> Spec:
    """A layout as a relation file writes it, its `{...}` put in."""
    if isinstance(value, str):
        return parse(fill(value, layer, layers))
    parts = tuple(
        (s.get("size"), parse(fill(s.get("steps", "replicate"), layer, layers))) for s in value["segments"]
    )
    source = value.get("source")
    return Segments(value["dim"], parts, fill(source, layer, layers) if source else None)


class Names:
    """Names in order, found by a filled-in key: the name, else its number (`p9`, `o0`), else a glob."""

    def __init__(self, names: Sequence[tuple[str, int]], letter: str) -> None:
        self.names = [name for name, _ in names]
        self._exact = set(self.names)
        self._numbered = {f"{letter}{number}": name for name, number in names}

    def find(self, key: str) -> list[str]:
        if key in self._exact:
            return [key]
        if key in self._numbered:
            return [self._numbered[key]]
        if any(c in key for c in "*?["):
            return [n for n in self.names if fnmatchcase(n, key)]
        return []

    def one(self, key: str, what: str) -> str:
        """The one name that `key` means; `what` is said when there are none or several."""
        found = self.find(key)
        if len(found) != 1:
            several = f", `{key}` is {len(found)} of them" if found else ""
            known = ", ".join(self.names[:4]) + (", ..." if len(self.names) > 4 else "")
            raise RelationError(f"{what} `{key}`{several} (it has {known})")
        return found[0]


def _inputs(module: Module) -> Names:
    return Names([(i.name, i.number) for i in module.inputs], "p")


def _outputs(module: Module) -> Names:
    return Names([(o.name, n) for n, o in enumerate(module.outputs)], "o")


def _layers(declared: Declared, inputs: Names, outputs: Names) -> int:
    """The number of layers for which the keys with `{l}` or `{L}` all mean something, and most of them."""
    if declared.layers is not None:
        return declared.layers
    if not any("{" in p for p in (*declared.inputs, *declared.outputs)):
        if any("{" in text for text in (*declared.ranges, *declared.reference, *declared.reference_outputs)):
            raise RelationError("`{l}` and `{L}` need `layers = ...` where no input or output key has them")
        return 0
    found: dict[int, int] = {}
    total = len(inputs.names) + len(outputs.names)
    for layers in range(1, min(LAYERS, total + 1)):
        hit = _hit(declared.inputs, inputs, layers)
        also = _hit(declared.outputs, outputs, layers) if hit is not None else None
        if hit is not None and also is not None:
            found[layers] = hit + also
    if not found:
        raise RelationError(
            f"no number of layers fits the keys with {{l}} and {{L}} to the {len(inputs.names)} inputs "
            f"and {len(outputs.names)} outputs"
        )
    best = [n for n, count in found.items() if count == max(found.values())]
    if len(best) > 1:
        raise RelationError(f"{best[0]} and {best[1]} layers both fit the keys: write layers = {best[0]}")
    return best[0]


def _hit(patterns: Mapping[str, Any], names: Names, layers: int) -> int | None:
    """How many names the keys mean, or None when one means none or a name is meant twice."""
    hit: set[str] = set()
    for _, name, _, _ in instances(patterns, layers):
        found = names.find(name)
        if not found or not hit.isdisjoint(found):
            return None
        hit.update(found)
    return len(hit)


def mentioned(patterns: Mapping[str, Any], module: Module) -> set[str]:
    """The inputs of a program that keys may mean, whatever the layer numbers are."""
    inputs = _inputs(module)
    return {name for key in patterns for name in inputs.find(_HOLE.sub("*", key))}


def resolve(declared: Declared, reference: Module, implementation: Module) -> Relation:
    """The declared layouts by actual name; inputs and outputs that no key names are left out."""
    own, whole = _inputs(implementation), _inputs(reference)
    own_out, whole_out = _outputs(implementation), _outputs(reference)
    layers = _layers(declared, own, own_out)
    inputs = _table("input", declared.inputs, layers, own, "the implementation has no input", whole)
    outputs = _table(
        "output", declared.outputs, layers, own_out, "the implementation has no output", whole_out
    )
    known, by_number = set(whole.names), {i.number: i.name for i in reference.inputs}
    sources = {}
    for i in implementation.inputs:
        if i.name in inputs:
            default = i.name if i.name in known else by_number.get(i.number, i.name)
            sources[i.name] = inputs[i.name].source or default
    for name, spec in outputs.items():
        if spec.source is not None:
            sources["output " + name] = spec.source
    ranges = {}
    types = {i.name: i.value.type for i in reference.inputs}
    for pattern, name, pair, _ in instances(declared.ranges, layers):
        found = whole.find(name)
        if not found:
            raise RelationError(f"range `{pattern}`: the reference has no input `{name}`")
        for n in found:
            if types[n].dtype.kind not in ("int", "uint"):
                raise RelationError(f"range `{pattern}`: `{n}` is {types[n]}, only integers have ranges")
            ranges[n] = pair
    return Relation(
        inputs,
        outputs,
        sources,
        _table("reference input", declared.reference, layers, whole, "the reference has no input", whole),
        _table(
            "reference output",
            declared.reference_outputs,
            layers,
            whole_out,
            "the reference has no output",
            whole_out,
        ),
        ranges,
    )


def _table(
    kind: str, patterns: Mapping[str, Any], layers: int, names: Names, missing: str, sources: Names
) -> dict[str, Spec]:
    """One section by actual name; the names of `sources` within layouts are put in by actual name too."""
    out: dict[str, Spec] = {}
    for pattern, key, value, layer in instances(patterns, layers):
        try:
            found = names.find(key) or [names.one(key, missing)]
            for name in found:
                if name in out:
                    raise RelationError(f"`{name}` is named by another key too")
                out[name] = _named(built(value, layer, layers), sources)
        except RelationError as e:
            raise RelationError(f"{kind} `{pattern}`: {e}") from None
    return out


def _named(spec: Spec, sources: Names) -> Spec:
    """A layout with the actual names of the reference tensors that it mentions."""
    missing = "the reference has no"
    if isinstance(spec, Segments):
        parts = tuple((size, _named_layout(layout, sources, missing)) for size, layout in spec.parts)
        source = spec.source or next((p.source for size, p in parts if size is None and p.source), None)
        return Segments(spec.dim, parts, None if source is None else sources.one(source, missing))
    return _named_layout(spec, sources, missing)


def _named_layout(layout: Layout, sources: Names, missing: str) -> Layout:
    steps = tuple(
        replace(s, args=(s.args[0], *(sources.one(a, missing) for a in s.args[1:])))
        if isinstance(s, Step) and s.name == "concat"
        else s
        for s in layout.steps
    )
    source = None if layout.source is None else sources.one(layout.source, missing)
    return Layout(source, steps)


def write(relation: Relation, mesh: Mesh, reference_mesh: Mesh | None = None) -> str:
    """The relation as the text of a file that declares it."""
    lines = ["# layouts of the implementation's inputs and outputs; review before use", ""]
    lines += [f"mesh = {_axes(mesh)}"]
    if reference_mesh is not None and reference_mesh.size > 1:
        lines += [f"reference_mesh = {_axes(reference_mesh)}"]
    sources = relation.sources
    lines += ["", "[inputs]"]
    lines += [f"{_quoted(n)} = {_toml(spec, sources.get(n, n), n)}" for n, spec in relation.inputs.items()]
    lines += ["", "[outputs]"]
    lines += [
        f"{_quoted(n)} = {_toml(spec, sources.get('output ' + n, n), n)}"
        for n, spec in relation.outputs.items()
    ]
    for title, table in (
        ("reference", relation.reference),
        ("reference_outputs", relation.reference_outputs),
    ):
        if any(spec != REPLICATE for spec in table.values()):
            lines += ["", f"[{title}]", *(f"{_quoted(n)} = {_toml(spec, n, n)}" for n, spec in table.items())]
    if relation.ranges:
        lines += ["", "[ranges]"]
        lines += [f"{_quoted(name)} = [{low}, {high}]" for name, (low, high) in relation.ranges.items()]
    return "\n".join(lines) + "\n"


def _axes(mesh: Mesh) -> str:
    return "{ " + ", ".join(f"{_quoted(name)} = {size}" for name, size in mesh.axes) + " }"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(spec: Spec, source: str, name: str) -> str:
    """A layout as TOML; `source` is written unless it is the default for `name`."""
    shown = None if source == name else source
    if isinstance(spec, Layout):
        return _quoted(str(replace(spec, source=shown)))
    parts = ", ".join(
        "{ " + (f"size = {size}, " if size is not None else "") + f"steps = {_quoted(str(layout))} }}"
        for size, layout in spec.parts
    )
    of = "" if shown is None else f"source = {_quoted(shown)}, "
    return f"{{ {of}dim = {spec.dim}, segments = [{parts}] }}"
