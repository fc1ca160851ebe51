"""Source lines of a program that was traced in this process: the user's, without the frames of the tracer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardproof.frontends.locate import Locator
from shardproof.ir.types import Frame, Location

_OWN: Final = f"{Path(__file__).parents[2]}/"


class TracedLocator(Locator):
    """Shows what the user's function called, not who asked for it to be traced."""

    def from_frames(self, frames: Sequence[Frame]) -> Location | None:
        own = max((n for n, frame in enumerate(frames) if frame.file.startswith(_OWN)), default=-1)
        return super().from_frames(frames[own + 1 :])
