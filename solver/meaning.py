"""The meaning of custom operators: uses that a definition describes are written out, once, after reading.

What is left opaque although its name is known says why in the module's warnings (soundness L9).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardproof.ir.module import Module, Op, Value
from shardproof.passes.spell_out import spelled_alike
from shardproof.solver.verdict import Assumption

if TYPE_CHECKING:
    from shardproof.lemmas.load import Library
    from shardproof.lemmas.terms import Define, OpaqueDefine, Span

CUSTOM: Final = frozenset({"custom_call", "opaque"})
"""Operators that only have a name."""


@dataclass(frozen=True, slots=True)
class Meant:
    """A module without uses of defined operators, and the definitions by users that it rests on."""

    module: Module
    assumptions: tuple[Assumption, ...] = ()


def meant(modules: Sequence[Module], files: Sequence[str | Path] = ()) -> list[Meant]:
    """`modules` with the definitions of the library, the project, the packages and `files`.

    Two of them are spelled alike (`spelled_alike`). Reads no lemma file that mentions none of their
    operators. Raises LemmaError.
    """
    found = _meant(modules, files)
    if len(found) != 2:
        return found
    alike = spelled_alike(found[0].module, found[1].module)
    return [replace(m, module=module) for m, module in zip(found, alike, strict=True)]


def _meant(modules: Sequence[Module], files: Sequence[str | Path]) -> list[Meant]:
    names = {target_of(op) for m in modules for op in m.ops if op.opcode in CUSTOM}
    if not names:
        return [Meant(m) for m in modules]
    from shardproof.lemmas.load import defines_for

    library = defines_for(names, [Path(f) for f in files])
    return [defined(m, library) for m in modules]


def defined(module: Module, library: Library) -> Meant:
    """Every use of an operator that the library defines, written out.

    The values that the operators made keep their names and locations. A use that no definition of its name
    fits stays as it is.
    """
    known = {*library.defines, *library.opaques}
    if not any(op.opcode in CUSTOM and target_of(op) in known for op in module.ops):
        return Meant(module)
    from shardproof.lemmas.lower import Unmatched
    from shardproof.lemmas.lower_take import has_open_reads
    from shardproof.lemmas.terms import Define

    names = {i.name for i in module.inputs} | {v.name for op in module.ops for v in op.results}
    writing = _Writing(library, names)
    needed = {v.name for op in needed_ops(module) for v in op.results}
    ops: list[Op] = []
    warnings: list[str] = []
    assumptions: list[Assumption] = []
    for op in module.ops:
        target = target_of(op) if op.opcode in CUSTOM else None
        if target not in known:
            ops.append(op)
            continue
        try:
            made, statement = writing.write(op)
        except Unmatched as e:
            ops.append(op)
            warnings.append(str(e))
            continue
        ops += made
        if any(v.name in needed for v in op.results):
            if not _shipped(statement.span):
                assumptions.append(_assumption(op, statement))
            if isinstance(statement, Define) and has_open_reads(statement):
                text = f"the positions that `{op.result.name}` ({target}) reads lie within what it reads"
                assumptions.append(Assumption("ids_in_range", text, op.result.name))
    kept = [w for w in module.warnings if not _speaks_of(w, known)]
    return Meant(replace(module, ops=tuple(ops), warnings=(*kept, *warnings)), tuple(assumptions))


def needed_ops(module: Module) -> list[Op]:
    """The operators that some output depends on."""
    wanted = {o.value.name for o in module.outputs}
    found = []
    for op in reversed(module.ops):
        if any(v.name in wanted for v in op.results):
            wanted.update(v.name for v in op.operands)
            found.append(op)
    return found[::-1]


@dataclass(slots=True)
class _Writing:
    """Uses written out so far, by what decides how: statement, types and attributes."""

    statements: Library
    names: set[str]
    done: dict[Any, tuple[list[Op], Define | OpaqueDefine]] = field(default_factory=dict)

    def write(self, op: Op) -> tuple[list[Op], Define | OpaqueDefine]:
        """The operators that make the results of `op`, and the statement. Raises Unmatched."""
        attrs = _attributes(op)
        key = (
            target_of(op),
            tuple(v.type for v in op.operands),
            tuple(v.type for v in op.results),
            tuple(sorted((k, repr(v)) for k, v in attrs.items())),
        )
        found = self.done.get(key)
        if found is None:
            operands = tuple(Value(f"x{n}", v.type) for n, v in enumerate(op.operands))
            results = tuple(Value(f"y{n}", v.type) for n, v in enumerate(op.results))
            found = self.done[key] = self._lowered(op, operands, attrs, results)
        template, statement = found
        return self._renamed(template, op), statement

    def _lowered(
        self, op: Op, operands: Sequence[Value], attrs: Mapping[str, Any], results: Sequence[Value]
    ) -> tuple[list[Op], Define | OpaqueDefine]:
        from shardproof.lemmas.lower import Unmatched, lower
        from shardproof.lemmas.lower_opaque import lower_opaque
        from shardproof.lemmas.terms import OpaqueDefine

        target = target_of(op)
        statements: list[Define | OpaqueDefine] = [*self.statements.defines.get(target, ())]
        if target in self.statements.opaques:
            statements.append(self.statements.opaques[target])
        reasons: dict[str, None] = {}
        for statement in statements:
            try:
                if isinstance(statement, OpaqueDefine):
                    return [lower_opaque(statement, operands, attrs, results)], statement
                return lower(statement, operands, attrs, results), statement
            except Unmatched as e:
                reasons[str(e)] = None
        own = _place(statements[0].span)
        what = f"`{op.result.name}` ({target}{_at(op)})" if op.results else f"`{target}`"
        why = "; ".join(reasons)
        raise Unmatched(f"{what} is kept opaque, {own} does not fit: {why}; add a define that fits")

    def _renamed(self, template: Sequence[Op], op: Op) -> list[Op]:
        """The operators with the operands and results of `op`, all else named after its first result."""
        values = {f"x{n}": v for n, v in enumerate(op.operands)}
        values |= {f"y{n}": v for n, v in enumerate(op.results)}
        made = []
        for inner in template:
            for v in inner.results:
                if v.name not in values:
                    values[v.name] = Value(self._name(op.result, v.name), v.type, op.location)
            operands = tuple(values[v.name] for v in inner.operands)
            results = tuple(values[v.name] for v in inner.results)
            made.append(Op(inner.opcode, operands, results, inner.attrs))
        return made

    def _name(self, result: Value, own: str) -> str:
        name = f"{result.name}.{own.partition('.')[2]}"
        while name in self.names:
            name += "'"
        self.names.add(name)
        return name


def target_of(op: Op) -> str:
    """The name of a custom operator."""
    return str(op.attrs["target"] if op.opcode == "custom_call" else op.attrs["name"])


def _attributes(op: Op) -> dict[str, Any]:
    """The attributes of a use by name; a `config` that is a JSON object holds those of a PyTorch operator."""
    if op.opcode != "custom_call":
        return {}
    attrs = dict(op.attrs)
    config = attrs.get("config")
    if isinstance(config, str) and config.startswith("{"):
        try:
            found = json.loads(config)
        except ValueError:
            return attrs
        if found.keys() & {"target", "config"}:
            return attrs
        del attrs["config"]
        attrs |= found
    return attrs


def _shipped(span: Span | None) -> bool:
    from shardproof.lemmas.sources import shipped

    return span is not None and span.file in map(str, shipped())


def _assumption(op: Op, statement: Define | OpaqueDefine) -> Assumption:
    given = {k: v for k, v in _attributes(op).items() if k != "target" and v != ""}
    settings = ", ".join(f"{k} {v!r}" for k, v in sorted(given.items()))
    what = f"`{statement.name}`" + (f" with {settings}" if settings else "")
    return Assumption("user_define", f"{what} means what {_place(statement.span)} says", op.result.name)


def _place(span: Span | None) -> str:
    return "its definition" if span is None else f"{Path(span.file).name}:{span.line}"


def _at(op: Op) -> str:
    place = op.location
    return "" if place is None or place.file is None else f", {place.file}:{place.line}"


def _speaks_of(warning: str, names: Iterable[str]) -> bool:
    """Whether an importer's warning says that one of these custom calls has no known meaning."""
    from shardproof.frontends.hlo.custom_calls import unknown_call

    return any(
        warning.startswith(unknown_call(name)) or f" ({name.replace('::', '.', 1)}) is kept opaque" in warning
        for name in names
    )
