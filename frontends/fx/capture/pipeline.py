"""Pipeline schedules of `torch.distributed.pipelining`, which ask other ranks for shapes before they run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_ASKS: Final = "_warmup_p2p"


@contextmanager
def fixed_shapes() -> Iterator[None]:
    """Let stages take the shapes that they were made with, instead of a vote among ranks that never talk."""
    name = "torch.distributed.pipelining.schedules"
    schedules: Any = sys.modules.get(name) or importlib.import_module(name)
    undo = []
    kinds: list[Any] = list(vars(schedules).values())
    for kind in kinds:
        if isinstance(kind, type) and _ASKS in vars(kind):
            undo.append((kind, vars(kind)[_ASKS]))
            setattr(kind, _ASKS, _static)
    try:
        yield
    finally:
        for kind, original in undo:
            setattr(kind, _ASKS, original)


def _static(self: Any, stages: Any, has_backward: bool, done: Any) -> None:
    from torch.distributed.pipelining._utils import InferenceMode

    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC
