"""The progress bar appears only at a terminal, only after its delay, and leaves nothing behind."""

from __future__ import annotations

import io
import sys
import time

import pytest

from shardproof.tools.progress import PhaseBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, delay: float, work: float) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    with PhaseBar(delay=delay) as bar:
        bar.report("load", 0.1)
        deadline = time.monotonic() + work
        while time.monotonic() < deadline and "sweep" not in stream.getvalue():
            bar.report("sweep [3/4]", 0.5)
            time.sleep(0.01)
    return stream.getvalue()


def test_a_long_run_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sweep [3/4]" in shown(monkeypatch, Terminal(), delay=0.0, work=10.0)


def test_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Terminal(), delay=60.0, work=0.02) == ""


def test_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO(), delay=0.0, work=0.1) == ""


def test_an_error_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = PhaseBar(delay=60.0)
    with pytest.raises(RuntimeError), bar:
        raise RuntimeError
    bar._timer.join(timeout=5)
    assert not bar._timer.is_alive()
