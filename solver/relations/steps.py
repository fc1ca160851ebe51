"""Layout steps: the small language of relation files, parsed into dataclasses.

A layout is `source | step | step ...`; without a source the reference input of the same name or number
is meant. See docs/relations.md for the steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from shardproof.ir.module import ModuleError


class RelationError(ModuleError):
    """A relation file, or a layout in it, can't be used; the message is one line."""

    code = "E02"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `permute`, `slice`, `pad`, `repeat`, `shard`, `partial`, ... with its arguments."""

    name: str
    args: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Pattern:
    """An einops pattern: groups of axis names before and after `->`, and the given sizes."""

    before: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...]
    sizes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Steps applied to a source: a reference tensor's name, or None for the one of the same name."""

    source: str | None
    steps: tuple[Step | Pattern, ...]

    def __str__(self) -> str:
        source = [] if self.source is None else [quoted(self.source)]
        return " | ".join([*source, *map(show, self.steps)]) or "replicate"


KNOWN: Final = frozenset(
    {"permute", "concat", "slice", "pad", "repeat", "shard", "replicate", "partial", "ranks", "per_rank"}
)
SPELLINGS: Final = {"Shard": "shard", "Replicate": "replicate", "Partial": "partial"}
ARGUMENTS: Final = {
    "permute": ("the new order of all dims, as in permute(1, 0)", r"i+"),
    "concat": ("a dim and names of reference inputs, as in concat(0, k_proj, v_proj)", r"is+"),
    "slice": ("a dim, a start and a stop, as in slice(1, 0, 64)", r"iii"),
    "pad": ("a dim and the zeros before and after, as in pad(1, 0, 64)", r"iii"),
    "repeat": ("a dim, a count and perhaps a block, as in repeat(1, 4, block=64)", r"iii?"),
    "shard": ("a dim and perhaps mesh axes, as in shard(1, tp)", r"is*"),
    "replicate": ("no argument", r""),
    "partial": ("mesh axes or nothing, as in partial(tp)", r"s*"),
    "per_rank": ("no argument", r""),
    "ranks": ("a number for each rank, as in shard(0) | ranks(1, 0)", r"i+"),
}
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9.\-#/:]*")


def quoted(name: str) -> str:
    """A tensor's name as layouts write it: in quotes where it could be read as something else."""
    plain = _PLAIN.fullmatch(name) and name not in KNOWN and name not in SPELLINGS and name != "P"
    return name if plain else f"'{name}'" if '"' in name else f'"{name}"'


def show(step: Step | Pattern) -> str:
    """A step as relation files write it."""
    if isinstance(step, Pattern):
        sides = [
            " ".join(g[0] if len(g) == 1 else f"({' '.join(g)})" for g in side)
            for side in (step.before, step.after)
        ]
        return " -> ".join(sides) + "".join(f", {k}={v}" for k, v in step.sizes)
    args = [quoted(a) if isinstance(a, str) else str(a) for a in step.args]
    args += [f"{k}={v}" for k, v in step.named]
    return f"{step.name}({', '.join(args)})" if args else step.name


@cache
def parse(text: str) -> Layout:
    """The layout that `text` spells; RelationError says where it can't be read."""
    from shardproof.solver.relations.stage import Unreadable, read_stage

    source: str | None = None
    steps: list[Step | Pattern] = []
    for n, part in enumerate(_stages(text)):
        try:
            stage = read_stage(part)
        except Unreadable as e:
            where = f" at column {e.column}" if e.column is not None else ""
            raise RelationError(f"layout `{text}`: `{part.strip()}` can't be read{where}") from None
        if isinstance(stage, str):
            if n:
                raise RelationError(f"layout `{text}`: a name comes first, before the steps")
            source = stage
            continue
        if isinstance(stage, Step) and stage.name not in KNOWN and stage.name != "P":
            if n or stage.args or stage.named:
                names = ", ".join(sorted(KNOWN))
                raise RelationError(
                    f"layout `{text}`: there is no step `{stage.name}`; the steps are {names}"
                )
            source = stage.name
            continue
        for step in _spelled_out(stage, text):
            if isinstance(step, Step):
                _check(step, text)
                if step.name == "concat" and n == 0:
                    source, step = step.args[1], Step("concat", (step.args[0], *step.args[2:]))
            steps.append(step)
    return Layout(source, tuple(s for s in steps if isinstance(s, Pattern) or s.name != "replicate"))


def _check(step: Step, text: str) -> None:
    """The arguments of a step are as many and of the kinds that it takes."""
    wanted, kinds = ARGUMENTS[step.name]
    found = "".join("i" if isinstance(a, int) else "s" if isinstance(a, str) else "?" for a in step.args)
    named = dict(step.named)
    if step.name == "repeat" and len(step.args) == 2 and isinstance(named.get("block"), int):
        del named["block"]
    if named or len(dict(step.named)) < len(step.named) or not re.fullmatch(kinds, found):
        raise RelationError(f"layout `{text}`: `{show(step)}`: {step.name} takes {wanted}")


def _stages(text: str) -> list[str]:
    """The parts between the bars that stand outside of quotes."""
    parts, quote = [""], ""
    for c in text:
        quote = "" if c == quote else quote or (c if c in "\"'" else "")
        if c == "|" and not quote:
            parts.append("")
        else:
            parts[-1] += c
    if any(not p.strip() for p in parts):
        raise RelationError(f"layout `{text}`: an empty step")
    return parts


def _spelled_out(stage: Step | Pattern, text: str) -> list[Step | Pattern]:
    """JAX's `P(None, "tp")` as shard steps."""
    if isinstance(stage, Pattern) or stage.name != "P":
        return [stage]
    steps: list[Step | Pattern] = []
    for dim, axes in enumerate(stage.args):
        if axes is None:
            continue
        steps.append(Step("shard", (dim, *(axes if isinstance(axes, tuple) else (axes,)))))
    if stage.named:
        raise RelationError(f"layout `{text}`: `P` takes no named argument")
    return steps
