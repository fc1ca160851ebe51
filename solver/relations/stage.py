"""One stage of a layout, from text: the grammar is `steps.lark`.

Apart from `steps` because only runs that read a relation file need the parser.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Transformer, UnexpectedInput
from lark.exceptions import VisitError

from shardproof.solver.relations.steps import SPELLINGS, Pattern, Step


class Unreadable(Exception):
    """Text that is no stage; `column` (from 1) says where, if known."""

    def __init__(self, column: int | None) -> None:
        super().__init__(column)
        self.column = column


def read_stage(text: str) -> Step | Pattern | str:
    """The step, einops pattern or source name that `text` spells; raises Unreadable."""
    try:
        stage: Step | Pattern | str = _Build().transform(
            _parser().parse(text, start="pattern" if "->" in text else "begin")
        )
    except (UnexpectedInput, VisitError) as e:
        column = getattr(e, "column", None)
        raise Unreadable(column if isinstance(column, int) and column > 0 else None) from None
    return stage


@cache
def _parser() -> Lark:
    grammar = Path(__file__).with_name("steps.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="earley", start=["begin", "pattern"], maybe_placeholders=True)


class _Build(Transformer[Any, Any]):
    """Parse trees to steps."""

    def number(self, c: list[Any]) -> int:
        return int(c[0])

    def nothing(self, c: list[Any]) -> None:
        return None

    def string(self, c: list[Any]) -> str:
        return str(c[0])[1:-1]

    def several(self, c: list[Any]) -> tuple[Any, ...]:
        return tuple(x for x in c if x is not None)

    def word(self, c: list[Any]) -> str:
        return str(c[0])

    def source(self, c: list[Any]) -> str:
        return str(c[0])[1:-1]

    def arg(self, c: list[Any]) -> tuple[str | None, Any]:
        return (str(c[0]) if c[0] is not None else None, c[1])

    def stage(self, c: list[Any]) -> Step:
        name, args = c[0], [a for a in c[1:] if a is not None]
        return Step(
            SPELLINGS.get(name, name),
            tuple(v for k, v in args if k is None),
            tuple((k, v) for k, v in args if k is not None),
        )

    def name(self, c: list[Any]) -> tuple[str, ...]:
        return (str(c[0]),)

    def one(self, c: list[Any]) -> tuple[str, ...]:
        return ()

    def group(self, c: list[Any]) -> tuple[str, ...]:
        return tuple(n for item in c for n in item)

    def side(self, c: list[Any]) -> tuple[tuple[str, ...], ...]:
        return tuple(c)

    def pattern(self, c: list[Any]) -> Pattern:
        sizes = tuple((str(c[k]), int(c[k + 1])) for k in range(2, len(c), 2))
        return Pattern(c[0], c[1], sizes)
