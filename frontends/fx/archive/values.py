"""Values of an export archive's JSON: arguments, element types, symbolic expressions, stacks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from shardproof.frontends.fx.code.meta import MAX_ANNOTATION, MAX_EXTENT, shown, symbolic
from shardproof.frontends.fx.graph import Argument, Operator, Ref, Tensor
from shardproof.frontends.locate import frames_of
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType, Frame

SCALAR_TYPES: Final = {
    1: DType.U8,
    2: DType.S8,
    3: DType.S16,
    4: DType.S32,
    5: DType.S64,
    6: DType.F16,
    7: DType.F32,
    8: DType.F64,
    10: DType.C64,
    11: DType.C128,
    12: DType.BOOL,
    13: DType.BF16,
    28: DType.U16,
    29: DType.F8E4M3FN,
    30: DType.F8E5M2,
    31: DType.F8E4M3FNUZ,
    32: DType.F8E5M2FNUZ,
    34: DType.U32,
    35: DType.U64,
}
"""Element types by number in the schema."""

_FORMATS: Final = {
    1: "contiguous_format",
    2: "channels_last",
    3: "channels_last_3d",
    4: "preserve_format",
}
_LAYOUTS: Final = {1: "sparse_coo", 7: "strided"}
_FLOATS: Final = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
_INFIX: Final = {"Add": " + ", "Mul": "*"}
_FUNCTIONS: Final = frozenset(
    (
        *("Pow", "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv", "Rational", "Abs"),
        *("Eq", "Ne", "Equality", "Unequality", "And", "Or", "Not"),
        *("GreaterThan", "LessThan", "StrictGreaterThan", "StrictLessThan"),
    )
)
_LITERALS: Final = frozenset(("Integer", "Float", "Symbol"))

_T = TypeVar("_T")


def member(value: object, key: str, kind: type[_T]) -> _T:
    """`value[key]`, of the wanted type. Raises `ModuleError` when it isn't there."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
        raise ModuleError(f"{shown(key)} is missing or not of type {kind.__name__}")
    return found


def variant(value: object) -> tuple[str, object]:
    """The name and content of a tagged union, a dict of one entry."""
    if not isinstance(value, dict) or len(value) != 1:
        raise ModuleError("a value is not a union of one entry")
    ((key, content),) = value.items()
    return str(key), content


def named(value: object) -> Ref:
    return Ref(member(value, "name", str))


def argument(value: object) -> Argument:
    """The argument that a union of the schema holds. Raises `ModuleError` for a kind that isn't read."""
    key, content = variant(value)
    rule = _RULES.get(key)
    if rule is None:
        raise ModuleError(f"an argument of kind {shown(key)}, which is not read")
    return rule(content)


def _integer(content: object) -> int:
    if type(content) is not int or not -(1 << 63) <= content < 1 << 64:
        raise ModuleError(f"{shown(str(content))} is not an integer of 64 bits")
    return content


def _float(content: object) -> float:
    if isinstance(content, str) and content in _FLOATS:
        return _FLOATS[content]
    if type(content) not in (int, float):
        raise ModuleError(f"{shown(str(content))} is not a number")
    return float(content)  # type: ignore[arg-type]


def _bool(content: object) -> bool:
    if not isinstance(content, bool):
        raise ModuleError(f"{shown(str(content))} is not a bool")
    return content


def _string(content: object) -> str:
    if not isinstance(content, str):
        raise ModuleError("a string is expected")
    return content


def _none(content: object) -> None:
    return None


def _complex(content: object) -> complex:
    if not isinstance(content, dict):
        raise ModuleError("a complex number is expected")
    return complex(_float(content.get("real")), _float(content.get("imag")))


def _sequence(rule: Callable[[object], Argument]) -> Callable[[object], Argument]:
    def read(content: object) -> Argument:
        if not isinstance(content, list):
            raise ModuleError("a list is expected")
        return tuple(rule(part) for part in content)

    return read


def _symbolic(content: object) -> Argument:
    key, inner = variant(content)
    if key == "as_name":
        return Ref(_string(inner))
    return argument(content)


def scalar_type(content: object) -> DType:
    dtype = SCALAR_TYPES.get(content) if type(content) is int else None
    if dtype is None:
        raise ModuleError(f"element type {shown(str(content))}, which has no counterpart here")
    return dtype


def _word(table: Mapping[int, str], what: str) -> Callable[[object], str]:
    def read(content: object) -> str:
        word = table.get(content) if type(content) is int else None
        if word is None:
            raise ModuleError(f"{what} {shown(str(content))}, which is not read")
        return word

    return read


