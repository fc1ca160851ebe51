"""Literal tables that hold what the other program computes of constants, rounded at each step (soundness A6).

An exporter folds constants in the precision of the program: a table of cosines has the rounding errors of the
angles in it, which may be much larger than its own. Whole tensors are compared, only in a store that reads
rounded literals; each use is listed as an assumption.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from shardproof.ir.types import DType
from shardproof.passes.classes import Class, Store, Term
from shardproof.passes.evaluate import Evaluation, EvaluationError
from shardproof.passes.tables import LIMIT
from shardproof.passes.views import View

WIDE: Final = 20
"""Fewest bits of a significand: a few units in the last place of a narrow type are no rounding of a table."""
ULPS: Final = 4
"""By how many units in the last place an element may differ: libraries round functions differently."""
MANY: Final = 64
"""Most tensors of one shape that are looked at."""


def meet_computed(store: Store, view: View, literal: bool) -> View:
    """`view`, or a view made before of the same values; one of both is literal, the other computed of
    constants."""
    shape = tuple(n for n in view.shape if n > 1)
    closed = store.classes[view.term.cls].closed and bool(store.term_indices(view.term))
    wide = view.dtype.kind == "real" and view.dtype.mantissa >= WIDE
    if not (store.reading and wide and closed and prod(shape) <= LIMIT):
        return view
    made = store.computed.setdefault(shape, [])
    for _, other, told in made:
        if told is not literal and _agree(store, *((view, other) if literal else (other, view))):
            text = f"holds what the terms it replaces are when computed in {view.dtype.value}"
            store.assume("literal_rounding", f"a {view.dtype.value} table of shape {list(shape)} {text}")
            dims = iter(d for d in other.dims if d)
            own = tuple(next(dims) if n > 1 else () for n in view.shape)
            return View(other.term, own, view.shape, view.dtype)
    if len(made) < MANY:
        made.append((store.extent(), view, literal))
    return view


def _agree(store: Store, literal: View, computed: View) -> bool:
    if literal.dtype is not computed.dtype:
        return False
    told, found = _values(store, literal, literal.dtype), _values(store, computed, literal.dtype)
    if told is None or found is None:
        return False
    slack = ULPS * 2.0**-literal.dtype.mantissa
    return bool((np.abs(told - found) <= slack * np.minimum(np.abs(told), np.abs(found))).all())


def _values(store: Store, view: View, dtype: DType) -> Any:
    """The elements without dims of extent 1; None where not all are finite or they are not of constants."""
    try:
        values = np.squeeze(_Rounded(store, dtype).view(view, {}))
    except EvaluationError:
        return None
    return values if np.isfinite(values).all() else None


class _Rounded(Evaluation):
    """Evaluation in which every real is rounded to an element type."""

    def __init__(self, store: Store, dtype: DType) -> None:
        super().__init__(store, {})
        self.dtype = dtype

    def term(self, t: Term, at: Any) -> Any:
        value = super().term(t, at)
        return self._rounded(value) if self.store.kind(t) == "real" else value

    def _compute(self, c: Class) -> Any:
        value = super()._compute(c)
        return self._rounded(value) if c.kind == "real" else value

    def _rounded(self, value: Any) -> Any:
        return np.asarray(value).astype(self.dtype.storage).astype(np.float64)
