"""Names of a dump while it is read: what each means, from which line to which line it lives."""

from __future__ import annotations

from typing import Final, Protocol

from shardproof.frontends.fx.code.meta import shown
from shardproof.frontends.fx.graph import Ref
from shardproof.ir.module import ModuleError

RESERVED: Final = frozenset(
    (
        *("self", "torch", "device", "inf", "nan", "infj", "nanj", "slice", "getattr", "math"),
        *("operator", "_operator", "fx_pytree", "pytree", "output"),
    )
)
"""Names that mean something else in a dump, so no value may take them (`output` names the result)."""

_FOREVER: Final = 1 << 62


class Names(Protocol):
    """The names in scope at one place of a dump."""

    def define(self, name: str, meaning: Ref | None = None) -> Ref: ...

    def use(self, name: str) -> Ref | None: ...


class Scope:
    """Every name is defined once and deleted at most once; a use in between is a use of its only value.

    Lines are numbers of logical lines of the dump. A deletion takes effect after its line.
    """

    def __init__(self) -> None:
        self._refs: dict[str, Ref] = {}
        self._born: dict[str, int] = {}
        self._dead: dict[str, int] = {}
        self.line = 0

    def define(self, name: str, meaning: Ref | None = None, line: int | None = None) -> Ref:
        """The value that `name` stands for from `line` (this one) on: its own, or that of `meaning`."""
        if name in self._refs:
            raise ModuleError(f"a second definition of {shown(name)}, every value needs a name of its own")
        if name in RESERVED or not name.isascii():
            raise ModuleError(f"a value named {shown(name)}, which is not a name for a value")
        ref = Ref(name) if meaning is None else meaning
        self._refs[name] = ref
        self._born[name] = self.line if line is None else line
        return ref

    def delete(self, name: str) -> None:
        if self.use(name) is None:
            raise ModuleError(f"{shown(name)} deleted, which nothing before defines")
        self._dead[name] = self.line

    def use(self, name: str) -> Ref | None:
        """The value of `name` at this line, None when nothing before defines it."""
        ref = self._refs.get(name)
        if ref is not None and self._dead.get(name, _FOREVER) < self.line:
            raise ModuleError(f"{shown(name)} used after it was deleted")
        return ref

    def use_before(self, name: str, line: int) -> Ref | None:
        """The value of `name` where `line` starts, once the whole dump was read."""
        is_alive = self._born.get(name, _FOREVER) < line <= self._dead.get(name, _FOREVER)
        return self._refs[name] if is_alive else None


class Replay:
    """The names at one line of a dump that was read, for another text of that line."""

    def __init__(self, scope: Scope, line: int) -> None:
        self._scope = scope
        self._line = line
        self._own: dict[str, Ref] = {}

    def define(self, name: str, meaning: Ref | None = None) -> Ref:
        if name in self._own:
            raise ModuleError(f"a second definition of {shown(name)}, every value needs a name of its own")
        self._own[name] = Ref(name) if meaning is None else meaning
        return self._own[name]

    def use(self, name: str) -> Ref | None:
        own = self._own.get(name)
        return self._scope.use_before(name, self._line) if own is None else own