def device(content: object) -> str:
    kind = member(content, "type", str)
    index = content.get("index") if isinstance(content, dict) else None
    return kind if index is None else f"{kind}:{_integer(index)}"


def operator(content: object) -> Operator:
    name = _string(content)
    if not name.startswith("torch.ops.") or not 3 <= name.count(".") <= 4:
        raise ModuleError(f"{shown(name)}, which is no operator torch.ops.*")
    return Operator(name.removeprefix("torch.ops."))


_RULES: Final[dict[str, Callable[[object], Argument]]] = {
    "as_none": _none,
    "as_tensor": named,
    "as_tensors": _sequence(named),
    "as_nested_tensors": _sequence(_sequence(named)),
    "as_optional_tensor": argument,
    "as_optional_tensors": _sequence(argument),
    "as_int": _integer,
    "as_ints": _sequence(_integer),
    "as_int_lists": _sequence(_sequence(_integer)),
    "as_float": _float,
    "as_floats": _sequence(_float),
    "as_float_lists": _sequence(_sequence(_float)),
    "as_complex": _complex,
    "as_bool": _bool,
    "as_bools": _sequence(_bool),
    "as_string": _string,
    "as_strings": _sequence(_string),
    "as_sym_int": _symbolic,
    "as_sym_ints": _sequence(_symbolic),
    "as_sym_float": _symbolic,
    "as_sym_floats": _sequence(_symbolic),
    "as_sym_bool": _symbolic,
    "as_sym_bools": _sequence(_symbolic),
    "as_scalar_type": scalar_type,
    "as_memory_format": _word(_FORMATS, "memory format"),
    "as_layout": _word(_LAYOUTS, "layout"),
    "as_device": device,
    "as_operator": operator,
}


def tensor(meta: object) -> Tensor:
    """Element type and sizes of a tensor's metadata; strides and device are dropped."""
    dtype = scalar_type(meta.get("dtype") if isinstance(meta, dict) else None)
    return Tensor(dtype, tuple(extent(size) for size in member(meta, "sizes", list)))


def extent(value: object) -> int | str:
    """A size: a number that isn't negative, or a symbolic expression."""
    size = number(value)
    if isinstance(size, int) and not 0 <= size < MAX_EXTENT:
        raise ModuleError(f"extent {size}, which is out of range")
    return size


def number(value: object) -> int | str:
    """A symbolic integer, float or bool of the schema: its value, or its expression as dumps write it."""
    key, content = variant(value)
    if key == "as_int":
        return _integer(content)
    if key in ("as_bool", "as_float"):
        return str(content)
    if key == "as_expr":
        return expression(member(content, "expr_str", str))
    raise ModuleError(f"a symbolic number of kind {shown(key)}, which is not read")


def expression(text: str) -> str:
    """`2*s0 + 1` for `Add(Mul(Integer(2), Symbol('s0', positive=True)), Integer(1))`, without evaluating."""
    if len(text) > MAX_ANNOTATION or text.count("(") > 500:
        raise ModuleError(f"a symbolic expression of {len(text)} characters, which is not read")
    try:
        tree = ast.parse(text, mode="eval").body
        return symbolic(_written(tree, 0))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ModuleError(f"symbolic expression {shown(text)}, which is not read") from None


def _written(node: ast.expr, depth: int) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return str(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return f"-{_written(node.operand, depth + 1)}"
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or depth > 50:
        raise ModuleError("a symbolic expression with something else than calls of its functions")
    name = node.func.id
    if name in _LITERALS and len(node.args) == 1:
        inner = node.args[0]
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            if not inner.value.isidentifier() and name == "Symbol":
                raise ModuleError(f"the symbol {shown(inner.value)}, which is not a name")
            return inner.value
        return _written(inner, depth + 1)
    parts = [_written(part, depth + 1) for part in node.args]
    if name in _INFIX:
        return f"({_INFIX[name].join(parts)})" if depth else _INFIX[name].join(parts)
    if name == "FloorDiv" and len(parts) == 2:
        return f"({parts[0]}//{parts[1]})"
    if name in _FUNCTIONS:
        return f"{name}({', '.join(parts)})"
    raise ModuleError(f"the symbolic function {shown(name)}, which is not read")


def frames(metadata: object) -> Sequence[Frame]:
    """The stack that a node's metadata holds, outermost frame first."""
    trace = metadata.get("stack_trace") if isinstance(metadata, dict) else None
    if not isinstance(trace, str):
        return ()
    return frames_of(trace)
