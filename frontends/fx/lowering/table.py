"""Every operator with a meaning here, and how the rest is told apart."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from shardproof.frontends.fx.lowering import (
    activations,
    collectives,
    contract,
    convolve,
    create,
    cuts,
    index,
    norms,
    pointwise,
    reduce,
    views,
)
from shardproof.frontends.fx.lowering.call import Table

TABLE: Final[Table] = {
    **pointwise.TABLE,
    **activations.TABLE,
    **views.TABLE,
    **cuts.TABLE,
    **create.TABLE,
    **reduce.TABLE,
    **contract.TABLE,
    **convolve.TABLE,
    **norms.TABLE,
    **index.TABLE,
    **collectives.TABLE,
}
"""Every operator with a meaning here, by its canonical name."""

IGNORED: Final = frozenset(
    {
        "aten._assert_scalar.default",
        "aten._assert_async.msg",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
"""Checks, which have no result."""
RANDOM: Final = re.compile(
    r"aten\.(rand|bernoulli|multinomial|normal|poisson|uniform|exponential|cauchy|geometric|log_normal|binomial"
    r"|rrelu|.*dropout|.*attention|empty|new_empty|resize|_philox)"
)
"""Operators that draw, which must not be taken for functions of their operands."""
NUMBERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        name: getattr(operator, name)
        for name in (
            "add",
            "sub",
            "mul",
            "floordiv",
            "mod",
            "neg",
            "pow",
            "truediv",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
        )
    },
    "sym_max": max,
    "sym_min": min,
    "sym_not": operator.not_,
    "sym_int": int,
    "sym_float": float,
}
ON_TENSORS: Final = {
    "add": "aten.add.Tensor",
    "sub": "aten.sub.Tensor",
    "mul": "aten.mul.Tensor",
    "truediv": "aten.div.Tensor",
    "floordiv": "aten.floor_divide.default",
    "mod": "aten.remainder.Tensor",
    "neg": "aten.neg.default",
    "matmul": "aten.matmul.default",
    **{name: f"aten.{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
"""Python's operators on tensors."""
