"""Locations of equations: what each nested trace recorded, put behind the call that made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shardproof.frontends.locate import WRAPPER_FILES, innermost, is_one_of, is_wrapper
from shardproof.ir.types import Frame, Location

_TRACER: Final = "jax/_src/interpreters/partial_eval.py"
_OWN: Final = ("shardproof/frontends/jaxpr/", "shardproof/jax_api.py", "shardproof/solver/")
"""Files of this project that trace for their caller."""


_Stacks = tuple[tuple[Frame, ...], tuple[Frame, ...]]


class Places:
    """Locations of the equations of one program; each recorded stack is read once.

    What is shown goes by the identity of the outer location, which is kept with it, and of the stacks.
    """

    def __init__(self, wrapper_files: Sequence[str] = WRAPPER_FILES) -> None:
        self._wrappers = (*wrapper_files, *_OWN)
        self._frames: dict[tuple[str, str, int], Frame | None] = {}
        self._stacks: dict[Any, _Stacks] = {}
        self._shown: dict[tuple[int, int], tuple[Location | None, Location | None]] = {}

    def at(self, eqn: Any, outer: Location | None) -> Location | None:
        """Where `eqn` was written; `outer` is where the function that holds it was called.

        A function that is traced once and called often records the stack of its first call: of a call
        elsewhere only the frames inside of it count, behind those of its caller.
        """
        traceback = getattr(eqn.source_info, "traceback", None)
        if traceback is None:
            return outer
        stacks = self._stacks.get(traceback)
        if stacks is None:
            stacks = self._stacks[traceback] = self._read(traceback)
        key = (id(outer), id(stacks))
        known = self._shown.get(key)
        if known is None:
            whole, inside = stacks
            before = outer.stack if outer is not None else ()
            called = whole[: len(before)] == before
            frames = whole if called else (*before, *inside)
            shown = innermost(frames, self._wrappers) if called or inside else outer
            known = self._shown[key] = (shown, outer)
        return known[0]

    def _read(self, traceback: Any) -> _Stacks:
        """The user's frames below those that trace for this project, and of these the ones inside of the
        innermost function that JAX traced by itself, outermost first."""
        found: list[Frame] = []
        inside: int | None = None
        for frame in traceback.frames:
            file = frame.file_name
            if is_one_of(file, _OWN):
                break
            if inside is None and file.endswith(_TRACER) and "trace_to_jaxpr" in frame.function_name:
                inside = len(found)
            own = self._frame(file, frame.function_name, frame.line_num)
            if own is not None:
                found.append(own)
        near = found[:inside] if inside is not None else found
        return tuple(found[::-1]), tuple(near[::-1])

    def _frame(self, file: str, function: str, line: int) -> Frame | None:
        key = (file, function, line)
        if key not in self._frames:
            self._frames[key] = None if is_wrapper(file, self._wrappers) else Frame(file, line, function)
        return self._frames[key]
