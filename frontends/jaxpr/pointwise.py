"""Primitives that work element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.frontends.jaxpr.state import Equation, Lowering, Rule
from shardproof.ir.module import ModuleError, Value
from shardproof.ir.types import DType, TensorType

_DIRECTIONS: Final = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_OPAQUE: Final[Mapping[str, str]] = {
    "bessel_i0e": "bessel_i0e",
    "bessel_i1e": "bessel_i1e",
    "digamma": "digamma",
    "erf_inv": "erf_inv",
    "igamma": "igamma",
    "igammac": "igammac",
    "igamma_grad_a": "igamma_grad_a",
    "lgamma": "lgamma",
    "mulhi": "mulhi",
    "nextafter": "nextafter",
    "polygamma": "polygamma",
    "random_gamma_grad": "random_gamma_grad",
    "regularized_incomplete_beta": "regularized_incomplete_beta",
    "zeta": "zeta",
}
"""Functions of numbers that are known by name only."""


def fitted(state: Lowering, value: Value, type: TensorType) -> Value:
    """`value`, whose type must be the one declared; a wider or narrower declared one is converted to."""
    if value.type.shape != type.shape:
        raise ModuleError(f"gives {value.type}, {type} is declared")
    return state.convert(value, type.dtype)


def simple(opcode: str, count: int | None = None) -> Rule:
    """The operator of that name on operands of one type, scalars spread."""

    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        eqn.only()
        shape = eqn.result.shape
        whole = tuple(state.spread(x, shape) for x in operands)
        return (state.op(opcode, whole, eqn.result),)

    return rule


def opaque_pointwise(name: str) -> Rule:
    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        eqn.only()
        shape = eqn.result.shape
        whole = tuple(state.spread(x, shape) for x in operands)
        free = tuple(((d,) * len(whole), (d,)) for d in range(len(shape)))
        return state.opaque(name, whole, eqn.results, free)

    return rule


def _comparison(direction: str, *, total: bool = False) -> Rule:
    def rule(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
        eqn.only()
        shape = eqn.result.shape
        whole = tuple(state.spread(x, shape) for x in operands)
        ordered = total and whole[0].type.dtype.kind == "real"
        return (state.op("compare", whole, eqn.result, direction=direction, total=ordered),)

    return rule


def _convert(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("new_dtype")
    (x,) = operands
    if x.type.dtype.kind == "complex" and eqn.result.dtype.kind != "complex":
        raise ModuleError(f"converts {x.type} to {eqn.result}, which drops a part")
    return (state.convert(x, eqn.result.dtype),)


def _integer_pow(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("y")
    (x,), exponent = operands, int(eqn.params["y"])
    found: Value | None = None
    square, left = x, abs(exponent)
    while left:
        if left & 1:
            found = square if found is None else state.elementwise("multiply", found, square)
        left >>= 1
        if left:
            square = state.elementwise("multiply", square, square)
    one = state.constant(1, x.type.dtype, x.type.shape)
    if found is None:
        return (one,)
    return (found if exponent > 0 else state.elementwise("divide", one, found),)


def _multiply(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """A product in a wider type, if one is asked for, is that of the wider factors."""
    eqn.only("out_dtype")
    factors = (state.convert(state.spread(x, eqn.result.shape), eqn.result.dtype) for x in operands)
    return (state.op("multiply", tuple(factors), eqn.result),)


def _square(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    return (state.elementwise("multiply", operands[0], operands[0]),)


def _exp2(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    (x,) = operands
    return (state.elementwise("power", state.constant(2, x.type.dtype, x.type.shape), x),)


def _erfc(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    (x,) = operands
    one = state.constant(1, x.type.dtype, x.type.shape)
    return (state.elementwise("subtract", one, state.elementwise("erf", x)),)


def _atan(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    (x,) = operands
    if x.type.dtype.kind != "real":
        raise ModuleError(f"takes the angle of {x.type}, reals are known")
    return (state.elementwise("atan2", x, state.constant(1, x.type.dtype, x.type.shape)),)


def _conj(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("input_dtype")
    (x,) = operands
    if x.type.dtype.kind != "complex":
        raise ModuleError(f"conjugates {x.type}, which is no complex tensor")
    part = TensorType(DType.F64 if x.type.dtype is DType.C128 else DType.F32, x.type.shape)
    real, imag = state.op("real", (x,), part), state.op("imag", (x,), part)
    return (state.op("complex", (real, state.op("negate", (imag,), part)), x.type),)


def _round(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("rounding_method")
    method = int(eqn.params["rounding_method"])
    if method not in (0, 1):
        raise ModuleError(f"rounds by the method {eqn.params['rounding_method']}, which is not known")
    return (state.op("round_even" if method else "round_away", tuple(operands), eqn.result),)


def _pow(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    x, y = (state.spread(v, eqn.result.shape) for v in operands)
    if y.type.dtype is not x.type.dtype and y.type.dtype.kind in ("int", "uint", "bool"):
        y = state.convert(y, x.type.dtype)
    return (state.op("power", (x, y), eqn.result),)


def _clamp(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    return (state.op("clamp", tuple(operands), eqn.result),)


def _select(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only()
    which, *cases = operands
    if len(cases) == 1:
        return (cases[0],)
    return (chosen(state, which, cases),)


def chosen(state: Lowering, which: Value, cases: Sequence[Value]) -> Value:
    """The case of the number that `which` holds, in place or for all elements; bool chooses among two."""
    if which.type.dtype is DType.BOOL:
        if len(cases) != 2:
            raise ModuleError(f"chooses among {len(cases)} cases by {which.type}")
        return state.select(which, cases[1], cases[0])
    found = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        limit = state.constant(number, which.type.dtype, which.type.shape)
        found = state.select(state.compare("LE" if number == 0 else "EQ", which, limit), cases[number], found)
    return found


def _reduce_precision(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    eqn.only("exponent_bits", "mantissa_bits")
    (x,) = operands
    width = (int(eqn.params["exponent_bits"]), int(eqn.params["mantissa_bits"]))
    through = {(5, 10): DType.F16, (8, 7): DType.BF16, (8, 23): DType.F32, (11, 52): DType.F64}.get(width)
    if through is None:
        name = f"reduce-precision e{width[0]}m{width[1]}"
        free = tuple(((d,), (d,)) for d in range(len(x.type.shape)))
        return state.opaque(name, (x,), eqn.results, free)
    return (state.convert(state.convert(x, through), x.type.dtype),)


_SAME_NAME: Final = (
    *("abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan2", "atanh", "cbrt", "ceil", "clz"),
    *("complex", "cosh", "erf", "expm1", "floor", "imag", "is_finite", "log", "log1p", "logistic"),
    *("not", "or", "real", "rsqrt", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign"),
    *("sinh", "sqrt", "tan", "tanh", "xor"),
)
_OTHER_NAME: Final = {
    "add_any": "add",
    "cos": "cosine",
    "div": "divide",
    "exp": "exponential",
    "max": "maximum",
    "min": "minimum",
    "neg": "negate",
    "population_count": "popcnt",
    "rem": "remainder",
    "sin": "sine",
    "sub": "subtract",
}
"""Primitives that are an operator without attributes, by that operator's name."""


