"""Python's cyclic garbage collector, kept from looking at a growing store over and over."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 1_000_000
"""New objects after which the collector runs, within `rare_collection`."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect seldom while a proof makes many objects, of which hardly any become garbage in cycles."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], YOUNG) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
