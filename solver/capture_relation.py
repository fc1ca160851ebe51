"""The relation file for a captured pair: what placements state, and what the user's file says."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shardproof.ir.module import Module, ModuleError
from shardproof.solver.captured import Captured


def aligned(reference: Module, implementation: Module) -> Module:
    """The implementation with inputs and results in the order of the reference's of the same names.

    Positions then mean the same as names. A name `n@RANK` counts as `n`; others come last.
    """
    inputs = [i.name for i in reference.inputs]
    results = [o.name for o in reference.outputs]
    taken = sorted(implementation.inputs, key=lambda i: _place(inputs, i.name))
    given = sorted(implementation.outputs, key=lambda o: _place(results, o.name))
    return replace(
        implementation,
        inputs=tuple(replace(i, number=k) for k, i in enumerate(taken)),
        outputs=tuple(given),
    )


def _place(names: list[str], name: str) -> int:
    base, mark, rank = name.rpartition("@")
    own = base if mark and rank.isdecimal() else name
    return names.index(own) if own in names else len(names)


def relation_text(reference: Captured, implementation: Captured, given: str | Path | None) -> str:
    """A relation file: the content of `given`, then layouts that the capture knows for names it leaves out.

    Raises ModuleError when `given` can't be read.
    """
    stated: dict[str, Any] = {} if given is None else _content(given)
    if implementation.is_joined:
        known = side_by_side(reference.module(), implementation.module())
    else:
        known = {"inputs": implementation.inputs(), "outputs": implementation.outputs()}
        if implementation.mesh.size > 1:
            stated.setdefault("mesh", dict(implementation.mesh.axes))
    for section, entries in known.items():
        table = stated.setdefault(section, {})
        if isinstance(table, dict):
            table |= {name: entry for name, entry in entries.items() if not _names(table, name)}
    return toml(stated)


def side_by_side(reference: Module, implementation: Module) -> dict[str, dict[str, str]]:
    """Layouts for a program that holds several ranks, whose names end in `@RANK`.

    An input of the reference's shape is that input; inputs that together fill the reference's along one dim
    are its parts in rank order.
    """
    wanted = {i.name: i.value.type.shape for i in reference.inputs}
    parts: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    inputs = {}
    for i in implementation.inputs:
        if wanted.get(i.name) == i.value.type.shape:
            inputs[i.name] = json.dumps(i.name)
        name, mark, number = i.name.rpartition("@")
        if mark and number.isdecimal() and name in wanted:
            parts.setdefault(name, []).append((int(number), i.value.type.shape))
    for name, held in parts.items():
        for place, (rank, shape) in enumerate(sorted(held)):
            cut = _cut(wanted[name], shape, place, len(held))
            if cut is not None:
                inputs[f"{name}@{rank}"] = f"{json.dumps(name)}{cut}" if cut else json.dumps(name)
    results = {o.name: o.value.type.shape for o in reference.outputs}
    outputs = {}
    for o in implementation.outputs:
        name, mark, number = o.name.rpartition("@")
        if mark and number.isdecimal() and results.get(name) == o.value.type.shape:
            outputs[o.name] = json.dumps(name)
    return {"inputs": inputs, "outputs": outputs}


def _cut(whole: tuple[int, ...], part: tuple[int, ...], place: int, count: int) -> str | None:
    if whole == part:
        return ""
    if len(whole) != len(part):
        return None
    dims = [d for d, (n, m) in enumerate(zip(whole, part, strict=True)) if n != m]
    if len(dims) != 1 or whole[dims[0]] != count * part[dims[0]]:
        return None
    size = part[dims[0]]
    return f" | slice({dims[0]}, {place * size}, {(place + 1) * size})"


def _names(table: Mapping[str, Any], name: str) -> bool:
    """Whether a key of the user's file may stand for the name."""
    return any(fnmatchcase(name, re.sub(r"\{[^}]*\}", "*", key)) for key in table)


def _content(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ModuleError(f"{path}: can't be read: {(error.strerror or str(error)).lower()}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModuleError(f"{path}: not TOML: {error}") from None


def toml(document: Mapping[str, Any]) -> str:
    """A document of tables as TOML."""
    plain = {k: v for k, v in document.items() if not isinstance(v, dict) or k.endswith("mesh")}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    for name, table in document.items():
        if name not in plain:
            lines += ["", f"[{_key(name)}]", *(f"{_key(k)} = {_value(v)}" for k, v in table.items())]
    return "\n".join(lines).strip() + "\n"


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