def _identity(state: Lowering, eqn: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    return tuple(operands)


SAME: Final = (
    "copy",
    "copy_p",
    "core_call_identity",
    "device_put",
    "layout_constraint",
    "mesh_cast",
    "name",
    "optimization_barrier",
    "pcast",
    "pvary",
    "reshard",
    "sharding_constraint",
    "stop_gradient",
    "with_memory_space_constraint",
)
"""Primitives that give their operands as they are: where values lie, and when, is XLA's to choose."""

RULES: Final[Mapping[str, Rule]] = {
    **{name: simple(name) for name in _SAME_NAME},
    **{name: simple(opcode) for name, opcode in _OTHER_NAME.items()},
    **{name: _comparison(direction) for name, direction in _DIRECTIONS.items()},
    **{f"{name}_to": _comparison(_DIRECTIONS[name], total=True) for name in ("eq", "le", "lt")},
    **{name: opaque_pointwise(text) for name, text in _OPAQUE.items()},
    **dict.fromkeys(SAME, _identity),
    "atan": _atan,
    "clamp": _clamp,
    "conj": _conj,
    "convert_element_type": _convert,
    "erfc": _erfc,
    "exp2": _exp2,
    "integer_pow": _integer_pow,
    "mul": _multiply,
    "pow": _pow,
    "reduce_precision": _reduce_precision,
    "round": _round,
    "select_n": _select,
    "square": _square,
}
