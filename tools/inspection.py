"""What `shardproof inspect` shows of a module: mesh, inputs, outputs, collectives, IR text."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from shardproof import __version__
from shardproof.ir.module import Module, Op
from shardproof.ir.text import to_text
from shardproof.solver.wording import escaped

COLLECTIVES: Final = frozenset(
    {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "collective_permute",
        "collective_broadcast",
    }
)

_DIMS: Final = ("dim", "split_dim", "concat_dim")


def inspection_json(module: Module) -> str:
    """One JSON object; `text` holds the IR, which is an input of every command."""
    form: dict[str, Any] = {
        "version": __version__,
        "name": module.name,
        "mesh": dict(module.mesh.axes),
        "ranks": module.mesh.size,
        "inputs": [
            {
                "name": item.name,
                "number": item.number,
                "type": str(item.value.type),
                "sharding": None if item.sharding is None else list(item.sharding),
            }
            for item in module.inputs
        ],
        "outputs": [
            {"name": item.name, "type": str(item.value.type), "updates": item.updates}
            for item in module.outputs
        ],
        "collectives": [_collective(op) for op in module.ops if op.opcode in COLLECTIVES],
        "instructions": len(module.ops),
        "opcodes": dict(sorted(Counter(op.opcode for op in module.ops).items())),
        "warnings": list(module.warnings),
        "guesses": [f"{guess.kind}: {guess.text}" for guess in module.guesses],
        "text": to_text(module),
    }
    return json.dumps(form, indent=2)


def inspection_text(module: Module) -> str:
    """A summary as comment lines, then the IR text: the whole is a valid `.spf` file."""
    lines = [
        f"{module.name}: {len(module.ops)} instructions, mesh {module.mesh}",
        f"inputs: {len(module.inputs)}",
        *(f"  p{item.number} {item.name}: {item.value.type}" for item in module.inputs),
        f"outputs: {len(module.outputs)}",
        *(f"  {item.name}: {item.value.type}{_updates(item.updates)}" for item in module.outputs),
    ]
    grouped = Counter(_described(op) for op in module.ops if op.opcode in COLLECTIVES)
    lines.append(f"collectives: {grouped.total() or 'none'}")
    lines += [f"  {count} x {described}" for described, count in grouped.items()]
    lines += [f"warning: {warning}" for warning in module.warnings]
    lines += [f"guess: {guess.kind}: {guess.text}" for guess in module.guesses]
    return "".join(f"# {escaped(line)}\n" for line in lines) + "\n" + to_text(module)


def _updates(name: str | None) -> str:
    return "" if name is None else f", updates {name}"


def _groups(op: Op) -> list[list[int]]:
    return [list(group) for group in op.attrs.get("groups", op.attrs.get("pairs", ()))]


def _described(op: Op) -> str:
    kind = f" {op.attrs['kind']}" if "kind" in op.attrs else ""
    dims = "".join(f" {name}={op.attrs[name]}" for name in _DIMS if name in op.attrs)
    groups = _groups(op)
    shown = ", ".join(map(str, groups[:4])) + (", ..." if len(groups) > 4 else "")
    return f"{op.opcode}{kind}{dims} over {shown or 'all ranks'}"


def _collective(op: Op) -> dict[str, Any]:
    location = op.location
    return {
        "value": op.result.name,
        "op": op.opcode,
        "kind": op.attrs.get("kind"),
        "groups" if op.opcode != "collective_permute" else "pairs": _groups(op),
        "file": None if location is None else location.file,
        "line": None if location is None else location.line,
    }
