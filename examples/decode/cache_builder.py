"""A builder of HLO programs that also writes into caches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder import RECORDED_AS, Builder, Tensor, pb

HERE = Path(__file__).resolve().parent
LLAMA = HERE.parent / "neuron_llama"

FRAMES = {LLAMA / name: shown for name, shown in RECORDED_AS.items()} | {
    HERE / "cache_builder.py": RECORDED_AS["builder.py"],
    HERE / "decoder.py": "examples/decode/decoder.py",
    HERE / "cache_variants.py": "examples/decode/cache_variants.py",
}
"""Which frames enter the metadata, and under which name."""


def _stack() -> str:
    """The Python stack as NeuronX writes it into an instruction's metadata."""
    frames: list[str] = []
    frame = sys._getframe(1)
    while frame is not None:
        shown = FRAMES.get(Path(frame.f_code.co_filename).resolve())
        if shown is not None:
            frames.append(f"{shown}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    frames.reverse()
    return f"{frames[0].rpartition(':')[0]}\n----\n{frames!r}"


class CacheBuilder(Builder):
    """A builder with the operators that write into a cache."""

    def _emit(self, *arguments: Any, **fields: Any) -> Tensor:
        made = super()._emit(*arguments, **fields)
        self._instructions[-1].metadata.source_file = _stack()
        return made

    def dynamic_update_slice(self, x: Tensor, update: Tensor, starts: Sequence[Tensor]) -> Tensor:
        """x with the block `update` at the scalar positions `starts`, which are clamped into x."""
        assert len(x.shape) == len(update.shape) == len(starts), (x, update)
        return self._emit("dynamic-update-slice", x.dtype, x.shape, (x, update, *starts))

    def scatter_rows(self, x: Tensor, positions: Tensor, update: Tensor, *, unique: bool = False) -> Tensor:
        """x with update[i] in place of the row at positions[i, :]; a row out of range is dropped."""
        count = positions.shape[1]
        numbers = pb.ScatterDimensionNumbers(
            update_window_dims=list(range(1, len(update.shape))),
            inserted_window_dims=list(range(count)),
            scatter_dims_to_operand_dims=list(range(count)),
            index_vector_dim=1,
        )
        return self._emit(
            "scatter",
            x.dtype,
            x.shape,
            (x, positions, update),
            scatter_dimension_numbers=numbers,
            unique_indices=unique,
            called_computation_ids=[self._overwrite(x.dtype)],
        )

    def _overwrite(self, dtype: str) -> int:
        """A computation that returns its second argument."""
        number = self._reducer("add", dtype, "scatter")
        body = self._reducers[-1]
        body.root_id = body.instructions[1].id
        del body.instructions[2]
        return number
