"""Locations of equations: what each nested trace recorded, put behind the call that made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shardproof.frontends.locate import WRAPPER_FILES, innermost, is_wrapper
from shardproof.ir.types import Frame, Location

_TRACER: Final = "jax/_src/interpreters/partial_eval.py"
_OWN: Final = ("shardproof/frontends/jaxpr/", "shardproof/jax_api.py", "shardproof/solver/")
"""Files of this project that trace for their caller."""


class Places:
    """Locations of the equations of one program; each recorded stack is read once."""

    def __init__(self, wrapper_files: Sequence[str] = WRAPPER_FILES) -> None:
        self._wrappers = (*wrapper_files, *_OWN)
        self._frames: dict[tuple[str, str, int], Frame | None] = {}
        self._own: dict[Any, tuple[Frame, ...]] = {}
        self._shown: dict[tuple[Location | None, tuple[Frame, ...]], Location | None] = {}

    def at(self, eqn: Any, outer: Location | None) -> Location | None:
        """Where `eqn` was written; `outer` is where the function that holds it was called.

        A function that is traced once and called often records the stack of its first call: only the frames
        inside of it count, behind those of its caller.
        """
        traceback = getattr(eqn.source_info, "traceback", None)
        if traceback is None:
            return outer
        own = self._own.get(traceback)
        if own is None:
            own = self._own[traceback] = self._inside(traceback)
        if not own:
            return outer
        key = (outer, own)
        if key not in self._shown:
            before = outer.stack if outer is not None else ()
            self._shown[key] = innermost((*before, *own), self._wrappers)
        return self._shown[key]

    def _inside(self, traceback: Any) -> tuple[Frame, ...]:
        """The user's frames inside of the innermost traced function, outermost first."""
        found: list[Frame] = []
        for frame in traceback.frames:
            file = frame.file_name
            if file.endswith(_TRACER) and "trace_to_jaxpr" in frame.function_name:
                break
            own = self._frame(file, frame.function_name, frame.line_num)
            if own is not None:
                found.append(own)
        found.reverse()
        return tuple(found)

    def _frame(self, file: str, function: str, line: int) -> Frame | None:
        key = (file, function, line)
        if key not in self._frames:
            self._frames[key] = None if is_wrapper(file, self._wrappers) else Frame(file, line, function)
        return self._frames[key]
