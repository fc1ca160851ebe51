"""A progress bar for runs that take more than a second at an interactive terminal."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

DELAY: Final = 1.0
"""Seconds before the bar appears."""


class PhaseBar:
    """Shows phase and fraction on stderr after DELAY seconds; silent when stderr is not a terminal.

    Use as a context manager; `report(phase, fraction)`, with 0 <= fraction <= 1, may come from any thread.
    The bar erases itself at the end.
    """

    def __init__(self, *, interactive: bool | None = None, delay: float = DELAY) -> None:
        self._interactive = sys.stderr.isatty() if interactive is None else interactive
        self._lock = threading.Lock()
        self._timer = threading.Timer(delay, self._start)
        self._timer.daemon = True
        self._phase, self._fraction = "starting", 0.0
        self._shown: tuple[Progress, TaskID] | None = None
        self._closed = False

    def report(self, phase: str, fraction: float) -> None:
        with self._lock:
            self._phase, self._fraction = phase, fraction
            if self._shown is not None:
                bar, task = self._shown
                bar.update(task, description=phase, completed=fraction)

    def __enter__(self) -> PhaseBar:
        if self._interactive:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._shown is not None:
                self._shown[0].stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._closed:
                return
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.start()
            task = bar.add_task(self._phase, total=1.0)
            bar.update(task, completed=self._fraction)
            self._shown = (bar, task)
