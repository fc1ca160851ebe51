"""Which tensors of weight files the entries of a relation file speak of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from shardproof.solver.relations.relation import Segments, Spec
from shardproof.solver.relations.relation_file import LAYERS, Declared, built, fill, instances
from shardproof.solver.relations.steps import RelationError, Step, parse

MISSED: Final = 4
"""How many entries may mean no tensor, beside half of them, for a number of layers to be considered."""
_NUMBERED: Final = re.compile(r"(p\d+)\.\d+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One filled-in entry: the key, the tensor of the rank files that it means (if any), its layout.

    `source` is the reference tensor of which it is made, as the relation calls it.
    """

    key: str
    name: str | None
    spec: Spec
    source: str


class TensorNames:
    """Names of tensors in files, found as programs call them.

    A key means the tensor of that name; else all that match its pattern; else the one whose name a
    program spells that way: `p_layers_0_weight` is `layers.0.weight`, `p9.21` is `p9`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        self._exact = set(self.names)
        self._spelled: dict[str, list[str]] = {}
        for name in self.names:
            plain = re.sub(r"[^a-z0-9]", "_", name.lower())
            for prefix in "pbc":
                self._spelled.setdefault(f"{prefix}_{plain}", []).append(name)

    def find(self, key: str) -> list[str]:
        """The tensors that a key means, in the order of the files."""
        if key in self._exact:
            return [key]
        if any(c in key for c in "*?["):
            return [n for n in self.names if fnmatchcase(n, key)]
        number = _NUMBERED.fullmatch(key)
        if number is not None and number[1] in self._exact:
            return [number[1]]
        spelled = self._spelled.get(key.lower(), [])
        return spelled if len(spelled) == 1 else []

    def one(self, key: str) -> str | None:
        """The only tensor that a key means."""
        found = self.find(key)
        return found[0] if len(found) == 1 else None


@dataclass(slots=True)
class _Count:
    """What a number of layers makes of the entries."""

    found: set[str] = field(default_factory=set)
    missed: int = 0


def entries(declared: Declared, own: TensorNames, reference: TensorNames) -> list[Entry]:
    """The entries of `[inputs]`; RelationError for a tensor that two of them name."""
    layers = _layers(declared, own, reference)
    out: list[Entry] = []
    seen: dict[str, str] = {}
    for pattern, key, value, layer in instances(declared.inputs, layers):
        try:
            spec = built(value, layer, layers)
        except RelationError as e:
            raise RelationError(f"input `{pattern}`: {e}") from None
        found = own.find(key)
        for name in found:
            if name in seen:
                raise RelationError(f"input `{pattern}`: `{name}` is named by `{seen[name]}` too")
            seen[name] = pattern
            out.append(Entry(key, name, spec, source_of(spec) or name))
        if not found:
            out.append(Entry(key, None, spec, source_of(spec) or key))
    return out


def source_of(spec: Spec) -> str | None:
    """The reference tensor that a layout starts from, where it says so."""
    if spec.source is not None or not isinstance(spec, Segments):
        return spec.source
    return next((part.source for size, part in spec.parts if size is None and part.source), None)


def mentioned(entry: Entry) -> Iterator[str]:
    """The reference tensors that an entry reads, as the relation calls them."""
    yield entry.source
    layouts = [part for _, part in entry.spec.parts] if isinstance(entry.spec, Segments) else [entry.spec]
    for layout in layouts:
        if layout.source is not None:
            yield layout.source
        for step in layout.steps:
            if isinstance(step, Step) and step.name == "concat":
                yield from map(str, step.args[1:])


def _layers(declared: Declared, own: TensorNames, reference: TensorNames) -> int:
    """The number of layers for which the keys mean most tensors, of those the one that misses fewest."""
    if declared.layers is not None:
        return declared.layers
    if not any("{" in key for key in declared.inputs):
        return 0
    best: dict[int, tuple[int, int]] = {}
    for layers in range(1, min(LAYERS, len(own.names) + 1) + 1):
        count = _counted(declared, own, reference, layers)
        if count is not None and count.found:
            best[layers] = len(count.found), -count.missed
    if not best:
        raise RelationError("no number of layers fits the keys to the tensors: write layers = ...")
    top = max(best.values())
    fits = [layers for layers, score in best.items() if score == top]
    if len(fits) > 1:
        raise RelationError(f"{fits[0]} and {fits[1]} layers both fit the keys: write layers = {fits[0]}")
    return fits[0]


def _counted(declared: Declared, own: TensorNames, reference: TensorNames, layers: int) -> _Count | None:
    """None when a tensor is meant twice or too few keys mean one."""
    count = _Count()
    keys = list(instances(declared.inputs, layers))
    for _, key, value, layer in keys:
        found = [f"own {n}" for n in own.find(key)]
        source = reference.one(_source(value, layer, layers) or key)
        if not count.found.isdisjoint(found):
            return None
        count.found.update(found)
        if source is not None:
            count.found.add(f"reference {source}")
        if not found:
            count.missed += 1
            if count.missed > len(keys) // 2 + MISSED:
                return None
    return count


def _source(value: Any, layer: int, layers: int) -> str | None:
    if isinstance(value, str):
        return _named(fill(value, layer, layers))
    if value.get("source"):
        return fill(value["source"], layer, layers)
    texts = [fill(s["steps"], layer, layers) for s in value["segments"] if "steps" in s and "size" not in s]
    return next((name for name in map(_named, texts) if name is not None), None)


@lru_cache(maxsize=1 << 14)
def _named(text: str) -> str | None:
    """The tensor that a layout names first."""
    return parse(text).source
