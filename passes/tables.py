"""Closed real terms that agree with a literal table up to the rounding of its type, and literal tables that
agree up to a tolerance (soundness A6).

Only in a store that reads rounded literals; each use is listed as an assumption.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from shardproof.ir.types import DType
from shardproof.passes.classes import Store, Term

LIMIT: Final = 1 << 18
"""Most elements of a table that is compared by value."""
TOLERANCE: Final = 1e-6
"""By how much, relative to its value, each element of two literal tables may differ."""


def meet(store: Store, t: Term, dtype: DType | None = None) -> Term:
    """`t`, or a term made before that has its values; one of the two is a literal of type `dtype`, or both.

    Literals pass their type, computed terms None. Values are compared at every element.
    """
    c = store.classes[t.cls]
    extents = tuple(n for n in c.extents if n is not None)
    if not (store.reading and c.closed and extents):
        return t
    if len(extents) != len(c.extents) or prod(extents) > LIMIT:
        return t
    values = _values(store, t)
    if values is None:
        return t
    for other, seen, own in store.tables.setdefault(extents, []):
        rounded = dtype if own is None else own if dtype is None else None
        if other.cls != t.cls and rounded is not None and _within_rounding(values, seen, rounded):
            store.assume(
                "literal_rounding",
                f"a {rounded.value} table of shape {list(extents)} holds the rounded values "
                "of the terms it replaces",
            )
            return Term(other.coef, other.cls, t.access)
        if other.cls != t.cls and own is not None and dtype is not None and _close(values, seen):
            store.assume(
                "constant_tolerance",
                f"two constant tables of shape {list(extents)} are one: "
                f"their elements differ by no more than {TOLERANCE:g} of their values",
            )
            return Term(other.coef, other.cls, t.access)
    store.tables[extents].append((Term(t.coef, t.cls, ()), values, dtype))
    return t


def _values(store: Store, t: Term) -> Any:
    from shardproof.passes.evaluate import Evaluation, EvaluationError

    try:
        values = float(t.coef) * np.asarray(Evaluation(store, {}).table(t.cls))
    except EvaluationError:
        return None
    return values if np.isfinite(values).all() else None


def _close(a: Any, b: Any) -> bool:
    """Whether each element is within the tolerance of the other's, zeros and signs alike."""
    return bool((np.abs(a - b) <= TOLERANCE * np.minimum(np.abs(a), np.abs(b))).all())


def _within_rounding(a: Any, b: Any, dtype: DType) -> bool:
    """Within half an ulp of the type, and a little for the evaluation in double precision."""
    slack = 2.0 ** -(dtype.mantissa + 1) + 2.0**-48
    return bool((np.abs(a - b) <= slack * np.maximum(np.abs(a), np.abs(b)) + 2.0**-60).all())
