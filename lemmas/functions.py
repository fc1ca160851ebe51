"""The named functions and binders of the lemma language, and the operators that they stand for.

`Apply` holds operands in the order of the operator table: `clamp(x, low, high)` is the operator
`clamp` of (low, x, high). Kinds: `real` functions take and give reals, `number` ones reals or ints,
all operands and the result of one kind; `bool` ones take and give bools. `select` and `convert` have
rules of their own in `shardproof.lemmas.typing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from shardproof.lemmas.terms import Direction, ReduceKind

Signature = Literal["real", "number", "bool", "select", "convert"]


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its spelling, operator and number of operands."""

    name: str
    op: str
    arity: int
    signature: Signature


_FUNCTIONS: Final = (
    Function("exp", "exponential", 1, "real"),
    Function("expm1", "expm1", 1, "real"),
    Function("log", "log", 1, "real"),
    Function("log1p", "log1p", 1, "real"),
    Function("sqrt", "sqrt", 1, "real"),
    Function("rsqrt", "rsqrt", 1, "real"),
    Function("cbrt", "cbrt", 1, "real"),
    Function("tanh", "tanh", 1, "real"),
    Function("sigmoid", "logistic", 1, "real"),
    Function("erf", "erf", 1, "real"),
    Function("sin", "sine", 1, "real"),
    Function("cos", "cosine", 1, "real"),
    Function("tan", "tan", 1, "real"),
    Function("atan2", "atan2", 2, "real"),
    Function("floor", "floor", 1, "real"),
    Function("ceil", "ceil", 1, "real"),
    Function("round_even", "round_even", 1, "real"),
    Function("round_away", "round_away", 1, "real"),
    Function("pow", "power", 2, "real"),
    Function("abs", "abs", 1, "number"),
    Function("sign", "sign", 1, "number"),
    Function("rem", "remainder", 2, "number"),
    Function("max", "maximum", 2, "number"),
    Function("min", "minimum", 2, "number"),
    Function("clamp", "clamp", 3, "number"),
    Function("xor", "xor", 2, "bool"),
    Function("where", "select", 3, "select"),
    Function("real", "convert", 1, "convert"),
)
FUNCTIONS: Final = {f.name: f for f in _FUNCTIONS}
"""Functions written `name(x, ...)`."""

SUGAR: Final = frozenset({"relu", "silu"})
"""`relu(x)` is `max(x, 0)`, `silu(x)` is `x*sigmoid(x)`."""

INFIX: Final[dict[str, Signature]] = {
    "add": "number",
    "subtract": "number",
    "multiply": "number",
    "divide": "real",
    "negate": "number",
    "and": "bool",
    "or": "bool",
    "not": "bool",
    "infinity": "real",
}
"""Operators with a sign or a keyword of their own; `infinity` is `inf`."""

SIGNATURES: Final[dict[str, Signature]] = {f.op: f.signature for f in _FUNCTIONS} | INFIX
ARITY: Final = (
    {f.op: f.arity for f in _FUNCTIONS}
    | {"negate": 1, "not": 1, "infinity": 0}
    | dict.fromkeys(("add", "subtract", "multiply", "divide", "and", "or"), 2)
)
SPELLING: Final = {f.op: f.name for f in _FUNCTIONS}

REDUCTIONS: Final[dict[str, ReduceKind]] = {
    "sum": "sum",
    "prod": "prod",
    "max": "max",
    "min": "min",
    "all": "and",
    "any": "or",
}
"""Binders `name[k](x)` that are commutative monoids."""

REDUCTION_SPELLING: Final = {kind: name for name, kind in REDUCTIONS.items()}

COMPARISONS: Final[dict[str, Direction]] = {
    "==": "EQ",
    "!=": "NE",
    "<": "LT",
    "<=": "LE",
    ">": "GT",
    ">=": "GE",
}
COMPARISON_SPELLING: Final = {direction: text for text, direction in COMPARISONS.items()}

KEYWORDS: Final = frozenset(
    {
        *("lemma", "assume", "define", "opaque", "when", "trigger", "claim", "not", "in", "and", "or"),
        *("finite", "distinct", "inf", "batched", "over", "true", "false"),
    }
)
RESERVED: Final = KEYWORDS | FUNCTIONS.keys() | REDUCTIONS.keys() | SUGAR | {"take", "mean"}
"""Words that name no index, no opaque binder, and in a lemma no metavariable."""
